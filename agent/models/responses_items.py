"""Output items of a Responses reply: put together as they come, and as parts of a message. Pure."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from agent.models.chat_calls import as_arguments
from agent.models.raw_json import raw_elements, raw_member
from agent.models.reading import text_in
from agent.models.responses_format import PROVIDER, REMAINDERS
from eventlog.ids import CallId, tool_call_id
from eventlog.messages import OpaquePart, Part, ReasoningPart, TextPart, ToolCall

_OURS = frozenset({"id", "type", "status", "role", "content", "call_id", "name", "arguments"})
"""Fields of messages and calls that a request writes anew, or does without."""


@dataclass(frozen=True, slots=True)
class OutputItem:
    value: dict[str, Any]
    raw: str
    """Its JSON as the server wrote it."""

    @property
    def type(self) -> str:
        return text_in(self.value, "type")

    @property
    def id(self) -> str:
        """Empty where it has none."""
        return text_in(self.value, "id")

    @property
    def encrypted(self) -> bool:
        return bool(self.value.get("encrypted_content"))

    @property
    def refuses(self) -> bool:
        return any(part.get("type") == "refusal" for part in _objects(self.value.get("content")))

    @property
    def text(self) -> str:
        """What a person reads: of a message its text and refusals, of reasoning its text or its summary."""
        parts = _objects(self.value.get("content")) or _objects(self.value.get("summary"))
        between = "\n\n" if self.type == "reasoning" else ""
        return between.join(text_in(part, "text") or text_in(part, "refusal") for part in parts)

    @property
    def call(self) -> tuple[str, str, str]:
        """Of a function call the server's id, the name, and the arguments as text."""
        value = self.value
        return text_in(value, "call_id"), text_in(value, "name"), as_arguments(value.get("arguments"))


@dataclass(slots=True)
class StreamedItem:
    """One item while it comes."""

    begun: dict[str, Any] = field(default_factory=dict)
    text: list[str] = field(default_factory=list)
    refusal: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    done: OutputItem | None = None

    def item(self) -> OutputItem:
        """As the server gave it when it was done; else made of its pieces."""
        if self.done is not None:
            return self.done
        value = dict(self.begun)
        pieces = (("output_text", "text", self.text), ("refusal", "refusal", self.refusal))
        content = [{"type": type, name: "".join(texts)} for type, name, texts in pieces if texts]
        if content:
            value = {"type": "message", **value, "content": content}
        if self.arguments:
            value["arguments"] = "".join(self.arguments)
        return OutputItem(value, _written(value))


def items_of(response: dict[str, Any], raw: str) -> list[OutputItem]:
    """The output of a response. `raw` is the JSON of the event that holds it, or of the response alone."""
    values = _objects(response.get("output"))
    raws: list[str] = []
    if any(text_in(value, "type") not in REMAINDERS for value in values):
        with suppress(LookupError, ValueError, RecursionError):
            raws = raw_elements(raw_member(_response_in(raw), "output"))
    if len(raws) != len(values):
        raws = [_written(value) for value in values]
    return [OutputItem(value, text) for value, text in zip(values, raws, strict=True)]


def item_of(event: dict[str, Any], raw: str) -> OutputItem | None:
    """The item that an event, whose JSON `raw` is, carries whole."""
    value = event.get("item")
    if not isinstance(value, dict):
        return None
    if text_in(value, "type") not in REMAINDERS:
        with suppress(LookupError, ValueError, RecursionError):
            return OutputItem(value, raw_member(raw, "item"))
    return OutputItem(value, _written(value))


def parts_of(items: Sequence[OutputItem], call_id: CallId, proper: bool) -> tuple[Part, ...]:
    """In the order of the reply. Nothing is no arguments only in a reply that came to a `proper` end."""
    parts: list[Part] = []
    calls = 0
    for item in items:
        match item.type:
            case "message":
                parts += [*_rest(item), TextPart(text=item.text)]
            case "function_call":
                calls += 1
                id = tool_call_id(call_id, calls)
                theirs, name, arguments = item.call
                arguments = arguments or ("{}" if proper else "")
                parts += [*_rest(item), ToolCall(id=id, provider_id=theirs or id, name=name, arguments=arguments)]
            case "reasoning":
                parts += [ReasoningPart(text=item.text)] if item.text else []
                parts.append(OpaquePart(provider=PROVIDER, data=item.raw))
            case _:
                parts.append(OpaquePart(provider=PROVIDER, data=item.raw))
    return tuple(parts)


def calls_in(items: Iterable[OutputItem]) -> Counter[tuple[str, str, str]]:
    """The function calls, their arguments written alike."""
    return Counter(_alike(item.call) for item in items if item.type == "function_call")


def _response_in(raw: str) -> str:
    try:
        return raw_member(raw, "response")
    except LookupError:
        return raw


def _alike(call: tuple[str, str, str]) -> tuple[str, str, str]:
    id, name, arguments = call
    try:
        return id, name, orjson.dumps(orjson.loads(arguments), option=orjson.OPT_SORT_KEYS).decode()
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return call


def _rest(item: OutputItem) -> list[OpaquePart]:
    """What a message or a call holds beside what its part keeps, such as the phase."""
    rest = {name: value for name, value in item.value.items() if name not in _OURS and value is not None}
    return [OpaquePart(provider=PROVIDER, data=_written({"type": item.type, **rest}))] if rest else []


def _written(value: dict[str, Any]) -> str:
    """Empty object for what is nested deeper than can be written."""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:
        with suppress(RecursionError):
            return json.dumps(value, ensure_ascii=False)
    return "{}"


def _objects(value: object) -> list[dict[str, Any]]:
    return [part for part in value if isinstance(part, dict)] if isinstance(value, list) else []
