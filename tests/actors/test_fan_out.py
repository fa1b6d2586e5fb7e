"""A session has several agents work at the same time; what they make is merged, or told."""

from pathlib import Path
from random import Random

import pytest

from actors.history import Verified, verify
from eventlog.effects import AskUser
from eventlog.events import CallRejected, EffectStarted, Event, Interrupted
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
    spawned,
    writing,
)
from tests.actors.playing import Recorder, Stage, call, check_conversation, tree, turn
from tests.chaos.invariants import check_session
from tests.worktrees.repositories import plain_git


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_two_agents_make_two_files_and_the_session_has_both(stage: Stage) -> None:
    agents = {
        "the first": writing("one.txt", "1\n", "Wrote one."),
        "the second": writing("two.txt", "2\n", "Wrote two."),
    }
    played = play(stage, [fan_out("Write the first file.", "Write the second file."), DONE], agents)
    assert played.ending == "done"
    assert tree(played.worktree) == {"a.txt": "one\n", "b.txt": "b\n", "one.txt": "1\n", "two.txt": "2\n"}
    assert tree(stage.repository) == {"a.txt": "one\n", "b.txt": "b\n"}, "until it is merged"
    [told] = played.results
    assert told.startswith("2 of 2 merged.") and "Wrote one." in told and "Wrote two." in told
    check_session(played.events)
    check_conversation(played.state)


def test_agents_begin_with_what_the_session_sees_and_not_with_a_branch(stage: Stage) -> None:
    (stage.repository / "dirty.txt").write_text("the user's\n")
    main = [turn(call("write", path="own.txt", content="the agent's\n")), fan_out("Copy both."), DONE]
    agents = {"Copy both.": [turn(call("shell", command="cat dirty.txt own.txt > both.txt")), DONE]}
    played = play(stage, main, agents)
    assert tree(played.worktree)["both.txt"] == "the user's\nthe agent's\n"


def test_a_conflict_goes_back_to_the_agent_that_wrote_it_and_is_merged_when_it_is_resolved(stage: Stage) -> None:
    played = play(stage, [fan_out(*CONFLICTING), DONE], CONFLICT)
    [told] = played.results
    assert told.startswith("2 of 2 merged.") and "in round 2" in told, told
    assert tree(played.worktree)["a.txt"] == "ONE ONE\n"
    assert rounds(played.events) == [("c1_1-1", 1), ("c1_1-2", 1), ("c1_1-2", 2)]
    again = spawned(played.events)[-1].text
    assert "-one" in again and "+ONE" in again, "the other side's change is shown"
    check_session(played.events)


def test_markers_that_an_agent_leaves_are_a_conflict_still_and_nothing_half_merged_stands(stage: Stage) -> None:
    lazy = [*CONFLICT["double"][:3], turn(call("write", path="c.txt", content="c\n")), DONE, DONE]
    played = play(stage, [fan_out(*CONFLICTING), DONE], {**CONFLICT, "double": lazy})
    [told] = played.results
    assert told.startswith("1 of 2 merged."), told
    assert tree(played.worktree) == {"a.txt": "ONE\n", "b.txt": "b\n"}
    check_session(played.events)


def test_a_red_check_goes_back_and_at_last_to_a_person_who_is_told_where_the_work_is(stage: Stage) -> None:
    worse = [part for n in range(3) for part in (turn(call("write", path=f"bad{n}.txt", content="x\n")), DONE)]
    agents = {"good": writing("good.txt", "1\n"), "bad": worse}
    played = play(stage, [fan_out("Be good.", "Be bad.", check="test ! -e bad0.txt"), DONE], agents)
    [told] = played.results
    assert told.startswith("1 of 2 merged."), told
    assert tree(played.worktree) == {"a.txt": "one\n", "b.txt": "b\n", "good.txt": "1\n"}
    line = next(line for line in told.splitlines() if "bad" in line)
    assert "not merged (red)" in line
    commit = line.partition("git merge ")[2].partition("`")[0]
    assert plain_git(stage.repository, "show", f"{commit}:bad2.txt") == "x"
    check_session(played.events)


def test_an_agent_begins_none_itself_and_asks_nobody(stage: Stage) -> None:
    agents = {"Try.": [fan_out("More."), turn(call("shell", command=f"cat {stage.folder}/note.txt")), DONE]}
    played = play(stage, [fan_out("Try."), DONE], agents, attended=True)
    own = [event.body for event in played.events if event.actor != MAIN]
    assert [body.why for body in own if isinstance(body, CallRejected)] == ["invalid", "withheld"]
    assert len(rounds(played.events)) == 1
    assert not any(isinstance(body, EffectStarted) and isinstance(body.effect, AskUser) for body in own)


def test_an_interrupt_ends_the_agents_and_keeps_what_they_made(stage: Stage) -> None:
    agents = {
        "quick": writing("quick.txt", "1\n"),
        "slow": [turn(call("write", path="slow.txt", content="2\n")), turn(call("shell", command="sleep 60")), DONE],
    }

    def watch(coordinator, event: Event) -> None:
        body = event.body
        if event.actor == "c1_1-2" and body.kind == "effect_started" and getattr(body.effect, "tool", "") == "shell":
            coordinator.send(Interrupted(id=CommandId("stop")))

    played = play(stage, [fan_out("Be quick.", "Be slow."), DONE], agents, screen=Recorder(watch))
    assert played.ending == "interrupted"
    assert tree(played.worktree) == {"a.txt": "one\n", "b.txt": "b\n"}
    [told] = played.results
    slow = next(line for line in told.splitlines() if "slow" in line)
    commit = slow.partition("git merge ")[2].partition("`")[0]
    assert plain_git(stage.repository, "show", f"{commit}:slow.txt") == "2"
    check_session(played.events)


@pytest.mark.parametrize("seed", range(3))
def test_a_session_left_at_any_event_goes_on_with_the_agents_it_has(stage: Stage, seed: int) -> None:
    """Left three times, each time somewhere between the first event of the fan-out and its end."""
    random = Random(seed)
    model = script(stage, [fan_out(*CONFLICTING, check="test -s a.txt"), DONE], CONFLICT)
    begin(stage, model, leave_after(random.randint(8, 20)))
    for _ in range(2):
        go_on(stage, model, leave_after(random.randint(5, 25)))
    played = go_on(stage, model)
    assert played.code == 0, played.screen.said
    assert tree(played.worktree)["a.txt"] == "ONE ONE\n"
    assert rounds(played.events) == [("c1_1-1", 1), ("c1_1-2", 1), ("c1_1-2", 2)]
    check_session(played.events)
    assert isinstance(verify(played.events), Verified)
    assert owners(stage) == ["s1"], "those of the agents were given back"
