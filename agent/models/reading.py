"""What the readers of all protocols share: from bytes cut anywhere to JSON objects, and from those to one verdict.

A body is a stream of server-sent events whose data are objects, or, from servers that do not stream, one object. A
reply counts only when it says how it ended: nothing is made of one that was cut."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import orjson

from agent.models.client import Delta
from agent.models.faults import Fault, fault_of_error
from agent.models.sse import EventReader, ServerEvent
from agent.models.verdicts import Faulty, Finished
from eventlog.ids import CallId
from eventlog.messages import Usage

MAX_REPLY_BYTES = 64 << 20
MAX_CALLS = 256
TOO_MANY_CALLS = Fault("malformed", f"The model asked for more than {MAX_CALLS} calls at once.", True)
CUT = Fault("cut", "The model's reply broke off before its end.", True)
EMPTY_REPLY = Fault("malformed", "The model sent an empty reply.", True)
_TOO_LARGE = Fault("malformed", "The model's reply is larger than 64 MB.", True)
_EMPTY_BODY = Fault("malformed", "The model server sent an empty body.", True)
_END_MARK = b"[DONE]"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_MOST_TOKENS = 1 << 40
"""More than any call has, and the sum over a session still fits into the 64 bits of a number in the log."""


def text_in(fields: dict[str, Any], name: str) -> str:
    """Empty for all that is no text."""
    value = fields.get(name)
    return value if isinstance(value, str) else ""


def object_in(fields: dict[str, Any], name: str) -> dict[str, Any]:
    """Empty for all that is no object."""
    value = fields.get(name)
    return value if isinstance(value, dict) else {}


def count_in(fields: dict[str, Any], *names: str) -> int:
    """The first of them that is a number other than 0; else 0. From 0 to `_MOST_TOKENS`, whatever a server says."""
    found = (fields.get(name) for name in names)
    numbers = (value for value in found if isinstance(value, (int, float)) and value)
    return next((int(min(max(value, 0), _MOST_TOKENS)) for value in numbers), 0)


@dataclass(frozen=True, slots=True)
class JsonEvent:
    name: str
    """As the server named the event; empty where it named none."""
    value: dict[str, Any]
    raw: bytes
    """The object's JSON as the server wrote it."""


class ReplyReader(ABC):
    """One reply; the ids of its tool calls follow from the id of the model call. A Reader, once `_take`, `_read` and
    `output_bytes` say what the protocol means."""

    def __init__(self, call_id: CallId) -> None:
        self._call_id = call_id
        self._usage: Usage | None = None
        self._deltas: list[Delta] = []
        self._done = False
        """The reply said that nothing follows."""
        self._fault: Fault | None = None
        self._events = EventReader()
        self._whole: bytearray | None = None
        """The body, where it is not a stream of events."""
        self._start = b""
        self._started = False
        self._taken = 0

    @property
    @abstractmethod
    def output_bytes(self) -> int:
        """Of text, reasoning and calls so far, roughly."""

    @abstractmethod
    def _take(self, event: JsonEvent) -> None:
        """One object of the reply, never after `ended`."""

    @abstractmethod
    def _read(self) -> Finished | Fault:
        """What all that was taken comes to, where no fault was seen on the way."""

    @property
    def ended(self) -> bool:
        """Nothing that follows can change the verdict: the end mark came, or a fault did."""
        return self._done or self._fault is not None

    def feed(self, chunk: bytes) -> list[Delta]:
        """Deltas in the order of the reply."""
        self._taken += len(chunk)
        if self._taken > MAX_REPLY_BYTES:
            self._fail(_TOO_LARGE)
        if self.ended:
            return []
        if not self._started:
            chunk = self._begin(chunk)
        if self._whole is not None:
            self._whole += chunk
        else:
            for event in self._events.feed(chunk):
                self._take_event(event, last=False)
        deltas, self._deltas = self._deltas, []
        return deltas

    def finish(self) -> Finished | Faulty:
        """The verdict, once the body has ended, however it did."""
        if not self.ended:
            if self._whole is not None:
                self._take_whole(bytes(self._whole))
            else:
                for event in self._events.finish():
                    self._take_event(event, last=True)
        verdict = self._fault or (self._read() if self._started else _EMPTY_BODY)
        return Faulty(verdict, self._usage, self.output_bytes) if isinstance(verdict, Fault) else verdict

    def _fail(self, fault: Fault) -> None:
        """The first one stands."""
        self._fault = self._fault or fault

    def _begin(self, chunk: bytes) -> bytes:
        """Tell a stream from a plain body by its first byte that is no space."""
        start = (self._start + chunk).lstrip().removeprefix(_BYTE_ORDER_MARK).lstrip()
        if _BYTE_ORDER_MARK.startswith(start):  # nothing yet, or a part of the mark
            self._start = start
            return b""
        self._started, self._start = True, b""
        if start[:1] in b"{[<":
            self._whole = bytearray()
        return start

    def _take_event(self, event: ServerEvent, last: bool) -> None:
        data = event.data.strip()
        if self.ended or not data:
            return
        if data == _END_MARK:
            self._done = True
            return
        try:
            value = orjson.loads(data)
        except orjson.JSONDecodeError:
            self._take_apart(event, last)
            return
        if isinstance(value, dict):
            self._take_object(JsonEvent(event.name, value, data))
        else:
            self._fail(Fault("malformed", "The model server sent an event that is no object.", True))

    def _take_object(self, event: JsonEvent) -> None:
        """An error ends the reply; what else stands in it, such as usage, counts."""
        self._take(event)
        error = event.value.get("error")
        if error or event.name == "error" or event.value.get("type") == "error":
            self._fail(fault_of_error(error or event.value))

    def _take_apart(self, event: ServerEvent, last: bool) -> None:
        """Some servers leave the blank line between events out, so several stand in one."""
        lines = event.data.split(b"\n")
        if len(lines) > 1:
            for line in lines:
                self._take_event(replace(event, data=line), last)
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
            self._take_object(JsonEvent("", value, body))
