"""State is a fold: the same events, the same state; and the conversation in it is one that any provider takes."""

import pytest

from agent.folding import fold_events
from agent.state import State
from eventlog.events import Approved, Body, CallRejected, Continued, Denied, Forked, Rewound, TurnEnded
from eventlog.ids import CallId, CommandId, Commit, Digest, SessionId
from eventlog.messages import AssistantMessage, ToolMessage, UserMessage
from eventlog.outcomes import (
    AttemptLost,
    Cancelled,
    ModelFailed,
    OutcomeUnknown,
    Refused,
    ToolSucceeded,
)
from tests.agent.core_bodies import (
    OPENING,
    PlainPlanner,
    asked_for,
    done,
    finished,
    fold_bodies,
    go_on,
    interrupted,
    model_call,
    question,
    replied,
    said,
    started,
    stored,
    taken,
    tool,
)


def shape(state: State) -> list[str]:
    """`user:text`, `assistant`, `tool:call` for each message."""
    shapes: list[str] = []
    for message in state.messages:
        match message:
            case UserMessage(text=text):
                shapes.append(f"user:{text}")
            case AssistantMessage():
                shapes.append("assistant")
            case ToolMessage(call_id=call):
                shapes.append(f"tool:{call}")
    return shapes


STORY: list[Body] = [
    *OPENING,
    started("c1", model_call()),
    finished("c1", replied("read", "edit", "shell", cost=0.5)),
    started("c1_1", tool("read")),
    finished("c1_1", done("text")),
    started("c1_2", tool("edit")),
    said("And be quick.", "u2"),
    finished("c1_2", done("edited", wrote=True)),
    started("c1_3", tool("shell")),
    finished("c1_3", OutcomeUnknown(evidence="it began")),
    started("c2", model_call()),
    finished("c2", replied(call="c2", text="Done.", cost=0.25)),
    TurnEnded(ending="done", text="Done."),
]


def test_two_folds_of_the_same_events_are_equal() -> None:
    story = stored(STORY)
    assert fold_events(story) == fold_events(story)
    assert fold_events(story).ending == TurnEnded(ending="done", text="Done.")


def test_a_fold_goes_on_from_any_of_its_states() -> None:
    story = stored(STORY)
    for cut in range(len(story)):
        assert fold_events(story[cut:], fold_events(story[:cut])) == fold_events(story)


def test_a_command_with_a_repeated_id_does_nothing() -> None:
    state = fold_bodies(STORY)
    assert fold_bodies([said("Do it.", "u1")], state) == state
    assert fold_bodies([said("Another.", "u3")], state) != state


def test_results_enter_the_conversation_in_the_order_of_the_reply_however_they_come() -> None:
    state = asked_for("read", "read", "read")
    begun = [started(f"c1_{at}", tool("read")) for at in (1, 2, 3)]
    state = fold_bodies([*begun, finished("c1_3", done("3")), finished("c1_1", done("1"))], state)
    assert shape(state) == ["user:Do it.", "assistant"]
    state = fold_bodies([finished("c1_2", done("2"))], state)
    assert shape(state) == ["user:Do it.", "assistant", "tool:c1_1", "tool:c1_2", "tool:c1_3"]
    assert [m.text for m in state.messages if isinstance(m, ToolMessage)] == ["1", "2", "3"]


def test_an_outcome_that_comes_twice_or_for_another_attempt_counts_for_nothing() -> None:
    state = fold_bodies([started("c1_1", tool("read"), 2)], asked_for("read", "read"))
    assert fold_bodies([finished("c1_1", done("late"), 1)], state) == state
    state = fold_bodies([finished("c1_1", done("first"), 2)], state)
    assert fold_bodies([finished("c1_1", done("again"), 2)], state) == state


def test_after_an_interrupt_of_three_calls_each_has_exactly_one_result_of_its_own_kind() -> None:
    state = asked_for("read", "shell", "edit")
    state = fold_bodies(
        [
            started("c1_1", tool("read")),
            finished("c1_1", done("read it")),
            started("c1_2", tool("shell")),
            interrupted(),
        ],
        state,
    )
    state, decided = go_on(state, PlainPlanner())
    assert [body.call_id for body in decided if isinstance(body, CallRejected)] == ["c1_3"]
    state = fold_bodies([finished("c1_2", Cancelled(text="half", started=True))], state)
    state, decided = go_on(state, PlainPlanner())
    assert decided == [TurnEnded(ending="interrupted", text="Interrupted.")]
    assert shape(state) == ["user:Do it.", "assistant", "tool:c1_1", "tool:c1_2", "tool:c1_3"]
    texts = [m.text for m in state.messages if isinstance(m, ToolMessage)]
    assert texts[0] == "read it"
    assert texts[1].startswith("The user interrupted this call while it ran.")
    assert texts[2].startswith("Not started")
    assert state.open == {} and state.calls == () and not state.active


def test_what_the_user_says_while_calls_run_follows_their_results() -> None:
    state = fold_bodies([said("Wait!", "u2")], asked_for("read"))
    assert shape(state) == ["user:Do it.", "assistant"]
    state = fold_bodies([started("c1_1", tool("read")), finished("c1_1", done())], state)
    assert shape(state) == ["user:Do it.", "assistant", "tool:c1_1", "user:Wait!"]
    assert state.queued == ()


def test_what_the_user_says_while_the_last_reply_comes_opens_the_next_turn() -> None:
    state = fold_bodies([*OPENING, started("c1", model_call()), said("More.", "u2")])
    state = fold_bodies([finished("c1", replied(text="Done.")), TurnEnded(ending="done", text="Done.")], state)
    assert shape(state) == ["user:Do it.", "assistant", "user:More."]
    assert state.active and state.ending is None


def test_what_the_user_says_after_an_interrupt_is_answered_and_not_only_kept() -> None:
    state = fold_bodies([started("c1_1", tool("shell")), interrupted(), said("Do that instead.", "u2")],
                        asked_for("shell"))  # fmt: skip
    state = fold_bodies([finished("c1_1", Cancelled(text="", started=True))], state)
    assert shape(state) == ["user:Do it.", "assistant", "tool:c1_1"]
    state, decided = go_on(state, PlainPlanner())
    assert shape(state)[-1] == "user:Do that instead."
    assert state.active and state.open.keys() == {"c2"}, "the model is asked"
    assert decided[0] == TurnEnded(ending="interrupted", text="Interrupted.")


def approve(binding: str, id: str = "a1") -> Body:
    return Approved(id=CommandId(id), ask=CallId("c1_1_ask"), binding=Digest(binding * 64))


def test_an_approval_counts_only_with_the_binding_that_was_asked_for() -> None:
    state = fold_bodies([started("c1_1_ask", question("c1_1"))], asked_for("shell"))
    wrong = fold_bodies([approve("f")], state)
    assert wrong.asks.keys() == {"c1_1_ask"} and wrong.calls[0].status == "asked"
    right = fold_bodies([approve("e")], state)
    assert right.asks == {} and (right.calls[0].status, right.calls[0].binding) == ("approved", "e" * 64)


def test_an_approval_is_used_up_when_its_call_starts() -> None:
    state = fold_bodies([started("c1_1_ask", question("c1_1")), approve("e")], asked_for("shell"))
    state = fold_bodies([started("c1_1", tool("shell"))], state)
    assert (state.calls[0].status, state.calls[0].binding) == ("running", None)


def test_a_denial_is_the_calls_result_and_names_the_reason() -> None:
    state = fold_bodies([started("c1_1_ask", question("c1_1"))], asked_for("shell"))
    state = fold_bodies([Denied(id=CommandId("d"), ask=CallId("c1_1_ask"), reason="Too wide.")], state)
    (result,) = [m.text for m in state.messages if isinstance(m, ToolMessage)]
    assert "did not run" in result and "Too wide." in result
    assert state.open == {}


def test_an_answer_to_a_question_that_is_gone_does_nothing_but_use_its_id() -> None:
    state = asked_for("shell")
    assert fold_bodies([approve("e")], state).calls == state.calls


def test_a_question_is_gone_with_its_call_when_the_turn_is_interrupted() -> None:
    state = fold_bodies([started("c1_1_ask", question("c1_1")), interrupted()], asked_for("shell"))
    state, decided = go_on(state, PlainPlanner())
    assert decided[-1] == TurnEnded(ending="interrupted", text="Interrupted.")
    assert state.asks == {} and state.open == {}
    state, decided = go_on(fold_bodies([said("Go on.", "u2")], state), PlainPlanner())
    state = fold_bodies([finished("c2", replied(call="c2", text="Fine."))], state)
    assert go_on(state, PlainPlanner())[0].ending == TurnEnded(ending="done", text="Fine.")


@pytest.mark.parametrize(
    ("outcome", "cost"),
    [
        (AttemptLost(evidence="killed", charged_usd=0.5), 0.5),
        (Cancelled(text="", started=True), 2.0),
        (ModelFailed(fault="cut", text="cut", retry=True, charged_usd=0.25), 0.25),
        (replied(text="Done.", cost=1.5), 1.5),
    ],
    ids=["lost", "cancelled", "failed", "replied"],
)
def test_every_end_of_a_model_call_is_charged(outcome: ToolSucceeded, cost: float) -> None:
    state = fold_bodies([*OPENING, started("c1", model_call(reserved_usd=2.0)), finished("c1", outcome)])
    assert state.spent_usd == cost
    assert state.open == {}


def test_a_reply_without_a_known_price_is_never_called_free() -> None:
    assert fold_bodies([*OPENING, started("c1", model_call()), finished("c1", replied(text="x"))]).unpriced
    assert not fold_bodies(
        [*OPENING, started("c1", model_call()), finished("c1", replied(text="x", cost=0.0))]
    ).unpriced


def test_a_lost_tool_waits_again_and_remembers_its_effect() -> None:
    effect = tool("shell", confined=True)
    state = fold_bodies([started("c1_1", effect), finished("c1_1", AttemptLost(evidence="x"))], asked_for("shell"))
    assert (state.calls[0].status, state.calls[0].attempts, state.calls[0].lost) == ("waiting", 1, effect)


def rewound(to: int, story: list[Body]) -> State:
    body = Rewound(to_seq=to, saved=Commit("a" * 40), restored=Commit("f" * 40))
    return fold_events(stored([*story, body]))


def test_rewinding_takes_the_conversation_back_and_keeps_the_money() -> None:
    state = rewound(len(OPENING), STORY)
    assert shape(state) == ["user:Do it."]
    assert (state.spent_usd, state.usage.input, state.model_calls) == (0.75, 20, 2)
    assert state.snapshot == "f" * 40 and not state.active and state.open == {}


def test_rewinding_into_open_calls_closes_each_as_unknown() -> None:
    asked = STORY[: len(OPENING) + 3]
    state = rewound(len(asked), STORY)
    assert shape(state) == ["user:Do it.", "assistant", "tool:c1_1", "tool:c1_2", "tool:c1_3"]
    assert all("unknown" in m.text for m in state.messages if isinstance(m, ToolMessage))


def test_command_ids_stay_used_after_a_rewind() -> None:
    state = rewound(len(OPENING), STORY)
    assert fold_bodies([said("And be quick.", "u2")], state) == state


def test_a_second_rewind_counts_from_what_the_first_one_left() -> None:
    story = stored([*STORY, Rewound(to_seq=len(OPENING), saved=None, restored=None), said("Other way.", "u9"),
                    Rewound(to_seq=len(STORY) + 1, saved=None, restored=None)])  # fmt: skip
    assert shape(fold_events(story)) == ["user:Do it."]


def test_a_fork_in_the_middle_of_an_interrupt_takes_the_next_task() -> None:
    state = fold_bodies([started("c1_1", tool("shell")), interrupted()], asked_for("shell"))
    state = fold_bodies([Forked(session=SessionId("s"), seq=9), said("Next.", "u2")], state)
    assert shape(state) == ["user:Do it.", "assistant", "tool:c1_1", "user:Next."]
    assert [type(body).__name__ for body in go_on(state, PlainPlanner())[1]] == ["EffectStarted"]


def test_a_refused_merge_does_not_end_the_next_turn() -> None:
    state = fold_bodies([*STORY, finished("m1", Refused(text="Overlap."))])
    merge = fold_bodies([started("m1", tool("read")), finished("m1", Refused(text="Overlap."))], state)
    assert merge.refused == Refused(text="Overlap.")
    for command in (said("Next.", "u5"), Continued(id=CommandId("k"))):
        assert fold_bodies([command], merge).refused is None


def test_a_snapshot_says_that_nothing_is_unsaved_any_more() -> None:
    state = fold_bodies([started("c1_1", tool("edit")), finished("c1_1", done(wrote=True))], asked_for("edit"))
    assert state.written == "edits"
    state = fold_bodies([finished("s1", taken("c"))], fold_bodies([started("s1", tool("read"))], state))
    assert (state.written, state.snapshot) == ("no", "c" * 40)
