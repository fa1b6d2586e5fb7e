"""What an agent's append costs. Run: python -m benchmarks.appends [SECONDS] [ROUNDS]

32 agents in four processes append one event of about 1.1 KB at a time, each waiting for its acknowledgement, through
the door of one coordinator with a real log. The floor, in turn with it: the same bytes from the same processes, over a
socket of the same kind, to somebody who sends them back; and as many tasks that append to the same log in its own
process, without a socket. Prints acknowledged appends a second and milliseconds p50 and p99 as the agents see them,
with the ratios and each bar beside its measurement."""

import asyncio
import contextlib
import itertools
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path

from actors.building import Parts
from actors.coordinator import Coordinator
from actors.door import Door
from actors.frames import enclose, read_payload
from actors.local import run_fast
from actors.remote_log import RemoteLog
from actors.sessions import Options, prepare_new
from agent.models.client import ignore_delta
from benchmarks.eventlog import mixture, percentile
from configs.settings import Environment, Settings
from eventlog.codec import encode_body
from eventlog.events import Body, Draft
from eventlog.ids import AgentId, SessionId
from eventlog.leases import next_lease
from eventlog.redact import Redactor
from eventlog.seams import SystemClock
from worktrees.sample import make_repository

PROCESSES, AGENTS = 4, 8
"""Agents in each process."""
RATE_BAR, P99_BAR_MS = 2000, 30
BODIES = 500

Work = Callable[[], Awaitable[object]]


@asynccontextmanager
async def through_the_door(path: Path, agent: AgentId, lease: int) -> AsyncIterator[Work]:
    bodies = itertools.cycle(mixture_of(agent))
    async with RemoteLog(path, agent, lease, Redactor()) as log:
        yield lambda: log.append([log.prepare(Draft(body=next(bodies)))])


@asynccontextmanager
async def through_an_echo(path: Path, agent: AgentId, lease: int) -> AsyncIterator[Work]:
    frames = itertools.cycle([enclose(encode_body(body)) for body in mixture_of(agent)])
    reader, writer = await asyncio.open_unix_connection(str(path))

    def work() -> Awaitable[object]:
        writer.write(next(frames))
        return read_payload(reader)

    yield work
    writer.close()


@cache
def all_bodies() -> list[Body]:
    return list(mixture(BODIES))


def mixture_of(agent: AgentId) -> list[Body]:
    """The same for all, each beginning elsewhere."""
    bodies = all_bodies()
    start = int(agent.removeprefix("a")) * 7
    return bodies[start:] + bodies[:start]


Way = Callable[[Path, AgentId, int], AbstractAsyncContextManager[Work]]


def agents(way: Way, path: Path, first: int, each: int, lease: int, seconds: float, results: Connection) -> None:
    """A process of agents: says that it is ready, begins when told, sends back the milliseconds of each append."""

    async def act(names: list[AgentId]) -> list[float]:
        times: list[float] = []

        async def append(work: Work) -> None:
            while (begin := time.perf_counter()) < end:
                await work()
                times.append((time.perf_counter() - begin) * 1000)

        async with contextlib.AsyncExitStack() as stack:
            works = [await stack.enter_async_context(way(path, name, lease)) for name in names]
            results.send(None)
            await asyncio.to_thread(results.recv)
            end = time.perf_counter() + seconds
            await asyncio.gather(*map(append, works))
        return times

    results.send(run_fast(act([AgentId(f"a{first + number}") for number in range(each)])))


async def measure(
    way: Way, path: Path, lease: int, seconds: float, processes: int = PROCESSES, each: int = AGENTS
) -> list[float]:
    """The milliseconds of all appends of all agents in that time; so many in each process."""
    context = multiprocessing.get_context("spawn")
    pipes: list[Connection] = []
    started: list[SpawnProcess] = []
    for number in range(processes):
        mine, theirs = context.Pipe()
        process = context.Process(target=agents, args=(way, path, number * each, each, lease, seconds, theirs))
        process.start()
        pipes.append(mine)
        started.append(process)
    for pipe in pipes:
        await asyncio.to_thread(pipe.recv)
    for pipe in pipes:
        pipe.send(None)
    times = [time for pipe in pipes for time in await asyncio.to_thread(pipe.recv)]
    for process in started:
        await asyncio.to_thread(process.join)
    return times


async def measure_inside(coordinator: Coordinator, seconds: float) -> list[float]:
    """The same from tasks of this process."""
    log, times = coordinator.opened.log, list[float]()
    end = 0.0

    async def act(bodies: Iterator[Body]) -> None:
        while (begin := time.perf_counter()) < end:
            await coordinator.append([log.prepare(Draft(body=next(bodies)))])
            times.append((time.perf_counter() - begin) * 1000)

    mixtures = [itertools.cycle(mixture_of(AgentId(f"a{number}"))) for number in range(PROCESSES * AGENTS)]
    end = time.perf_counter() + seconds
    await asyncio.gather(*map(act, mixtures))
    return times


@asynccontextmanager
async def served_door(folder: Path) -> AsyncIterator[tuple[Coordinator, Path]]:
    make_repository(folder / "repo", {"a.txt": "one\n"})
    (folder / "script.json").write_text('{"turns": []}')
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    environment = Environment(variables, folder / "state", folder / "config.toml")
    parts = Parts(environment, Settings(), SystemClock(), ignore_delta)
    options = Options(folder=folder / "repo", model=f"scripted/{folder / 'script.json'}")
    coordinator = prepare_new(parts, SessionId("benchmark"), options, "Nothing.").coordinator
    async with Door(coordinator, folder / "d" / "s") as door:
        yield coordinator, door.path
    await coordinator.close()


async def grant_leases(coordinator: Coordinator) -> None:
    """The next one to each agent: they are new incarnations."""
    log = coordinator.opened.log
    granted = [next_lease(log.leases, AgentId(f"a{number}")) for number in range(PROCESSES * AGENTS)]
    await coordinator.append([log.prepare(Draft(body=body)) for body in granted])


@asynccontextmanager
async def served_echo(folder: Path) -> AsyncIterator[Path]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while (payload := await read_payload(reader)) is not None:
            writer.write(enclose(payload))
        writer.close()

    server = await asyncio.start_unix_server(echo, folder / "echo")
    yield folder / "echo"
    server.close()


async def compare(seconds: float, rounds: int) -> None:
    found: dict[str, list[list[float]]] = {"door": [], "echo": [], "inside": []}
    with tempfile.TemporaryDirectory(prefix="thalia-benchmark-") as name:
        async with served_door(Path(name)) as (coordinator, door), served_echo(Path(name)) as echo:
            for lease in range(1, rounds + 1):
                await grant_leases(coordinator)
                found["echo"].append(await measure(through_an_echo, echo, lease, seconds))
                found["door"].append(await measure(through_the_door, door, lease, seconds))
                found["inside"].append(await measure_inside(coordinator, seconds))
    rates = {what: statistics.median(map(len, runs)) / seconds for what, runs in found.items()}
    times = {what: list(itertools.chain(*runs)) for what, runs in found.items()}
    print(
        f"{PROCESSES * AGENTS} agents in {PROCESSES} processes: {rates['door']:,.0f} acknowledged appends/s "
        f"(bar {RATE_BAR:,}), p50 {statistics.median(times['door']):.1f} ms, p99 {percentile(times['door'], 0.99):.1f} "
        f"(bar {P99_BAR_MS}), longest {max(times['door']):.0f}"
    )
    for what, text in (("inside", "as many tasks in the log's own process"), ("echo", "an echo of the same bytes")):
        print(
            f"{text}: {rates[what]:,.0f}/s, p50 {statistics.median(times[what]):.1f} ms, "
            f"p99 {percentile(times[what], 0.99):.1f}; the door has {rates['door'] / rates[what]:.2f}x of its rate"
        )


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    run_fast(compare(seconds, rounds))


if __name__ == "__main__":
    main()
