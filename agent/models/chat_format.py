"""`chat/1`: Chat Completions, streamed. Its bytes never change: old sessions replay by them."""

from typing import Any, assert_never

import orjson

from agent.models.formats import (
    ECHO_REASONING,
    MAX_TOKENS_NAME,
    NO_TEXT,
    Format,
    bound_in,
    json_object,
    parameters,
    safe_arguments,
    safe_name,
    sent_parameters,
    some_text,
)
from eventlog.events import ContextSet
from eventlog.messages import AssistantMessage, Message, OpaquePart, ReasoningPart, ToolCall, ToolMessage, UserMessage

_OWNED = frozenset({"model", "stream", "tools", "messages"})


def encode_message(message: Message, echo_reasoning: bool = False) -> bytes:
    """One JSON object, valid for the provider whatever the model wrote in it."""
    match message:
        case UserMessage():
            return orjson.dumps({"role": "user", "content": some_text(message.text)})
        case ToolMessage():
            return orjson.dumps({"role": "tool", "tool_call_id": message.call_id, "content": some_text(message.text)})
        case AssistantMessage():
            return orjson.dumps(_assistant(message, echo_reasoning))
        case _:
            assert_never(message)


def _prefix(context: ContextSet, max_output_tokens: int | None) -> bytes:
    """Up to and including the system message."""
    fields: dict[str, Any] = {"model": context.wire_model, "stream": True, "stream_options": {"include_usage": True}}
    fields |= sent_parameters(context, _OWNED)
    if max_output_tokens is not None:
        fields[_bound_name(context)] = max_output_tokens
    head = orjson.dumps({name: value for name, value in fields.items() if value is not None})[:-1]
    if context.tools.strip() not in {"", "[]"}:
        head += b',"tools":' + context.tools.strip().encode()
    head += b',"messages":['
    if context.system.strip():
        head += orjson.dumps({"role": "system", "content": context.system})
    return head


def _encode(context: ContextSet, previous: Message | None, message: Message) -> bytes:
    echo = isinstance(message, AssistantMessage) and parameters(context).get(ECHO_REASONING) is True
    first = previous is None and not context.system.strip()
    return (b"" if first else b",") + encode_message(message, echo)


def _end(context: ContextSet, last: Message | None) -> bytes:
    return b"]}"


def _bound(context: ContextSet, max_output_tokens: int | None) -> int | None:
    if max_output_tokens is not None:
        return max_output_tokens
    return bound_in(context, _bound_name(context))


def _bound_name(context: ContextSet) -> str:
    return str(parameters(context).get(MAX_TOKENS_NAME) or "max_tokens")


CHAT = Format(_prefix, _encode, _end, _bound)


def _assistant(message: AssistantMessage, echo_reasoning: bool) -> dict[str, Any]:
    text, calls = message.text, message.tool_calls
    wire: dict[str, Any] = {"role": "assistant", "content": text if text.strip() else None if calls else NO_TEXT}
    if echo_reasoning:
        reasoning = "".join(part.text for part in message.parts if isinstance(part, ReasoningPart))
        if reasoning:
            wire["reasoning_content"] = reasoning
    if calls:
        wire["tool_calls"] = [_call(call) for call in calls]
    for part in message.parts:
        if isinstance(part, OpaquePart) and part.provider == "chat":
            wire = {**json_object(part.data), **wire}
    return wire


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": safe_name(call.name), "arguments": safe_arguments(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}
