"""What an append costs an agent on another node. Run: python -m benchmarks.far_door [SECONDS] [ROUNDS]

Two nodes of Ray on this machine; the session's door is on the one, its agents are processes that come to it by the way
of the other. The floor, in turn with it: the same agents at the door's own socket. One agent alone (milliseconds p50
and p99 of an append), 8 in one process and 32 in four (acknowledged appends a second besides), and how long it takes to
read a log of all that was appended. Prints ratios, and how much of the cores was in use right before; here both nodes
and all agents share them, which nodes do not."""

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from actors.head import Head, connect, start_head
from actors.local import run_fast
from actors.ray_command import HeadFiles, HeadSize, Reach
from actors.remote_log import RemoteLog
from benchmarks.appends import grant_leases, measure, served_door, through_the_door
from benchmarks.eventlog import percentile
from benchmarks.quiet import show_machine, wait_quiet
from configs.places import daemon_place
from eventlog.ids import AgentId
from eventlog.redact import Redactor

SESSION = "benchmark"
CROWDS = {"1 agent": (1, 1), "8 agents in a process": (1, 8), "32 agents in 4 processes": (4, 8)}
"""(processes, agents in each)"""


@asynccontextmanager
async def running(folder: Path, reach: Reach, **labels: str) -> AsyncIterator[Head]:
    head = await start_head(HeadFiles(folder), os.environ, HeadSize(workers=1, labels=labels), reach)
    try:
        await head.wait_ready()
        yield head
    finally:
        await head.stop()


@asynccontextmanager
async def far_way(folder: Path, door: Path) -> AsyncIterator[Path]:
    """From a door to where agents on another node come to it."""
    near, far = (daemon_place(folder / side) for side in ("near", "far"))
    for place in (near, far):
        place.make()
    far.door(SESSION).symlink_to(door)
    try:
        async with running(folder / "h", Reach("127.0.0.2")) as head:
            joined = Reach("127.0.0.3", 0, head.address, head.files.token.read_text())
            async with running(folder / "n", joined, far="yes"):
                places = [str(place.state_folder) for place in (near, far)]
                opening = [
                    sys.executable,
                    "-m",
                    "benchmarks.far_door",
                    "open",
                    head.address,
                    str(folder / "h"),
                    *places,
                ]
                await asyncio.to_thread(subprocess.run, opening, check=True)
                yield near.door(SESSION)
    finally:
        for place in (near, far):
            await asyncio.to_thread(shutil.rmtree, place.folder, ignore_errors=True)


def open_from_here(address: str, files: str, near: str, far: str) -> None:
    connect(address, HeadFiles(Path(files)))
    import ray

    from actors.ways import open_way

    (node,) = [each["NodeID"] for each in ray.nodes() if each["Labels"].get("far")]
    asyncio.run(open_way(SESSION, node, Path(near), Path(far)))


async def read_all(path: Path) -> float:
    """Events a second."""
    async with RemoteLog(path, AgentId("a0"), 1, Redactor()) as log:
        began = time.perf_counter()
        number = await asyncio.to_thread(lambda: sum(1 for _ in log.read()))
        return number / (time.perf_counter() - began)


async def compare(seconds: float, rounds: int) -> None:
    show_machine()
    with tempfile.TemporaryDirectory(prefix="th") as name:
        async with served_door(Path(name)) as (coordinator, door), far_way(Path(name), door) as far:
            paths = {"local": door, "far": far}
            for text, (processes, each) in CROWDS.items():
                times: dict[str, list[float]] = {"local": [], "far": []}
                loads: list[float] = []
                for _ in range(rounds):
                    for way, path in paths.items():
                        await grant_leases(coordinator)
                        lease = coordinator.opened.log.leases[AgentId("a0")].number
                        loads.append(await asyncio.to_thread(wait_quiet))
                        times[way] += await measure(through_the_door, path, lease, seconds, processes, each)
                show(text, times, seconds * rounds, statistics.median(loads))
            speeds = {way: await read_all(path) for way, path in paths.items()}
            print(
                f"reading {coordinator.opened.log.head.seq:,} events: {speeds['far']:,.0f}/s, at the socket "
                f"{speeds['local']:,.0f}/s: {speeds['far'] / speeds['local']:.2f}x of its rate"
            )


def show(text: str, times: dict[str, list[float]], seconds: float, load: float) -> None:
    rates = {way: len(found) / seconds for way, found in times.items()}
    p50 = {way: statistics.median(found) for way, found in times.items()}
    p99 = {way: percentile(found, 0.99) for way, found in times.items()}
    print(
        f"{text}: {rates['far']:,.0f} acknowledged appends/s, p50 {p50['far']:.1f} ms, p99 {p99['far']:.1f}; at the "
        f"socket {rates['local']:,.0f}/s, p50 {p50['local']:.1f}, p99 {p99['local']:.1f}: "
        f"{rates['far'] / rates['local']:.2f}x of its rate, {p50['far'] / p50['local']:.2f}x of its p50, load "
        f"{100 * load:.0f} %",
        flush=True,
    )


def main() -> None:
    if sys.argv[1:2] == ["open"]:
        open_from_here(*sys.argv[2:])
        return
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    run_fast(compare(seconds, rounds))


if __name__ == "__main__":
    main()
