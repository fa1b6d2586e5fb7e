"""Fan-outs: who may begin what and when, what becomes of each agent's work, and that all of it ends."""

from collections.abc import Callable

import pytest

from agent.fanning import MAX_JOBS
from agent.fans import OUTPUT_TAIL
from agent.folding import fold_events
from eventlog.effects import (
    AdvanceBranch,
    CheckMerge,
    FanOut,
    MergeWork,
    PrepareMerge,
    RestoreTree,
    RetireAgents,
    SpawnAgent,
)
from eventlog.events import Body, Forked, Rewound, TurnEnded
from eventlog.ids import CallId, SessionId
from eventlog.messages import Usage
from eventlog.outcomes import (
    AgentsRetired,
    AttemptLost,
    BranchAdvanced,
    Cancelled,
    Merged,
    MergePrepared,
    Outcome,
    OutcomeUnknown,
    Refused,
    ToolFailed,
    ToolSucceeded,
)
from tests.agent.core_bodies import (
    BASE,
    CONTEXT,
    MAKE,
    OPENING,
    done,
    finished,
    fold_bodies,
    interrupted,
    limits,
    model_call,
    ready,
    replied,
    started,
    stored,
    taken,
    tool,
)
from tests.agent.core_fans import (
    AT_REST,
    CHECK,
    CUT,
    FanPlanner,
    Room,
    asked,
    by_model,
    by_person,
    commit,
    conflicted,
    red,
    worked,
)


def test_a_call_of_the_model_gives_each_task_to_an_agent_and_gets_one_result() -> None:
    room = by_model()
    assert room.parts == ["c1_1-1_r1", "c1_1-2_r1"] and room.state.calls[0].status == "running"
    first = room.effect("c1_1-1_r1")
    assert isinstance(first, SpawnAgent) and (first.text, first.base, first.round) == ("one", BASE, 1)
    room.end("c1_1-1_r1", worked(None))
    room.end("c1_1-2_r1", worked(None, text="Nothing to do.\nReally."))
    assert room.end("c1_1_end", AgentsRetired()) == ["c2"], "the model reads what came of it"
    assert room.result == "0 of 2 merged.\n1. one: nothing changed. I did it.\n2. two: nothing changed. Nothing to do."


def test_what_a_person_wants_is_a_turn_of_its_own_without_a_model() -> None:
    room = by_person()
    assert room.state.active and room.parts == ["f1-1_r1", "f1-2_r1"]
    room.merge("f1-1", "1")
    assert room.merge("f1-2", "2") == ["f1_end"]
    end = room.close("2")
    assert end.ending == "done" and end.text == "2 of 2 merged.\n1. one: merged. I did it.\n2. two: merged. I did it."
    assert (room.state.model_calls, len(room.state.messages), room.state.asked_fan) == (0, 0, None)


def test_the_same_command_is_taken_once_and_the_next_fan_out_has_another_name() -> None:
    room = by_person("one")
    room.end("f1-1_r1", worked(None))
    room.end("f1_end", AgentsRetired())
    assert room.put(asked("one")) == [] and not room.state.active
    room.put(asked("one", id="again"))
    assert room.parts == ["f2-1_r1"]


def test_what_is_asked_for_while_a_turn_is_under_way_does_not_begin() -> None:
    room = by_person("one")
    before = room.state.fan
    assert room.put(asked("two", id="other")) == []
    assert room.state.fan == before and room.state.asked_fan == asked("one")


@pytest.mark.parametrize("of_model", [True, False], ids=["model", "person"])
def test_agents_begin_with_the_files_as_they_are(of_model: bool) -> None:
    wrote = [*OPENING, started("c0", tool("shell")), finished("c0", done(wrote=True))]
    opening = wrote if of_model else [*wrote, TurnEnded(ending="done", text="")]
    room = by_model(opening=opening) if of_model else by_person(opening=opening)
    assert room.parts == ["s1"]
    room.end("s1", taken("5"))
    spawns = [room.effect(part) for part in room.parts]
    assert [one.base for one in spawns if isinstance(one, SpawnAgent)] == [commit("5")] * 2


OFF: tuple[Body, ...] = (*AT_REST, CONTEXT.model_copy(update={"snapshots": False}))
OFF_AND_WRITTEN: tuple[Body, ...] = (*OFF, started("x", tool("shell")), finished("x", done(wrote=True)))


@pytest.mark.parametrize("opening", [AT_REST[:2], OFF, OFF_AND_WRITTEN], ids=["no worktree", "off", "off, written"])
def test_without_a_worktree_or_snapshots_nothing_begins_and_the_turn_ends(opening: tuple[Body, ...]) -> None:
    room = by_person(opening=opening)
    assert room.state.ending is not None and room.state.ending.ending == "failed"
    assert room.parts == [] and room.state.fan is None


def test_nothing_of_it_begins_while_its_session_has_no_worktree() -> None:
    room = by_person("one", opening=[*AT_REST, started("w2", MAKE)])
    assert room.parts == ["w2"]
    room.end("w2", ready())
    room.merge("f1-1", "1")
    assert room.put(started("w3", MAKE), finished("f1_end", AgentsRetired())) == []
    assert room.end("w3", ready()) == ["f1_tree"]


def test_other_calls_of_the_reply_wait_for_it() -> None:
    room = by_model("read", "fan_out", "shell", planner=FanPlanner(tasks=("one",)))
    assert room.parts == ["c1_1"]
    assert room.end("c1_1", done()) == ["c1_2", "c1_2-1_r1"]
    room.end("c1_2-1_r1", worked(None))
    assert room.end("c1_2_end", AgentsRetired()) == ["c1_3"]


def test_no_more_agents_are_at_work_than_were_wanted() -> None:
    room = by_person("a", "b", "c", "d", jobs=2)
    assert room.parts == ["f1-1_r1", "f1-2_r1"]
    assert room.end("f1-2_r1", worked("2")) == ["f1-3_r1", "f1-2_m1"], "its work is merged beside the others' work"
    assert room.end("f1-1_r1", worked(None)) == ["f1-4_r1"]


def test_where_nobody_said_how_many_it_is_a_fixed_number_and_never_more_than_there_are_tasks() -> None:
    assert len(by_person(*["a task"] * 10).parts) == MAX_JOBS
    fan_out = by_person("one", "two", jobs=64).effect("f1")
    assert isinstance(fan_out, FanOut) and fan_out.jobs == 2


def test_work_is_merged_in_the_order_in_which_it_is_ready_and_one_at_a_time() -> None:
    room = by_person("a", "b", "c")
    assert room.end("f1-3_r1", worked("3")) == ["f1-3_m1"]
    assert room.end("f1-2_r1", worked("2")) == room.end("f1-1_r1", worked("1")) == []
    assert room.end("f1-3_m1", MergePrepared(commit=commit("6"))) == ["f1-3_a1"]
    move = room.effect("f1-3_a1")
    assert isinstance(move, AdvanceBranch) and (move.fan, move.onto, move.commit) == ("f1", BASE, commit("6"))
    assert room.end("f1-3_a1", BranchAdvanced(commit=commit("6"))) == ["f1-2_m1"]
    merge = room.effect("f1-2_m1")
    assert isinstance(merge, PrepareMerge) and (merge.work, merge.onto) == (commit("2"), commit("6"))


def test_with_a_check_the_branch_moves_once_it_is_green_on_the_merge() -> None:
    room = by_person("one", check=CHECK)
    assert room.prepare("f1-1", "5") == ["f1-1_k1"]
    check = room.effect("f1-1_k1")
    assert isinstance(check, CheckMerge) and (check.commit, check.command, check.confined) == (commit("5"), CHECK, True)
    assert room.end("f1-1_k1", done()) == ["f1-1_a1"]
    room.end("f1-1_a1", BranchAdvanced(commit=commit("5")))
    assert "1. one: merged, checked. I did it." in room.close("5").text


def test_a_conflict_goes_back_to_the_agent_that_wrote_it() -> None:
    room = by_person("one")
    room.end("f1-1_r1", worked("1"))
    assert room.end("f1-1_m1", conflicted("7", "a.txt", "b.txt")) == ["f1-1_r2"]
    again = room.effect("f1-1_r2")
    assert isinstance(again, SpawnAgent) and (again.round, again.base) == (2, commit("7"))
    assert "a.txt, b.txt" in again.text and again.text.endswith("-mine\n+theirs")
    assert room.end("f1-1_r2", worked("2")) == ["f1-1_m2"]
    merge = room.effect("f1-1_m2")
    assert isinstance(merge, PrepareMerge) and merge.conflicted == ("a.txt", "b.txt") and merge.work == commit("2")


def test_a_red_check_goes_back_with_the_end_of_what_it_said() -> None:
    room = by_person("one", check=CHECK)
    room.prepare("f1-1", "5")
    assert room.end("f1-1_k1", red("early" + "x" * OUTPUT_TAIL)) == ["f1-1_r2"]
    again = room.effect("f1-1_r2")
    assert isinstance(again, SpawnAgent) and (again.round, again.base) == (2, commit("5"))
    assert CHECK in again.text and again.text.endswith("x" * OUTPUT_TAIL) and "early" not in again.text
    room.merge("f1-1", "2", round=2)
    assert "merged, checked in round 2" in room.close("2").text


def test_who_mends_goes_before_who_has_not_begun() -> None:
    room = by_person("a", "b", "c", jobs=1)
    room.end("f1-1_r1", worked("1"))
    room.end("f1-1_m1", conflicted("7"))
    assert room.parts == ["f1-2_r1"]
    assert room.end("f1-2_r1", worked(None)) == ["f1-1_r2"]


@pytest.mark.parametrize(
    ("check", "ending", "told"),
    [(CHECK, "check_failed", "1 test failed"), ("", "blocked", "conflicts with what was merged before in a.txt")],
    ids=["red", "conflict"],
)
def test_what_was_mended_twice_in_vain_stays_with_a_person(check: str, ending: str, told: str) -> None:
    room = by_person("one", check=check)
    for round in (1, 2, 3):
        room.end(f"f1-1_r{round}", worked(str(round)))
        if check:
            room.end(f"f1-1_m{round}", MergePrepared(commit=commit("6")))
        last = room.end(f"f1-1_k{round}", red()) if check else room.end(f"f1-1_m{round}", conflicted("7"))
    assert last == ["f1_end"]
    end = room.close()
    assert end.ending == ending and told in end.text and f"`git merge {commit('3')}`" in end.text


def test_an_agent_that_ends_early_is_not_merged_and_its_work_is_named() -> None:
    room = by_person("one")
    assert room.end("f1-1_r1", worked("1", "out_of_budget", "Too dear.")) == ["f1_end"]
    end = room.close()
    assert end.ending == "blocked" and "ended early (out_of_budget): Too dear." in end.text and commit("1") in end.text


def test_an_agent_that_cannot_mend_what_came_back_is_not_done() -> None:
    room = by_person("one")
    room.end("f1-1_r1", worked("1"))
    room.end("f1-1_m1", conflicted("7"))
    assert room.end("f1-1_r2", worked(None)) == ["f1_end"]
    end = room.close()
    assert end.ending == "blocked" and "a.txt" in end.text and commit("1") in end.text


@pytest.mark.parametrize("outcome", [Refused(text="No worktree."), CUT], ids=["refused", "cancelled"])
def test_an_agent_that_could_not_begin_or_was_ended_is_not_merged(outcome: Refused | Cancelled) -> None:
    room = by_person("one")
    assert room.end("f1-1_r1", outcome) == ["f1_end"]
    end = room.close()
    assert end.ending == "blocked" and f"not merged (stopped). {outcome.text}" in end.text


def test_an_agent_whose_process_is_gone_goes_on_with_its_round_and_at_last_not() -> None:
    room = by_person("one")
    assert room.end("f1-1_r1", AttemptLost(evidence="It is gone.")) == ["f1-1_r1"]
    room.end("f1-1_r1", worked("1"))
    assert room.end("f1-1_m1", conflicted("7")) == ["f1-1_r2"], "of each round the attempts are counted"
    begun = [room.end("f1-1_r2", AttemptLost(evidence="It is gone.")) for _ in range(3)]
    assert begun == [["f1-1_r2"], ["f1-1_r2"], ["f1_end"]]
    end = room.close()
    assert end.ending == "blocked" and "It is gone." in end.text and commit("1") in end.text


def test_the_worktree_of_an_agent_that_was_lost_in_its_first_round_goes_back_too() -> None:
    room = by_person("one", "two", jobs=1)
    room.put(interrupted())
    assert room.end("f1-1_r1", AttemptLost(evidence="It is gone.")) == ["f1_end"]
    retire = room.effect("f1_end")
    assert isinstance(retire, RetireAgents) and retire.agents == ("f1-1",)


def test_a_lost_check_is_made_again_and_one_that_may_have_run_is_not() -> None:
    room = by_person("one", check=CHECK)
    room.prepare("f1-1", "5")
    assert room.end("f1-1_k1", AttemptLost(evidence="gone")) == ["f1-1_k1"]
    assert room.state.open[CallId("f1-1_k1")].attempt == 2
    assert room.end("f1-1_k1", OutcomeUnknown(evidence="nobody saw it")) == ["f1_end"]
    end = room.close()
    assert end.ending == "blocked" and "unknown: nobody saw it" in end.text


@pytest.mark.parametrize("outcome", [ToolFailed(text="No shell."), CUT], ids=["not run", "cancelled"])
def test_a_check_that_did_not_run_to_its_end_is_nobodys_fault(outcome: Outcome) -> None:
    room = by_person("one", check=CHECK)
    room.prepare("f1-1", "5")
    assert room.end("f1-1_k1", outcome) == ["f1_end"]
    assert room.close().ending == "blocked"


def test_where_the_branch_was_moved_by_others_the_next_is_merged_onto_what_was_merged_last() -> None:
    room = by_person()
    room.end("f1-1_r1", worked("1"))
    room.end("f1-2_r1", worked("2"))
    room.end("f1-1_m1", MergePrepared(commit=commit("5")))
    assert room.end("f1-1_a1", Refused(text="It was moved.")) == ["f1-2_m1"]
    assert isinstance(merge := room.effect("f1-2_m1"), PrepareMerge) and merge.onto == BASE


@pytest.mark.parametrize(("budget", "share"), [(None, None), (10.0, 2.0), (4.0, 0.0)])
def test_each_agent_may_spend_an_equal_share_of_what_is_left(budget: float | None, share: float | None) -> None:
    paid = [started("c0", model_call()), finished("c0", replied(text="Well.", call="c0", cost=6.0))]
    room = by_person(opening=[*AT_REST, limits(max_budget_usd=budget), *paid])
    assert [one.budget_usd for part in room.parts if isinstance(one := room.effect(part), SpawnAgent)] == [share] * 2
    room.end("f1-1_r1", worked("1", spent_usd=0.5))
    room.end("f1-1_m1", conflicted("7"))
    again = room.effect("f1-1_r2")
    assert isinstance(again, SpawnAgent) and again.budget_usd == share, "over all its rounds"


def test_what_agents_use_is_counted_once_over_their_rounds() -> None:
    room = by_person("one", "two")
    room.end("f1-1_r1", worked("1", spent_usd=0.5, usage=Usage(input=10, output=4)))
    room.end("f1-1_m1", conflicted("7"))
    room.end("f1-1_r2", worked("2", spent_usd=0.75, usage=Usage(input=30, output=5)))
    assert not room.state.unpriced
    room.end("f1-2_r1", worked(None, "failed", spent_usd=1.0, usage=Usage(input=1), unpriced=True))
    assert (room.state.spent_usd, room.state.usage) == (1.75, Usage(input=31, output=5)) and room.state.unpriced


def test_at_the_end_worktrees_go_back_then_the_tree_is_set_then_the_call_has_its_result() -> None:
    room = by_model(planner=FanPlanner(tasks=("one",)))
    room.prepare("c1_1-1", "1")
    assert room.end("c1_1-1_a1", BranchAdvanced(commit=commit("1"))) == ["c1_1_end"]
    assert room.end("c1_1_end", Refused(text="Busy.")) == ["c1_1_tree"]
    assert room.effect("c1_1_tree") == RestoreTree(commit=commit("1")) and room.state.calls[0].result is None
    assert room.end("c1_1_tree", taken("1")) == ["c2"]
    assert room.state.snapshot == commit("1") and isinstance(room.outcome("c1_1"), ToolSucceeded)


def test_work_that_was_merged_into_the_checkout_before_says_nothing_of_this_work() -> None:
    merge = MergeWork(checkout="/r", base=BASE, result=BASE, head=BASE, at_s=0)
    before = [*AT_REST, started("m1", merge), finished("m1", Merged(files=("a.txt",), saved=None))]
    assert fold_bodies(before).merged is not None
    assert by_person(opening=before).state.merged is None


def test_an_interrupt_waits_for_the_parts_gives_worktrees_back_and_cancels_the_call() -> None:
    room = by_model("fan_out", "shell", planner=FanPlanner(tasks=("one", "two", "three"), jobs=2))
    room.prepare("c1_1-1", "1")
    (rejected,) = room.put(interrupted())
    assert rejected.kind == "call_rejected" and rejected.call_id == "c1_2"
    assert room.end("c1_1-1_a1", BranchAdvanced(commit=commit("1"))) == []
    assert room.end("c1_1-2_r1", CUT) == []
    assert room.end("c1_1-3_r1", worked(None, "interrupted", "Interrupted.")) == ["c1_1_end"]
    assert room.end("c1_1_end", AgentsRetired()) == []
    told = room.result
    assert isinstance(room.outcome("c1_1"), Cancelled) and "1 of 3 merged." in told
    assert f"What was merged is commit {commit('1')}; the session's worktree is as it was before" in told
    assert room.state.ending == TurnEnded(ending="interrupted", text="Interrupted.")
    assert room.state.snapshot == BASE and room.state.open == {}


def test_an_interrupt_of_what_a_person_wanted_ends_it_too() -> None:
    room = by_person("one")
    assert room.put(interrupted()) == []
    room.end("f1-1_r1", CUT)
    end = room.close()
    assert end.ending == "interrupted" and "0 of 1 merged." in end.text
    assert room.state.asked_fan is None and isinstance(room.outcome("f1"), Cancelled)


def test_an_interrupt_while_the_tree_is_set_tells_that_it_was_set() -> None:
    room = by_person("one")
    room.merge("f1-1", "1")
    room.end("f1_end", AgentsRetired())
    room.put(interrupted())
    room.end("f1_tree", taken("1"))
    outcome = room.outcome("f1")
    assert isinstance(outcome, Cancelled) and "1 of 1 merged." in outcome.text
    assert "as it was before" not in outcome.text and room.state.snapshot == commit("1")


@pytest.mark.parametrize("of_model", [True, False], ids=["model", "person"])
def test_where_the_tree_cannot_be_set_the_turn_fails_and_nothing_is_left_open(of_model: bool) -> None:
    room = by_model(planner=FanPlanner(tasks=("one",))) if of_model else by_person("one")
    fan = "c1_1" if of_model else "f1"
    room.prepare(f"{fan}-1", "1")
    room.end(f"{fan}-1_a1", BranchAdvanced(commit=commit("1")))
    room.end(f"{fan}_end", AgentsRetired())
    assert room.end(f"{fan}_tree", Refused(text="The disk is full.")) == []
    text = room.state.ending.text if room.state.ending else ""
    assert text.startswith("The disk is full.") and (of_model or "1 of 1 merged." in text), "nobody else tells a person"
    assert (room.state.open, room.state.fan, room.state.calls) == ({}, None, ())
    outcome = room.outcome(fan)
    assert isinstance(outcome, ToolFailed) and f"What was merged is commit {commit('1')}" in outcome.text


@pytest.mark.parametrize("back_to", [-1, 4, None], ids=["rewind into it", "rewind before it", "fork"])
@pytest.mark.parametrize("begin", [by_model, by_person], ids=["model", "person"])
def test_a_rewind_or_a_fork_in_the_middle_leaves_no_fan_out(begin: Callable[[], Room], back_to: int | None) -> None:
    room = begin()
    seq = len(room.story) - 1 if back_to == -1 else back_to
    body = Rewound(to_seq=seq, saved=None, restored=None) if seq else Forked(session=SessionId("t"), seq=9)
    late = finished(room.parts[0], worked("1", spent_usd=9.0))
    state = fold_events(stored([*room.story, body, late]))
    assert (state.open, state.fan, state.asked_fan, state.ended_fan) == ({}, None, None, None)
    assert not state.active and state.spent_usd == 0.0
    again = fold_bodies([asked(id="again")], state)
    assert again.fans == room.state.fans and again.asked_fan is not None
