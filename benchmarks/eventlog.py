"""What the log costs. Run: python -m benchmarks.eventlog [EVENTS] [ROUNDS]

Prints milliseconds and ratios of one run, engines interleaved, and each bar beside its measurement:
durable appends of ready rows against SQLite (WAL, synchronous FULL), the whole path with prepare and asyncio, group
commit of 32 tasks, a long run's stalls and memory, and opening, checking and decoding a log of EVENTS events."""

import asyncio
import gc
import itertools
import json
import random
import resource
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from pydantic import TypeAdapter

from eventlog.anchor import Anchor, Head
from eventlog.clean import prepare
from eventlog.codec import GENESIS
from eventlog.database import Database, Row
from eventlog.effects import CallModel, RunTool
from eventlog.events import Body, Draft, EffectFinished, EffectStarted, Event, UserSaid
from eventlog.ids import CommandId, Commit, Digest, SessionId, model_call_id, tool_call_id
from eventlog.messages import AssistantMessage, ReasoningPart, TextPart, ToolCall, Usage
from eventlog.opening import Opened, create_log, open_log
from eventlog.outcomes import ModelReplied, ToolSucceeded
from eventlog.redact import Redactor
from eventlog.rows import make_row
from eventlog.seams import SystemClock
from eventlog.store import DuckLog

SESSION = SessionId("benchmark")
BATCHES = (1, 8, 64)
BARS = {1: 6.5, 64: 4.0}
TASKS = 32
WORDS = ("return", "self.value", "import os", "def test_it():", "    assert x == 1\n", "https://example.org/a", "the")


def step_bodies(number: int, draw: random.Random) -> list[Body]:
    """One step of a session: a model call, a tool run, each with its outcome. About 1.1 KB an event."""

    def words(count: int) -> str:
        return " ".join(draw.choices(WORDS, k=count))

    model, tool = model_call_id(number), tool_call_id(model_call_id(number), 1)
    arguments = json.dumps({"command": "pytest -q " + words(5)})
    intent = CallModel(model="m", builder="chat/1", request_hash=Digest("a" * 64), request_bytes=12345, messages=number)
    message = AssistantMessage(
        parts=(
            ReasoningPart(text=words(60)),
            TextPart(text=words(60)),
            ToolCall(id=tool, provider_id=f"call_{number}", name="shell", arguments=arguments),
        )
    )
    reply = ModelReplied(
        message=message,
        stop="tool_calls",
        usage=Usage(input=9000, cached=8000, output=200),
        cost_usd=0.01,
        model="m-1",
        first_byte_ms=300,
        total_ms=1200,
    )
    run = RunTool(
        tool="shell",
        arguments=arguments,
        effect_class="command",
        allowed_by="mode auto",
        snapshot=Commit("b" * 40),
        confined=True,
    )
    bodies: list[Body] = [
        EffectStarted(call_id=model, attempt=1, effect=intent),
        EffectFinished(call_id=model, attempt=1, outcome=reply),
        EffectStarted(call_id=tool, attempt=1, effect=run),
        EffectFinished(call_id=tool, attempt=1, outcome=ToolSucceeded(text=words(190), exit_code=0, wrote=True)),
    ]
    return [*bodies, UserSaid(id=CommandId(f"u{number}"), text=words(20))] if number % 10 == 0 else bodies


def mixture(count: int) -> Iterator[Body]:
    """Made as it is taken, so that a writer's memory is its own."""
    draw = random.Random(1)
    steps = (step_bodies(number, draw) for number in itertools.count(1))
    return itertools.islice(itertools.chain.from_iterable(steps), count)


def milliseconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return (time.perf_counter() - begin) * 1000


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def ready_rows(count: int, head: Head) -> list[Row]:
    rows: list[Row] = []
    redactor = Redactor()
    for body in mixture(count):
        prepared = prepare(Draft(body=body), redactor)
        row, _ = make_row(prepared, head, 1_700_000_000_000_000, SESSION, 1, prepared.encoded, ())
        head = Head(row.seq, row.hash)
        rows.append(row)
    return rows


def open_sqlite(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute(
        "CREATE TABLE events (seq INTEGER, ts_us INTEGER, kind TEXT, call_id TEXT, payload TEXT, hash TEXT)"
    )
    return connection


def measure_appends(folder: Path, rounds: int) -> list[str]:
    database, anchor, sqlite = Database(folder / "a.duckdb"), Anchor(folder / "head"), open_sqlite(folder / "a.sqlite")
    whole = create_log(folder / "whole", SESSION, SystemClock(), Redactor())
    loop = asyncio.new_event_loop()

    def duckdb(rows: list[Row]) -> None:
        database.append(rows)
        anchor.write(Head(rows[-1].seq, rows[-1].hash))

    def sqlite_append(rows: list[Row]) -> None:
        sqlite.execute("BEGIN")
        sqlite.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", rows)
        sqlite.execute("COMMIT")

    async def through_the_log(drafts: list[Draft]) -> None:
        await whole.log.append([whole.log.prepare(draft) for draft in drafts])

    lines: list[str] = []
    for size in BATCHES:
        rows = ready_rows(size, Head(0, GENESIS))
        drafts = [Draft(body=body) for body in mixture(size)]
        times: dict[str, list[float]] = {"log": [], "sqlite": [], "whole": []}
        for _ in range(rounds):
            times["log"].append(milliseconds(lambda rows=rows: duckdb(rows)))
            times["sqlite"].append(milliseconds(lambda rows=rows: sqlite_append(rows)))
            times["whole"].append(milliseconds(lambda drafts=drafts: loop.run_until_complete(through_the_log(drafts))))
        lines.append(append_line(size, times))
    whole.close()
    database.close()
    anchor.close()
    sqlite.close()
    loop.close()
    return lines


def append_line(size: int, times: dict[str, list[float]]) -> str:
    log, sqlite, whole = (statistics.median(times[name]) for name in ("log", "sqlite", "whole"))
    bar = f" (bar {BARS[size]}x)" if size in BARS else ""
    return (
        f"append {size:2} rows: log + anchor {log:.2f} ms (p99 {percentile(times['log'], 0.99):.1f}), "
        f"sqlite {sqlite:.2f} ms, {log / sqlite:.1f}x{bar}; with prepare and asyncio {whole:.2f} ms"
    )


async def measure_group_commit(log: DuckLog, total: int) -> float:
    """Acknowledged appends a second, one event each, from 32 tasks."""
    bodies = list(mixture(total // TASKS))

    async def work() -> None:
        for body in bodies:
            await log.append([log.prepare(Draft(body=body))])

    begin = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(TASKS)))
    return len(bodies) * TASKS / (time.perf_counter() - begin)


async def measure_long_run(log: DuckLog, count: int) -> str:
    """Eight events an append; a checkpoint is asked for as while a model thinks."""
    before = peak_mb()
    stalls: list[float] = []
    bodies = mixture(count)
    checkpoints, wal = 0, 0
    while batch := [Draft(body=body) for body in itertools.islice(bodies, 8)]:
        prepared = [log.prepare(draft) for draft in batch]
        begin = time.perf_counter()
        await log.append(prepared)
        stalls.append((time.perf_counter() - begin) * 1000)
        size = log.wal_bytes()
        checkpoints, wal = checkpoints + (size < wal), size
        log.checkpoint_when_large()
    return (
        f"{count} events in {len(stalls)} appends: p50 {statistics.median(stalls):.2f} ms, "
        f"p99 {percentile(stalls, 0.99):.1f}, longest {max(stalls):.0f} ms, {checkpoints} checkpoints (waited for); "
        f"peak memory {before} -> {peak_mb()} MB (bar 300)"
    )


def peak_mb() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def measure_opening(folder: Path) -> tuple[str, Opened]:
    gc.collect()
    begin, cpu = time.perf_counter(), time.process_time()
    opened = open_log(folder, SESSION, SystemClock(), Redactor())
    wall, used = time.perf_counter() - begin, time.process_time() - cpu
    return f"open + check + decode {opened.log.head.seq} events: {wall:.2f} s, cpu {used:.2f} s (bar 1.0 s)", opened


def measure_decoding(folder: Path) -> str:
    """The part of opening that is pydantic's: what it costs to make the same values from the same bytes."""
    database = Database(folder / "log.duckdb", read_only=True)
    payloads = [link.covered.split(b":", 2)[2][1:] for link in database.links()]
    database.close()
    validate = TypeAdapter(Event).validate_json
    gc.disable()
    begin, cpu = time.perf_counter(), time.process_time()
    events = [validate(b'{"seq":1,"ts_us":1,' + payload) for payload in payloads]
    wall, used = time.perf_counter() - begin, time.process_time() - cpu
    gc.enable()
    return f"of which pydantic alone for {len(events)}: {wall:.2f} s, cpu {used:.2f} s"


def main() -> None:
    events = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    with tempfile.TemporaryDirectory(prefix="thalia-benchmark-") as name:
        folder = Path(name)
        for line in measure_appends(folder, rounds):
            print(line)
        grouped = create_log(folder / "grouped", SESSION, SystemClock(), Redactor())
        rate = asyncio.run(measure_group_commit(grouped.log, 20_000))
        print(f"group commit, {TASKS} tasks: {rate:,.0f} acknowledged appends/s (bar 8,000)")
        grouped.close()
        long = create_log(folder / "long", SESSION, SystemClock(), Redactor())
        print(asyncio.run(measure_long_run(long.log, events)))
        print(f"close with its checkpoint: {milliseconds(long.close):.0f} ms")
        line, opened = measure_opening(folder / "long")
        print(line)
        opened.close()
        del opened
        print(measure_decoding(folder / "long"))


if __name__ == "__main__":
    main()
