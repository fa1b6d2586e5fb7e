"""One Ray head of our own, or one node: started, watched and ended from a process that never imports ray.

All of its processes demand the token, and carry one random mark in their environment, by which they are found again
and ended, also by a later supervisor. Unless told otherwise they listen on 127.0.0.1 alone.
"""

import asyncio
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from actors.ray_command import (
    ALONE,
    FOLDER_BYTES,
    LOOPBACK,
    MARK_VARIABLE,
    TUNING,
    HeadFiles,
    HeadSize,
    Reach,
    head_command,
    head_environment,
    token_mode,
)
from processes import tree

Found = TypeVar("Found")

NAMESPACE = "thalia"
NOWHERE = "/proc/sys"
"""In place of HeadFiles.nowhere in a cluster: on every machine there, and nobody can put a file into it."""
START_S = 30.0
"""How long Ray may take to start; 1.2 s are usual, and many times that on a machine that is busy."""
NODE = ("start command", "raylet")
HEAD = (*NODE, "gcs_server")
"""Parts without which the rest is of no use."""
_LOOK_S = 1.0
"""Between looks at whether what was started still lives."""


class HeadError(Exception):
    """Ray could not be started or reached; the text is one sentence for a person."""


async def start_head(
    files: HeadFiles, environment: Mapping[str, str], size: HeadSize | None = None, reach: Reach = ALONE
) -> "Head":
    """Returns when its address is known (about 0.5 s); drivers can join after wait_ready(). A node comes about the same
    way, if `reach` names its head.

    What an earlier head left in the folder is ended first. Raises HeadError; then nothing is left running.
    """
    await asyncio.to_thread(end_head, files)
    mark = secrets.token_hex(12)
    _check_free(reach)
    _prepare(files, mark, reach.token or secrets.token_hex(32))
    size = size or HeadSize()
    with files.output.open("wb") as output:
        process = subprocess.Popen(  # noqa: ASYNC220 - returns at once, and is waited for through its pidfd
            head_command(files, size, reach),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=head_environment(environment, files, size, mark, reach),
            cwd=files.nowhere,
        )
    try:
        if reach.head:
            return Head(files, mark, reach.head, process, NODE)
        port = await _appears(files, process, lambda: _port(files))
        return Head(files, mark, f"{reach.host}:{port}", process)
    except BaseException:
        await asyncio.shield(asyncio.to_thread(end_head, files))
        process.wait()
        raise


class Head:
    """A running one. Belongs to the event loop it was made in."""

    def __init__(
        self,
        files: HeadFiles,
        mark: str,
        address: str,
        process: subprocess.Popen[bytes] | None,
        parts: Sequence[str] = HEAD,
    ) -> None:
        self.files, self.address = files, address
        self._mark, self._process, self._parts = mark, process, parts
        self._died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._watched: dict[str, int] = {}
        if process is not None:
            self._watch("start command", process.pid)

    @property
    def pids(self) -> list[int]:
        """All processes of it that live now, workers among them."""
        return marked(self._mark)

    async def wait_ready(self) -> None:
        """Returns when drivers can join. Raises HeadError where Ray ended before, or takes too long."""
        await _appears(self.files, self._process, lambda: _registered(self.files))
        # The oldest of a name: a worker is called raylet too, between its fork and its exec.
        found = {_name(pid): pid for pid in sorted(self.pids, key=tree.start_time, reverse=True)}
        for name in self._parts:
            if name not in found:
                raise HeadError(f"Ray's {name} ended as soon as it had started; try again.")
            self._watch(name, found[name])

    async def died(self) -> str:
        """Which process of it ended, in a sentence, as soon as one did; the head is of no use then."""
        return await asyncio.shield(self._died)

    async def leave(self, patience_s: float = 5.0) -> None:
        """As stop(), but a node tells its head first."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.died(), patience_s)
        await self.stop()

    async def stop(self) -> None:
        """Ends every process of it with SIGKILL and removes its files: what must be orderly is done before."""
        self._tell("Ray was stopped.")
        for fd in self._watched.values():
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)
        self._watched.clear()
        await asyncio.to_thread(end_head, self.files)
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)

    def _watch(self, name: str, pid: int) -> None:
        if name in self._watched:
            return
        text = f"Ray's {name} (process {pid}) ended."
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._tell(text)
            return
        self._watched[name] = fd
        asyncio.get_running_loop().add_reader(fd, self._ended, name, text)

    def _ended(self, name: str, text: str) -> None:
        # A descriptor of an ended process stays readable.
        asyncio.get_running_loop().remove_reader(self._watched[name])
        self._tell(text)

    def _tell(self, text: str) -> None:
        if not self._died.done():
            self._died.set_result(text)


def marked(mark: str) -> list[int]:
    """Living processes, this one left out, that carry the mark."""
    return tree.carriers(MARK_VARIABLE, mark)


def end_head(files: HeadFiles, patience_s: float = 5.0) -> None:
    """Ends what runs of the head that was last started in this folder, and removes its files. Blocks some ms.

    Raises HeadError where a process cannot be ended."""
    mark = _read_mark(files)
    left = tree.end_carriers(MARK_VARIABLE, mark, patience_s) if mark is not None else []
    if left:
        raise HeadError(f"Ray's process {left[0]} does not end; end it by hand, or restart the machine.")
    shutil.rmtree(files.ray, ignore_errors=True)
    for path in (files.output, files.token, files.mark):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        files.nowhere.rmdir()
        files.folder.rmdir()


def _check_free(reach: Reach) -> None:
    """Raises HeadError. gRPC shares a port with whoever shares it too, and would not say so."""
    for port in range(reach.port + bool(reach.head), reach.port + 4) if reach.port else ():
        try:
            with socket.socket(socket.AF_INET) as trial:
                trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind(("0.0.0.0", port))
        except OSError as error:
            raise HeadError(f"Port {port} of this machine is in use; choose other ports.") from error


def _prepare(files: HeadFiles, mark: str, token: str) -> None:
    if not files.folder.is_absolute() or len(os.fsencode(files.folder)) > FOLDER_BYTES:
        raise HeadError(f"Ray's folder {files.folder} must be an absolute path of at most {FOLDER_BYTES} bytes.")
    files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = files.folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise HeadError(f"The folder {files.folder} is open to others; remove it, or make it yours alone (mode 0700).")
    files.nowhere.mkdir(mode=0o500)
    for path, text in ((files.token, token), (files.mark, mark)):
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)


def _read_mark(files: HeadFiles) -> str | None:
    """None too for one that a power cut left half written."""
    try:
        text = files.mark.read_text()
    except (FileNotFoundError, ValueError):
        return None
    return text if len(text) == 24 else None


def _port(files: HeadFiles) -> int | None:
    """Of the GCS, which writes it into the session's folder once it listens."""
    for path in files.ray.glob("session_latest/gcs_server_port_*"):
        with suppress(ValueError, FileNotFoundError):
            return int(path.read_text())
    return None


def _registered(files: HeadFiles) -> bool | None:
    """The raylet dumps its first state right after it registered; the start command says the same 0.5 s later."""
    logs = files.ray / "session_latest" / "logs"
    return (logs / "debug_state.txt").exists() or (files.ray / "ray_current_cluster").exists() or None


def _name(pid: int) -> str:
    """A process's name; the start command is the one that leads the session."""
    if tree.fields(pid)[3:4] == [str(pid).encode()]:
        return "start command"
    return tree.read(f"/proc/{pid}/comm").decode(errors="replace").strip()


async def _appears(
    files: HeadFiles, process: subprocess.Popen[bytes] | None, look: Callable[[], Found | None]
) -> Found:
    """What `look` sees at last. Raises HeadError where Ray ended, or took START_S."""
    began = time.monotonic()
    give_up, next_look = began + START_S, began + _LOOK_S
    while (found := look()) is None:
        if time.monotonic() > next_look:
            next_look = time.monotonic() + _LOOK_S
            # The start command would wait half a minute for one that died at once.
            if (part := _dead_part(files)) is not None:
                raise HeadError(f"Ray's {part} ended while it started; see whether the machine limits processes.")
        if process is not None and process.poll() is not None:
            raise HeadError(f"Ray ended while it started: {_last_line(files)}")
        if time.monotonic() > give_up:
            raise HeadError(
                f"Ray did not start within {START_S:.0f} s; end what keeps the machine busy, and try again."
            )
        await asyncio.sleep(0.01)
    return found


def _dead_part(files: HeadFiles) -> str | None:
    """A part whose output began more than a look ago, and that runs no more."""
    alive = [_name(pid) for pid in marked(_read_mark(files) or "-")]
    for output in files.ray.glob("session_latest/logs/*.err"):
        said = output.stat()
        old = said.st_size > 0 and time.time() - said.st_mtime > _LOOK_S
        if old and output.stem in {"gcs_server", "raylet"}.difference(alive):
            return output.stem
    return None


def _last_line(files: HeadFiles) -> str:
    lines = [line for line in files.output.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"


def connect(address: str, files: HeadFiles, namespace: str = NAMESPACE, clustered: bool = False) -> None:
    """Make this process a driver of the head at `address` (HOST:PORT), with the token of `files`. Blocks: imports ray.

    `clustered`: there may be more nodes, on this machine too, and the one in `files` is taken. Leaves the present
    folder and whatever RAY_* the environment had. Raises HeadError."""
    if "ray" in sys.modules:
        # Ray reads its settings when it is imported.
        raise HeadError("Ray was imported before connect() could settle how; import it later.")
    os.chdir(NOWHERE if clustered else files.nowhere)
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]
    local = address.startswith("127.0.0.1:")
    os.environ.update({**TUNING, **(LOOPBACK if local else {}), **token_mode(files.token)})
    import ray
    from ray.exceptions import RayError

    options: dict[str, Any] = {"_temp_dir": str(files.ray)} if clustered else {}
    try:
        ray.init(address=address, namespace=namespace, log_to_driver=False, configure_logging=False, **options)
    except (ConnectionError, RuntimeError, RayError) as error:
        raise HeadError(f"Ray at {address} cannot be joined: {error}") from error
