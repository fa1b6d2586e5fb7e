"""What is decided next: who may run beside whom, what comes first, when a turn ends."""

import pytest

from agent.state import State
from eventlog.effects import AskUser, CallModel, RestoreTree, RunTool, TakeSnapshot
from eventlog.events import Approved, Body, CallRejected, Continued, EffectStarted, TurnEnded
from eventlog.ids import CallId, CommandId, Digest
from eventlog.messages import ToolMessage
from eventlog.outcomes import AttemptLost, Cancelled, Merged, ModelFailed, OutcomeUnknown, Refused, ToolFailed
from tests.agent.core_bodies import (
    BASE,
    CONTEXT,
    MAKE,
    OPENING,
    PlainPlanner,
    asked_for,
    done,
    finished,
    fold_bodies,
    go_on,
    interrupted,
    limits,
    mode,
    model_call,
    replied,
    said,
    started,
    taken,
)


def names(bodies: list[Body]) -> list[str]:
    """`c1_1` for a start, `-c1_1` for a rejection, the ending for an end."""
    found: list[str] = []
    for body in bodies:
        match body:
            case EffectStarted(call_id=call):
                found.append(call)
            case CallRejected(call_id=call):
                found.append(f"-{call}")
            case TurnEnded(ending=ending):
                found.append(ending)
            case _:
                found.append(body.kind)
    return found


def after(state: State, *bodies: Body, planner: PlainPlanner | None = None) -> tuple[State, list[str]]:
    state, decided = go_on(fold_bodies(bodies, state), planner or PlainPlanner())
    return state, names(decided)


def test_reads_start_beside_each_other() -> None:
    assert after(asked_for("read", "read", "read"))[1] == ["c1_1", "c1_2", "c1_3"]


@pytest.mark.parametrize("tool", ["read", "edit", "shell"])
def test_nothing_looks_at_a_tree_that_is_being_set_back(tool: str) -> None:
    asked = fold_bodies([*OPENING, started("b2", RestoreTree(commit=BASE)), started("c1", model_call())])
    state, decided = after(asked, finished("c1", replied(tool)))
    assert decided == []
    assert after(state, finished("b2", taken("c")))[1] == ["c1_1"]


def test_a_write_waits_for_every_earlier_call() -> None:
    state, decided = after(asked_for("read", "edit"))
    assert decided == ["c1_1"]
    assert after(state, finished("c1_1", done()))[1] == ["c1_2"]


def test_a_write_waits_for_an_earlier_read_that_waits_for_a_person() -> None:
    planner = PlainPlanner(asks=frozenset({"read"}))
    state, decided = after(asked_for("read", "edit"), planner=planner)
    assert decided == ["c1_1_ask"]
    approved = Approved(id=CommandId("a"), ask=CallId("c1_1_ask"), binding=Digest("e" * 64))
    assert after(state, approved, planner=planner)[1] == ["c1_1"]


def test_reads_after_a_write_wait_for_it() -> None:
    state, decided = after(asked_for("edit", "read", "read"))
    assert decided == ["c1_1"]
    assert after(state, finished("c1_1", done(wrote=True)))[1] == ["c1_2", "c1_3"]


def test_writes_run_one_at_a_time_in_the_order_of_the_reply() -> None:
    state, decided = after(asked_for("edit", "edit", "shell"))
    assert decided == ["c1_1"]
    state, decided = after(state, finished("c1_1", done()))
    assert decided == ["c1_2"]
    assert after(state, finished("c1_2", done()))[1] == ["c1_3"]


def test_a_command_after_an_edit_waits_for_a_snapshot_and_names_it() -> None:
    state, decided = after(asked_for("edit", "shell"))
    state, decided = after(state, finished("c1_1", done(wrote=True)))
    assert decided == ["s1"]
    (effect,) = [item.effect for item in state.open.values()]
    assert isinstance(effect, TakeSnapshot) and effect.parent == BASE
    state, decided = after(state, finished("s1", taken("c")))
    assert decided == ["c1_2"]
    (effect,) = [item.effect for item in state.open.values()]
    assert isinstance(effect, RunTool) and effect.snapshot == "c" * 40


def test_an_edit_after_a_command_that_wrote_waits_for_a_snapshot_and_after_an_edit_does_not() -> None:
    state, _ = after(asked_for("edit", "edit", "shell", "edit"))
    state, decided = after(state, finished("c1_1", done(wrote=True)))
    assert decided == ["c1_2"]
    state, decided = after(state, finished("c1_2", done(wrote=True)))
    assert decided == ["s1"]
    state, decided = after(state, finished("s1", taken("c")))
    assert decided == ["c1_3"]
    state, decided = after(state, finished("c1_3", done(wrote=True)))
    assert decided == ["s2"]
    assert after(state, finished("s2", taken("d")))[1] == ["c1_4"]


def test_a_command_after_nothing_written_needs_no_snapshot() -> None:
    assert after(asked_for("shell"))[1] == ["c1_1"]


def test_no_write_starts_while_a_snapshot_is_taken() -> None:
    state, _ = after(asked_for("edit"))
    state, decided = after(state, finished("c1_1", done(wrote=True)))
    assert decided == ["c2", "s1"], "taken while the next model call is under way"
    state, decided = after(state, finished("c2", replied("edit", "read", call="c2")))
    assert decided == []
    assert after(state, finished("s1", taken("c")))[1] == ["c2_1"]


def test_no_tool_starts_before_the_worktree_is_there() -> None:
    state = fold_bodies([CONTEXT, mode(), started("w1", MAKE), said("Do it.")])
    state, decided = after(state)
    assert decided == ["c1"], "the model is asked meanwhile"
    state, decided = after(state, finished("c1", replied("read")))
    assert decided == []
    assert after(state, *OPENING[3:4])[1] == ["c1_1"]


def test_a_worktree_that_cannot_be_made_ends_the_turn_and_leaves_no_call_without_a_result() -> None:
    state = fold_bodies([CONTEXT, mode(), started("w1", MAKE), said("Do it."), started("c1", model_call())])
    state = fold_bodies([finished("c1", replied("read", "edit"))], state)
    state, decided = after(state, finished("w1", Refused(text="The disk is full.")))
    assert decided == ["-c1_1", "-c1_2", "failed"]
    assert state.calls == () and len(state.messages) == 4


def test_without_a_worktree_calls_are_refused_and_never_waited_for() -> None:
    state = fold_bodies([CONTEXT, mode(), said("Do it."), started("c1", model_call())])
    assert after(state, finished("c1", replied("read")))[1] == ["-c1_1", "c2"]


def test_the_turn_limit_ends_the_turn_before_the_next_model_call() -> None:
    state = fold_bodies([limits(max_turns=1)], asked_for("read"))
    state, _ = after(state)
    state, decided = after(state, finished("c1_1", done()))
    assert decided == ["out_of_turns"]
    assert "limit" in (state.ending.text if state.ending else "")


def test_going_on_after_a_limit_counts_a_new_turn() -> None:
    state = fold_bodies([limits(max_turns=1)], asked_for("read"))
    state, _ = after(state)
    state, _ = after(state, finished("c1_1", done()))
    assert after(state, Continued(id=CommandId("k")))[1] == ["c2"]


def test_the_budget_refuses_a_call_that_could_pass_it_before_it_is_made() -> None:
    planner = PlainPlanner(reserved_usd=0.6)
    state = fold_bodies([limits(max_budget_usd=1.0), *OPENING])
    state, decided = after(state, planner=planner)
    assert decided == ["c1"]
    state, _ = after(state, finished("c1", replied("read", cost=0.5)), planner=planner)
    state, decided = after(state, finished("c1_1", done()), planner=planner)
    assert decided == ["out_of_budget"]
    assert state.spent_usd == 0.5


def test_a_budget_that_just_fits_is_used() -> None:
    planner = PlainPlanner(reserved_usd=1.0)
    assert after(fold_bodies([limits(max_budget_usd=1.0), *OPENING]), planner=planner)[1] == ["c1"]


def failed(retry: bool = True, wait_ms: int = 0) -> ModelFailed:
    return ModelFailed(fault="overloaded", text="Busy.", retry=retry, wait_ms=wait_ms)


def test_a_failed_model_call_is_tried_again_after_the_wait_it_was_told() -> None:
    state = fold_bodies([*OPENING, started("c1", model_call()), finished("c1", failed(wait_ms=1500))])
    _, decided = go_on(state, PlainPlanner())
    (again,) = decided
    assert isinstance(again, EffectStarted) and isinstance(again.effect, CallModel)
    assert (again.call_id, again.attempt, again.effect.delay_ms) == ("c1", 2, 1500)


def test_attempts_at_one_model_call_are_bounded() -> None:
    state = fold_bodies([limits(max_attempts=3), *OPENING])
    seen: list[str] = []
    for attempt in (1, 2, 3):
        state, decided = after(state)
        assert decided == ["c1"]
        state = fold_bodies([finished("c1", failed(), attempt)], state)
        seen += decided
    assert after(state)[1] == ["model_unavailable"]
    assert state.model_calls == 1, "one call, three attempts"


def test_a_failure_that_no_retry_helps_ends_the_turn_at_once() -> None:
    state = fold_bodies([*OPENING, started("c1", model_call()), finished("c1", failed(retry=False))])
    assert after(state)[1] == ["model_unavailable"]


def test_a_lost_model_call_is_sent_again_as_the_next_attempt() -> None:
    state = fold_bodies([*OPENING, started("c1", model_call()), finished("c1", AttemptLost(evidence="killed"))])
    _, (again,) = go_on(state, PlainPlanner())
    assert isinstance(again, EffectStarted) and (again.call_id, again.attempt) == ("c1", 2)


def test_what_nobody_is_there_to_permit_is_withheld_and_the_turn_says_so_at_its_end() -> None:
    planner = PlainPlanner(rejects=frozenset({"shell"}))
    state, decided = after(asked_for("shell", "read"), planner=planner)
    assert decided == ["-c1_1", "c1_2"]
    state, decided = after(state, finished("c1_2", done()), planner=planner)
    state, decided = after(state, finished("c2", replied(call="c2", text="Could not.")), planner=planner)
    assert decided == ["withheld"]


def test_a_question_is_asked_once_and_waited_for() -> None:
    planner = PlainPlanner(asks=frozenset({"shell"}))
    state, decided = after(asked_for("shell"), planner=planner)
    assert decided == ["c1_1_ask"]
    assert isinstance(state.open[CallId("c1_1_ask")].effect, AskUser)
    assert state.resting and after(state, planner=planner)[1] == []


@pytest.mark.parametrize("tools", [("shell",), ("read", "read", "edit"), ("edit", "shell", "read")])
def test_an_interrupt_closes_every_call(tools: tuple[str, ...]) -> None:
    state, _ = after(asked_for(*tools))
    state, _ = after(state, interrupted())
    for call in list(state.open):
        state, _ = after(state, finished(call, Cancelled(text="", started=True)))
    assert state.ending == TurnEnded(ending="interrupted", text="Interrupted.")
    assert (state.calls, state.open, state.active) == ((), {}, False)
    assert sum(isinstance(message, ToolMessage) for message in state.messages) == len(tools)


def test_an_interrupt_while_the_model_is_asked_ends_the_turn() -> None:
    state, _ = after(fold_bodies(OPENING))
    state, decided = after(state, interrupted())
    assert decided == []
    assert after(state, finished("c1", Cancelled(text="", started=True)))[1] == ["interrupted"]


def test_an_interrupt_keeps_what_was_written_in_a_snapshot() -> None:
    state, _ = after(asked_for("shell"))
    state, _ = after(state, interrupted())
    state, decided = after(state, finished("c1_1", Cancelled(text="", started=True, wrote=True)))
    assert decided == ["s1"]
    assert after(state, finished("s1", taken("c")))[1] == ["interrupted"]


def test_a_snapshot_that_cannot_be_taken_does_not_hold_up_an_interrupt() -> None:
    state, _ = after(asked_for("shell"))
    state, _ = after(state, interrupted())
    state, _ = after(state, finished("c1_1", Cancelled(text="", started=True, wrote=True)))
    assert after(state, finished("s1", Refused(text="The disk is full.")))[1] == ["interrupted"]


def test_a_lost_command_that_is_not_run_again_is_never_called_not_started() -> None:
    state, _ = after(asked_for("shell"))
    state = fold_bodies([interrupted(), finished("c1_1", AttemptLost(evidence="killed"))], state)
    state, decided = after(state)
    assert decided == ["-c1_1", "s1"], "what it wrote belongs to the tree"
    (result,) = [message.text for message in state.messages if isinstance(message, ToolMessage)]
    assert result.startswith("It began")


def test_a_lost_command_is_run_again_as_the_next_attempt() -> None:
    state, _ = after(asked_for("shell"))
    _, (again,) = go_on(fold_bodies([finished("c1_1", AttemptLost(evidence="killed"))], state), PlainPlanner())
    assert isinstance(again, EffectStarted) and (again.call_id, again.attempt) == ("c1_1", 2)


def test_an_unknown_outcome_is_told_and_the_turn_goes_on() -> None:
    state, _ = after(asked_for("shell"))
    state, decided = after(state, finished("c1_1", OutcomeUnknown(evidence="it began")))
    assert decided == ["c2", "s1"]


def test_a_turn_ends_with_the_snapshot_of_its_last_writes() -> None:
    state = fold_bodies([*OPENING, started("c1", model_call()), finished("c1", replied("edit"))])
    state, _ = after(state)
    state, _ = after(state, finished("c1_1", done(wrote=True)))
    state, decided = after(state, finished("c2", replied(call="c2", text="Done.")))
    assert decided == [], "the snapshot is still being taken"
    assert after(state, finished("s1", taken("c")))[1] == ["done"]


def test_after_its_end_nothing_is_decided() -> None:
    state = fold_bodies([*OPENING, TurnEnded(ending="done", text="")])
    assert after(state)[1] == []
    assert after(state, finished("m1", Merged(files=(), saved=None)))[1] == []


def with_setup() -> State:
    """A fresh worktree in which the user's setup command has to run, and a reply that asks for a command."""
    opening = [CONTEXT.model_copy(update={"setup": "make setup"}) if body == CONTEXT else body for body in OPENING]
    return fold_bodies([*opening, started("c1", model_call()), finished("c1", replied("shell"))])


def test_the_setup_command_runs_before_any_call_in_a_new_worktree() -> None:
    state, decided = after(with_setup())
    assert decided == ["setup"]
    assert after(state)[1] == []
    assert after(state, finished("setup", done(wrote=True)))[1] == ["s1"]


def test_a_lost_setup_command_is_a_new_attempt_and_a_failed_one_does_not_stop_the_agent() -> None:
    state, _ = after(with_setup())
    state, decided = go_on(fold_bodies([finished("setup", AttemptLost(evidence="gone"))], state), PlainPlanner())
    assert [(body.call_id, body.attempt) for body in decided if isinstance(body, EffectStarted)] == [("setup", 2)]
    failed = finished("setup", ToolFailed(text="no make here", exit_code=2), attempt=2)
    assert after(state, failed)[1] == ["c1_1"]
