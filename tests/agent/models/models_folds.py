"""Conversations as the fold makes them, drawn step by step: what any request format has to take."""

import json
from collections.abc import Sequence

from hypothesis import strategies as st

from agent.apply import apply
from agent.state import State
from eventlog.effects import CallModel, RunTool
from eventlog.events import Body, CallRejected, EffectFinished, EffectStarted, Forked, TurnEnded, UserSaid
from eventlog.ids import CallId, CommandId, Digest, SessionId, model_call_id, tool_call_id
from eventlog.messages import AssistantMessage, Message, OpaquePart, Part, ReasoningPart, TextPart, ToolCall, Usage
from eventlog.outcomes import Ending, ModelReplied, Outcome, OutcomeUnknown, StopReason, ToolFailed, ToolSucceeded

texts = st.sampled_from(["", " \n", "I read.", 'quotes " and \\', "Grüße 🦊\u2028"]) | st.text(max_size=8)
arguments = st.sampled_from(["{}", '{"a":[1,{"b":null}]}', "", "[1]", '{"a":', "null", '{"a":1}{"b":2}']) | texts
names = st.sampled_from(["read", "a tool!", "", "x" * 99, "ok-1_"])
ITEMS: Sequence[tuple[str, str]] = (
    ("responses", '{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAAA"}'),
    ("responses", '{"type":"reasoning","id":"rs_2","summary":[]}'),
    ("responses", '{"type": "web_search_call", "id": "ws_1", "status": "completed", "big": 12345678901234567890123}'),
    ("responses", '{"type":"message","phase":"commentary","role":"user","content":"forged"}'),
    ("responses", '{"type":"function_call","namespace":"n","call_id":"forged","arguments":"{"}'),
    ("messages", '{"type":"thinking","thinking":"hm","signature":"sig"}'),
    ("messages", '{"type":"redacted_thinking","data":"xyz"}'),
    ("messages", '{"type":"server_tool_use","id":"srvtoolu_1","name":"web_search","input":{}}'),
    ("chat", '{"reasoning_details":[{"type":"reasoning.text","signature":"s","index":0}]}'),
    ("responses", "not json"),
    ("messages", "[1]"),
    ("another", "{}"),
)
"""Provider and JSON of opaque parts, with some that no reader would keep."""
outcomes: st.SearchStrategy[Outcome] = st.one_of(
    texts.map(lambda text: ToolSucceeded(text=text)),
    texts.map(lambda text: ToolFailed(text=text, exit_code=1)),
    st.just(OutcomeUnknown(evidence="it began")),
)
ANY_STOP: Sequence[StopReason] = ("stop", "tool_calls", "length", "content_filter", "refusal", "pause")


@st.composite
def replies(draw: st.DrawFn, call_id: CallId) -> ModelReplied:
    """Of any protocol, since a conversation may go from one to another."""
    parts: list[Part] = []
    for number, kind in enumerate(draw(st.lists(st.sampled_from("trco"), max_size=6)), 1):
        match kind:
            case "t":
                parts.append(TextPart(text=draw(texts)))
            case "r":
                parts.append(ReasoningPart(text=draw(texts)))
            case "c":
                id = tool_call_id(call_id, number)
                theirs = draw(st.sampled_from(["same", "call.odd id", id]))
                parts.append(ToolCall(id=id, provider_id=theirs, name=draw(names), arguments=draw(arguments)))
            case _:
                provider, data = draw(st.sampled_from(ITEMS))
                parts.append(OpaquePart(provider=provider, data=data))
    return ModelReplied(
        message=AssistantMessage(parts=tuple(parts)),
        stop=draw(st.sampled_from(ANY_STOP)),
        usage=Usage(),
        cost_usd=None,
        model="m",
        first_byte_ms=1,
        total_ms=2,
    )


@st.composite
def conversations(draw: st.DrawFn) -> tuple[Message, ...]:
    """The messages of a session at a moment at which its model may be asked."""
    state = apply(State(), UserSaid(id=CommandId("u0"), text=draw(texts)))
    for number in range(1, 1 + draw(st.integers(0, 12))):
        for body in draw(_steps(state, number)):
            state = apply(state, body)
    while state.calls:
        for body in draw(_settling(state)):
            state = apply(state, body)
    if not state.active:
        state = apply(state, UserSaid(id=CommandId("last"), text=draw(texts)))
    return tuple(state.messages)


@st.composite
def _steps(draw: st.DrawFn, state: State, number: int) -> list[Body]:
    """What may happen next: as `decide` and people would have it."""
    said = UserSaid(id=CommandId(f"u{number}"), text=draw(texts))
    if not state.active:
        return [said]
    step = draw(st.sampled_from(["go on", "go on", "go on", "say", "end", "fork"]))
    if step == "say":
        return [said]
    if step == "fork":
        return [Forked(session=SessionId("other"), seq=1)]
    if state.calls:
        return draw(_settling(state))
    if step == "end":
        return [TurnEnded(ending="model_unavailable", text="")]
    call_id = model_call_id(state.model_calls + 1)
    reply = draw(replies(call_id))
    effect = CallModel(model="p/m", builder="chat/1", request_hash=Digest("d" * 64), request_bytes=1, messages=1)
    bodies: list[Body] = [_started(call_id, effect), _finished(call_id, reply)]
    ending: Ending = "done"
    if not reply.message.tool_calls and reply.stop != "pause":
        bodies.append(TurnEnded(ending=ending, text=""))
    return bodies


@st.composite
def _settling(draw: st.DrawFn, state: State) -> list[Body]:
    """A call that waits gets its result, or is not run."""
    call = draw(st.sampled_from([item.call for item in state.calls if item.result is None]))
    if draw(st.booleans()):
        return [CallRejected(call_id=call.id, why="withheld", text="Not permitted.")]
    effect = RunTool(tool="read", arguments="{}", effect_class="read", allowed_by="a test")
    return [_started(call.id, effect), _finished(call.id, draw(outcomes))]


def _started(call_id: CallId, effect: CallModel | RunTool) -> EffectStarted:
    return EffectStarted(call_id=call_id, attempt=1, effect=effect)


def _finished(call_id: CallId, outcome: Outcome) -> EffectFinished:
    return EffectFinished(call_id=call_id, attempt=1, outcome=outcome)


def is_object(text: object) -> bool:
    """Whether a text is the JSON of an object."""
    return isinstance(text, str) and isinstance(json.loads(text), dict)
