"""A session from its first word to the merge, with a scripted model and everything else real."""

from pathlib import Path

import pytest

from actors.building import CannotStart
from actors.coordinator import Coordinator
from actors.local import diff_session
from actors.sessions import prepare_new, prepare_resumed
from eventlog.effects import CallModel, RunTool
from eventlog.events import ContextSet, EffectStarted, Event
from eventlog.outcomes import Merged, Refused, ToolFailed, ToolSucceeded
from tests.actors.playing import (
    DONE,
    SESSION,
    Recorder,
    Stage,
    call,
    check_conversation,
    check_replay,
    shell,
    tree,
    turn,
)
from tests.worktrees.repositories import plain_git

EDIT = call("edit", path="a.txt", old_text="one", new_text="two")
PATCH = "*** Begin Patch\n*** Update File: b.txt\n@@\n-b\n+c\n*** Add File: d/e.txt\n+new\n*** End Patch\n"


def test_a_session_reads_edits_runs_commits_and_merges(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    played = stage.start(
        turn(call("read", path="a.txt"), call("grep", pattern="one")),
        turn(EDIT, call("write", path="n.txt", content="n\n"), call("apply_patch", patch=PATCH)),
        turn(shell("cat a.txt b.txt d/e.txt; echo made > made.txt")),
        turn(call("commit", message="All of it")),
        DONE,
        merge=True,
    )
    assert (played.code, played.ending) == (0, "done")
    assert played.results[0].endswith("one")
    assert played.results[5].startswith("two\nc\nnew")
    assert tree(stage.repository) == {
        "a.txt": "two\n", "b.txt": "c\n", "d/e.txt": "new\n", "made.txt": "made\n", "n.txt": "n\n",
    }  # fmt: skip
    assert plain_git(stage.repository, "log", "--format=%s", "refs/thalia/s1/work", "-1") == "All of it"
    assert plain_git(stage.repository, "log", "--format=%s", "HEAD") == "First version", "HEAD stays"
    check_conversation(played.state)
    assert check_replay(played.events).requests == 5


def test_nothing_reaches_the_checkout_before_the_merge(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    played = stage.start(turn(EDIT, shell("echo x > x.txt")), DONE)
    assert tree(stage.repository) == {"a.txt": "one\n", "b.txt": "b\n"}
    assert set(played.screen.files) == {"M a.txt +1 -1", "A x.txt +1 -0"}
    assert "+two" in diff_session(stage.parts, SESSION, played.events)


@pytest.mark.parametrize("name", ["AGENTS.md", "CLAUDE.md"])
def test_instructions_of_the_repository_reach_the_model(name: str, tmp_path: Path) -> None:
    stage = Stage(tmp_path, {name: "Use tabs.\n", "a.txt": "one\n"})
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "AGENTS.md").write_text("No emojis.\n")
    (context,) = [e.body for e in stage.start(DONE).events if isinstance(e.body, ContextSet)]
    assert "Use tabs." in context.system and name in context.system
    assert "No emojis." in context.system, "the user's own"


def test_uncommitted_work_is_carried_and_comes_back_with_the_merge(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    (stage.repository / "b.txt").write_text("mine\n")
    (stage.repository / "untracked.txt").write_text("mine too\n")
    played = stage.start(turn(shell("cat b.txt untracked.txt"), EDIT), DONE, merge=True)
    assert played.results[0].startswith("mine\nmine too")
    assert played.screen.files == ("M a.txt +1 -1",), "what was there before is no change of the session"
    assert tree(stage.repository) == {"a.txt": "two\n", "b.txt": "mine\n", "untracked.txt": "mine too\n"}


def test_clean_begins_with_the_last_commit(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    (stage.repository / "b.txt").write_text("mine\n")
    (stage.repository / "untracked.txt").write_text("mine too\n")
    played = stage.start(turn(shell("cat b.txt; ls"), EDIT), DONE, clean=True, merge=True)
    assert played.results[0].startswith("b\na.txt\nb.txt") and "untracked" not in played.results[0]
    assert tree(stage.repository) == {"a.txt": "two\n", "b.txt": "mine\n", "untracked.txt": "mine too\n"}


def test_in_place_works_in_the_checkout_itself(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    played = stage.start(turn(EDIT, shell("echo x > x.txt")), DONE, in_place=True)
    assert (played.code, played.worktree) == (0, stage.repository)
    assert tree(stage.repository) == {"a.txt": "two\n", "b.txt": "b\n", "x.txt": "x\n"}
    assert not any(isinstance(e.body, EffectStarted) and e.body.effect.kind == "take_snapshot" for e in played.events)
    assert played.code == stage.resume(EMPTY, EMPTY, DONE, prompt="More.").code


EMPTY = {"text": "."}


def test_without_snapshots_none_is_taken_and_the_work_can_still_be_merged(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    played = stage.start(turn(EDIT, shell("echo x > x.txt")), DONE, snapshots=False)
    assert not any(isinstance(e.body, EffectStarted) and e.body.effect.kind == "take_snapshot" for e in played.events)
    assert isinstance(stage.merge(), Merged)
    assert tree(stage.repository) == {"a.txt": "two\n", "b.txt": "b\n", "x.txt": "x\n"}


def test_a_command_names_the_snapshot_that_holds_the_edits_before_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    played = stage.start(turn(EDIT, shell("echo x > x.txt")), DONE)
    (effect,) = [e.body.effect for e in played.events if isinstance(e.body, EffectStarted)
                 and isinstance(e.body.effect, RunTool) and e.body.effect.tool == "shell"]  # fmt: skip
    assert effect.snapshot is not None
    assert plain_git(stage.repository, "show", f"{effect.snapshot}:a.txt") == "two"


def test_two_reads_run_beside_each_other(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    played = stage.start(turn(call("read", path="a.txt"), call("read", path="b.txt")), DONE)
    kinds = [e.body.kind for e in played.events if getattr(e.body, "call_id", "").startswith("c1_")]
    assert kinds == ["effect_started", "effect_started", "effect_finished", "effect_finished"]


def test_a_command_that_fails_is_told_and_the_turn_goes_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    played = stage.start(turn(shell("echo before; exit 3")), DONE)
    outcome = played.outcome("c1_1")
    assert isinstance(outcome, ToolFailed) and outcome.exit_code == 3
    assert "before" in played.results[0] and played.ending == "done"


def test_an_edit_stays_when_the_command_after_it_crashes(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    played = stage.start(turn(EDIT, shell("kill -SEGV $$")), DONE, merge=True)
    assert isinstance(played.outcome("c1_1"), ToolSucceeded) and isinstance(played.outcome("c1_2"), ToolFailed)
    assert tree(stage.repository)["a.txt"] == "two\n"


def test_a_commit_holds_what_was_written_before_it_and_nothing_more(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    played = stage.start(
        turn(EDIT, call("commit", message="First"), call("write", path="n.txt", content="n\n")),
        turn(call("commit", message="Second"), call("commit", message="Third")),
        DONE,
    )
    log = plain_git(stage.repository, "log", "--format=%s", "--name-only", "refs/thalia/s1/work", "-2")
    assert log.split() == ["Second", "n.txt", "First", "a.txt"]
    assert played.results[-1] == "Nothing changed since the last commit."


def test_the_turn_limit_ends_with_code_12_and_a_higher_one_goes_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    turns = (turn(EDIT), turn(shell("cat a.txt")), DONE)
    played = stage.start(*turns, max_turns=1)
    assert (played.code, played.ending) == (12, "out_of_turns")
    played = stage.resume(max_turns=5)
    assert (played.code, played.ending) == (0, "done")
    check_replay(played.events)


def test_a_budget_refuses_the_call_that_could_pass_it_and_stays_in_force_when_resumed(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    turns = (turn(EDIT, usage={"input": 1000, "output": 100}), DONE)
    model = stage.script(*turns)
    stage.settings = {"prices": {model: {"input": 1.0, "cached": 1.0, "output": 10.0}}}
    screen = Recorder()
    stage.scripts -= 1
    played = stage.start(*turns, screen=screen, max_budget_usd=0.084)
    assert (played.code, played.ending) == (12, "out_of_budget")
    calls = [e.body.effect for e in played.events if isinstance(e.body, EffectStarted)
             and isinstance(e.body.effect, CallModel)]  # fmt: skip
    assert len(calls) == 1 and calls[0].max_output_tokens == 8192 and calls[0].reserved_usd > 0.08
    assert played.state.spent_usd == pytest.approx(0.002)
    assert stage.resume(max_turns=9).ending == "out_of_budget", "another limit does not lift this one"
    assert stage.resume(max_budget_usd=1.0).ending == "done"


def test_a_budget_for_a_model_without_a_price_is_refused(tmp_path: Path) -> None:
    stage = Stage(tmp_path, variables={"OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})
    with pytest.raises(CannotStart, match="No price is known"):
        prepare_new(stage.parts, SESSION, stage.options(model="openai/own", max_budget_usd=1.0), "Do it.")
    stage.start(turn(EDIT), DONE, max_turns=1)
    with pytest.raises(CannotStart, match="No price is known"):
        prepare_resumed(stage.parts, SESSION, stage.options(model="openai/own", max_budget_usd=1.0), None)


def test_a_model_that_is_busy_is_asked_again_after_the_wait_it_told(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    played = stage.start({**DONE, "faults": [{"fail": "429", "times": 1, "retry_after": 0.05}]})
    assert played.kinds("c1") == ["model_failed", "model_replied"] and played.code == 0
    calls = [e.body for e in played.events if isinstance(e.body, EffectStarted) and e.body.call_id == "c1"]
    assert [body.attempt for body in calls] == [1, 2]


def test_a_model_that_refuses_the_key_ends_with_code_13_and_resume_goes_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    played = stage.start({**DONE, "faults": [{"fail": "401"}]})
    assert (played.code, played.ending, played.kinds("c1")) == (13, "model_unavailable", ["model_failed"])
    assert stage.resume(DONE).code == 0


@pytest.mark.parametrize("odd", ["unknown_tool", "same_id", "list_arguments", "deep_arguments", "empty", "spaces"])
def test_an_odd_reply_costs_at_most_three_calls_and_leaves_the_conversation_whole(odd: str, tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    reads = turn(call("read", path="a.txt"), call("read", path="b.txt"), faults=[{"fail": odd}])
    played = stage.start(reads, DONE)
    assert (played.code, played.ending) == (0, "done")
    assert len([e for e in played.events if isinstance(e.body, EffectStarted)
                and isinstance(e.body.effect, CallModel)]) <= 3  # fmt: skip
    check_conversation(played.state)
    check_replay(played.events)


def test_what_is_said_while_the_agent_works_reaches_it_after_the_results(tmp_path: Path) -> None:
    from eventlog.events import UserSaid
    from eventlog.ids import CommandId

    def say(coordinator: Coordinator, event: Event) -> None:
        if isinstance(event.body, EffectStarted) and event.body.call_id == "c1_1":
            coordinator.send(UserSaid(id=CommandId("later"), text="In upper case."))

    played = Stage(tmp_path).start(turn(shell("true")), DONE, screen=Recorder(watch=say))
    assert [message.role for message in played.state.messages] == ["user", "assistant", "tool", "user", "assistant"]
    check_replay(played.events)


def test_a_worktree_that_cannot_be_made_fails_the_turn_and_resume_makes_it(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    blocked = stage.environment.worktrees
    blocked.parent.mkdir(mode=0o700)
    blocked.write_text("in the way")
    played = stage.start(turn(EDIT), DONE)
    assert (played.code, played.ending) == (1, "failed")
    check_conversation(played.state)
    blocked.unlink()
    assert stage.resume(turn(EDIT), turn(EDIT), DONE).ending == "done"
    assert isinstance(stage.merge(), Merged)
    assert tree(stage.repository)["a.txt"] == "two\n"


def test_merging_twice_says_that_there_is_nothing_left(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.start(turn(EDIT), DONE)
    first, second = stage.merge(), stage.merge()
    assert isinstance(first, Merged) and first.files == ("a.txt",)
    assert isinstance(second, Merged) and second.files == ()


def test_the_same_request_again_after_its_merge_does_not_merge_again(tmp_path: Path) -> None:
    """What the daemon does for a session whose process died between the merge and its last word."""
    stage = Stage(tmp_path)
    stage.start(turn(EDIT), DONE, merge=True)
    (stage.repository / "a.txt").write_text("mine, later\n")
    again = stage.resume(merge=True)
    assert (again.code, again.ending) == (0, "done")
    started = [event.body.effect.kind for event in again.screen.events if isinstance(event.body, EffectStarted)]
    assert "merge_work" not in started
    assert (stage.repository / "a.txt").read_text() == "mine, later\n"


def test_a_merge_refuses_what_was_changed_meanwhile_names_it_and_works_once_that_is_undone(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.start(turn(EDIT, call("write", path="n.txt", content="n\n")), DONE)
    (stage.repository / "a.txt").write_text("mine\n")
    refused = stage.merge()
    assert isinstance(refused, Refused) and refused.files == ("a.txt",)
    assert tree(stage.repository) == {"a.txt": "mine\n", "b.txt": "b\n"}, "none of it or all of it"
    played = stage.resume(turn(EDIT), DONE, DONE, prompt="Go on.")
    assert played.ending == "done", "a refused merge does not spoil the next turn"
    (stage.repository / "a.txt").write_text("one\n")
    merged = stage.merge()
    assert isinstance(merged, Merged) and set(merged.files) == {"a.txt", "n.txt"}


def test_a_merged_session_whose_worktree_went_back_to_the_pool_goes_on(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    played = stage.start(turn(EDIT, shell("echo x > x.txt")), DONE, merge=True)
    assert stage.session_files().pool.adopt(SESSION) is None
    played = stage.resume(
        EMPTY, EMPTY, turn(shell("cat a.txt x.txt; echo y > y.txt")), DONE, prompt="More.", merge=True
    )
    assert played.results[-1].startswith("two\nx")
    assert (played.code, tree(stage.repository)["y.txt"]) == (0, "y\n")
    check_replay(played.events)


def test_a_worktree_that_somebody_deleted_is_made_again_from_the_log(tmp_path: Path) -> None:
    import shutil

    stage = Stage(tmp_path)
    played = stage.start(turn(EDIT), DONE)
    shutil.rmtree(played.worktree)
    played = stage.resume(EMPTY, EMPTY, turn(shell("cat a.txt")), DONE, prompt="More.")
    assert played.results[-1].startswith("two")


def test_the_setup_command_of_the_settings_runs_once_in_a_new_worktree(tmp_path: Path) -> None:
    stage = Stage(tmp_path, settings={"setup_command": "echo ready >> setup.txt"})
    stage.start(turn(shell("cat setup.txt")), DONE)
    played = stage.resume(DONE, DONE, turn(shell("cat setup.txt")), DONE, prompt="Again.")
    assert played.kinds("setup") == ["tool_succeeded"]
    assert [result.strip() for result in played.results] == ["ready", "ready"]
