"""The log as an agent in another process of the coordinator's node sees it: appends go through the coordinator's door.

The agent counts its appends under its lease. When the coordinator was gone and is back, what it had not acknowledged is
sent again under the same numbers, and the log keeps one of each."""

import asyncio
import contextlib
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import orjson
from pydantic import TypeAdapter, ValidationError

from actors.frames import FrameError, decode, enclose, encode, read_payload, split
from eventlog.clean import prepare
from eventlog.codec import encode_body
from eventlog.errors import LeaseSuperseded, LogError, LogWriteFailed, reason
from eventlog.events import Draft, Event
from eventlog.ids import AgentId
from eventlog.redact import Redactor
from eventlog.seams import Prepared
from eventlog.values import Value

PATIENCE_S = 30.0
"""How long a coordinator may be away. A lease lasts longer."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.25


class StoredOtherwise(LogError):
    """The writer cut out more than this process knew to cut out. `events` is what was stored and what holds: a state
    that was made of the prepared form has to be folded again."""

    def __init__(self, events: tuple[Event, ...]) -> None:
        self.events = events
        super().__init__("The log stored an event otherwise than it was sent; this incarnation has to stop.")


class _Answer(Value):
    id: int | None
    events: tuple[Event, ...] = ()
    error: str | None = None
    text: str = ""


_answer = TypeAdapter(_Answer)
_event = TypeAdapter(Event)


@dataclass(frozen=True, slots=True)
class _Sent:
    frame: bytes
    prepared: Sequence[Prepared]
    future: asyncio.Future[tuple[Event, ...]]


class RemoteLog:
    """For one incarnation of an agent, on one event loop. Appends may overlap; they keep the order of the calls.

    `redactor` knows the same secrets as the coordinator's: the writer has the last word, but what it has to add is an
    error here, because its bytes are what a state may be made of."""

    def __init__(
        self, path: Path, agent: AgentId, lease: int, redactor: Redactor, *, patience_s: float = PATIENCE_S
    ) -> None:
        self._path, self._agent, self._lease = path, agent, lease
        self._redactor, self._patience_s = redactor, patience_s
        self._next = 1
        """The `actor_seq` of the next body."""
        self._waiting: dict[int, _Sent] = {}
        """By the number of their first body, in order: what is not acknowledged."""
        self._failure: LogError | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self._needed = asyncio.Event()
        self._lost_at: float | None = None
        """Since when nothing came from the coordinator though something waits."""

    def prepare(self, draft: Draft) -> Prepared:
        """In this agent's name, whatever name the draft bears."""
        return prepare(draft.model_copy(update={"actor": self._agent, "lease": self._lease}), self._redactor)

    async def append(self, prepared: Sequence[Prepared]) -> tuple[Event, ...]:
        """What is stored, with events that were acknowledged to nobody before. One that is cancelled while it waits is
        stored all the same. Raises LeaseSuperseded, StoredOtherwise, LogWriteFailed; then nothing more is taken, and
        whether the last append was stored may be unknown."""
        if self._failure is not None:
            raise self._failure
        if not prepared:
            return ()
        first = self._next
        frame = self._encode(first, prepared)
        sent = _Sent(frame, prepared, asyncio.get_running_loop().create_future())
        self._next += len(prepared)
        self._waiting[first] = sent
        if self._writer is not None:
            self._writer.write(frame)
        elif self._task is None:
            self._task = asyncio.create_task(self._run())
        self._needed.set()
        return await sent.future

    def read(self, after_seq: int = 0) -> Iterator[Event]:
        """Up to what is acknowledged when it is first reached, of all agents. A coordinator that goes away is waited
        for, as when appending. Blocks; not in the coordinator's own loop. Raises LogError."""
        page, give_up = _Page(after_seq), time.monotonic() + self._patience_s
        while True:
            try:
                with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                    connection.settimeout(self._patience_s)
                    connection.connect(str(self._path))
                    for event in _read(connection, page):
                        give_up = time.monotonic() + self._patience_s
                        yield event
                return
            except (OSError, FrameError) as error:
                if time.monotonic() > give_up:
                    text = str(error) if isinstance(error, FrameError) else reason(error)
                    raise LogError(f"The session's log cannot be read at {self._path} ({text}).") from error
            time.sleep(LONGEST_PAUSE_S)

    def checkpoint_when_large(self) -> None:
        """The coordinator sees to it."""

    async def close(self) -> None:
        """What waits is not known to be stored. May be repeated."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail(LogWriteFailed("This agent's log is closed; nothing was started."))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _encode(self, first: int, prepared: Sequence[Prepared]) -> bytes:
        agent = orjson.dumps(self._agent)
        head = b'{"op":"append","id":%d,"agent":%b,"lease":%d,"actor_seq":%d,' % (first, agent, self._lease, first)
        causes = [item.draft.causation for item in prepared]
        if any(cause is not None for cause in causes):
            head += b'"causes":%b,' % orjson.dumps(causes)
        try:
            return enclose(head, b'"bodies":[', b",".join([item.encoded for item in prepared]), b"]}")
        except FrameError as error:
            raise LogWriteFailed(str(error)) from error

    async def _run(self) -> None:
        """Hold a connection while there is something to send, and give up when the coordinator stays away."""
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_S
        while self._failure is None:
            await self._needed.wait()
            with contextlib.suppress(OSError, FrameError):
                reader, self._writer = await asyncio.open_unix_connection(str(self._path))
                try:
                    for sent in self._waiting.values():
                        self._writer.write(sent.frame)
                    await self._receive(reader)
                finally:
                    self._writer.close()
                    self._writer = None
            if not self._waiting:
                # Gone while nobody waited: that is no reason to ask again before somebody does.
                self._needed.clear()
                continue
            if self._lost_at is None:
                self._lost_at, pause = loop.time(), FIRST_PAUSE_S
            if loop.time() - self._lost_at > self._patience_s:
                self._fail(
                    LogWriteFailed(
                        f"The coordinator was away for more than {self._patience_s:g} s; whether the last append was "
                        "stored is unknown, and this agent stops."
                    )
                )
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE_S)

    async def _receive(self, reader: asyncio.StreamReader) -> None:
        """Until the connection ends. Raises OSError, FrameError."""
        while self._failure is None and (payload := await read_payload(reader)) is not None:
            try:
                answer = _answer.validate_json(payload)
            except ValidationError as error:
                self._fail(LogError("The coordinator answered what this version cannot read; upgrade this node."))
                raise FrameError("An answer cannot be understood.") from error
            self._lost_at = None
            if answer.error is not None:
                self._fail(self._error(answer))
            elif answer.id is not None and (sent := self._waiting.pop(answer.id, None)) is not None:
                self._settle(sent, answer.events)

    def _settle(self, sent: _Sent, events: tuple[Event, ...]) -> None:
        same = len(events) == len(sent.prepared) and all(
            encode_body(event.body) == item.encoded for event, item in zip(events, sent.prepared, strict=True)
        )
        if not same:
            error = StoredOtherwise(events)
            if not sent.future.done():
                sent.future.set_exception(error)
            self._fail(error)
        elif not sent.future.done():
            sent.future.set_result(events)

    def _error(self, answer: _Answer) -> LogError:
        if answer.error == LeaseSuperseded.__name__:
            return LeaseSuperseded(self._agent, self._lease)
        return LogWriteFailed(answer.text or f"The coordinator refused an append ({answer.error}).")

    def _fail(self, failure: LogError) -> None:
        """For all that wait and all that come. The first failure stays."""
        self._failure = self._failure or failure
        for sent in self._waiting.values():
            if not sent.future.done():
                sent.future.set_exception(self._failure)
        self._waiting.clear()


@dataclass(slots=True)
class _Page:
    """What is read, over several connections where one is lost."""

    after: int
    """seq of the last event that came."""
    head: int | None = None
    """seq of the last one that is to come."""


def _read(connection: socket.socket, page: _Page) -> Iterator[Event]:
    connection.sendall(encode({"op": "ping", "id": 0}))
    messages = _messages(connection)
    head = next(messages)["head"]
    page.head = head = head if page.head is None else page.head
    if page.after >= head:
        return
    connection.sendall(encode({"op": "attach", "id": 1, "after": page.after}))
    for message in messages:
        if "error" in message:
            raise LogError(message["text"])
        if "event" in message:
            event = _event.validate_python(message["event"])
            page.after = event.seq
            yield event
            if event.seq >= head:
                return


def _messages(connection: socket.socket) -> Iterator[dict]:
    """Raises FrameError, also where the stream ends: more was expected."""
    buffer = bytearray()
    while received := connection.recv(1 << 18):
        buffer += received
        yield from map(decode, split(buffer))
    raise FrameError("the coordinator went away")
