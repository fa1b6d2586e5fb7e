"""What a conversation is made of, the same for every provider.

Nothing here knows a wire protocol. A message is a value: equal content, equal message."""

from typing import Annotated, Literal

from pydantic import Field

from eventlog.ids import CallId
from eventlog.values import Value


class TextPart(Value):
    kind: Literal["text"] = "text"
    text: str


class ReasoningPart(Value):
    """Thinking that the provider showed. Sent back only by providers that ask for it."""

    kind: Literal["reasoning"] = "reasoning"
    text: str


class ToolCall(Value):
    """A call the model asked for. It has not been judged, started or run."""

    kind: Literal["tool_call"] = "tool_call"
    id: CallId
    provider_id: str
    """What the provider called it; unique in the conversation, because the reader of the reply makes it so."""
    name: str
    arguments: str
    """JSON as the model wrote it; may be malformed."""


class OpaquePart(Value):
    """A provider's item that must go back untouched (encrypted reasoning, a signature). Not scanned by pattern."""

    kind: Literal["opaque"] = "opaque"
    provider: str
    data: str
    """The item's JSON."""


Part = Annotated[TextPart | ReasoningPart | ToolCall | OpaquePart, Field(discriminator="kind")]


class UserMessage(Value):
    role: Literal["user"] = "user"
    text: str


class AssistantMessage(Value):
    role: Literal["assistant"] = "assistant"
    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCall))


class ToolMessage(Value):
    role: Literal["tool"] = "tool"
    call_id: CallId
    provider_id: str
    text: str


Message = Annotated[UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class Usage(Value):
    """Tokens of one model call. `input` holds the cached and the written ones, `output` the reasoning ones."""

    input: int = 0
    cached: int = 0
    cache_written: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            input=self.input + other.input,
            cached=self.cached + other.cached,
            cache_written=self.cache_written + other.cache_written,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
        )

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(
            input=self.input - other.input,
            cached=self.cached - other.cached,
            cache_written=self.cache_written - other.cache_written,
            output=self.output - other.output,
            reasoning=self.reasoning - other.reasoning,
        )
