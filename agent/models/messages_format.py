"""`messages/1`: the body of a Messages request, streamed, with `messages` last. Pure.

What a message gives stops inside its last block, before the closing brace. The next message, or the end of the body,
closes it: so a message joins the one before where both have the same role, as results of one reply must, and the last
block of the last message is marked for the provider's cache without a change to bytes that are already hashed. The
marks are at most three of the four that the provider takes: on the system prompt, the last tool and the last block."""

from typing import Any, assert_never

import orjson

from agent.models.formats import (
    ECHO_REASONING,
    MAX_OUTPUT,
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
from agent.models.messages_blocks import THINKING
from agent.models.reading import text_in
from eventlog.events import ContextSet
from eventlog.messages import AssistantMessage, Message, OpaquePart, Part, TextPart, ToolCall, ToolMessage, UserMessage

DEFAULT_MAX_OUTPUT = 32_000
"""Output tokens to ask for where nothing bounds them: the protocol wants a number."""

_BOUND = "max_tokens"
_OWNED = frozenset({_BOUND, "model", "stream", "system", "tools", "messages"})
_MARK = {"cache_control": {"type": "ephemeral"}}
_MARK_OPEN = b',"cache_control":{"type":"ephemeral"}'
_CLOSE_BLOCK = b"}"
_CLOSE_MESSAGE = b"]}"


def _prefix(context: ContextSet, max_output_tokens: int | None) -> bytes:
    fields: dict[str, Any] = {"model": context.wire_model, "stream": True}
    fields[_BOUND] = _bound(context, max_output_tokens)
    fields |= {name: value for name, value in sent_parameters(context, _OWNED).items() if value is not None}
    if context.system.strip():
        fields["system"] = [{"type": "text", "text": context.system, **_MARK}]
    if tools := _tools(context.tools):
        fields["tools"] = [*tools[:-1], {**tools[-1], **_MARK}]
    return orjson.dumps(fields)[:-1] + b',"messages":['


def _encode(context: ContextSet, previous: Message | None, message: Message) -> bytes:
    role = _role(message)
    blocks = b"},".join(_open_blocks(context, message))
    if previous is not None and _role(previous) == role:
        return _CLOSE_BLOCK + b"," + blocks
    begin = b'{"role":"' + role.encode() + b'","content":['
    if previous is not None:
        return _CLOSE_BLOCK + _CLOSE_MESSAGE + b"," + begin + blocks
    if role == "assistant":  # a conversation begins with the user
        return _encode(context, None, UserMessage(text="")) + _CLOSE_BLOCK + _CLOSE_MESSAGE + b"," + begin + blocks
    return begin + blocks


def _end(context: ContextSet, previous: Message | None) -> bytes:
    if previous is None:
        return b"]}"
    mark = _MARK_OPEN if _takes_mark(context, previous) else b""
    return mark + _CLOSE_BLOCK + _CLOSE_MESSAGE + b"]}"


def _bound(context: ContextSet, max_output_tokens: int | None) -> int:
    return max_output_tokens or bound_in(context, _BOUND, MAX_OUTPUT) or DEFAULT_MAX_OUTPUT


MESSAGES = Format(_prefix, _encode, _end, _bound)


def _tools(tools: str) -> list[dict[str, Any]]:
    """From the shape of Chat Completions, in which a context holds them; what has another shape goes as it is."""
    try:
        found = orjson.loads(tools)
    except orjson.JSONDecodeError:
        return []
    return [_tool(tool) for tool in found if isinstance(tool, dict)] if isinstance(found, list) else []


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict):
        return tool
    described = {"description": function["description"]} if function.get("description") else {}
    schema = function.get("parameters") or {"properties": {}}
    return {"name": function.get("name"), **described, "input_schema": {"type": "object", **schema}}


def _role(message: Message) -> str:
    return "assistant" if isinstance(message, AssistantMessage) else "user"


def _open_blocks(context: ContextSet, message: Message) -> list[bytes]:
    """At least one; each without its closing brace."""
    match message:
        case UserMessage():
            return [_text(some_text(message.text))]
        case ToolMessage():
            result = {"type": "tool_result", "tool_use_id": message.call_id, "content": some_text(message.text)}
            return [_opened(result)]
        case AssistantMessage():
            return [_open_block(part) for part in _sent_parts(context, message)] or [_text(NO_TEXT)]
        case _:
            assert_never(message)


def _sent_parts(context: ContextSet, message: AssistantMessage) -> list[Part]:
    """The parts that the provider takes back. It refuses thinking at the end of a message, white space at the end of
    its last text, and text that is nothing else."""
    echo = parameters(context).get(ECHO_REASONING) is True
    sent = [part for part in message.parts if _is_sent(part, echo)]
    while sent and _kind(sent[-1]) in THINKING:
        sent.pop()
    if sent and isinstance(sent[-1], TextPart):
        sent[-1] = TextPart(text=sent[-1].text.rstrip())
    return sent


def _is_sent(part: Part, echo_reasoning: bool) -> bool:
    match part:
        case TextPart():
            return bool(part.text.strip())
        case ToolCall():
            return True
        case OpaquePart(provider="messages"):
            item = json_object(part.data)
            # Thinking without a signature is what a cut left, or comes from a server that signs nothing.
            unsigned = item.get("type") == "thinking" and not item.get("signature")
            return bool(text_in(item, "type")) and (echo_reasoning or not unsigned)
        case _:
            return False


def _kind(part: Part) -> str:
    return text_in(json_object(part.data), "type") if isinstance(part, OpaquePart) else part.kind


def _open_block(part: Part) -> bytes:
    match part:
        case TextPart():
            return _text(part.text)
        case ToolCall():
            arguments = orjson.Fragment(safe_arguments(part.arguments))
            return _opened({"type": "tool_use", "id": part.id, "name": safe_name(part.name), "input": arguments})
        case OpaquePart():
            return part.data.strip().encode()[:-1]
        case _:
            raise AssertionError(f"{part.kind} is never sent")


def _takes_mark(context: ContextSet, message: Message) -> bool:
    """Whether its last block does. Of the server's own kinds only its calls and their results are known to."""
    if not isinstance(message, AssistantMessage):
        return True
    sent = _sent_parts(context, message)
    return not sent or not isinstance(sent[-1], OpaquePart) or _kind(sent[-1]).endswith(("_tool_use", "_tool_result"))


def _text(text: str) -> bytes:
    return _opened({"type": "text", "text": text})


def _opened(block: dict[str, Any]) -> bytes:
    return orjson.dumps(block)[:-1]
