"""One content block of a Messages reply, put together from its events, and the parts of a message that come of it."""

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson

from agent.models.chat_calls import as_arguments
from agent.models.client import Delta, ReasoningDelta, TextDelta
from agent.models.formats import is_object
from agent.models.raw_json import raw_member
from agent.models.reading import text_in
from eventlog.ids import CallId
from eventlog.messages import OpaquePart, Part, ReasoningPart, TextPart, ToolCall

THINKING = frozenset({"thinking", "redacted_thinking"})


@dataclass(slots=True)
class Block:
    """`text`, `thinking` and `tool_use` are read; any other kind is the server's own and goes back as it is."""

    first: dict[str, Any]
    """As the server began it: from one that does not stream, the whole block."""
    raw: bytes = b""
    """The JSON of the event that began it, where there was one."""
    pieces: list[str] = field(default_factory=list)
    """Of the text, of the thinking, or of the JSON of the input."""
    signature: str = ""
    strange: bool = False
    """A piece came that has no known place in it, so that it cannot go back as the server made it."""

    @property
    def kind(self) -> str:
        return text_in(self.first, "type")

    @property
    def says(self) -> bool:
        """Whether a reply with it is more than thinking."""
        words = "".join(self.pieces) if self.kind == "text" else self.kind
        return bool(words.strip()) and self.kind not in THINKING

    def begin(self) -> Delta | None:
        """Some servers put the first words where the block begins."""
        self.signature = text_in(self.first, "signature")
        return self._add_words(text_in(self.first, self.kind)) if self.kind in {"text", "thinking"} else None

    def add(self, delta: dict[str, Any]) -> Delta | None:
        """Take one delta; what of it a screen shows. Citations are left out: no part of a message holds them."""
        match text_in(delta, "type"), self.kind:
            case ("text_delta", "text") | ("thinking_delta", "thinking"):
                return self._add_words(text_in(delta, self.kind))
            case "signature_delta", "thinking":
                self.signature = text_in(delta, "signature")
            case "input_json_delta", kind if kind == "tool_use" or "input" in self.first:
                self.pieces.append(text_in(delta, "partial_json"))
            case "citations_delta", "text":
                pass
            case _:
                self.strange = True
        return None

    def call(self, id: CallId, proper: bool) -> ToolCall:
        """Nothing is no arguments only where the reply came to a proper end: after a cut by length it may be a part."""
        given = self.first.get("input")
        arguments = "".join(self.pieces) or (as_arguments(given) if given else "{}" if proper else "")
        name, provider_id = text_in(self.first, "name"), text_in(self.first, "id")
        return ToolCall(id=id, provider_id=provider_id or id, name=name, arguments=arguments)

    def parts(self) -> list[Part]:
        """Of a block that is no call. Thinking is two parts: what a person reads, and what goes back."""
        whole = "".join(self.pieces)
        if self.kind == "text":
            return [TextPart(text=whole)] if whole else []
        shown: list[Part] = [ReasoningPart(text=whole)] if self.kind == "thinking" and whole else []
        item = "" if self.strange else self._item(whole)
        return [*shown, OpaquePart(provider="messages", data=item)] if item else shown

    def _item(self, whole: str) -> str:
        """The JSON that goes back, as the server wrote it or made of its pieces; empty where a cut left a part."""
        if self.kind == "thinking":
            signed = {"signature": self.signature} if self.signature else {}
            return as_arguments({**self.first, "thinking": whole, **signed})
        if whole:
            return as_arguments({**self.first, "input": orjson.Fragment(whole)}) if is_object(whole) else ""
        with suppress(LookupError, ValueError, RecursionError):
            return raw_member(self.raw.decode(), "content_block")
        return as_arguments(self.first)

    def _add_words(self, words: str) -> Delta | None:
        self.pieces.append(words)
        if not words:
            return None
        return TextDelta(words) if self.kind == "text" else ReasoningDelta(words)
