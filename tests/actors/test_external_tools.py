"""Programs of the user's as tools, with a ledger outside that counts what they did: once, or told as unknown.

A seeded part of the kills in `make test`, all of them in `make crash`."""

import asyncio
import json
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from actors.branching import rewind
from actors.coordinator import Coordinator
from eventlog.effects import AskUser, RunTool
from eventlog.events import Approved, EffectStarted, Event
from eventlog.ids import CallId, CommandId, SessionId
from eventlog.outcomes import Cancelled, OutcomeUnknown, ToolFailed, ToolSucceeded
from processes.calls import end_tree, is_held
from tests.actors.playing import (
    DONE,
    SESSION,
    Played,
    Recorder,
    Stage,
    call,
    check_conversation,
    check_replay,
    outcomes,
    turn,
)
from tests.actors.playing import wait_until as wait
from tests.chaos.arena import Arena, Kind, check_acknowledged, check_log, kill, wait_until

TOOL = Path(__file__).resolve().parents[1] / "chaos" / "ledger_tool.py"
PYTHON = Path(sys.executable).absolute()
ALL = "THALIA_TEST_KILLS" in os.environ
CALL = call("deploy", to="live")
KEY = "s1-c1_1-2c9e8e2f"
WRAPPER = ("before_lock", "after_lock", "after_start", "after_spawn", "before_done", "after_done_tmp", "after_done")
HARNESS = ("before_run_tool", "after_run_tool", "after_commit:3", "before_commit:4")


@dataclass(slots=True)
class Ledger:
    """What the tool did, by key, and how it is set up."""

    folder: Path
    post: tuple[str, ...] = ()
    find: tuple[str, ...] | None = ()
    """Words of the question; None: nobody can be asked."""
    asks: list[str] = field(default_factory=list)
    """Another program that is asked."""
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object"})

    @property
    def file(self) -> Path:
        return self.folder / "ledger"

    @property
    def settings(self) -> dict[str, Any]:
        tool: dict[str, Any] = {
            "description": "Deploys the service.",
            "command": self.command("post", *self.post),
            "parameters": dict(self.parameters),
        }
        asked = {} if self.find is None else {"find": self.asks or self.command("find", *self.find)}
        return {"tools": {"deploy": {**tool, **asked}}, "permissions": {"allow": ["deploy"]}}

    def command(self, act: str, *words: str) -> list[str]:
        return [str(PYTHON), "-I", str(TOOL), act, str(self.file), *words]

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []

    def keys(self) -> list[str]:
        return [line["key"] for line in self.lines()]


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path)


def stage(ledger: Ledger, **more: Any) -> Stage:
    return Stage(ledger.folder, settings={**ledger.settings, **more})


def test_it_gets_the_call_and_its_key_and_its_output_is_the_result(ledger: Ledger) -> None:
    played = stage(ledger).start(turn(CALL), DONE)
    assert ledger.lines() == [{"key": KEY, "again": KEY, "arguments": {"to": "live"}}]
    assert played.results == [f"posted {KEY}"]
    assert isinstance(played.outcome("c1_1"), ToolSucceeded)
    check_conversation(played.state)
    check_replay(played.events)


def test_the_model_is_offered_it_and_a_session_from_before_keeps_what_it_began_with(ledger: Ledger) -> None:
    before = Stage(ledger.folder).start(DONE, DONE)
    after = stage(ledger).resume(prompt="Once more.")
    assert before.state.context == after.state.context
    check_replay(after.events)
    other = stage(ledger).start(DONE, session=SessionId("s2"))
    assert other.state.context is not None
    assert json.loads(other.state.context.tools)[-1]["function"]["name"] == "deploy"
    check_replay(other.events)


def test_two_calls_have_two_keys(ledger: Ledger) -> None:
    stage(ledger).start(turn(CALL, CALL), DONE)
    assert [key.rpartition("-")[0] for key in map(str, ledger.keys())] == ["s1-c1_1", "s1-c1_2"]


def test_it_sees_no_secret_and_no_program_of_the_worktree(tmp_path: Path, ledger: Ledger) -> None:
    show = tmp_path / "show"
    show.write_text("#!/bin/bash\nenv; pwd; cat\n")
    show.chmod(0o755)
    place = stage(ledger, tools={"deploy": {"description": "D.", "command": [str(show)]}})
    place.variables = {"OPENAI_API_KEY": "planted-secret-0123456789"}
    seen = place.start(turn(CALL), DONE).results[0]
    assert "planted-secret" not in seen and "redacted" not in seen
    assert "state/worktrees" in seen, "it begins in the worktree"
    (path,) = [line for line in seen.splitlines() if line.startswith("PATH=")]
    assert "state/worktrees" not in path
    assert json.loads(seen.splitlines()[-1]) == {"tool": "deploy", "key": KEY, "arguments": {"to": "live"}}


def test_one_that_says_that_it_failed_is_told_as_failed_and_not_asked_about(tmp_path: Path, ledger: Ledger) -> None:
    fails = {"description": "D.", "command": ["/bin/false"], "find": ["/bin/touch", str(tmp_path / "asked")]}
    played = stage(ledger, tools={"deploy": fails}).start(turn(CALL), DONE)
    outcome = played.outcome("c1_1")
    assert isinstance(outcome, ToolFailed) and outcome.exit_code == 1
    assert not (tmp_path / "asked").exists()


def test_a_program_that_is_not_there_is_told_as_failed(ledger: Ledger) -> None:
    missing = {"description": "D.", "command": ["/nowhere/deploy"]}
    played = stage(ledger, tools={"deploy": missing}).start(turn(CALL), DONE)
    outcome = played.outcome("c1_1")
    assert isinstance(outcome, ToolFailed) and "/nowhere/deploy" in outcome.text


def test_what_does_not_fit_the_schema_does_not_run(ledger: Ledger) -> None:
    ledger.parameters = {"type": "object", "properties": {"to": {"enum": ["test"]}}}
    played = stage(ledger).start(turn(CALL), DONE)
    assert ledger.keys() == [] and 'enum: ["test"]' in played.results[0]


@pytest.mark.parametrize(
    ("find", "kind"), [((), "tool_succeeded"), (("--dumb",), "outcome_unknown"), (None, "outcome_unknown")]
)
def test_one_that_a_signal_ended_is_asked_about(find: tuple[str, ...] | None, kind: str, ledger: Ledger) -> None:
    """What was cut off may have been done: never called failed, and never done again."""
    ledger.post, ledger.find = ("--die",), find
    played = stage(ledger).start(turn(CALL), DONE)
    assert (played.kinds("c1_1"), ledger.keys()) == ([kind], [KEY])


def test_one_that_ran_into_its_limit_before_it_did_anything_is_told_as_not_done(ledger: Ledger) -> None:
    ledger.post = ("--gate", str(ledger.folder / "gate"))
    settings = ledger.settings
    settings["tools"]["deploy"]["timeout_s"] = 1.0
    played = Stage(ledger.folder, settings=settings).start(turn(CALL), DONE)
    assert (played.kinds("c1_1"), ledger.keys()) == (["tool_failed"], [])
    assert "its time limit" in played.results[0] and "it was not done" in played.results[0]


def test_a_yes_runs_it_once(ledger: Ledger) -> None:
    def watch(coordinator: Coordinator, event: Event) -> None:
        match event.body:
            case EffectStarted(call_id=ask, effect=AskUser(binding=binding)):
                coordinator.send(Approved(id=CommandId("yes"), ask=ask, binding=binding))
            case _:
                pass

    played = stage(ledger, permissions={}).start(turn(CALL), DONE, screen=Recorder(watch), attended=True)
    assert ledger.keys() == [KEY]
    effects = [event.body.effect for event in played.events if isinstance(event.body, EffectStarted)]
    (effect,) = [one for one in effects if isinstance(one, RunTool)]
    assert effect.allowed_by == "approved by the user: deploy reaches outside."


def test_unattended_it_is_withheld(ledger: Ledger) -> None:
    played = stage(ledger, permissions={}).start(turn(CALL), DONE)
    assert (played.code, ledger.keys()) == (11, [])


def at_the_call(seen: Callable[[], bool], then: Callable[[Coordinator], None]) -> Recorder:
    """Does something in the session's own loop, once the call has begun and something is seen of it."""

    def watch(coordinator: Coordinator, event: Event) -> None:
        if not (isinstance(event.body, EffectStarted) and event.body.call_id == "c1_1"):
            return
        loop = asyncio.get_running_loop()

        def look() -> None:
            wait(seen)
            loop.call_soon_threadsafe(then, coordinator)

        threading.Thread(target=look).start()

    return Recorder(watch)


def begun(ledger: Ledger, place: Stage) -> Played:
    """A session whose process leaves it while the tool runs: once it has posted, or stands at its gate."""
    gated = "--gate" in ledger.post
    screen = at_the_call(lambda: started(place) if gated else bool(ledger.keys()), lambda coordinator: screen.leave())
    return place.start(turn(CALL), DONE, screen=screen)


def started(place: Stage) -> bool:
    return (place.session_folder() / "calls" / "c1_1.1" / "start").exists()


def vanish(place: Stage) -> None:
    """The wrapper and the tool are killed."""
    assert end_tree(place.session_folder() / "calls" / "c1_1.1")


def test_one_that_still_runs_is_waited_for(ledger: Ledger) -> None:
    ledger.post = ("--wait", "1")
    place = stage(ledger)
    begun(ledger, place)
    played = place.resume()
    assert (played.kinds("c1_1"), ledger.keys()) == (["tool_succeeded"], [KEY])
    assert played.results == [f"posted {KEY}"]


def test_one_that_ended_by_itself_is_adopted(ledger: Ledger) -> None:
    ledger.post = ("--wait", "0.2")
    place = stage(ledger)
    begun(ledger, place)
    wait((place.session_folder() / "calls" / "c1_1.1" / "done").exists)
    played = place.resume()
    outcome = played.outcome("c1_1")
    assert isinstance(outcome, ToolSucceeded) and outcome.recovered
    assert ledger.keys() == [KEY]


def test_one_that_vanished_after_it_posted_is_found_by_its_key(ledger: Ledger) -> None:
    ledger.post = ("--wait", "60")
    place = stage(ledger)
    begun(ledger, place)
    vanish(place)
    played = place.resume()
    outcome = played.outcome("c1_1")
    assert isinstance(outcome, ToolSucceeded) and outcome.recovered and outcome.text == f"posted {KEY}"
    assert ledger.keys() == [KEY]


def test_one_that_vanished_before_it_posted_is_run_again_under_the_same_key(ledger: Ledger) -> None:
    gate = ledger.folder / "gate"
    ledger.post = ("--gate", str(gate))
    place = stage(ledger)
    begun(ledger, place)
    vanish(place)
    gate.touch()
    played = place.resume()
    assert played.kinds("c1_1") == ["attempt_lost", "tool_succeeded"]
    assert ledger.keys() == [KEY]


@pytest.mark.parametrize("find", [("--dumb",), None])
def test_one_that_nobody_can_tell_of_is_unknown_and_never_repeated(
    find: tuple[str, ...] | None, ledger: Ledger
) -> None:
    ledger.post, ledger.find = ("--wait", "60"), find
    place = stage(ledger)
    begun(ledger, place)
    vanish(place)
    played = place.resume()
    outcome = played.outcome("c1_1")
    assert isinstance(outcome, OutcomeUnknown) and ("does not answer" if find else "began at") in outcome.evidence
    assert played.kinds("c1_1") == ["outcome_unknown"] and ledger.keys() == [KEY]
    assert "It was not run again" in played.results[0]


def test_an_interrupt_ends_it_and_says_that_it_had_begun(ledger: Ledger) -> None:
    ledger.post = ("--wait", "60")
    stop = at_the_call(lambda: bool(ledger.keys()), lambda coordinator: coordinator.interrupt(CommandId("stop")))
    played = stage(ledger).start(turn(CALL), DONE, screen=stop)
    outcome = played.outcome("c1_1")
    assert (played.code, ledger.keys()) == (130, [KEY])
    assert isinstance(outcome, Cancelled) and outcome.started


def test_a_rewind_ends_one_that_runs_and_undoes_nothing_outside(ledger: Ledger) -> None:
    ledger.post = ("--wait", "60")
    place = stage(ledger)
    played = begun(ledger, place)
    start = next(e.seq for e in played.events if isinstance(e.body, EffectStarted) and e.body.call_id == "c1_1")
    rewind(place.parts, SESSION, start - 1)
    assert not is_held(place.session_folder() / "calls" / "c1_1.1")
    assert ledger.keys() == [KEY]


@pytest.fixture
def arena(tmp_path: Path, ledger: Ledger) -> Iterator[Arena]:
    ledger.post = ("--wait", "0.3")
    with Arena(tmp_path, turns=[turn(CALL), DONE], settings=as_toml(ledger)) as one:
        yield one


def as_toml(ledger: Ledger) -> str:
    tool = ledger.settings["tools"]["deploy"]
    lines = [f"{name} = {json.dumps(tool[name])}" for name in ("description", "command", "find") if name in tool]
    return '[permissions]\nallow = ["deploy"]\n[tools.deploy]\n' + "\n".join(lines)


def write_settings(arena: Arena, ledger: Ledger) -> None:
    (arena.folder / "config.toml").write_text(as_toml(ledger))


def check(arena: Arena, ledger: Ledger) -> str:
    """Posted once, or told as failed and never posted. How the call ended."""
    events = arena.events()
    check_log(events)
    check_acknowledged(arena, events)
    check_replay(events)
    assert arena.survivors() == []
    last = outcomes(events)[CallId("c1_1")]
    assert len(ledger.keys()) == (0 if isinstance(last, ToolFailed) else 1), last
    return last.kind


@pytest.mark.parametrize("point", WRAPPER if ALL else ("before_lock", "after_start", "after_spawn", "before_done"))
def test_with_its_wrapper_killed_at_a_point_it_posts_once_or_never_began(
    point: str, arena: Arena, ledger: Ledger
) -> None:
    assert arena.go_on(crash_at=f"wrapper:{point}:1").wait(60) == 0, arena.errors()
    began = point not in ("before_lock", "after_lock")
    assert check(arena, ledger) == ("tool_succeeded" if began else "tool_failed")


@pytest.mark.parametrize("victim", ["harness", "everything"] if ALL else ["everything"])
@pytest.mark.parametrize("point", HARNESS if ALL else HARNESS[:2])
def test_with_its_session_killed_around_the_call_it_posts_once(
    point: str, victim: Kind, arena: Arena, ledger: Ledger
) -> None:
    run = arena.go_on(crash_at=point)
    run.wait(60)
    kill(run, victim)
    assert arena.finish() == 0, arena.errors()
    assert check(arena, ledger) == "tool_succeeded"


def kill_after_the_post(arena: Arena, ledger: Ledger) -> None:
    ledger.post = ("--wait", "60")
    write_settings(arena, ledger)
    run = arena.go_on()
    wait_until(lambda: bool(ledger.keys()), 60)
    kill(run, "everything")
    run.wait()


@pytest.mark.parametrize(("find", "kind"), [((), "tool_succeeded"), (None, "outcome_unknown")])
def test_with_everything_killed_after_the_post_it_is_found_or_told_as_unknown(
    find: tuple[str, ...] | None, kind: str, arena: Arena, ledger: Ledger
) -> None:
    ledger.find = find
    kill_after_the_post(arena, ledger)
    assert arena.finish() == 0, arena.errors()
    assert check(arena, ledger) == kind


def test_with_the_session_killed_while_it_asks_it_asks_again(arena: Arena, ledger: Ledger) -> None:
    asked, gate = ledger.folder / "asked", ledger.folder / "gate"
    slow = (
        f"touch {asked}; until test -e {gate}; do sleep 0.01; done; {shlex.join(ledger.command('find'))} < /dev/stdin"
    )
    ledger.asks = ["/bin/bash", "-c", slow]
    kill_after_the_post(arena, ledger)
    run = arena.go_on()
    wait_until(asked.exists, 60)
    kill(run, "everything")
    run.wait()
    gate.touch()
    assert arena.finish() == 0, arena.errors()
    assert check(arena, ledger) == "tool_succeeded"


def test_a_find_that_is_killed_cannot_tell(arena: Arena, ledger: Ledger) -> None:
    kill_after_the_post(arena, ledger)
    # The first wrapper finds that the call was begun before, the second is that of `find`.
    assert arena.go_on(crash_at="wrapper:after_start:2").wait(60) == 0, arena.errors()
    assert check(arena, ledger) == "outcome_unknown"


def test_what_has_another_command_in_the_settings_by_now_is_not_begun(arena: Arena, ledger: Ledger) -> None:
    arena.go_on(crash_at="before_run_tool").wait(60)
    ledger.post = ("--wait", "0.1")
    write_settings(arena, ledger)
    assert arena.finish() == 0, arena.errors()
    assert check(arena, ledger) == "tool_failed"
    outcome = outcomes(arena.events())[CallId("c1_1")]
    assert isinstance(outcome, ToolFailed) and "no longer what the settings said" in outcome.text
