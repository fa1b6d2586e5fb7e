"""Request builders: pure, named and versioned. A new format gets a new name; an old builder stays, so that old sessions
replay byte for byte.

`chat/1` is Chat Completions, streamed, with `messages` last: the bytes of each message are kept, and two new
messages cost no re-encoding of the others."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, assert_never

import orjson

from eventlog.events import ContextSet
from eventlog.ids import Digest
from eventlog.messages import AssistantMessage, Message, OpaquePart, ReasoningPart, ToolCall, ToolMessage, UserMessage

CHAT_1 = "chat/1"
ECHO_REASONING = "echo_reasoning"
"""Parameter, not sent: reasoning goes back to the provider as `reasoning_content`."""
MAX_TOKENS_NAME = "max_tokens_name"
"""Parameter, not sent: what the provider calls the bound on output tokens."""

_OURS = frozenset({ECHO_REASONING, MAX_TOKENS_NAME, "model", "stream", "tools", "messages"})
_NO_TEXT = "(empty)"
"""Providers refuse a message without text."""
_TAIL = b"]}"
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")


def encode_message(message: Message, echo_reasoning: bool = False) -> bytes:
    """One JSON object, valid for the provider whatever the model wrote in it."""
    match message:
        case UserMessage():
            return orjson.dumps({"role": "user", "content": _some(message.text)})
        case ToolMessage():
            return orjson.dumps({"role": "tool", "tool_call_id": message.call_id, "content": _some(message.text)})
        case AssistantMessage():
            return orjson.dumps(_assistant(message, echo_reasoning))
        case _:
            assert_never(message)


def prefix(context: ContextSet, max_output_tokens: int | None) -> bytes:
    """The body up to and including the system message. `parameters` that are null are left out of the body."""
    parameters = _parameters(context)
    fields: dict[str, Any] = {"model": context.wire_model, "stream": True, "stream_options": {"include_usage": True}}
    fields |= {name: value for name, value in parameters.items() if name not in _OURS}
    if max_output_tokens is not None:
        fields[str(parameters.get(MAX_TOKENS_NAME) or "max_tokens")] = max_output_tokens
    head = orjson.dumps({name: value for name, value in fields.items() if value is not None})[:-1]
    if context.tools.strip() not in {"", "[]"}:
        head += b',"tools":' + context.tools.strip().encode()
    head += b',"messages":['
    if context.system.strip():
        head += orjson.dumps({"role": "system", "content": context.system})
    return head


def build_request(context: ContextSet, messages: Sequence[Message], max_output_tokens: int | None) -> bytes:
    """The whole body of `chat/1`. RequestCache gives the same bytes sooner."""
    head, echo = prefix(context, max_output_tokens), echoes_reasoning(context)
    encoded = b",".join(encode_message(message, echo) for message in messages)
    return head + (b"," if encoded and not head.endswith(b"[") else b"") + encoded + _TAIL


Builder = Callable[[ContextSet, Sequence[Message], int | None], bytes]
BUILDERS: Mapping[str, Builder] = {CHAT_1: build_request}


def echoes_reasoning(context: ContextSet) -> bool:
    return _parameters(context).get(ECHO_REASONING) is True


class RequestCache:
    """The request of a growing conversation: each message is encoded and hashed once.

    Anything but an extension of the messages seen last (compared one by one, identity first) encodes them all again."""

    def __init__(self) -> None:
        self._context: ContextSet | None = None
        self._seen: tuple[Message, ...] = ()
        self._encoded = bytearray()
        self._heads: dict[int | None, bytes] = {}
        self._hash = hashlib.sha256()
        self._hash_bound: int | None = None
        self._hashed = -1
        """How many bytes of the messages are in the hash; -1 before the prefix is."""

    def update(self, context: ContextSet, messages: Sequence[Message]) -> None:
        now = tuple(messages)
        count = len(self._seen)
        same_context = context is self._context or context == self._context
        if not same_context or now[:count] != self._seen:
            self._restart(context)
        echo = echoes_reasoning(context) if len(now) > len(self._seen) else False
        for message in now[len(self._seen) :]:
            if self._encoded or context.system.strip():
                self._encoded += b","
            self._encoded += encode_message(message, echo)
        self._seen = now

    def digest(self, max_output_tokens: int | None) -> Digest:
        """sha256 of `body(max_output_tokens)`. A bound other than the last one costs hashing the whole again."""
        if self._hashed < 0 or self._hash_bound != max_output_tokens:
            self._hash = hashlib.sha256(self._head(max_output_tokens))
            self._hash_bound, self._hashed = max_output_tokens, 0
        if self._hashed < len(self._encoded):
            with memoryview(self._encoded) as view:
                self._hash.update(view[self._hashed :])
            self._hashed = len(self._encoded)
        whole = self._hash.copy()
        whole.update(_TAIL)
        return Digest(whole.hexdigest())

    def body(self, max_output_tokens: int | None) -> bytes:
        return b"".join((self._head(max_output_tokens), self._encoded, _TAIL))

    def size(self, max_output_tokens: int | None) -> int:
        """Bytes of `body(max_output_tokens)`."""
        return len(self._head(max_output_tokens)) + len(self._encoded) + len(_TAIL)

    def _head(self, bound: int | None) -> bytes:
        if self._context is None:
            raise LookupError("a request needs update(context, messages) first")
        if bound not in self._heads:
            self._heads = {bound: prefix(self._context, bound)}
        return self._heads[bound]

    def _restart(self, context: ContextSet) -> None:
        self._context, self._seen, self._encoded = context, (), bytearray()
        self._heads, self._hashed = {}, -1


def _assistant(message: AssistantMessage, echo_reasoning: bool) -> dict[str, Any]:
    text, calls = message.text, message.tool_calls
    wire: dict[str, Any] = {"role": "assistant", "content": text if text.strip() else None if calls else _NO_TEXT}
    if echo_reasoning:
        reasoning = "".join(part.text for part in message.parts if isinstance(part, ReasoningPart))
        if reasoning:
            wire["reasoning_content"] = reasoning
    if calls:
        wire["tool_calls"] = [_call(call) for call in calls]
    for part in message.parts:
        if isinstance(part, OpaquePart) and part.provider == "chat":
            wire = {**_object(part.data), **wire}
    return wire


def _call(call: ToolCall) -> dict[str, Any]:
    name = call.name if _NAME.fullmatch(call.name) else _NOT_IN_NAME.sub("_", call.name)[:64] or "unnamed"
    arguments = call.arguments if _is_object(call.arguments) else "{}"
    return {"id": call.id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def _some(text: str) -> str:
    return text if text.strip() else _NO_TEXT


def _parameters(context: ContextSet) -> dict[str, Any]:
    return _object(context.parameters)


def _object(text: str) -> dict[str, Any]:
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
