"""What benchmarks/background.py says can be relied on: its task, its clock, its counts, and that it can be run."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Collection
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from agent.models.client import ModelRequest, Prices, ignore_delta
from agent.state import State
from benchmarks.background import ARMS, PARTS, ratio
from benchmarks.background_clock import TurnedClock, is_due
from benchmarks.background_minds import KNOWS, Decision, Found, Talk, decide_main, read_talk, search
from benchmarks.background_repo import BROKEN, CAPPED, UNCAPPED, Case, make_sample
from benchmarks.background_run import FIRST_S, TOKEN_S, Came, Thinking, run_session
from eventlog.effects import TakeSnapshot
from eventlog.ids import MAIN, CallId
from eventlog.outcomes import ModelReplied
from tests.agent.core_bodies import BASE, OPENING, done, fold_bodies, model_call, replied, started, stored, taken, tool
from tests.agent.core_bodies import finished as ended

SMALL = Case(files=160, places=3, breaks="first")
PRICES = Prices(1.0, 0.1, 2.0)


def run_tests(folder: Path, *names: str) -> list[str]:
    """Lines of output; the ticket is taken away as soon as it is there."""
    program = [sys.executable, "-I", "-B", "tests/run.py", *names]
    with subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        while process.poll() is None:
            for ticket in (folder / ".wait").glob("*.ticket"):
                ticket.unlink()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.01)
        assert process.stdout is not None
        return process.stdout.read().splitlines()


def test_one_change_breaks_one_test_which_is_not_of_the_changed_module(tmp_path: Path) -> None:
    sample = make_sample(SMALL)
    for path, text in sample.files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert run_tests(tmp_path)[-1].endswith(" 0 failed")
    for path, text in sample.expected.items():
        (tmp_path / path).write_text(text.replace(CAPPED, UNCAPPED))
    failure, last = run_tests(tmp_path)
    assert last.endswith(" 1 failed")
    test, culprit = failure.split()[1].rstrip(":"), failure.split()[-1]
    assert failure.startswith(BROKEN) and culprit in sample.expected
    near = f"tests/test_{culprit.removeprefix('src/').removesuffix('.py').replace('/', '_')}.py"
    assert test != near and run_tests(tmp_path, near) == ["1 run, 0 failed"]
    for path, text in sample.expected.items():
        (tmp_path / path).write_text(text)
    assert run_tests(tmp_path)[-1].endswith(" 0 failed")


def talk_of(*items: dict[str, object]) -> Talk:
    return read_talk(items)


def user(text: str) -> dict[str, object]:
    return {"role": "user", "content": text}


def did(name: str, result: str, **arguments: object) -> tuple[dict[str, object], dict[str, object]]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    id = f"{name} {arguments}"
    return {"role": "assistant", "tool_calls": [{"id": id, "function": function}]}, {
        "role": "tool", "tool_call_id": id, "content": result,
    }  # fmt: skip


def test_a_word_is_followed_only_as_far_as_somebody_has_said() -> None:
    first = did("grep", "src/p001/README.md:1:'old' is called 'newer' now", pattern="'old' is")
    second = did("grep", "src/p003/README.md:4:'newer' is called 'newest' now", pattern="'newer' is")
    for known, word in ((first, "newer"), ((*first, *second), "newest")):
        asked = search(talk_of(user("Go."), *known), "old")
        assert asked == [{"name": "grep", "arguments": {"pattern": f"'{word}' is", "glob": "README.md"}}]
    line = "src/p002/README.md:7:'newest' is handled in src/p002/m01.py by newest_rate"
    third = did("grep", line, pattern="'newest' is")
    assert search(talk_of(user("Go."), *first, *second, *third), "old") == Found("src/p002/m01.py", "newest_rate")


def test_the_scout_is_asked_once_it_has_said_that_it_knows() -> None:
    task = user("Begin with what handles 'old'.")
    seen = did("read", "About.", path="README.md")

    def next_tool(*more: dict[str, object], offered: Collection[str] = ("ask_agent",)) -> str:
        decision: Decision = decide_main(talk_of(task, *seen, *more), offered)
        assert not isinstance(decision, str)
        return decision[0]["name"]

    assert next_tool() == "grep"
    assert next_tool(user(KNOWS)) == "ask_agent"
    assert next_tool(user(KNOWS), offered=()) == "grep"


class AtOnce(TurnedClock):
    """Nobody waits; it only counts."""

    async def sleep(self, seconds: float) -> None:
        self._now_s += seconds


def request_of(*messages: dict[str, object]) -> ModelRequest:
    body = {"tools": [], "messages": [{"role": "system", "content": "x" * 6_000}, *messages]}
    return ModelRequest(CallId("c1"), json.dumps(body).encode(), PRICES)


async def ask(model: Thinking, *messages: dict[str, object]) -> ModelReplied:
    return await model.complete(request_of(*messages), ignore_delta)


async def test_what_a_conversation_began_with_comes_from_the_cache_and_what_is_new_does_not() -> None:
    clock = AtOnce()
    model = Thinking({MAIN: lambda talk, offered: "Done."}, 1, clock)
    first = await ask(model, user("Go."))
    again = await ask(model, user("Go."), {"role": "assistant", "content": "Done."}, user("y" * 4_000))
    other = await ask(model, user("Something else."))
    assert first.usage.cached == 0
    assert first.usage.input - 128 <= again.usage.cached <= first.usage.input
    assert again.usage.input - again.usage.cached >= 1_000
    assert 0 < other.usage.cached <= other.usage.input
    assert again.cost_usd == pytest.approx(
        (again.usage.input - again.usage.cached) * 1e-6 + again.usage.cached * 1e-7 + again.usage.output * 2e-6
    )
    outputs = [one.usage.output for one in model.asked]
    assert clock.now_s() == pytest.approx(sum(FIRST_S + TOKEN_S * output for output in outputs))


async def test_a_reply_that_is_cut_off_is_paid_as_far_as_it_came() -> None:
    clock = TurnedClock()
    model = Thinking({MAIN: lambda talk, offered: "Done."}, 1, clock)
    asking = asyncio.create_task(ask(model, user("Go.")))
    await asyncio.sleep(0)
    assert not clock.is_idle
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    [asked] = model.asked
    assert clock.is_idle and asked.usage.input > 0 and asked.usage.output == 0 and asked.cost_usd > 0


async def test_the_clock_stands_while_something_real_is_under_way(tmp_path: Path) -> None:
    clock, snapshot = TurnedClock(), TakeSnapshot(parent=BASE, at_s=0, reason="a test")
    for event in stored([started("c1", model_call()), started("s1", snapshot)]):
        clock.note(event)
    turning = asyncio.create_task(clock.run(tmp_path, State))
    thinking = asyncio.create_task(clock.sleep(5.0))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.shield(thinking), 0.2)
    assert clock.now_s() == 0.0
    clock.note(stored([ended("s1", taken("a"))])[0])
    await asyncio.wait_for(thinking, 20)
    assert clock.now_s() == 5.0
    turning.cancel()


def test_a_snapshot_that_is_about_to_begin_is_waited_for() -> None:
    reply = [started("c1", model_call()), ended("c1", replied("shell", text="Run."))]
    state = fold_bodies([*OPENING, *reply])
    assert not is_due(state)
    state = fold_bodies([started("c1_1", tool("shell")), ended("c1_1", done(wrote=True))], state)
    assert state.written != "no" and is_due(state)
    state = fold_bodies([started("s1", TakeSnapshot(parent=BASE, at_s=0, reason="a test"))], state)
    assert not is_due(state)


def test_ratios_are_of_the_same_seed() -> None:
    def came(wall_s: float) -> Came:
        return Came(wall_s, 1, 0, 0, 0, 0, 0.0, None, 0, 0)

    alone, other = [came(100.0), came(10.0), came(40.0)], [came(50.0), came(20.0), came(40.0)]
    assert ratio(other, alone, lambda one: one.wall_s) == "1.00 (0.50 to 2.00)"


def test_a_short_task_and_a_wrong_and_a_late_scout_are_among_the_parts() -> None:
    assert set(PARTS) >= {"task", "short", "wrong", "late"}
    short = make_sample(PARTS["short"].case)
    assert len(short.expected) == 1 and CAPPED not in "".join(short.expected.values())
    assert make_sample(PARTS["wrong"].case).misread and not make_sample(PARTS["task"].case).misread
    assert PARTS["late"].case.pages < PARTS["task"].case.pages


@pytest.mark.timeout(300)
def test_each_way_ends_with_the_same_files_and_the_checker_tells_of_what_is_broken_sooner() -> None:
    """That the files are right each session checks itself. One of them twice: the same figures."""
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        asked = [pool.submit(run_session, SMALL, arm) for arm in (*ARMS, "background")]
        alone, background, subagents, again = [one.result(timeout=240) for one in asked]
    assert alone.other_calls == alone.wakes == 0 < background.wakes and background.reports > 0 < subagents.other_calls
    assert alone.known_s is not None and background.known_s is not None
    assert background.known_s < alone.known_s < alone.wall_s
    assert (again.wall_s, again.known_s, again.main_calls, again.wakes) == (
        background.wall_s, background.known_s, background.main_calls, background.wakes,
    )  # fmt: skip
