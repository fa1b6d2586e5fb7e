"""Ray as this machine is to have it: alone, as a cluster's head, or as a node of one, if its head lets us in and runs
our version. Never imports ray."""

import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

from actors.head import Head, HeadError, start_head
from actors.ray_command import TUNING, HeadFiles, HeadSize, Reach, token_mode
from configs.cluster import ClusterRefused, read_cluster, read_token, token_file
from configs.places import WARM_WORKERS, DaemonPlace
from configs.version import VERSION

CONNECT_S = 5.0
ANNOUNCE_S = 15.0
"""How long a head may be there without a daemon that has announced itself: the gateway joins after Ray has started."""
_GREET_S = 30.0
_AGAIN_S = 0.5


async def start_as_told(place: DaemonPlace, environment: Mapping[str, str]) -> tuple[Head, dict[str, str]]:
    """What `thalia up` was told last, ready, and what to tell of it: `mode` (alone, head, node), and `cluster`, its
    head's address. Raises HeadError; then nothing of it is left."""
    files = HeadFiles(place.ray)
    try:
        cluster = read_cluster(place.state_folder)
        token = read_token(token_file(place.state_folder, cluster.join)) if cluster is not None else ""
    except ClusterRefused as error:
        raise HeadError(str(error)) from error
    size = HeadSize(workers=WARM_WORKERS)
    if cluster is None:
        return await _ready(await start_head(files, environment, size)), {"mode": "alone"}
    told = {"mode": "node" if cluster.join else "head", "cluster": cluster.address}
    if cluster.join:
        # To the jobs of others it offers nothing.
        size = HeadSize(workers=WARM_WORKERS, cpus=0, gpus=0)
        return await join_head(files, environment, size, Reach("", 0, cluster.address, token), thalia=False), told
    reach = Reach(cluster.host, cluster.port, token=token)
    return await _ready(await start_head(files, environment, size, reach)), told


async def join_head(
    files: HeadFiles, environment: Mapping[str, str], size: HeadSize, reach: Reach, *, thalia: bool
) -> Head:
    """A node that is ready. `thalia`: a daemon of the same version must be there, and not only Ray.

    Raises HeadError; then nothing of it is left."""
    await check_head(reach.head, reach.token, thalia=thalia)
    return await _ready(await start_head(files, environment, size, reach))


async def _ready(head: Head) -> Head:
    try:
        await head.wait_ready()
    except BaseException:
        await asyncio.shield(stop_head(head))
        raise
    return head


async def stop_head(head: Head) -> None:
    pids = head.pids
    await head.stop()
    reap(pids)


def reap(pids: Iterable[int]) -> None:
    """Orphans of Ray that ended: they are our children, where this process is a subreaper."""
    for pid in pids:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


async def check_head(address: str, token: str, *, thalia: bool, announce_s: float = ANNOUNCE_S) -> None:
    """Raises HeadError where the head does not answer, asks for no token or for another one, or differs in version."""
    if not await listens(address):
        raise HeadError(f"Nothing answers at {address}; see whether the head runs, and whether its ports are open.")
    with tempfile.TemporaryDirectory(prefix="thalia-") as folder:
        file = Path(folder) / "token"
        file.touch(mode=0o600)
        file.write_text(token)
        found, stranger = await asyncio.gather(
            _greet(address, token_mode(file)), _greet(address, {"RAY_AUTH_MODE": "disabled"})
        )
        if "refused" not in stranger:
            raise HeadError(f"Ray at {address} asks nobody for a token; start it with RAY_AUTH_MODE=token.")
        _check_answer(address, found)
        give_up = asyncio.get_running_loop().time() + announce_s
        while thalia and not found["thalia"] and asyncio.get_running_loop().time() < give_up:
            await asyncio.sleep(_AGAIN_S)
            _check_answer(address, found := await _greet(address, token_mode(file)))
    if thalia:
        _check_same(address, "thalia", found["thalia"], VERSION)


async def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, int(port))
    except OSError:
        # TimeoutError is one.
        return False
    writer.close()
    return True


async def _greet(address: str, token: Mapping[str, str]) -> dict[str, str]:
    """What actors.greeting says. Raises HeadError where it says nothing."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTHON"))}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-m", "actors.greeting", address),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**environment, **TUNING, "RAY_BACKEND_LOG_LEVEL": "fatal", **token},
    )
    try:
        async with asyncio.timeout(_GREET_S):
            told, _ = await process.communicate()
    except TimeoutError:
        raise HeadError(f"Ray at {address} does not answer within {_GREET_S:g} s; try again.") from None
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.shield(process.wait())
    try:
        return json.loads(told)
    except ValueError:
        raise HeadError(f"What answers at {address} is not Ray, or one of another version than {_ray()}.") from None


def _check_answer(address: str, found: Mapping[str, str]) -> None:
    """Raises HeadError."""
    if found.get("refused") == "AuthenticationError":
        raise HeadError(f"The head at {address} refuses the token; copy the one that `thalia up` names there.")
    if "refused" in found:
        raise HeadError(f"Ray at {address} does not answer ({found['refused']}); see whether it is the head.")
    _check_same(address, "Ray", found["ray"], _ray())
    _check_same(address, "Python", _minor(found["python"]), _minor(platform.python_version()))


def _check_same(address: str, what: str, there: str, here: str) -> None:
    """Raises HeadError."""
    if not there:
        raise HeadError(f"Ray answers at {address}, but no daemon is there; say `thalia up --cluster` on that machine.")
    if there != here:
        raise HeadError(f"The head at {address} runs {what} {there}, and this is {what} {here}; install the same here.")


def _ray() -> str:
    return version("ray")


def _minor(python: str) -> str:
    return ".".join(python.split(".")[:2])
