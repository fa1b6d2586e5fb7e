"""What a session shows to those who watch it: its events without gap or double, token deltas, and what was published.

Nothing is queued for anybody. The feed keeps a short ring of what came last; a follower takes from it at its own pace,
and one that fell behind, or begins, reads the log until it is on the ring again. Runs in the coordinator's loop."""

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from itertools import islice
from typing import Literal, NamedTuple, assert_never

import orjson

from agent.models.client import Delta, ReasoningDelta, TextDelta, ToolCallStarted
from eventlog.events import Event
from eventlog.store import DuckLog

RING_BYTES, RING_ITEMS = 4 << 20, 2048
BATCH_BYTES = 1 << 20
"""About what is handed to one follower at a time; a single larger event comes alone."""
BATCH_EVENTS = 256
"""Rows that are fetched for it: where they are large most would be fetched in vain, and again."""
DELTAS_S = 0.025
"""Token deltas wait this long for more of them."""


class Item(NamedTuple):
    kind: Literal["event", "deltas", "published"]
    seq: int
    """Of the event; of the last one before it, where it is none."""
    rest: bytes
    """A message's JSON behind its id: the same bytes for all who get it."""


class Feed:
    def __init__(self, log: DuckLog, threads: Executor) -> None:
        self._log, self._threads = log, threads
        self._head = self._floor = log.head.seq
        """The last event that was added, and the last one that is not on the ring."""
        self._ring: deque[Item] = deque()
        self._first = 0
        """The place of the oldest item on the ring. Places count all items that ever were."""
        self._bytes = 0
        self._latest: dict[str, tuple[int, bytes]] = {}
        """Of each published name: its place and its message."""
        self._deltas: list[Delta] = []
        self._timer: asyncio.TimerHandle | None = None
        self._changed = asyncio.Event()
        self._followers = 0
        self.watched = asyncio.Event()
        """Set once somebody has followed."""
        self.ended = False

    def add_event(self, event: Event) -> None:
        """Events may be missing between two, or come late: followers find them in the log."""
        if event.seq <= self._head:
            return
        self._flush()
        if event.seq != self._head + 1:
            self._clear(event.seq - 1)
        self._head = event.seq
        rest = b'"event":%b}' % event.model_dump_json().encode() if self._followers else b""
        self._add(Item("event", event.seq, rest))

    def add_delta(self, delta: Delta) -> None:
        """Shown after the events of now and before the next one, or not at all to a follower that is far behind."""
        if not self._followers:
            return
        self._deltas.append(delta)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELTAS_S, self._flush)

    def publish(self, message: Mapping[str, object]) -> None:
        """Each name with its value becomes a message. Whoever comes later gets the last of each name."""
        self._flush()
        for name, value in message.items():
            rest = orjson.dumps({name: value})[1:]
            self._latest[name] = (self.end_place, rest)
            self._add(Item("published", self._head, rest))

    def follow(self, after: int) -> "Follower":
        """To be closed. `after` is the seq of an event, or 0."""
        self._followers += 1
        self.watched.set()
        return Follower(self, after)

    def leave(self) -> None:
        self._followers -= 1
        if not self._followers:
            self._clear(self._head)

    def end(self) -> None:
        """Nothing more comes: followers that know all are done."""
        self._flush()
        self.ended = True
        self._changed.set()

    async def read(self, after: int) -> tuple[list[bytes], int]:
        """Messages from the log, some hundred or about a megabyte, and the seq up to which they go. Raises LogError."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._read, after)

    def has(self, after: int) -> bool:
        """Whether all events from behind `after` are on the ring."""
        return after >= self._floor

    def place_after(self, seq: int) -> int:
        """The place of the first item that somebody who knows all events up to `seq` does not know."""
        for index, item in enumerate(self._ring):
            if item.seq > seq or (item.seq == seq and item.kind != "event"):
                return self._first + index
        return self.end_place

    def items(self, place: int) -> list[Item] | None:
        """From `place` on, about a megabyte; None where they are no longer there."""
        if place < self._first:
            return None
        found: list[Item] = []
        size = 0
        for item in islice(self._ring, place - self._first, None):
            found.append(item)
            size += len(item.rest)
            if size > BATCH_BYTES:
                break
        return found

    def latest(self, since: int, before: int) -> list[bytes]:
        """The last message of each name, of those whose place lies between."""
        return [rest for place, rest in sorted(self._latest.values()) if since <= place < before]

    def is_latest(self, at: int) -> bool:
        return any(place == at for place, _ in self._latest.values())

    async def wait(self) -> None:
        """Until an item is added."""
        await self._changed.wait()

    @property
    def size(self) -> int:
        """Bytes that are kept for followers."""
        return self._bytes

    @property
    def end_place(self) -> int:
        return self._first + len(self._ring)

    def _add(self, item: Item) -> None:
        self._ring.append(item)
        self._bytes += len(item.rest)
        full = 0 if not self._followers else RING_ITEMS
        while len(self._ring) > full or self._bytes > RING_BYTES:
            gone = self._ring.popleft()
            self._first += 1
            self._bytes -= len(gone.rest)
            self._floor = gone.seq if gone.kind == "event" else self._floor
        if not self.ended:
            self._changed.set()
            self._changed = asyncio.Event()

    def _clear(self, floor: int) -> None:
        # One more, so that who stood at the end does not stand at the new beginning.
        self._first += len(self._ring) + 1
        self._ring.clear()
        self._bytes = 0
        self._floor = floor

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._deltas and self._followers:
            self._add(Item("deltas", self._head, _encode_deltas(self._deltas)))
        self._deltas = []

    def _read(self, after: int) -> tuple[list[bytes], int]:
        """In a thread."""
        found: list[bytes] = []
        size, head = 0, self._log.head.seq
        # Numbers may be missing where damage was accepted, so a stretch of them can be empty.
        while not found and after < head:
            upto = min(after + BATCH_EVENTS, head)
            for seq, encoded in self._log.read_encoded(after, upto):
                found.append(b'"event":%b}' % encoded)
                size += len(encoded)
                if size > BATCH_BYTES:
                    return found, seq
            after = upto
        return found, after


class Follower:
    """One who watches, and how far it is."""

    def __init__(self, feed: Feed, after: int) -> None:
        self._feed, self._sent = feed, after
        self._place: int | None = None
        """On the ring; None while the log is read."""
        self._joined = 0
        """Where the ring ended when it came, or came back, there."""
        self._seen = 0
        """The place up to which it knows what was published."""

    async def take(self) -> Sequence[bytes]:
        """The next messages, in order, as soon as there is one. None at all: the feed has ended. Raises LogError."""
        while True:
            place = self._place
            found = await self._from_log() if place is None else self._from_ring(place)
            if found:
                return found
            if place is not None and self._place == place:
                if self._feed.ended:
                    return ()
                await self._feed.wait()

    def close(self) -> None:
        self._feed.leave()

    async def _from_log(self) -> list[bytes]:
        if not self._feed.has(self._sent):
            found, self._sent = await self._feed.read(self._sent)
            return found
        self._place, self._joined = self._feed.place_after(self._sent), self._feed.end_place
        return self._feed.latest(self._seen, self._place)

    def _from_ring(self, place: int) -> list[bytes]:
        items = self._feed.items(place)
        if items is None:
            self._place = None
            return []
        self._place = self._seen = place + len(items)
        found = [item.rest for at, item in enumerate(items, place) if self._is_new(at, item)]
        self._sent = max([self._sent, *(item.seq for item in items)])
        return found

    def _is_new(self, at: int, item: Item) -> bool:
        """The log may have been read past what the ring held then: those events, and deltas before them, are known. Of
        what was published before it came here, it gets the last of each name."""
        match item.kind:
            case "event":
                return item.seq > self._sent
            case "deltas":
                return item.seq >= self._sent
            case "published":
                return at >= self._joined or self._feed.is_latest(at)
            case _:
                assert_never(item.kind)


def _encode_deltas(deltas: Sequence[Delta]) -> bytes:
    """Neighbours of one kind become one."""
    found: list[dict[str, object]] = []
    texts: list[str] = []
    for index, delta in enumerate(deltas):
        match delta:
            case TextDelta(text) | ReasoningDelta(text):
                texts.append(text)
                if index + 1 < len(deltas) and type(deltas[index + 1]) is type(delta):
                    continue
                kind = "text" if isinstance(delta, TextDelta) else "reasoning"
                found.append({"kind": kind, "text": _valid("".join(texts))})
                texts = []
            case ToolCallStarted(index=number, name=name):
                found.append({"kind": "tool_call", "index": number, "name": _valid(name)})
            case _:
                assert_never(delta)
    return orjson.dumps({"deltas": found})[1:]


def _valid(text: str) -> str:
    """Half of a pair of surrogates may stand at an end."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
