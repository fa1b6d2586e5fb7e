"""How long it takes to know a session of 100,000 events again: open, check the chain, decode, fold.

    python -m benchmarks.resume [--events 100000]

After imports. The peer reads the same payloads from the same file and parses them as JSON, nothing else."""

import argparse
import asyncio
import gc
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import orjson

from actors.past import Past
from agent.state import State
from eventlog.database import Database
from eventlog.effects import CallModel, MakeWorktree, RunTool
from eventlog.events import Body, ContextSet, Draft, EffectFinished, EffectStarted, UserSaid
from eventlog.ids import CallId, CommandId, Commit, Digest, SessionId, model_call_id, tool_call_id
from eventlog.messages import AssistantMessage, TextPart, ToolCall, Usage
from eventlog.opening import create_log, open_log
from eventlog.outcomes import ModelReplied, ToolSucceeded, WorktreeReady
from eventlog.redact import Redactor
from eventlog.seams import SystemClock

HASH = Digest("a" * 64)


def bodies(count: int) -> Iterator[Body]:
    """A session as it is: steps of a model call and a command, about 1 KB an event."""
    yield ContextSet(
        builder="chat/1", model="m", wire_model="m", system="s", tools="[]", parameters="{}", window=128_000
    )
    yield UserSaid(id=CommandId("u"), text="go")
    for number in range(1, (count - 2) // 4 + 1):
        call = model_call_id(number)
        tool = tool_call_id(call, 1)
        effect = CallModel(
            model="m", builder="chat/1", request_hash=HASH, request_bytes=9, messages=2 * number, reserved_usd=0.01
        )
        yield EffectStarted(call_id=call, attempt=1, effect=effect)
        asked = ToolCall(id=tool, provider_id=f"p{number}", name="shell", arguments='{"command":"make"}')
        message = AssistantMessage(parts=(TextPart(text="I look. " * 90), asked))
        yield EffectFinished(
            call_id=call,
            attempt=1,
            outcome=ModelReplied(
                message=message, stop="tool_calls", usage=Usage(input=900, output=80), cost_usd=0.001, model="m",
                first_byte_ms=3, total_ms=9,
            ),
        )  # fmt: skip
        run = RunTool(
            tool="shell", arguments='{"command":"make"}', effect_class="command", allowed_by="it runs confined",
            snapshot=Commit("b" * 40), confined=True,
        )  # fmt: skip
        yield EffectStarted(call_id=tool, attempt=1, effect=run)
        yield EffectFinished(
            call_id=tool,
            attempt=1,
            outcome=ToolSucceeded(text="ok: target is up to date\n" * 60, exit_code=0, wrote=True),
        )


async def fill(folder: Path, count: int) -> None:
    opened = create_log(folder, SessionId("bench"), SystemClock(), Redactor())
    made = EffectStarted(call_id=CallId("w1"), attempt=1, effect=_worktree())
    ready = EffectFinished(call_id=CallId("w1"), attempt=1, outcome=WorktreeReady(path="/w", base=Commit("b" * 40)))
    batch = [opened.log.prepare(Draft(body=body)) for body in (made, ready)]
    for body in bodies(count - 2):
        batch.append(opened.log.prepare(Draft(body=body)))
        if len(batch) >= 500:
            await opened.log.append(batch)
            batch.clear()
    await opened.log.append(batch)
    opened.close()


def _worktree() -> MakeWorktree:
    return MakeWorktree(repository="/r", head=Commit("b" * 40), carry_dirty=False, at_s=0)


def parse_only(path: Path) -> float:
    begin = time.perf_counter()
    database = Database(path, read_only=True)
    gc.disable()
    for row in database.rows():
        orjson.loads(row.payload)
    gc.enable()
    database.close()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="thalia-bench-") as name:
        folder = Path(name) / "bench"
        asyncio.run(fill(folder, chosen.events))
        floor, opening, together = [], [], []
        count, state = 0, State()
        for _ in range(chosen.rounds):
            floor.append(parse_only(folder / "log.duckdb"))
            begin = time.perf_counter()
            open_log(folder, SessionId("bench"), SystemClock(), Redactor()).close()
            opening.append(time.perf_counter() - begin)
            past = Past()
            begin = time.perf_counter()
            opened = open_log(folder, SessionId("bench"), SystemClock(), Redactor(), begin=past.begin)
            together.append(time.perf_counter() - begin)
            opened.close()
            count, state = opened.log.head.seq, past.state
        base, both = statistics.median(floor), statistics.median(together)
        print(f"{count:,} events, {len(state.messages):,} messages; median of {chosen.rounds}")
        print(f"read and parse as JSON only   {base:6.2f} s   1.00 x")
        print(f"open, check the chain, decode {statistics.median(opening):6.2f} s")
        print(f"the same, and fold            {both:6.2f} s   {both / base:.2f} x")
        print(f"memory, at most               {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:6.0f} MiB")


if __name__ == "__main__":
    main()
