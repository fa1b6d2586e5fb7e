"""The reader of a Chat Completions reply. Pure."""

from typing import Any

from agent.models.chat_calls import CallCollector, PendingCall, as_arguments
from agent.models.client import ReasoningDelta, TextDelta, ToolCallStarted
from agent.models.faults import Fault
from agent.models.reading import (
    CUT,
    EMPTY_REPLY,
    MAX_CALLS,
    TOO_MANY_CALLS,
    JsonEvent,
    ReplyReader,
    count_in,
    object_in,
)
from agent.models.reasoning import ReasoningDetails
from agent.models.verdicts import Finished
from eventlog.ids import CallId, tool_call_id
from eventlog.messages import AssistantMessage, OpaquePart, Part, ReasoningPart, TextPart, ToolCall, Usage
from eventlog.outcomes import StopReason

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


class ChatStream(ReplyReader):
    """One reply of Chat Completions. A server that gives no finish reason but its end mark is believed where there is
    only text, never where there are calls."""

    def __init__(self, call_id: CallId) -> None:
        super().__init__(call_id)
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._details = ReasoningDetails()
        self._calls = CallCollector()
        self._finish = ""
        self._model = ""

    @property
    def output_bytes(self) -> int:
        pieces = sum(map(len, self._text)) + sum(map(len, self._reasoning)) + sum(map(len, self._refusal))
        return pieces + sum(len(call.name) + sum(map(len, call.arguments)) for call in self._calls.calls)

    def _take(self, event: JsonEvent) -> None:
        chunk = event.value
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

    def _read(self) -> Finished | Fault:
        if not self._finish and not (self._done and self._text and not self._calls.calls):
            return CUT
        if self._finish in _BROKEN_STOPS:
            return _BROKEN_STOPS[self._finish]
        empty = not (self._calls.calls or "".join(self._text).strip() or self._refusal)
        if empty and self._stop() not in {"length", "content_filter", "refusal"}:
            return EMPTY_REPLY
        message = AssistantMessage(parts=self._parts())
        return Finished(message, self._stop(), self._usage, self._model, self.output_bytes)

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
            self._fail(TOO_MANY_CALLS)

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
    prompt, completion = object_in(usage, "prompt_tokens_details"), object_in(usage, "completion_tokens_details")
    input, output = count_in(usage, "prompt_tokens"), count_in(usage, "completion_tokens")
    reasoning = count_in(completion, "reasoning_tokens")
    if reasoning and count_in(usage, "total_tokens") == input + output + reasoning:
        output += reasoning  # a provider that counts reasoning beside the output
    return Usage(
        input=input,
        cached=count_in(prompt, "cached_tokens") or count_in(usage, "cached_tokens", "prompt_cache_hit_tokens"),
        cache_written=count_in(prompt, "cache_write_tokens") or count_in(usage, "cache_creation_input_tokens"),
        output=output,
        reasoning=reasoning,
    )


def _flat(value: object) -> str:
    """Text, or the texts of a list of parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(as_arguments(part.get("text")) for part in value if isinstance(part, dict))
    return ""
