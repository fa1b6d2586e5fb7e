"""What a protocol is to a script: how its requests are read and checked, and how a turn is said in it.

The checks are those of the strictest provider of each protocol. A request that any of them would refuse is refused."""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal

import orjson

from agent.models.client import estimated_usage
from agent.models.script import Play, ScriptedCall, Turn
from eventlog.messages import Usage

Object = dict[str, Any]
Kind = Literal["opening", "body", "call", "arguments", "ending"]
PAUSED = "paused"
"""What the mark of a paused turn unseals to."""

_PIECE = 8
"""Characters of text, or of arguments, in one event."""
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class BadRequest(Exception):
    """A provider would refuse this request; the text says why."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One event of a stream. `opening` ones come before the model speaks, `ending` ones say how it ended; `call` begins
    a call and `arguments` holds a part of them."""

    data: bytes
    kind: Kind


@dataclass(frozen=True, slots=True)
class Said:
    """A turn of the model, as a request brings it back."""

    text: str
    calls: tuple[str, ...]
    """Names, in order."""
    kept: tuple[Object, ...] = ()
    """Reasoning and other items that must come back untouched."""


@dataclass(frozen=True, slots=True)
class Conversation:
    first: str
    """Text of the first user message."""
    said: tuple[Said, ...]


@dataclass(frozen=True, slots=True)
class Dialect:
    read: Callable[[Object], Conversation]
    """Raises BadRequest."""
    unseal: Callable[[Object], str | None]
    """The reasoning in a kept item, or PAUSED; None where it is not as it was sent."""
    must_echo: bool
    """What was sealed must come back; else it may."""
    marks_pause: bool
    """A paused turn ends with an item to keep."""
    stream: Callable[[Play, Turn], list[Piece]]
    break_off: Callable[[int, bool], bytes]
    """The event of an error after so many events; whether for overload, or a fault of the server."""
    error: Callable[[int, str, str | None], Object]
    """The body for an HTTP status: message, and code where the protocol has one."""
    too_long: tuple[str, str | None]
    """What is said of a conversation that is too long: message and code."""


def need(condition: object, sentence: str) -> None:
    if not condition:
        raise BadRequest(sentence)


def objects(value: object, where: str) -> list[Object]:
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise BadRequest(f"{where} must be a list of objects")
    return value


def spoken(value: object, where: str) -> str:
    """Text that is there and not blank."""
    if not isinstance(value, str) or not value.strip():
        raise BadRequest(f"{where} must be text and not blank")
    return value


def check_fields(request: Object, foreign: Sequence[str], required: Sequence[str] = ()) -> None:
    """No field of another protocol, a model, a stream."""
    for name in foreign:
        need(name not in request, f"unknown parameter: {name}")
    for name in required:
        need(request.get(name), f"{name} is required")
    need(request.get("stream") is not False, "only streams are served here")


def check_tools(tools: object, schema: str, where: str) -> None:
    """`tools` flat, each with a name and the JSON Schema of an object under `schema`."""
    names: set[str] = set()
    for at, tool in enumerate(objects(tools, where)):
        name = check_name(tool.get("name"), f"{where}[{at}].name")
        need(name not in names, f"{where}[{at}].name: there are two of {name}")
        names.add(name)
        shape = tool.get(schema)
        need(isinstance(shape, dict) and shape.get("type") == "object", f"{where}[{at}].{schema} must be of an object")


def check_name(name: object, where: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadRequest(f"{where} must match {_NAME.pattern}")
    return name


def check_arguments(arguments: object, where: str) -> None:
    try:
        value = orjson.loads(arguments) if isinstance(arguments, str) else None
    except orjson.JSONDecodeError:
        value = None
    need(isinstance(value, dict), f"{where} must be the JSON of an object")


class Answers:
    """Calls and what answers them: each exactly once, after its turn and before anything else."""

    def __init__(self) -> None:
        self._open: list[str] = []
        self._ids: set[str] = set()

    def call(self, id: object, where: str) -> None:
        if not isinstance(id, str) or not id:
            raise BadRequest(f"{where} must be text")
        need(id not in self._ids, f"{where}: the id {id} has been used before")
        self._ids.add(id)
        self._open.append(id)

    def answer(self, id: object, where: str) -> None:
        need(id in self._ids, f"{where}: no call has the id {id}")
        need(id in self._open, f"{where}: the call {id} is answered a second time, or too late")
        self._open.remove(str(id))

    def settled(self, where: str) -> None:
        need(not self._open, f"{where}: the call {', '.join(self._open)} has no output before it")


def seal(*fields: str | bool) -> str:
    """Opaque, but it can be told whether it has been touched; with the characters of real ones."""
    data = orjson.dumps(fields)
    return b64encode(sha256(b"sealed " + data).digest() + data).decode()


def unseal(text: object) -> list[Any] | None:
    try:
        whole = b64decode(text if isinstance(text, str) else "", validate=True)
    except ValueError:
        return None
    return orjson.loads(whole[32:]) if whole[:32] == sha256(b"sealed " + whole[32:]).digest() else None


def event(value: Object, name: str = "") -> bytes:
    """One server-sent event."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + orjson.dumps(value) + b"\n\n"


def pieces(text: str) -> list[str]:
    """At least two where there are two characters, so that there is a middle to cut."""
    step = max(1, min(_PIECE, len(text) // 2))
    return [text[at : at + step] for at in range(0, len(text), step)]


def arguments_of(call: ScriptedCall) -> str:
    return call.arguments if isinstance(call.arguments, str) else orjson.dumps(call.arguments).decode()


def stop_of(turn: Turn) -> str:
    return turn.stop or ("tool_calls" if turn.tool_calls else "stop")


def usage_of(play: Play, turn: Turn) -> Usage:
    calls = sum(len(call.name) + len(arguments_of(call)) for call in turn.tool_calls)
    return turn.usage or estimated_usage(play.request_bytes, len(turn.reasoning) + len(turn.text) + calls)
