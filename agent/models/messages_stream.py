"""The reader of a Messages reply: bytes cut anywhere in, deltas and one verdict out. Pure.

The parts of the message stand in the order of the reply's blocks, so that thinking and the server's own calls go back
where they were."""

from dataclasses import replace
from typing import Any

from agent.models.client import Delta, ToolCallStarted, estimated_usage
from agent.models.faults import Fault, fault_of_error
from agent.models.messages_blocks import Block
from agent.models.reading import (
    CUT,
    EMPTY_REPLY,
    MAX_CALLS,
    TOO_MANY_CALLS,
    JsonEvent,
    ReplyReader,
    count_in,
    object_in,
    text_in,
)
from agent.models.verdicts import Faulty, Finished
from eventlog.ids import CallId, tool_call_id
from eventlog.messages import AssistantMessage, Part, TextPart, Usage
from eventlog.outcomes import StopReason

_STOPS: dict[str, StopReason] = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "pause_turn": "pause",
    "refusal": "refusal",
}
_STATUSES = {
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
}
"""What an error has for its status when it comes before the reply; of those that no attempt can mend."""
_TWICE = Fault("malformed", "The model server began a block again that had not ended.", True)
_STRAY = Fault("malformed", "The model server sent a piece of a block that had not begun.", True)
_COUNTS = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens", "output_tokens")


class MessagesStream(ReplyReader):
    """One reply. The ids of its tool calls follow from the id of the model call."""

    def __init__(self, call_id: CallId) -> None:
        super().__init__(call_id)
        self._blocks: list[Block] = []
        self._by_index: dict[int | None, Block] = {}
        """None is where a server that does not number its blocks is."""
        self._unended: set[int | None] = set()
        """Blocks that have begun: begun a second time, as where every event comes twice, they would be two calls."""
        self._calls = 0
        self._counts: dict[str, int] = {}
        self._model = ""
        self._ending = ""
        """The stop reason, as the server wrote it."""
        self._explained = ""
        """Why it refused."""

    @property
    def output_bytes(self) -> int:
        pieces = sum(len(piece) for block in self._blocks for piece in block.pieces)
        return pieces + sum(len(text_in(block.first, "name")) for block in self._blocks)

    def finish(self) -> Finished | Faulty:
        """A reply that broke off counted its input when it began; its output was to be counted at the end."""
        verdict = super().finish()
        if isinstance(verdict, Finished) or verdict.usage is None:
            return verdict
        least = estimated_usage(0, verdict.output_bytes).output
        output = max(verdict.usage.output, least)
        return replace(verdict, usage=verdict.usage.model_copy(update={"output": output}))

    def _take(self, event: JsonEvent) -> None:
        value = event.value
        match text_in(value, "type") or event.name:
            case "message_start":
                self._take_message(object_in(value, "message"))
            case "message":  # from a server that does not stream
                self._take_message(value)
                self._done = True
            case "content_block_start":
                self._begin_block(_index(value), object_in(value, "content_block"), event.raw)
            case "content_block_delta":
                self._add(_index(value), object_in(value, "delta"))
            case "content_block_stop":
                self._unended.discard(_index(value))
            case "message_delta":
                self._take_end(object_in(value, "delta"), object_in(value, "usage"))
            case "message_stop":
                self._done = True
            case _ if value.get("error"):
                self._fail(_fault(value["error"]))
            case _:  # a ping, or news of a kind that is ignored, as the protocol asks
                pass

    def _take_message(self, message: dict[str, Any]) -> None:
        self._model = text_in(message, "model")
        content = message.get("content")
        for index, block in enumerate(content if isinstance(content, list) else []):
            if isinstance(block, dict):
                self._begin_block(index, block)
        self._take_end(message, object_in(message, "usage"))

    def _begin_block(self, index: int | None, first: dict[str, Any], raw: bytes = b"") -> None:
        """`raw` is the JSON of the event that holds the block, where one does."""
        if index in self._unended:
            self._fail(_TWICE)
        if index is not None and raw:
            self._unended.add(index)
        block = Block(first, raw)
        self._blocks.append(block)
        self._by_index[index] = block
        self._show(block.begin())
        if block.kind == "tool_use":
            self._calls += 1
            self._show(ToolCallStarted(self._calls, text_in(first, "name")))
            if self._calls > MAX_CALLS:
                self._fail(TOO_MANY_CALLS)

    def _add(self, index: int | None, delta: dict[str, Any]) -> None:
        block = self._by_index.get(index)
        if block is None:
            self._fail(_STRAY)
        else:
            self._show(block.add(delta))

    def _show(self, delta: Delta | None) -> None:
        if delta is not None:
            self._deltas.append(delta)

    def _take_end(self, delta: dict[str, Any], usage: dict[str, Any]) -> None:
        """Of a reply or, as far as it is known, of its beginning. Counts only grow: each is the sum so far."""
        self._ending = text_in(delta, "stop_reason") or self._ending
        self._explained = text_in(object_in(delta, "stop_details"), "explanation") or self._explained
        if usage:
            found = {name: count_in(usage, name) for name in _COUNTS}
            found["thinking_tokens"] = count_in(object_in(usage, "output_tokens_details"), "thinking_tokens")
            self._counts = {name: max(count, self._counts.get(name, 0)) for name, count in found.items()}
            self._usage = _usage(self._counts)

    def _read(self) -> Finished | Fault:
        if not self._ending:
            return CUT
        stop, parts = self._stop(), self._parts()
        if stop not in {"length", "refusal"} and not any(block.says for block in self._blocks):
            return EMPTY_REPLY
        return Finished(AssistantMessage(parts=tuple(parts)), stop, self._usage, self._model, self.output_bytes)

    def _stop(self) -> StopReason:
        stop = _STOPS.get(self._ending, "stop")
        if stop in {"stop", "tool_calls"}:
            return "tool_calls" if self._calls else "stop"
        return stop

    def _parts(self) -> list[Part]:
        parts: list[Part] = []
        stop, calls = self._stop(), 0
        for block in self._blocks:
            if block.kind != "tool_use":
                parts += block.parts()
            elif stop != "refusal":  # what was refused half-way asks for nothing
                calls += 1
                parts.append(block.call(tool_call_id(self._call_id, calls), stop == "tool_calls"))
        if stop == "refusal" and self._explained and not any(isinstance(part, TextPart) for part in parts):
            parts.append(TextPart(text=self._explained))
        return parts


def _index(value: dict[str, Any]) -> int | None:
    index = value.get("index")
    return index if isinstance(index, int) else None


def _usage(counts: dict[str, int]) -> Usage:
    """The provider counts what it read from its cache and what it wrote there beside the rest of the input."""
    fresh, cached, written, output = (counts[name] for name in _COUNTS)
    return Usage(
        input=fresh + cached + written,
        cached=cached,
        cache_written=written,
        output=output,
        reasoning=counts["thinking_tokens"],
    )


def _fault(error: object) -> Fault:
    """Of an error in the middle of a stream, which says what kind it is and not its status."""
    fields: dict[str, Any] = error if isinstance(error, dict) else {}
    status = _STATUSES.get(text_in(fields, "type"))
    return fault_of_error({"status": status, **fields} if status else error)
