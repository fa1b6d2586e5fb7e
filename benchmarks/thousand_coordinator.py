"""The coordinator of the simulated agents in a process of its own, looked at from inside; and the floors beneath it
(benchmarks/thousand_agents.py)."""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from cProfile import Profile
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from pstats import Stats
from typing import Any

from actors.building import Parts
from actors.coordinator import Coordinator
from actors.door import Door
from actors.local import run_fast
from actors.sessions import Options, prepare_new
from agent.models.client import ignore_delta
from benchmarks.eventlog import mixture, ready_rows
from benchmarks.thousand_work import raise_file_limit
from configs.settings import Environment, Settings
from eventlog.anchor import Anchor, Head
from eventlog.clean import prepare
from eventlog.codec import GENESIS, chain, encode_payload
from eventlog.database import Database
from eventlog.events import Draft
from eventlog.ids import AgentId, SessionId
from eventlog.leases import Lease, Leases, admit_all, next_lease
from eventlog.opening import create_log
from eventlog.redact import Redactor
from eventlog.rows import make_row
from eventlog.seams import SystemClock
from eventlog.store import DuckLog
from worktrees.sample import make_repository

SESSION = SessionId("benchmark")

Key = tuple[str, str]
"""(file, function) as a profile names them; of a builtin the file is `~`."""
LOOP_PARTS: Mapping[Key, str] = {
    ("door_requests.py", "parse"): "requests parsed and checked (JSON, pydantic)",
    ("door.py", "prepare"): "encoded and looked through for secrets",
    ("door.py", "_answer_append"): "answers encoded and sent",
    ("feed.py", "add_event"): "shown to who watches",
    ("frames.py", "read_payload"): "frames read",
    ("store.py", "append"): "handed to the log's writer",
}
"""None within another."""
Shares = Mapping[str, float]
"""Of the time that a thread spent in Python and in what that called, by part; with `the rest` they are 1."""


@dataclass(frozen=True, slots=True)
class Look:
    at: float
    cpu: float
    """Seconds of all threads until now."""
    loop_cpu: float
    """Of the thread with the coordinator's loop."""
    events: int
    groups: int
    """Transactions of the log's writer."""
    wal: int
    memory: int
    """Anonymous bytes."""


class WriterClock:
    """The clock that the log's writer reads for each row. So it sees how many groups there are."""

    def __init__(self) -> None:
        self.log: DuckLog | None = None
        self.groups = 0
        self._head = -1

    def now_us(self) -> int:
        if self.log is not None and self.log.head.seq != self._head:
            self._head = self.log.head.seq
            self.groups += 1
        return time.time_ns() // 1000


@asynccontextmanager
async def served(folder: Path, clock: WriterClock) -> AsyncIterator[tuple[Coordinator, Path]]:
    make_repository(folder / "repo", {"a.txt": "one\n"})
    (folder / "script.json").write_text('{"turns": []}')
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    environment = Environment(variables, folder / "state", folder / "config.toml")
    options = Options(folder=folder / "repo", model=f"scripted/{folder / 'script.json'}")
    parts = Parts(environment, Settings(), clock, ignore_delta)
    coordinator = prepare_new(parts, SESSION, options, "Nothing.").coordinator
    clock.log = coordinator.opened.log
    async with Door(coordinator, folder / "d" / "s") as door:
        yield coordinator, door.path
    await coordinator.close()


def session_folder(folder: Path) -> Path:
    return folder / "state" / "sessions" / SESSION


def coordinate(folder: Path, pipe: Connection, agents: int) -> None:
    """A process: sends the path of its door when `agents` of them have leases; then obeys "look" (answered by a Look),
    "profile" and "profiled" (by the Shares of the loop's thread), and ends at "end"."""
    raise_file_limit()
    run_fast(_coordinate(folder, pipe, agents))


async def _coordinate(folder: Path, pipe: Connection, agents: int) -> None:
    # By the wall, for the CPU's clock costs more than many of these calls take. What the thread waits for the
    # interpreter hits each part by its length.
    clock, profile = WriterClock(), Profile()
    async with served(folder, clock) as (coordinator, path):
        log = coordinator.opened.log
        granted = [next_lease(log.leases, AgentId(f"a{number}")) for number in range(agents)]
        await coordinator.append([log.prepare(Draft(body=body)) for body in granted])
        pipe.send(path)
        while (word := await asyncio.to_thread(pipe.recv)) != "end":
            match word:
                case "look":
                    pipe.send(_look(log, clock))
                case "profile":
                    profile.enable()
                    pipe.send(None)
                case "profiled":
                    profile.disable()
                    pipe.send(shares_of(profile, LOOP_PARTS))
                case _:
                    raise ValueError(word)


def _look(log: DuckLog, clock: WriterClock) -> Look:
    rollup = Path("/proc/self/smaps_rollup").read_text()
    memory = re.search(r"^Anonymous:\s+(\d+) kB", rollup, re.MULTILINE)
    assert memory is not None
    return Look(
        time.perf_counter(),
        time.process_time(),
        time.thread_time(),
        log.head.seq,
        clock.groups,
        log.wal_bytes(),
        int(memory[1]) << 10,
    )


def shares_of(profile: Profile, parts: Mapping[Key, str]) -> Shares:
    """Of these functions with all that they call."""
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, Any]] = Stats(profile).__dict__["stats"]
    whole = sum(own for _, _, own, _, _ in stats.values())
    found = dict.fromkeys(parts.values(), 0.0)
    for (file, _, function), (_, _, _, with_calls, _) in stats.items():
        name = parts.get((Path(file).name, function))
        if name is not None:
            found[name] += with_calls / whole
    return {**found, "the rest": 1 - sum(found.values())}


@dataclass(frozen=True, slots=True)
class Floor:
    """Of groups of one size."""

    log: float
    """Events a second, given to a log in its own process by one task."""
    rows: float
    """Ready rows a second into DuckDB, and the anchor."""
    sync_ms: float
    """Two small writes that are durable, for the median group: what the disk alone takes."""


def find_floor(folder: Path, size: int, seconds: float) -> Floor:
    """`seconds` for each part."""
    folder.mkdir()
    opened = create_log(folder / "log", SESSION, SystemClock(), Redactor())
    bodies = list(mixture(size))
    log = opened.log

    async def through_the_log() -> float:
        async def once() -> None:
            await log.append([log.prepare(Draft(body=body)) for body in bodies])

        begun, groups = time.perf_counter(), 0
        while time.perf_counter() < begun + seconds:
            await once()
            groups += 1
        return groups * size / (time.perf_counter() - begun)

    through = run_fast(through_the_log())
    opened.close()
    database, anchor, rows = Database(folder / "a.duckdb"), Anchor(folder / "head"), ready_rows(size, Head(0, GENESIS))

    def insert() -> None:
        database.append(rows)
        anchor.write(Head(rows[-1].seq, rows[-1].hash))

    inserted = _times(insert, seconds)
    database.close()
    anchor.close()
    payload = b"".join(row.payload.encode() for row in rows)
    with (folder / "plain").open("wb", buffering=0) as wal, (folder / "other").open("wb", buffering=0) as other:

        def sync() -> None:
            wal.write(payload)
            os.fsync(wal.fileno())
            os.pwrite(other.fileno(), b"x" * 100, 0)
            os.fdatasync(other.fileno())

        synced = _times(sync, seconds)
    return Floor(through, len(inserted) * size / sum(inserted), 1000 * sorted(synced)[len(synced) // 2])


def parts_of_a_row(agents: int, seconds: float) -> dict[str, float]:
    """Microseconds of what the log's writer does for an event before DuckDB has it, each part by itself, the best in
    `seconds`: in a profile each call that lets go of the interpreter, as a hash does, looks as long as the wait for
    it."""
    leases: Leases = {AgentId(f"a{number}"): Lease(1, 1) for number in range(agents)}
    items = [prepare(Draft(body=body, actor=AgentId("a0"), lease=1, actor_seq=2), Redactor()) for body in mixture(100)]
    payloads = [encode_payload(item.draft, item.encoded, SESSION, 1, ()) for item in items]
    head = Head(0, GENESIS)

    def each(work: Callable[[int], object]) -> float:
        times = _times(lambda: [work(index) for index in range(len(items))], seconds)
        return 1e6 * min(times) / len(items)

    whole = each(lambda i: make_row(items[i], head, 1, SESSION, 1, items[i].encoded, ()))
    json = each(lambda i: encode_payload(items[i].draft, items[i].encoded, SESSION, 1, ()))
    hashed = each(lambda i: chain(GENESIS, 1, 1, payloads[i]))
    return {
        f"leases, of {agents:,} agents": each(lambda i: admit_all(leases, [items[i].draft])),
        "hash": hashed,
        "JSON of the envelope": json,
        "event made (pydantic)": whole - json - hashed,
    }


def _times(work: Callable[[], object], seconds: float) -> list[float]:
    """Seconds of each call."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        work()
        times.append(time.perf_counter() - begun)
    return times
