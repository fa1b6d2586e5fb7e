"""Tool calls put together from the deltas of Chat Completions, as servers really send them."""

from dataclasses import dataclass, field
from typing import Any

import orjson


@dataclass(slots=True)
class PendingCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.arguments)


class CallCollector:
    """Deltas belong together by `index`; where a server gives none, by id, else to the call that came last."""

    def __init__(self) -> None:
        self.calls: list[PendingCall] = []
        """In the order in which they began."""
        self._by_index: dict[int, PendingCall] = {}

    def add(self, delta: dict[str, Any]) -> PendingCall | None:
        """Take one delta; the call when it is a new one."""
        function = delta.get("function")
        function = function if isinstance(function, dict) else {}
        id, name = _text(delta.get("id")), _text(function.get("name"))
        arguments = as_arguments(function.get("arguments"))
        index = _index(delta.get("index"))
        call = self._find(index, id, name, arguments)
        new = call is None
        if call is None:
            call = PendingCall()
            self.calls.append(call)
        if index is not None:
            self._by_index[index] = call
        call.id = call.id or id
        if name and not _repeats(call, id, name):
            call.name += name
        if arguments:
            call.arguments.append(arguments)
        return call if new else None

    def _find(self, index: int | None, id: str, name: str, arguments: str) -> PendingCall | None:
        if index is not None:
            call = self._by_index.get(index)
            # Some servers number every call 0 and tell them apart by id.
            return None if call is not None and name and call.name and id not in {"", call.id} else call
        if not self.calls:
            return None
        last = self.calls[-1]
        if id:
            # A second call under the same id begins with a name after whole arguments.
            begins = name and last.text and is_json(last.text)
            return next((call for call in reversed(self.calls) if call.id == id), None) if not begins else None
        return None if name and (last.text or (arguments and last.name)) else last


def as_arguments(value: object) -> str:
    """Arguments as text; some servers send the object itself."""
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # nested deeper than the encoder goes
        return str(value)


def is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _repeats(call: PendingCall, id: str, name: str) -> bool:
    """Some servers send id and name with every piece of the arguments."""
    return name == call.name and (bool(call.arguments) or (bool(id) and id == call.id))


def _index(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() else None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
