"""One node of a cluster in the foreground: what `thalia node` becomes. It imports neither Ray nor DuckDB.

Prints one line when it has joined. Told to end (SIGTERM, SIGINT, SIGHUP) it leaves the cluster and ends with 0; where
it cannot join, or is in it no more, with one sentence and BLOCKED. Nothing of it is left running."""

import argparse
import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from actors.daemon import clear, sweep, take_lock
from actors.head import Head, HeadError
from actors.joining import join_head, listens, reap
from actors.ray_command import HeadFiles, HeadSize, Reach
from configs.cluster import NODE_LABEL, ClusterRefused, parse_labels, read_token
from configs.places import MARK, DaemonPlace, PlaceUnsafe, daemon_environment, node_place
from configs.version import VERSION
from processes import tree
from processes.helper import subreaper

BLOCKED = 10
"""Exit code."""
_GPUS = ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH")
"""Variables by which a batch system says which GPUs are ours, and how they are used."""
_WARM = 1


@dataclass(frozen=True, slots=True)
class Wish:
    state_folder: Path
    token: str
    labels: Mapping[str, str]
    reach: Reach


async def serve(place: DaemonPlace, wish: Wish) -> None:
    """Until it is told to end. Raises HeadError."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # Under nohup a terminal that closes is no reason to end.
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    stopped = asyncio.create_task(stopping.wait())
    joining = asyncio.create_task(_join(place, wish))
    try:
        await asyncio.wait([joining, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not joining.done():
            return
        node = joining.result()
        print(_describe(node, wish), flush=True)
        died = asyncio.create_task(node.died())
        await asyncio.wait([died, stopped], return_when=asyncio.FIRST_COMPLETED)
        pids = node.pids
        await node.leave()
        reap(pids)
        if not stopping.is_set():
            raise HeadError(await _why(wish.reach.head, died.result()))
    finally:
        for task in (stopped, joining):
            task.cancel()
        await asyncio.gather(stopped, joining, return_exceptions=True)


async def _join(place: DaemonPlace, wish: Wish) -> Head:
    environment = {
        **daemon_environment(os.environ),
        **{name: os.environ[name] for name in _GPUS if name in os.environ},
        "THALIA_HOME": str(wish.state_folder),
        MARK: str(place.folder),
    }
    size = HeadSize(workers=_WARM, cpus=None, labels={**wish.labels, NODE_LABEL: VERSION})
    return await join_head(HeadFiles(place.ray), environment, size, wish.reach, thalia=True)


def _describe(node: Head, wish: Wish) -> str:
    raylets = (tree.read(f"/proc/{pid}/cmdline").decode(errors="replace") for pid in node.pids)
    flags = dict(
        flag.removeprefix("--").split("=", 1)
        for line in raylets
        if "--node_ip_address=" in line and "--raylet_socket_name=" in line
        for flag in line.split("\0")
        if flag.startswith("--node_i")
    )
    labels = "".join(f" · {name}={value}" for name, value in sorted(wish.labels.items()))
    name, address = flags.get("node_id", "?"), flags.get("node_ip_address", "?")
    return f"joined {wish.reach.head} as {address} · node {name}{labels}"


async def _why(head: str, told: str) -> str:
    if await listens(head):
        again = "start `thalia node` again, and if that does not last, see whether each reaches the other's ports."
        return f"{told} The head at {head} is there, or a new one: {again}"
    return f"The head at {head} is gone; start `thalia node` again when it is back."


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("head", "state_folder", "token_file"):
        parser.add_argument(name)
    for name in ("--host", "--labels"):
        parser.add_argument(name, default="")
    parser.add_argument("--port", type=int, default=0)
    chosen = parser.parse_args()
    os.umask(0o077)
    try:
        token = read_token(Path(chosen.token_file))
        reach = Reach(chosen.host, chosen.port, chosen.head, token)
        _run(Wish(Path(chosen.state_folder), token, parse_labels(chosen.labels), reach))
    except (HeadError, ClusterRefused, PlaceUnsafe, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(BLOCKED)


def _run(wish: Wish) -> None:
    place = node_place({"THALIA_HOME": str(wish.state_folder)})
    place.make()
    lock = take_lock(place)
    if lock is None:
        text = f"A node runs already with the state folder {wish.state_folder} (process {place.lock.read_text()})"
        raise HeadError(f"{text}; give another one with --state.")
    # What Ray's own parents leave behind becomes ours, so that none stays as a zombie.
    subreaper()()
    os.chdir(place.folder)
    sweep(place)
    clear(place)
    try:
        asyncio.run(serve(place, wish))
    finally:
        sweep(place)
        shutil.rmtree(place.folder, ignore_errors=True)
        os.close(lock)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


if __name__ == "__main__":
    main()
