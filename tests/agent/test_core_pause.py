"""A reply that the provider paused: the conversation is sent again with it at its end, and the reply goes on."""

from agent.decide import decide
from agent.state import State
from eventlog.effects import CallModel
from eventlog.events import Body, Continued, EffectStarted, TurnEnded
from eventlog.ids import CallId, CommandId
from eventlog.messages import AssistantMessage, OpaquePart, ToolMessage, UserMessage
from eventlog.outcomes import Cancelled, ModelFailed, ModelReplied
from tests.agent.core_bodies import (
    OPENING,
    PlainPlanner,
    done,
    finished,
    fold_bodies,
    interrupted,
    limits,
    model_call,
    replied,
    said,
    started,
)

SEARCH = OpaquePart(provider="messages", data='{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search"}')


def paused(call: str = "c1", text: str = "First half, ", *tools: str) -> ModelReplied:
    reply = replied(*tools, call=call, text=text)
    message = AssistantMessage(parts=(*reply.message.parts, SEARCH))
    return reply.model_copy(update={"message": message, "stop": "pause"})


def after_a_pause(*more: Body) -> State:
    return fold_bodies([*OPENING, *more, started("c1", model_call()), finished("c1", paused())])


def only(bodies: object) -> Body:
    assert isinstance(bodies, tuple | list)
    (body,) = bodies
    return body


def next_call(state: State) -> EffectStarted:
    body = only(decide(state, PlainPlanner()))
    assert isinstance(body, EffectStarted) and isinstance(body.effect, CallModel), body
    return body


def test_a_paused_reply_is_sent_back_as_the_last_message() -> None:
    state = after_a_pause()
    assert state.messages[-1] == paused().message
    call = next_call(state)
    assert (call.call_id, call.attempt) == ("c2", 1)
    assert isinstance(call.effect, CallModel) and call.effect.messages == 2


def test_the_turn_ends_with_both_halves_of_the_reply() -> None:
    state = fold_bodies([started("c2", model_call()), finished("c2", replied(text="second half."))], after_a_pause())
    assert only(decide(state, PlainPlanner())) == TurnEnded(ending="done", text="First half, second half.")


def test_the_words_of_an_earlier_reply_are_not_the_last_ones() -> None:
    calls = [*OPENING, started("c1", model_call()), finished("c1", replied("read", text="I look. "))]
    run = [started("c1_1", model_call()), finished("c1_1", done())]
    state = fold_bodies([*calls, *run, started("c2", model_call()), finished("c2", replied(text="Found."))])
    assert only(decide(state, PlainPlanner())) == TurnEnded(ending="done", text="Found.")


def test_pauses_count_against_the_turns() -> None:
    state = after_a_pause(limits(max_turns=2))
    state = fold_bodies([started("c2", model_call()), finished("c2", paused("c2"))], state)
    end = only(decide(state, PlainPlanner()))
    assert isinstance(end, TurnEnded) and end.ending == "out_of_turns"


def test_a_turn_that_ended_in_a_pause_goes_on_with_the_reply() -> None:
    state = fold_bodies([*decide(after_a_pause(limits(max_turns=1)), PlainPlanner())], after_a_pause())
    assert not state.active
    assert next_call(fold_bodies([Continued(id=CommandId("g"))], state)).call_id == "c2"


def test_a_reply_that_cannot_go_on_now_is_tried_again() -> None:
    broken = ModelFailed(fault="overloaded", text="It is overloaded.", retry=True, wait_ms=70)
    state = fold_bodies([started("c2", model_call()), finished("c2", broken)], after_a_pause())
    call = next_call(state)
    assert (call.call_id, call.attempt) == ("c2", 2)
    assert isinstance(call.effect, CallModel) and call.effect.delay_ms == 70


def test_what_the_user_says_meanwhile_waits_for_the_end_of_the_reply() -> None:
    """In between, the provider would find its own call without the result that it is about to give."""
    state = fold_bodies([said("And this.", "u2")], after_a_pause())
    assert state.messages[-1] == paused().message
    state = fold_bodies([started("c2", model_call()), finished("c2", replied(text="Done."))], state)
    state = fold_bodies([*decide(state, PlainPlanner())], state)
    assert [message.role for message in state.messages[-3:]] == ["assistant", "assistant", "user"]
    assert next_call(state).call_id == "c3"


def test_an_interrupt_ends_the_turn_at_the_pause_and_the_user_goes_on() -> None:
    state = fold_bodies([interrupted()], after_a_pause())
    assert only(decide(state, PlainPlanner())) == TurnEnded(ending="interrupted", text="Interrupted.")
    state = fold_bodies([*decide(state, PlainPlanner()), said("Go on.", "u2")], state)
    assert state.messages[-1] == UserMessage(text="Go on.")
    assert next_call(state).call_id == "c2"


def test_an_interrupt_while_the_reply_goes_on_ends_the_turn() -> None:
    state = fold_bodies([started("c2", model_call()), interrupted()], after_a_pause())
    state = fold_bodies([finished("c2", Cancelled(text="Interrupted.", started=True))], state)
    assert only(decide(state, PlainPlanner())) == TurnEnded(ending="interrupted", text="Interrupted.")


def test_calls_in_a_paused_reply_run_first_and_their_results_go_back_with_it() -> None:
    opening = [*OPENING, started("c1", model_call()), finished("c1", paused("c1", "", "read"))]
    state = fold_bodies(opening)
    body = only(decide(state, PlainPlanner()))
    assert isinstance(body, EffectStarted) and body.call_id == "c1_1"
    state = fold_bodies([body, finished("c1_1", done("found"))], state)
    assert state.messages[-1] == ToolMessage(call_id=CallId("c1_1"), provider_id="p1", text="found")
    assert next_call(state).call_id == "c2"


def test_a_reply_that_came_to_its_end_is_not_sent_back() -> None:
    state = fold_bodies([started("c2", model_call()), finished("c2", replied(text="Done."))], after_a_pause())
    assert isinstance(only(decide(state, PlainPlanner())), TurnEnded)
