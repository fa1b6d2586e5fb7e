"""How many agents one coordinator carries, and what it is that ends first. No model, no git: only what agents append.

    python -m benchmarks.thousand_agents [--agents 1,8,64,256,1000] [--most 8000] [--seconds 5] [--processes 4]
                                         [--apart]

A real log, coordinator and door in one process; agents in others, each with its own connection and lease. `thinking`:
they wait for a model (5 s in the mean), a command (1 s) and a snapshot as agents do, so nearly all of the time nobody
needs the coordinator. `flat out`: they wait for nothing but the coordinator, which shows what it stores at most. More
thinking agents than --agents says are tried, doubled, up to --most, until the p99 of an append is over the bar. --apart
appends each event by itself, instead of those together that agents append together (see thousand_work.py).

A line each: acknowledged appends and steps a second, ms of an append as its agent sees it (the p99 of less than 100 is
the longest), CPU of the coordinator's process and in it of the thread with its loop (100 % is a core), its CPU for an
append, its memory, bytes of WAL for a step, events in a transaction of the log, CPU of the agents' processes. Then the
floors in the same run: events a second by transactions of that size into a log without door and agents, and ready rows
into DuckDB. Agents and coordinator share the cores here, so what agents use of them is not there for it."""

import argparse
import itertools
import multiprocessing
import shutil
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from actors.agent_work import fold_agent
from actors.frames import encode, split
from actors.past import Past
from actors.remote_log import RemoteLog
from benchmarks.eventlog import percentile
from benchmarks.quiet import show_machine, wait_quiet
from benchmarks.thousand_coordinator import (
    SESSION,
    Floor,
    Look,
    Shares,
    coordinate,
    find_floor,
    parts_of_a_row,
    session_folder,
)
from benchmarks.thousand_work import EVENTS_A_STEP, Done, Order, crowd, raise_file_limit
from eventlog.ids import AgentId
from eventlog.opening import open_log
from eventlog.redact import Redactor
from eventlog.seams import SystemClock

BAR_MS = 100.0
FLOOR_S = 0.5
"""For each of three parts of a floor."""
HEAD = (
    "            agents  appends/s  steps/s    p50 ms    p99    longest      of  CPU (loop)  us CPU/append     MB  "
    "B/step  events/group  agents' CPU"
)


@dataclass(frozen=True, slots=True)
class Plan:
    seconds: float
    processes: int
    apart: bool


@dataclass(frozen=True, slots=True)
class Run:
    """What one crowd came to in its time."""

    agents: int
    thinking: bool
    done: Done
    before: Look
    after: Look
    load: float

    @property
    def p99(self) -> float:
        return percentile(self.done.times, 0.99)

    @property
    def seconds(self) -> float:
        return self.after.at - self.before.at

    @property
    def rate(self) -> float:
        """Appends a second."""
        return self.done.appends / self.seconds

    @property
    def events(self) -> float:
        """A second."""
        return (self.after.events - self.before.events) / self.seconds

    @property
    def group(self) -> float:
        return (self.after.events - self.before.events) / max(self.after.groups - self.before.groups, 1)

    @property
    def cpu(self) -> float:
        """Of one core."""
        return (self.after.cpu - self.before.cpu) / self.seconds

    def line(self, note: str = "") -> str:
        loop = (self.after.loop_cpu - self.before.loop_cpu) / self.seconds
        grown = self.after.wal - self.before.wal
        step = EVENTS_A_STEP * grown / max(self.after.events - self.before.events, 1)
        mode = "thinking" if self.thinking else "flat out"
        return (
            f"{mode:10} {self.agents:7} {self.rate:10,.0f} {self.done.steps / self.seconds:8,.0f} "
            f"{statistics.median(self.done.times):9.1f} {self.p99:6.1f} {max(self.done.times):10.0f} "
            f"{len(self.done.times):7,} {100 * self.cpu:5.0f}%({100 * loop:3.0f}%) "
            f"{1e6 * self.cpu / max(self.rate, 1e-9):13,.0f} {self.after.memory >> 20:6} {step:7,.0f} "
            f"{self.group:13.1f} {100 * self.done.cpu / self.seconds:11.0f}%  load {100 * self.load:.0f} %{note}"
        )


class Crowds:
    """Processes of agents; they take one order after the other."""

    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        for _ in range(processes):
            mine, theirs = context.Pipe()
            process = context.Process(target=crowd, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(mine)
            self._processes.append(process)

    def come(self, path: Path, agents: int, thinking: bool, plan: Plan) -> None:
        """Until all are at the door and have their first events in the log."""
        used = self._pipes[: min(agents, len(self._pipes))]
        shares = [agents // len(used) + (index < agents % len(used)) for index in range(len(used))]
        firsts = [0, *itertools.accumulate(shares)]
        for pipe, first, share in zip(used, firsts, shares, strict=False):
            pipe.send(Order(path, first, share, plan.seconds, thinking, plan.apart))
        self._busy = used
        for pipe in used:
            pipe.recv()

    def begin(self) -> None:
        for pipe in self._busy:
            pipe.send(None)

    def end(self) -> Done:
        done = Done()
        for pipe in self._busy:
            done.add(pipe.recv())
        return done

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(None)
            process.join()


class Host:
    """The coordinator's process, as seen from here."""

    def __init__(self, folder: Path, agents: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.folder = folder
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=coordinate, args=(folder, theirs, agents), daemon=True)
        self.process.start()
        theirs.close()
        self.path: Path = self._pipe.recv()

    def ask(self, word: str) -> Any:
        self._pipe.send(word)
        return self._pipe.recv()

    def close(self) -> None:
        self._pipe.send("end")
        self.process.join()


@contextmanager
def hosted(root: Path, agents: int) -> Iterator[Host]:
    with tempfile.TemporaryDirectory(dir=root, prefix="c") as name:
        host = Host(Path(name), agents)
        try:
            yield host
        finally:
            if host.process.is_alive():
                host.close()


@contextmanager
def watched(path: Path, after: int) -> Iterator[list[int]]:
    """One who is shown all events from here on; the number of its messages."""
    seen = [0]
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    connection.sendall(encode({"op": "attach", "id": 1, "after": after}))

    def take() -> None:
        buffer = bytearray()
        while received := connection.recv(1 << 18):
            buffer += received
            seen[0] += len(split(buffer))

    thread = threading.Thread(target=take)
    thread.start()
    yield seen
    connection.shutdown(socket.SHUT_RDWR)
    thread.join()
    connection.close()


def measure(host: Host, crowds: Crowds, agents: int, thinking: bool, plan: Plan) -> Run:
    crowds.come(host.path, agents, thinking, plan)
    load = wait_quiet(1.0)
    before = host.ask("look")
    crowds.begin()
    time.sleep(plan.seconds)
    after = host.ask("look")
    return Run(agents, thinking, crowds.end(), before, after, load)


def run_alone(root: Path, crowds: Crowds, agents: int, thinking: bool, plan: Plan) -> Run:
    with hosted(root, agents) as host:
        run = measure(host, crowds, agents, thinking, plan)
    print(run.line(), flush=True)
    return run


def run_thinking(root: Path, crowds: Crowds, agents: Sequence[int], most: int, plan: Plan) -> list[Run]:
    runs = [run_alone(root, crowds, number, True, plan) for number in agents]
    while runs[-1].p99 < BAR_MS and runs[-1].agents * 2 <= most:
        runs.append(run_alone(root, crowds, runs[-1].agents * 2, True, plan))
    return runs


def run_watched(root: Path, crowds: Crowds, alone: Run, plan: Plan) -> None:
    """The same as a run before, with one who watches."""
    with hosted(root, alone.agents) as host, watched(host.path, host.ask("look").events) as seen:
        run = measure(host, crowds, alone.agents, alone.thinking, plan)
    used = run.cpu / run.rate, alone.cpu / alone.rate
    print(
        run.line(
            f"  + 1 watcher, {seen[0]:,} messages: {run.rate / alone.rate:.2f}x of the appends/s, "
            f"{used[0] / used[1]:.2f}x of the CPU for an append"
        ),
        flush=True,
    )


def show_floor(root: Path, runs: Sequence[Run]) -> dict[str, float]:
    """Microseconds of the log's writer for an event in the last of these runs, by part."""
    floor, run = Floor(1.0, 1.0, 0.0), runs[-1]
    print("floors, events/s in transactions of that size, and by how much the coordinator is below them:")
    for run in runs:
        size = max(round(run.group), 1)
        floor = find_floor(root / f"floor{run.agents}", size, FLOOR_S)
        shutil.rmtree(root / f"floor{run.agents}")
        print(
            f"{run.agents:7} agents, {size:4} events: coordinator {run.events:8,.0f}/s; log alone {floor.log:8,.0f}/s "
            f"({floor.log / run.events:4.1f}x); ready rows into DuckDB {floor.rows:8,.0f}/s "
            f"({floor.rows / run.events:4.1f}x); two plain writes and fsyncs {floor.sync_ms:.1f} ms of the "
            f"{1000 * size / run.events:.1f} ms that a transaction takes",
            flush=True,
        )
    parts = parts_of_a_row(run.agents, FLOOR_S / 2)
    return {**parts, "DuckDB and anchor, their fsyncs in it (wall)": 1e6 / floor.rows}


def show_writer(run: Run, parts: Mapping[str, float]) -> None:
    used = (run.after.cpu - run.before.cpu) - (run.after.loop_cpu - run.before.loop_cpu)
    whole = 1e6 * used / (run.after.events - run.before.events)
    print(f"of the {whole:.1f} us of CPU that the log's writer had for each event of {run.agents} agents, timed alone:")
    for name, each in by_size(parts):
        print(f"    {each:5.1f} us  {name}", flush=True)


def profile(root: Path, crowds: Crowds, agents: int, plan: Plan) -> Shares:
    """Of the loop's thread. Then what an agent that comes back reads, and what it takes to open the log again after a
    kill."""
    with hosted(root, agents) as host:
        crowds.come(host.path, agents, False, plan)
        before = host.ask("look")
        host.ask("profile")
        crowds.begin()
        time.sleep(plan.seconds)
        after, loop = host.ask("look"), host.ask("profiled")
        done = crowds.end()
        wall, cpu = after.at - before.at, after.loop_cpu - before.loop_cpu
        print(
            f"profile of the loop's thread, {agents} agents flat out ({done.appends / wall:,.0f} appends/s meanwhile, "
            f"{100 * cpu / wall:.0f} % of a core); of its time in Python:"
        )
        for name, share in by_size(loop):
            print(f"    {100 * share:5.1f} %  {name}", flush=True)
        reopen(host)
    return loop


def by_size(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])


def reopen(host: Host) -> None:
    look: Look = host.ask("look")
    folder = session_folder(host.folder)
    log = RemoteLog(host.path, AgentId("a0"), 1, Redactor())
    back = seconds_of(lambda: fold_agent(log, AgentId("a0"), 2))
    host.process.kill()
    host.process.join()
    for text in ("after a kill", "once it was closed"):
        size = sum(path.stat().st_size for path in folder.glob("log.duckdb*"))
        begun = time.perf_counter()
        opened = open_log(folder, SESSION, SystemClock(), Redactor(), begin=Past().begin)
        taken = time.perf_counter() - begun
        closing = seconds_of(opened.close)
        print(
            f"reopened {text}, {look.events:,} events in {size / 1e6:.0f} MB: checked and folded in {taken:.2f} s "
            f"({1e5 * taken / look.events:.2f} s for 100,000), closed in {closing:.2f} s",
            flush=True,
        )
    print(f"one agent that comes back reads all of it by the door, and folds its own: {back:.2f} s", flush=True)


def seconds_of(work: Any) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def conclude(thinking: Sequence[Run], flat: Sequence[Run], loop: Shares, writer: Mapping[str, float]) -> str:
    under = [run for run in thinking if run.p99 < BAR_MS]
    over = [run for run in thinking if run.p99 >= BAR_MS]
    best = max(flat, key=lambda run: run.rate)
    kept = f"{under[-1].agents:,} thinking agents keep the p99 of an append at {under[-1].p99:.1f} ms" if under else "0"
    ends = f"at {over[0].agents:,} it is {over[0].p99:.0f} ms" if over else "more were not tried"
    most = f"flat out {best.rate:,.0f} appends/s ({best.events:,.0f} events/s) of {best.agents:,} agents"
    of_loop = ", ".join(f"{part} {100 * share:.0f} %" for part, share in by_size(loop)[:3])
    of_writer = ", ".join(f"{part} {each:.1f} us" for part, each in by_size(writer)[:3])
    return (
        f"limit: {kept} (bar {BAR_MS:.0f}), {ends}; {most} at {100 * best.cpu:.0f} % of a core; most of the loop's "
        f"time is {of_loop}; most of the writer's for an event is {of_writer}"
    )


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=numbers, default=[1, 8, 64, 256, 1000])
    parser.add_argument("--most", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--apart", action="store_true")
    chosen = parser.parse_args()
    plan = Plan(chosen.seconds, chosen.processes, chosen.apart)
    raise_file_limit()
    show_machine()
    crowds = Crowds(plan.processes)
    with tempfile.TemporaryDirectory(prefix="th") as name:
        root = Path(name)
        print(HEAD)
        thinking = run_thinking(root, crowds, chosen.agents, chosen.most, plan)
        flat = [run_alone(root, crowds, number, False, plan) for number in chosen.agents]
        for alone in (thinking[len(chosen.agents) - 1], flat[-1]):
            run_watched(root, crowds, alone, plan)
        writer = show_floor(root, flat)
        show_writer(flat[-1], writer)
        loop = profile(root, crowds, chosen.agents[-1], plan)
        crowds.close()
    print(conclude(thinking, flat, loop, writer))


if __name__ == "__main__":
    main()
