"""The protocols that a model server can speak, each a row of a table."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent.models.chat_stream import ChatStream
from agent.models.formats import UnknownFormat
from agent.models.messages_stream import MessagesStream
from agent.models.requests import CHAT_1, MESSAGES_1, RESPONSES_1
from agent.models.responses_stream import ResponsesStream
from agent.models.verdicts import Reader
from configs.models import Protocol
from eventlog.ids import CallId


@dataclass(frozen=True, slots=True)
class Wire:
    path: str
    """Behind the base URL."""
    builder: str
    """The format of its requests, as a ContextSet names it."""
    headers: Callable[[str], list[tuple[bytes, bytes]]]
    """From the key; an empty one is none."""
    reader: Callable[[CallId], Reader]


def _bearer(key: str) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", b"Bearer " + key.encode())] if key else []


def _own_headers(key: str) -> list[tuple[bytes, bytes]]:
    """Of Messages: its version is asked for in a header."""
    version = (b"anthropic-version", b"2023-06-01")
    return [version, (b"x-api-key", key.encode())] if key else [version]


WIRES: Mapping[Protocol, Wire] = {
    "chat": Wire("/chat/completions", CHAT_1, _bearer, ChatStream),
    "responses": Wire("/responses", RESPONSES_1, _bearer, ResponsesStream),
    "messages": Wire("/messages", MESSAGES_1, _own_headers, MessagesStream),
}


def wire_of(builder: str) -> Wire:
    """How the requests of a logged builder are sent. Raises UnknownFormat."""
    for wire in WIRES.values():
        if wire.builder == builder:
            return wire
    raise UnknownFormat(builder)
