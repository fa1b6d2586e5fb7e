"""The reader of a Chat Completions reply: bytes cut anywhere in, deltas and one verdict out. Pure.

A reply counts only when it says how it ended: nothing is made of a stream that was cut. A server that gives no finish
reason but its end mark is believed where there is only text, never where there are calls."""

from dataclasses import dataclass, replace
from typing import Any

import orjson

from agent.models.chat_calls import MAX_CALLS, CallCollector, PendingCall, as_arguments
from agent.models.client import Delta, ReasoningDelta, TextDelta, ToolCallStarted
from agent.models.faults import Fault, fault_of_error
from agent.models.reasoning import ReasoningDetails
from agent.models.sse import EventReader, ServerEvent
from eventlog.ids import CallId, tool_call_id
from eventlog.messages import AssistantMessage, OpaquePart, Part, ReasoningPart, TextPart, ToolCall, Usage
from eventlog.outcomes import StopReason

MAX_REPLY_BYTES = 64 << 20
_STOPS: dict[str, StopReason] = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "eos": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "tool_use": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
    "refusal": "refusal",
    "pause_turn": "pause",
}
_BROKEN_STOPS = {
    "error": Fault("server", "The model server broke off with an error.", True),
    "abort": Fault("cut", "The model server aborted the reply.", True),
    "insufficient_system_resource": Fault("overloaded", "The model server ran out of resources.", True),
}


@dataclass(frozen=True, slots=True)
class Finished:
    message: AssistantMessage
    stop: StopReason
    usage: Usage | None
    """None where the server reported none."""
    model: str
    """As the server named it; may be empty."""
    output_bytes: int


@dataclass(frozen=True, slots=True)
class Faulty:
    fault: Fault
    usage: Usage | None
    output_bytes: int
    """What came before it, for an estimate of its cost."""


class ChatStream:
    """One reply. The ids of its tool calls follow from the id of the model call."""

    def __init__(self, call_id: CallId) -> None:
        self._call_id = call_id
        self._events = EventReader()
        self._whole: bytearray | None = None
        """The body, where it is not a stream of events."""
        self._start = b""
        self._started = False
        self._taken = 0
        self._deltas: list[Delta] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._details = ReasoningDetails()
        self._calls = CallCollector()
        self._finish = ""
        self._done = False
        self._usage: Usage | None = None
        self._model = ""
        self._fault: Fault | None = None

    @property
    def output_bytes(self) -> int:
        """Of text, reasoning and calls so far, roughly."""
        pieces = sum(map(len, self._text)) + sum(map(len, self._reasoning)) + sum(map(len, self._refusal))
        return pieces + sum(len(call.name) + sum(map(len, call.arguments)) for call in self._calls.calls)

    @property
    def ended(self) -> bool:
        """Nothing that follows can change the verdict: the end mark came, or a fault did."""
        return self._done or self._fault is not None

    def feed(self, chunk: bytes) -> list[Delta]:
        """Deltas in the order of the reply."""
        self._taken += len(chunk)
        if self._taken > MAX_REPLY_BYTES:
            self._fail(Fault("malformed", "The model's reply is larger than 64 MB.", True))
        if self.ended:
            return []
        if not self._started:
            chunk = self._begin(chunk)
        if self._whole is not None:
            self._whole += chunk
        else:
            for event in self._events.feed(chunk):
                self._take(event, last=False)
        deltas, self._deltas = self._deltas, []
        return deltas

    def finish(self) -> Finished | Faulty:
        """The verdict, once the body has ended, however it did."""
        if not self.ended:
            if self._whole is not None:
                self._take_whole(bytes(self._whole))
            else:
                for event in self._events.finish():
                    self._take(event, last=True)
        verdict = self._fault or self._flaw()
        if verdict is not None:
            return Faulty(verdict, self._usage, self.output_bytes)
        return Finished(
            AssistantMessage(parts=self._parts()), self._stop(), self._usage, self._model, self.output_bytes
        )

    def _begin(self, chunk: bytes) -> bytes:
        """Tell a stream from a plain body by its first byte that is no space."""
        self._start += chunk
        first = self._start.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        if not first or first in b"\xef\xbb":
            return b""
        self._started = True
        if first in b"{[<":
            self._whole = bytearray()
        chunk, self._start = self._start, b""
        return chunk

    def _take(self, event: ServerEvent, last: bool) -> None:
        if self.ended:
            return
        data = event.data.strip()
        if not data:
            return
        if data == b"[DONE]":
            self._done = True
            return
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            self._take_apart(event, last)
            return
        if not isinstance(value, dict):
            self._fail(Fault("malformed", "The model server sent an event that is no object.", True))
        elif event.name == "error" and "error" not in value:
            self._fail(fault_of_error(value))
        else:
            self._take_chunk(value)

    def _take_apart(self, event: ServerEvent, last: bool) -> None:
        """Some servers leave the blank line between events out, so several stand in one."""
        lines = event.data.split(b"\n")
        if len(lines) > 1:
            for line in lines:
                self._take(replace(event, data=line), last)
        elif not last:
            self._fail(Fault("malformed", "The model server sent an event that is not JSON.", True))

    def _take_whole(self, body: bytes) -> None:
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            page = body.lstrip()[:1] == b"<"
            what = "a web page instead of a reply; check the base URL" if page else "a body that is not JSON"
            self._fail(Fault("malformed" if page else "cut", f"The model server sent {what}.", True))
            return
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, dict):
            self._take_chunk(value)

    def _take_chunk(self, chunk: dict[str, Any]) -> None:
        if chunk.get("error"):
            self._usage = read_usage(chunk) or self._usage
            self._fail(fault_of_error(chunk["error"]))
            return
        if not self._model and isinstance(chunk.get("model"), str):
            self._model = chunk["model"]
        self._usage = read_usage(chunk) or self._usage
        choices = chunk.get("choices")
        choice = choices[0] if isinstance(choices, list) and choices else None
        if not isinstance(choice, dict) or choice.get("index") not in {None, 0}:
            return
        delta = choice.get("delta") or choice.get("message")
        if isinstance(delta, dict):
            self._take_delta(delta)
        if isinstance(choice.get("finish_reason"), str):
            self._finish = choice["finish_reason"] or self._finish

    def _take_delta(self, delta: dict[str, Any]) -> None:
        if text := _flat(delta.get("content")):
            self._text.append(text)
            self._deltas.append(TextDelta(text))
        details = delta.get("reasoning_details")
        if thought := _flat(delta.get("reasoning_content") or delta.get("reasoning") or details):
            self._reasoning.append(thought)
            self._deltas.append(ReasoningDelta(thought))
        if refusal := _flat(delta.get("refusal")):
            self._refusal.append(refusal)
            self._deltas.append(TextDelta(refusal))
        self._details.add(details)
        calls = delta.get("tool_calls")
        if isinstance(calls, dict):
            calls = [calls]
        for call in calls if isinstance(calls, list) else []:
            if isinstance(call, dict):
                self._add_call(call)
        if isinstance(delta.get("function_call"), dict):
            self._add_call({"index": 0, "function": delta["function_call"]})

    def _add_call(self, delta: dict[str, Any]) -> None:
        new = self._calls.add(delta)
        if new is not None:
            self._deltas.append(ToolCallStarted(len(self._calls.calls), new.name))
        if len(self._calls.calls) > MAX_CALLS:
            self._fail(Fault("malformed", f"The model asked for more than {MAX_CALLS} calls at once.", True))

    def _fail(self, fault: Fault) -> None:
        self._fault = self._fault or fault

    def _flaw(self) -> Fault | None:
        if self._taken == 0 or (not self._started and not self._start.strip()):
            return Fault("malformed", "The model server sent an empty body.", True)
        if not self._finish and not (self._done and self._text and not self._calls.calls):
            return Fault("cut", "The model's reply broke off before its end.", True)
        if self._finish in _BROKEN_STOPS:
            return _BROKEN_STOPS[self._finish]
        empty = not (self._calls.calls or "".join(self._text).strip() or self._refusal)
        if empty and self._stop() not in {"length", "content_filter", "refusal"}:
            return Fault("malformed", "The model sent an empty reply.", True)
        return None

    def _stop(self) -> StopReason:
        stop = _STOPS.get(self._finish.lower(), "stop")
        if stop == "tool_calls" or (stop == "stop" and self._calls.calls):
            return "tool_calls" if self._calls.calls else "stop"
        return "refusal" if self._refusal and stop == "stop" else stop

    def _parts(self) -> tuple[Part, ...]:
        parts: list[Part] = []
        if self._reasoning:
            parts.append(ReasoningPart(text="".join(self._reasoning)))
        if self._text or self._refusal:
            parts.append(TextPart(text="".join(self._text + self._refusal)))
        proper = self._stop() == "tool_calls"
        parts += [self._call(number, call, proper) for number, call in enumerate(self._calls.calls, 1)]
        if opaque := self._details.encode():
            parts.append(OpaquePart(provider="chat", data=opaque))
        return tuple(parts)

    def _call(self, number: int, call: PendingCall, proper: bool) -> ToolCall:
        """Nothing is no arguments only where the reply came to a proper end: after a cut by length it may be a part."""
        id = tool_call_id(self._call_id, number)
        arguments = call.text or ("{}" if proper else "")
        return ToolCall(id=id, provider_id=call.id or id, name=call.name, arguments=arguments)


def read_usage(chunk: dict[str, Any]) -> Usage | None:
    """Where servers put it: `usage`, `x_groq.usage`, `choices[0].usage`."""
    usage = chunk.get("usage")
    if not isinstance(usage, dict) and isinstance(chunk.get("x_groq"), dict):
        usage = chunk["x_groq"].get("usage")
    if not isinstance(usage, dict) and isinstance(chunk.get("choices"), list) and chunk["choices"]:
        first = chunk["choices"][0]
        usage = first.get("usage") if isinstance(first, dict) else None
    if not isinstance(usage, dict):
        return None
    prompt = usage.get("prompt_tokens_details")
    prompt = prompt if isinstance(prompt, dict) else {}
    completion = usage.get("completion_tokens_details")
    completion = completion if isinstance(completion, dict) else {}
    input, output = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    reasoning = _count(completion, "reasoning_tokens")
    if reasoning and _count(usage, "total_tokens") == input + output + reasoning:
        output += reasoning  # a provider that counts reasoning beside the output
    return Usage(
        input=input,
        cached=_count(prompt, "cached_tokens") or _count(usage, "cached_tokens", "prompt_cache_hit_tokens"),
        cache_written=_count(prompt, "cache_write_tokens") or _count(usage, "cache_creation_input_tokens"),
        output=output,
        reasoning=reasoning,
    )


def _count(fields: dict[str, Any], *names: str) -> int:
    found = (fields.get(name) for name in names)
    return next((max(int(value), 0) for value in found if isinstance(value, (int, float)) and value), 0)


def _flat(value: object) -> str:
    """Text, or the texts of a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(as_arguments(part.get("text")) for part in value if isinstance(part, dict))
    return ""
