"""A model server whose answers are right and are spoilt on their way: cut at any byte of the raw answer, reset, never
ended, replaced. Requests are checked as by the strictest provider of each protocol."""

import asyncio
import contextlib
import gzip
import re
import socket
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from agent.models.script import Script
from agent.models.script_player import Player
from agent.models.script_wire import Answer, answer_bytes
from agent.models.server import parse_head
from agent.models.wires import WIRES
from configs.models import Protocol

_RESET_ON_CLOSE = struct.pack("ii", 1, 0)
_CLOSES = b"connection: close\r\n"
"""Said of whole answers behind which the connection ends: else the next request may be on its way there already."""
_EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n" + _CLOSES


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that has come whole, and the answer that it would get."""

    good: bytes
    """Head and body, as they go over the connection."""
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @property
    def body(self) -> bytes:
        """Of the good answer, without its framing."""
        return events_of(self.good)

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def say_for_ever(self, piece: bytes, pause_s: float = 0.0) -> None:
        """Until the other side closes."""
        while True:
            await self.say(piece)
            await asyncio.sleep(pause_s)

    async def hold(self) -> None:
        """Say nothing until the other side closes."""
        while await self.reader.read(1 << 16):
            continue

    def reset(self) -> None:
        """The connection ends with RST instead of FIN."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self.writer.transport.abort()


Spoil = Callable[[Exchange], Awaitable[object]]
"""What a request gets instead of its answer. The connection is closed behind it."""


Where = Callable[[bytes], int]
"""From a good answer to a number of its bytes."""


def head(good: bytes) -> int:
    return good.index(b"\r\n\r\n") + 4


def middle(good: bytes) -> int:
    """Within the arguments of a call, where there are some."""
    return max(good.find(b"counter"), good.find(b"a.txt"), head(good) + 200) + 2


def cut(at: int) -> Spoil:
    """The connection is closed in good order after so many bytes."""
    return lambda exchange: exchange.say(exchange.good[:at])


def silence(where: Where) -> Spoil:
    """Nothing more comes."""

    async def play(exchange: Exchange) -> None:
        await exchange.say(exchange.good[: where(exchange.good)])
        await exchange.hold()

    return play


def reset(where: Where) -> Spoil:
    async def play(exchange: Exchange) -> None:
        await exchange.say(exchange.good[: where(exchange.good)])
        exchange.reset()

    return play


def raw(data: bytes) -> Spoil:
    return lambda exchange: exchange.say(data)


def endless(head: bytes, piece: bytes, pause_s: float = 0.0) -> Spoil:
    async def play(exchange: Exchange) -> None:
        await exchange.say(head)
        await exchange.say_for_ever(piece, pause_s)

    return play


def after(first: bytes) -> Spoil:
    """Something before the good answer."""
    return instead(lambda exchange: first + exchange.good.replace(b"\r\n", b"\r\n" + _CLOSES, 1))


def instead(make: Callable[[Exchange], bytes]) -> Spoil:
    """What is made of the good answer."""
    return lambda exchange: exchange.say(make(exchange))


def status(code: int, body: bytes = b"", **headers: str) -> Spoil:
    """Underscores in names of headers stand for dashes."""
    lines = [f"HTTP/1.1 {code} Answer", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return raw("\r\n".join([*lines, f"content-length: {len(body)}", ""]).encode() + _CLOSES + b"\r\n" + body)


def stream(body: bytes, *headers: bytes) -> bytes:
    """An answer that ends with the connection."""
    return _EVENTS + b"".join(header + b"\r\n" for header in headers) + b"\r\n" + body


def squeezed(body: bytes) -> bytes:
    return stream(gzip.compress(body), b"content-encoding: gzip")


def in_chunks(body: bytes, size: int) -> bytes:
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    return stream(chunks + b"0\r\n\r\n", b"transfer-encoding: chunked")


def in_events(change: Callable[[list[bytes]], list[bytes]]) -> Spoil:
    """The answer with its events changed."""
    return instead(lambda exchange: stream(b"".join(change(re.findall(rb".*?\n\n", exchange.body, re.DOTALL)))))


def events_of(good: bytes) -> bytes:
    """The body of a good answer, which is one chunk."""
    framed = good.partition(b"\r\n\r\n")[2]
    return framed.partition(b"\r\n")[2].removesuffix(b"\r\n0\r\n\r\n")


def ending_at(good: bytes, protocol: Protocol) -> int:
    """How many bytes of an answer say how the reply ended: a reply of fewer is none."""
    marks = {"chat": b'"finish_reason":"', "responses": b"event: response.completed\n", "messages": b'"message_delta"'}
    return good.index(b"\n\n", good.index(marks[protocol]))


@dataclass(slots=True)
class FaultyServer:
    """`spoils` by turn of the model: one an attempt, and then the answer."""

    script: Script
    spoils: Mapping[int, Sequence[Spoil]]
    requests: list[bytes] = field(default_factory=list)
    goods: list[bytes] = field(default_factory=list)
    """The right answer of each turn."""
    keys: list[str] = field(default_factory=list)
    """What each request had for a key."""
    port: int = 0
    _player: Player = field(init=False)
    _attempts: dict[bytes, int] = field(default_factory=dict)
    """By request, in the order of the turns: one that is made again is the same bytes."""
    _talks: set[asyncio.Task[None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._player = Player(self.script)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, ready: threading.Event, stop: asyncio.Event) -> None:
        server = await asyncio.start_server(self._begin, "127.0.0.1", 0, limit=1 << 20)
        self.port = server.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        server.close()
        for task in self._talks:
            task.cancel()
        await asyncio.gather(*self._talks, return_exceptions=True)
        await server.wait_closed()

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._talk(reader, writer))
        self._talks.add(task)
        task.add_done_callback(self._talks.discard)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            try:
                while await self._exchange(reader, writer):
                    continue
            finally:
                writer.close()
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection is good for another."""
        _, path, headers = parse_head(await reader.readuntil(b"\r\n\r\n"))
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        self.requests.append(body)
        self.keys.append(headers.get("x-api-key") or headers.get("authorization", ""))
        exchange = Exchange(good_bytes(self._player.answer(_protocol(path), body)), reader, writer)
        if body not in self._attempts:
            self.goods.append(exchange.good)
        spoil = self._next(body)
        await (spoil(exchange) if spoil is not None else exchange.say(exchange.good))
        return spoil is None

    def _next(self, body: bytes) -> Spoil | None:
        attempt = self._attempts[body] = self._attempts.get(body, 0) + 1
        spoils = self.spoils.get(list(self._attempts).index(body), ())
        return spoils[attempt - 1] if attempt <= len(spoils) else None


def _protocol(path: str) -> Protocol:
    return next(protocol for protocol, wire in WIRES.items() if path.endswith(wire.path))


def good_bytes(answer: Answer) -> bytes:
    head, pieces = answer_bytes(answer, chunked=answer.status == 200)
    return head + b"".join(pieces)


@contextmanager
def faulty(turns: Sequence[Mapping[str, Any]], spoils: Mapping[int, Sequence[Spoil]]) -> Iterator[FaultyServer]:
    """On the loopback address, in a thread of its own."""
    server = FaultyServer(Script.model_validate({"turns": turns}), spoils)
    ready, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve(ready, stop)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    try:
        yield server
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join()
