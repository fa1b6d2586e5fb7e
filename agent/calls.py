"""The tool calls of the last reply, on their way to results. Pure."""

from collections.abc import Sequence

from agent.state import CallStatus, PendingCall, State, replace
from eventlog.effects import AskUser
from eventlog.ids import CallId, Digest
from eventlog.messages import ToolMessage, UserMessage


def settle_call(state: State, call_id: CallId, text: str) -> State:
    """Give a call its result. With the last one the results enter the conversation, in the order of the reply."""
    state = update_call(state, call_id, status="settled", result=text)
    if not state.calls or any(item.result is None for item in state.calls):
        return state
    state = replace(state, messages=state.messages.extend(results_of(state.calls)), calls=())
    # Results first, then what the user said while the calls ran; an interrupted turn leaves that to the next one.
    if state.interrupting:
        return state
    return replace(state, messages=state.messages.extend(UserMessage(text=text) for text in state.queued), queued=())


def results_of(calls: Sequence[PendingCall]) -> list[ToolMessage]:
    return [
        ToolMessage(call_id=item.call.id, provider_id=item.call.provider_id, text=item.result or "") for item in calls
    ]


def answer_call(state: State, ask: CallId, status: CallStatus, binding: Digest | None, result: str | None) -> State:
    question = state.open.get(ask)
    if question is None or not isinstance(question.effect, AskUser):
        return state
    about = question.effect.about
    if binding is not None and binding != question.effect.binding:
        return state
    state = replace(state, open={key: value for key, value in state.open.items() if key != ask})
    if result is not None:
        return settle_call(state, about, result)
    return update_call(state, about, status=status, binding=binding)


def update_call(state: State, call_id: CallId, **changes: object) -> State:
    calls = tuple(replace(item, **changes) if item.call.id == call_id else item for item in state.calls)
    return replace(state, calls=calls)


def close_all(state: State) -> State:
    """At rest, with a result for each open call, so that any provider takes the conversation."""
    unknown = "The session was taken back or forked while this call was open; whether it ran is unknown."
    calls = [replace(item, result=item.result or unknown) for item in state.calls]
    messages = state.messages.extend(results_of(calls))
    return replace(
        state,
        messages=messages,
        calls=(),
        open={},
        active=False,
        interrupting=False,
        failed=None,
        refused=None,
        fan=None,
        asked_fan=None,
        ended_fan=None,
    )
