"""`responses/1`: the Responses protocol, streamed and without a store: the conversation is all in the request.

Reasoning items, and items of kinds unknown here, go back as the server wrote them. Messages and calls are written anew,
under our ids, with what else stood in them: an OpaquePart of type `message` or `function_call` is the rest of the part
that follows it, such as the phase of a message."""

import hashlib
from typing import Any, assert_never

import orjson

from agent.models.formats import (
    MAX_OUTPUT,
    NO_TEXT,
    Format,
    bound_in,
    json_object,
    safe_arguments,
    safe_name,
    sent_parameters,
    some_text,
)
from eventlog.events import ContextSet
from eventlog.messages import (
    AssistantMessage,
    Message,
    OpaquePart,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)

PROVIDER = "responses"
"""Of the OpaqueParts that go back to this protocol."""
REMAINDERS = frozenset({"message", "function_call"})
"""Types of item that are kept as parts of ours; an OpaquePart holds what else stood in them."""

_BOUND = "max_output_tokens"
_OWNED = frozenset(
    {"model", "stream", "input", "instructions", "tools", "previous_response_id", "conversation", "background", _BOUND}
)
_CACHE_KEY_DIGITS = 32


def _prefix(context: ContextSet, max_output_tokens: int | None) -> bytes:
    fields: dict[str, Any] = {
        "model": context.wire_model,
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": cache_key(context),
    }
    fields |= sent_parameters(context, _OWNED)
    fields[_BOUND] = _bound(context, max_output_tokens)
    fields["instructions"] = context.system if context.system.strip() else None
    fields["tools"] = _tools(context.tools) or None
    head = orjson.dumps({name: value for name, value in fields.items() if value is not None})
    return head[:-1] + b',"input":['


def _encode(context: ContextSet, previous: Message | None, message: Message) -> bytes:
    comma = b"" if previous is None else b","
    match message:
        case UserMessage():
            return comma + orjson.dumps({"role": "user", "content": some_text(message.text)})
        case ToolMessage():
            output = {"type": "function_call_output", "call_id": message.call_id, "output": some_text(message.text)}
            return comma + orjson.dumps(output)
        case AssistantMessage():
            return comma + b",".join(_items(message) or [_said(NO_TEXT, {})])
        case _:
            assert_never(message)


def _end(context: ContextSet, last: Message | None) -> bytes:
    return b"]}"


def _bound(context: ContextSet, max_output_tokens: int | None) -> int | None:
    return bound_in(context, _BOUND, MAX_OUTPUT) if max_output_tokens is None else max_output_tokens


RESPONSES = Format(_prefix, _encode, _end, _bound)


def cache_key(context: ContextSet) -> str:
    """The same for all requests that begin alike, so that they go to the machine which has that beginning cached."""
    beginning = orjson.dumps([context.wire_model, context.system, context.tools])
    return hashlib.sha256(beginning).hexdigest()[:_CACHE_KEY_DIGITS]


def _tools(text: str) -> list[Any]:
    """From the shape of Chat Completions. Strict is what the server takes for granted here, and our schemas are not."""
    try:
        tools = orjson.loads(text or "[]")
    except orjson.JSONDecodeError:
        return []
    return [_tool(tool) for tool in tools] if isinstance(tools, list) else []


def _tool(tool: Any) -> Any:
    function = tool.get("function") if isinstance(tool, dict) else None
    return {"type": "function", "strict": False, **function} if isinstance(function, dict) else tool


def _items(message: AssistantMessage) -> list[bytes]:
    """In the order of the reply. Reasoning that nothing follows is left out: the server refuses it without the item
    that it led to."""
    items: list[bytes] = []
    whole, rest = 0, dict[str, Any]()
    for part in message.parts:
        match part:
            case TextPart():
                if part.text.strip():
                    items.append(_said(part.text, rest if rest.get("type") == "message" else {}))
                    whole = len(items)
                rest = {}
            case ToolCall():
                items.append(_called(part, rest if rest.get("type") == "function_call" else {}))
                whole, rest = len(items), {}
            case OpaquePart():
                item = json_object(part.data) if part.provider == PROVIDER else {}
                rest = item if item.get("type") in ("message", "function_call") else {}
                if item and not rest and _carries(item):
                    items.append(part.data.encode())
                    whole = whole if item.get("type") == "reasoning" else len(items)
            case ReasoningPart():
                continue
            case _:
                assert_never(part)
    return items[:whole]


def _carries(item: dict[str, Any]) -> bool:
    """Reasoning with neither its text nor its encryption is only a name, and nothing is stored under it."""
    return item.get("type") != "reasoning" or bool(item.get("encrypted_content") or item.get("content"))


def _said(text: str, rest: dict[str, Any]) -> bytes:
    content = [{"type": "output_text", "text": text}]
    return orjson.dumps({**rest, "type": "message", "role": "assistant", "content": content})


def _called(call: ToolCall, rest: dict[str, Any]) -> bytes:
    ours = {
        "type": "function_call",
        "call_id": call.id,
        "name": safe_name(call.name),
        "arguments": safe_arguments(call.arguments),
    }
    return orjson.dumps({**rest, **ours})
