"""The reader of a Responses reply. Pure.

The response that ends the stream is believed; where it leaves its output out, the items that were streamed are. A call
that was streamed whole and ends as another one is never run."""

from typing import Any

from agent.models.client import ReasoningDelta, TextDelta, ToolCallStarted
from agent.models.faults import Fault, fault_of_error
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
from agent.models.responses_items import OutputItem, StreamedItem, calls_in, item_of, items_of, parts_of
from agent.models.verdicts import Finished
from eventlog.ids import CallId
from eventlog.messages import AssistantMessage, Usage
from eventlog.outcomes import StopReason

_OTHER_CALLS = Fault("malformed", "The model server ended its reply with other calls than it had sent.", True)
_CANCELLED = Fault("cut", "The model server cancelled the reply.", True)


class ResponsesStream(ReplyReader):
    """One reply of the Responses protocol."""

    def __init__(self, call_id: CallId) -> None:
        super().__init__(call_id)
        self._streamed: dict[int | str, StreamedItem] = {}
        """By their place in the output, or by their id."""
        self._calls = 0
        self._bytes = 0
        self._model = ""
        self._status = ""
        """How it ended; empty before it has."""
        self._reason = ""
        """Why it is incomplete."""
        self._output: list[OutputItem] = []

    @property
    def output_bytes(self) -> int:
        return self._bytes or sum(len(item.text) + len(item.call[2]) for item in self._output)

    def _take(self, event: JsonEvent) -> None:
        value = event.value
        match text_in(value, "type") or event.name:
            case "response.output_text.delta":
                self._add_text(value, refuses=False)
            case "response.refusal.delta":
                self._add_text(value, refuses=True)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._think(text_in(value, "delta"))
            case "response.reasoning_summary_part.added" if value.get("summary_index"):
                self._think("\n\n")
            case "response.function_call_arguments.delta":
                piece = text_in(value, "delta")
                self._bytes += len(piece)
                self._at(value).arguments.append(piece)
            case "response.function_call_arguments.done":
                self._at(value).arguments[:] = [text_in(value, "arguments")]
            case "response.output_item.added":
                self._begin_item(value)
            case "response.output_item.done":
                self._at(value).done = item_of(value, event.raw.decode())
            case "response.created" | "response.queued" | "response.in_progress":
                self._model = text_in(object_in(value, "response"), "model") or self._model
            case "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled" as how:
                self._end(object_in(value, "response"), event, how.removeprefix("response."))
            case _ if value.get("object") == "response":  # from a server that does not stream
                self._end(value, event, text_in(value, "status"))
            case _:
                return  # a server may tell of more than is asked for here

    def _add_text(self, value: dict[str, Any], *, refuses: bool) -> None:
        piece = text_in(value, "delta")
        item = self._at(value)
        (item.refusal if refuses else item.text).append(piece)
        self._bytes += len(piece)
        if piece:
            self._deltas.append(TextDelta(piece))

    def _think(self, piece: str) -> None:
        self._bytes += len(piece)
        if piece:
            self._deltas.append(ReasoningDelta(piece))

    def _begin_item(self, value: dict[str, Any]) -> None:
        item = object_in(value, "item")
        self._at(value).begun = item
        if item.get("type") == "function_call":
            self._calls += 1
            name = text_in(item, "name")
            self._bytes += len(name)
            self._deltas.append(ToolCallStarted(self._calls, name))
        if self._calls > MAX_CALLS:
            self._fail(TOO_MANY_CALLS)

    def _at(self, value: dict[str, Any]) -> StreamedItem:
        """The item of an event: by its place; from servers that do not number items by its id, else the latest."""
        place = value.get("output_index")
        if not isinstance(place, int):
            place = text_in(value, "item_id") or text_in(object_in(value, "item"), "id")
        if place == "":
            place = next(reversed(self._streamed), "")
        return self._streamed.setdefault(place, StreamedItem())

    def _end(self, response: dict[str, Any], event: JsonEvent, how: str) -> None:
        """`how` is what the event is called; the response's own status counts for more."""
        self._usage = read_usage(response) or self._usage
        self._model = text_in(response, "model") or self._model
        self._status = text_in(response, "status") or how
        self._reason = text_in(object_in(response, "incomplete_details"), "reason")
        self._output = items_of(response, event.raw.decode())
        match self._status:
            case "completed" | "incomplete":
                self._done = True
            case "failed":
                self._fail(fault_of_error(response.get("error") or {}))
            case _:
                self._fail(_CANCELLED if self._status == "cancelled" else CUT)

    def _read(self) -> Finished | Fault:
        if not self._status:
            return CUT
        places = sorted(self._streamed, key=lambda place: place if isinstance(place, int) else 0)
        streamed = [self._streamed[place].item() for place in places]
        items = self._settled(streamed)
        if not calls_in(item.done for item in self._streamed.values() if item.done) <= calls_in(items):
            return _OTHER_CALLS
        calls = sum(item.type == "function_call" for item in items)
        if calls > MAX_CALLS:
            return TOO_MANY_CALLS
        refuses = any(item.refuses for item in items)
        stop = self._stop(bool(calls), refuses)
        said = any(item.type == "message" and item.text.strip() for item in items)
        if not (calls or said or refuses) and stop == "stop":
            return EMPTY_REPLY
        message = AssistantMessage(parts=parts_of(items, self._call_id, proper=stop == "tool_calls"))
        return Finished(message, stop, self._usage, self._model, self.output_bytes)

    def _settled(self, streamed: list[OutputItem]) -> list[OutputItem]:
        """The final output. Reasoning that stands in it without its encryption is taken as it was streamed."""
        if not self._output:
            return [item for item in streamed if item.type]
        encrypted = {item.id: item for item in streamed if item.type == "reasoning" and item.encrypted}
        bare = (item for item in self._output if item.type == "reasoning" and item.id and not item.encrypted)
        better = {item.id: encrypted[item.id] for item in bare if item.id in encrypted}
        return [better.get(item.id, item) if item.type == "reasoning" else item for item in self._output]

    def _stop(self, calls: bool, refuses: bool) -> StopReason:
        if self._status == "incomplete":
            return "content_filter" if self._reason == "content_filter" else "length"
        return "tool_calls" if calls else "refusal" if refuses else "stop"


def read_usage(response: dict[str, Any]) -> Usage | None:
    usage = object_in(response, "usage")
    if not usage:
        return None
    input, output = object_in(usage, "input_tokens_details"), object_in(usage, "output_tokens_details")
    return Usage(
        input=count_in(usage, "input_tokens"),
        cached=count_in(input, "cached_tokens"),
        cache_written=count_in(input, "cache_write_tokens"),
        output=count_in(usage, "output_tokens"),
        reasoning=count_in(output, "reasoning_tokens"),
    )
