"""What becomes of the agents of a fan-out when somebody stops it, leaves it, or takes it up with other rights."""

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from actors.coordinator import Coordinator
from actors.health import reclaim
from eventlog.effects import CallModel, CheckMerge, RunTool
from eventlog.events import EffectStarted, Event, Interrupted, TurnEnded
from eventlog.ids import MAIN, CommandId
from tests.actors.fan_stage import (
    CONFLICT,
    CONFLICTING,
    DONE,
    begin,
    fan_out,
    go_on,
    leave_after,
    owners,
    play,
    rounds,
    script,
    writing,
)
from tests.actors.playing import SESSION, Recorder, Stage, call, shell, tree, turn, wait_until
from tests.chaos.arena import Arena
from tests.chaos.invariants import check_session

STOP = Interrupted(id=CommandId("stop"))


class Gone(Exception):
    """The process is gone before it does anything about an event."""


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


E = TypeVar("E", RunTool, CallModel)


def effects(events: Sequence[Event], agent: str, kind: type[E]) -> list[E]:
    bodies = [event.body for event in events if event.actor == agent]
    return [body.effect for body in bodies if isinstance(body, EffectStarted) and isinstance(body.effect, kind)]


def endings(events: Sequence[Event], agent: str) -> list[str]:
    return [event.body.ending for event in events if event.actor == agent and isinstance(event.body, TurnEnded)]


def test_a_round_whose_tree_cannot_be_set_brings_nothing_and_what_others_made_stays(stage: Stage) -> None:
    """An ignored file of the second agent's stands where the first one's folder has to be."""
    upper = [turn(call("write", path="a.txt", content="ONE\n"), call("write", path="sub/f.txt", content="f\n")), DONE]
    block = "echo sub > .gitignore; echo mine > sub; echo one one > a.txt; sleep 0.5"
    agents = {"upper": [turn(call("read", path="a.txt")), *upper], "double": [turn(shell(block)), DONE]}
    played = play(stage, [fan_out(*CONFLICTING), DONE], agents)
    [told] = played.results
    assert told.startswith("1 of 2 merged."), told
    assert "The worktree could not be set back" in told and "git merge" in told
    assert tree(played.worktree) == {"a.txt": "ONE\n", "b.txt": "b\n", "sub/f.txt": "f\n"}
    check_session(played.events)


def test_an_interrupt_while_the_tree_of_a_round_is_set_ends_it_before_the_model_is_asked(stage: Stage) -> None:
    def watch(coordinator: Coordinator, event: Event) -> None:
        if isinstance(event.body, EffectStarted) and event.actor == "c1_1-2" and event.body.call_id == "t2":
            coordinator.send(STOP)

    played = play(stage, [fan_out(*CONFLICTING), DONE], CONFLICT, screen=Recorder(watch))
    assert played.ending == "interrupted"
    assert rounds(played.events) == [("c1_1-1", 1), ("c1_1-2", 1), ("c1_1-2", 2)]
    assert endings(played.events, "c1_1-2") == ["done", "interrupted"]
    assert len(effects(played.events, "c1_1-2", CallModel)) == 3, "those of the first round"
    check_session(played.events)


def test_agents_that_were_to_stop_when_their_session_was_killed_stop_when_it_goes_on(stage: Stage) -> None:
    agents = {"slow": [turn(shell("sleep 1")), turn(call("write", path="late.txt", content="late\n")), DONE]}
    model = script(stage, [fan_out("Be slow."), DONE], agents)

    def watch(coordinator: Coordinator, event: Event) -> None:
        if isinstance(event.body, EffectStarted) and event.actor != MAIN and event.body.call_id == "c1_1":
            coordinator.send(STOP)
        if isinstance(event.body, Interrupted):
            raise Gone

    with pytest.raises(Gone):
        begin(stage, model, Recorder(watch))
    played = go_on(stage, model)
    assert played.ending == "interrupted"
    assert endings(played.events, "c1_1-1") == ["interrupted"]
    assert len(effects(played.events, "c1_1-1", CallModel)) == 1
    check_session(played.events)


def test_agents_have_the_mode_of_their_session_when_it_goes_on_with_another(stage: Stage) -> None:
    agents = {"count": [turn(shell("sleep 0.3")), turn(shell("echo 2 > two.txt")), DONE]}
    model = script(stage, [fan_out("Say count."), DONE], agents)
    leave = Recorder(until=lambda body: isinstance(body, EffectStarted) and isinstance(body.effect, RunTool))
    begin(stage, model, leave, mode="bypass", sandbox="off")
    played = go_on(stage, model)
    assert [effect.confined for effect in effects(played.events, "c1_1-1", RunTool)] == [False, True]
    check_session(played.events)


def test_worktrees_of_agents_are_not_reclaimed_while_their_session_needs_them(stage: Stage) -> None:
    agents = {"first": [*writing("one.txt", "1\n")[:1], turn(shell("sleep 0.3")), DONE]}
    model = script(stage, [fan_out("Write the first."), DONE], agents)
    begin(stage, model, leave_after(24))
    before = owners(stage)
    assert before == [SESSION, f"{SESSION}+c1_1-1"]
    assert reclaim(stage.parts, dry_run=True) == [] == reclaim(stage.parts, dry_run=False)
    assert owners(stage) == before
    played = go_on(stage, model)
    assert tree(played.worktree) == {"a.txt": "one\n", "b.txt": "b\n", "one.txt": "1\n"}


def test_a_check_that_was_killed_before_it_began_is_begun_again(tmp_path: Path) -> None:
    agents = {"first": writing("one.txt", "1\n")}
    script = [fan_out("Write the first.", check="test -e one.txt"), DONE]
    with Arena(tmp_path, script, conversations=agents) as arena:
        begun = arena.start("exec", "Do it.", "-m", "openai/test", "--merge", crash_at="wrapper:after_lock:1")
        assert begun.wait(60) == 0, arena.errors()
        assert arena.files() == {"a.py": "one\n", "one.txt": "1\n"}
        started = [event.body for event in arena.events() if isinstance(event.body, EffectStarted)]
        assert [body.attempt for body in started if isinstance(body.effect, CheckMerge)] == [1, 2]


def test_a_command_of_an_agent_that_nobody_looked_after_is_run_again_and_no_person_is_named(stage: Stage) -> None:
    count = "echo begun >> n.txt; sleep 2; echo ended >> n.txt"
    model = script(stage, [fan_out("Say count."), DONE], {"count": [turn(shell(count)), DONE]})
    folder = stage.session_folder() / "agents" / "c1_1-1" / "calls" / "c1_1.1"
    watching: list[asyncio.Task[None]] = []

    async def leave_once_it_runs() -> None:
        await asyncio.to_thread(wait_until, lambda: any(stage.folder.glob("state/worktrees/*/*/n.txt")), 20)
        screen.leave()

    def watch(coordinator: Coordinator, event: Event) -> None:
        if isinstance(event.body, EffectStarted) and event.actor != MAIN and event.body.call_id == "c1_1":
            watching.append(asyncio.get_running_loop().create_task(leave_once_it_runs()))

    screen = Recorder(watch)
    begin(stage, model, screen)
    # As its lease does when it runs out.
    os.kill(json.loads((folder / "start").read_bytes())["pid"], signal.SIGTERM)
    wait_until((folder / "done").exists, 20)
    assert json.loads((folder / "done").read_bytes())["cancelled"]
    played = go_on(stage, model)
    assert tree(played.worktree)["n.txt"] == "begun\nended\n"
    assert [effect.restore_first for effect in effects(played.events, "c1_1-1", RunTool)] == [False, True]
    check_session(played.events)
