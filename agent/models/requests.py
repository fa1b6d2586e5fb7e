"""Request builders: pure, named and versioned. A new format gets a new name; an old builder stays, so that old sessions
replay byte for byte.

In every format the messages stand last: the bytes of each message are kept, and two new messages cost no re-encoding
of the others."""

import hashlib
from collections.abc import Callable, Mapping, Sequence

from agent.models.chat_format import CHAT
from agent.models.formats import MAX_TOKENS_NAME, Format, UnknownFormat
from agent.models.messages_format import MESSAGES
from agent.models.responses_format import RESPONSES
from eventlog.events import ContextSet
from eventlog.ids import Digest
from eventlog.messages import Message

__all__ = [
    "BUILDERS",
    "CHAT_1",
    "FORMATS",
    "MAX_TOKENS_NAME",
    "MESSAGES_1",
    "RESPONSES_1",
    "RequestCache",
    "build_request",
    "format_named",
]

CHAT_1 = "chat/1"
RESPONSES_1 = "responses/1"
MESSAGES_1 = "messages/1"
FORMATS: Mapping[str, Format] = {CHAT_1: CHAT, RESPONSES_1: RESPONSES, MESSAGES_1: MESSAGES}

Builder = Callable[[ContextSet, Sequence[Message], int | None], bytes]


def format_named(builder: str) -> Format:
    """Raises UnknownFormat."""
    if builder not in FORMATS:
        raise UnknownFormat(builder)
    return FORMATS[builder]


def build_request(context: ContextSet, messages: Sequence[Message], max_output_tokens: int | None) -> bytes:
    """The whole body in the format that the context names. RequestCache gives the same bytes sooner. Raises
    UnknownFormat."""
    made = format_named(context.builder)
    pieces = [made.prefix(context, max_output_tokens)]
    previous: Message | None = None
    for message in messages:
        pieces.append(made.encode(context, previous, message))
        previous = message
    return b"".join((*pieces, made.end(context, previous)))


BUILDERS: Mapping[str, Builder] = dict.fromkeys(FORMATS, build_request)
"""What a logged intent can name."""


class RequestCache:
    """The request of a growing conversation: each message is encoded and hashed once.

    Anything but an extension of the messages seen last (compared one by one, identity first) encodes them all again."""

    def __init__(self) -> None:
        self._context: ContextSet | None = None
        self._format = CHAT
        self._seen: tuple[Message, ...] = ()
        self._encoded = bytearray()
        self._end = b""
        self._heads: dict[int | None, bytes] = {}
        self._hash = hashlib.sha256()
        self._hash_bound: int | None = None
        self._hashed = -1
        """How many bytes of the messages are in the hash; -1 before the prefix is."""

    def update(self, context: ContextSet, messages: Sequence[Message]) -> None:
        """Raises UnknownFormat."""
        now = tuple(messages)
        same_context = context is self._context or context == self._context
        if not same_context or now[: len(self._seen)] != self._seen:
            self._restart(context)
        previous = self._seen[-1] if self._seen else None
        for message in now[len(self._seen) :]:
            self._encoded += self._format.encode(context, previous, message)
            previous = message
        self._seen, self._end = now, self._format.end(context, previous)

    def digest(self, max_output_tokens: int | None) -> Digest:
        """sha256 of `body(max_output_tokens)`. A bound other than the last one costs hashing the whole again."""
        if self._hashed < 0 or self._hash_bound != max_output_tokens:
            self._hash = hashlib.sha256(self._head(max_output_tokens))
            self._hash_bound, self._hashed = max_output_tokens, 0
        if self._hashed < len(self._encoded):
            with memoryview(self._encoded) as view:
                self._hash.update(view[self._hashed :])
            self._hashed = len(self._encoded)
        whole = self._hash.copy()
        whole.update(self._end)
        return Digest(whole.hexdigest())

    def body(self, max_output_tokens: int | None) -> bytes:
        return b"".join((self._head(max_output_tokens), self._encoded, self._end))

    def size(self, max_output_tokens: int | None) -> int:
        """Bytes of `body(max_output_tokens)`."""
        return len(self._head(max_output_tokens)) + len(self._encoded) + len(self._end)

    def _head(self, bound: int | None) -> bytes:
        if self._context is None:
            raise LookupError("a request needs update(context, messages) first")
        if bound not in self._heads:
            self._heads = {bound: self._format.prefix(self._context, bound)}
        return self._heads[bound]

    def _restart(self, context: ContextSet) -> None:
        self._format = format_named(context.builder)
        self._context, self._seen, self._encoded = context, (), bytearray()
        self._heads, self._hashed = {}, -1
