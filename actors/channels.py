"""Many connections over one link: each in order, in both directions, with an end of its own for each direction.

Both sides of a link have one of these; what carries its batches from one to the other is another's affair. A batch is a
row of items: channel (4 bytes, big-endian), kind (1), size (4), and as many bytes.

  open     the other side is to connect; its bytes are the word that says where
  data     of one direction, at most WINDOW bytes are on their way or wait for who is to read them
  credit   so many bytes were read since the last one (4 bytes, big-endian)
  end      nothing more comes in this direction
  cut      the connection is broken, behind what came before

So one whose other side does not read holds up no other, and takes bounded memory."""

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from enum import IntEnum
from functools import partial

CHUNK = 64 << 10
"""Bytes that are read from a connection at a time."""
WINDOW = 512 << 10
BATCH = 512 << 10
"""About what one batch holds."""
_HEAD = struct.Struct(">IBI")
_COUNT = struct.Struct(">I")

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[bytes], Awaitable[Streams]]


class Kind(IntEnum):
    OPEN, DATA, CREDIT, END, CUT = range(5)


class LinkBroken(Exception):
    """One sentence: the other side does not keep to what stands above."""


class Channels:
    """Belongs to one event loop. `connect` answers what the other side opens, and raises OSError."""

    def __init__(self, connect: Connect | None = None) -> None:
        self._connect = connect
        self._channels: dict[int, _Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._last = 0
        self._out: deque[bytes] = deque()
        self._filled = asyncio.Event()
        self.closed = False

    def open(self, word: bytes, streams: Streams) -> None:
        """Carry this connection, and have the other side connect to what `word` says."""
        self._last += 1
        self._put(self._last, Kind.OPEN, word)
        self._begin(self._last, partial(_give_back, streams)).writer = streams[1]

    def take(self, batch: bytes) -> None:
        """The next one of the other side. Raises LinkBroken."""
        for number, kind, data in _split(batch):
            if kind == Kind.OPEN:
                if self._connect is None or number in self._channels:
                    raise LinkBroken(f"Channel {number} cannot be opened.")
                self._begin(number, partial(self._connect, data))
            elif (channel := self._channels.get(number)) is not None:
                # What was on its way to one that is over goes nowhere.
                channel.take(kind, data)

    async def give(self) -> bytes:
        """The next batch for the other side, once there is anything; nothing when this is closed."""
        while not self._out and not self.closed:
            self._filled.clear()
            await self._filled.wait()
        batch: list[bytes] = []
        size = 0
        while self._out and size < BATCH:
            batch.append(self._out.popleft())
            size += len(batch[-1])
        return b"".join(batch)

    async def close(self) -> None:
        """Every connection is cut, at once. May be repeated."""
        self.closed = True
        self._out.clear()
        self._filled.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def count(self) -> int:
        """Of connections that are not over."""
        return len(self._channels)

    @property
    def size(self) -> int:
        """Bytes that wait to be given, or to be read."""
        return sum(map(len, self._out)) + sum(channel.waiting for channel in self._channels.values())

    def _put(self, number: int, kind: Kind, data: bytes = b"") -> None:
        if not self.closed:
            self._out.append(_HEAD.pack(number, kind, len(data)) + data)
            self._filled.set()

    def _begin(self, number: int, connect: Callable[[], Awaitable[Streams]]) -> "_Channel":
        self._channels[number] = channel = _Channel(partial(self._put, number))
        task = asyncio.ensure_future(channel.run(connect))
        self._tasks.add(task)
        task.add_done_callback(partial(self._over, number))
        return channel

    def _over(self, number: int, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        # Also where the task was cancelled before it began.
        self._channels.pop(number).abort()
        if not task.cancelled() and (defect := task.exception()) is not None:
            message = {"message": "A mistake in a channel of a link.", "exception": defect}
            task.get_loop().call_exception_handler(message)


class _Channel:
    def __init__(self, put: Callable[..., None]) -> None:
        self._put = put
        self.writer: asyncio.StreamWriter | None = None
        self.waiting = 0
        """Bytes that came and are not yet handed on."""
        self._come: deque[bytes | Kind] = deque()
        self._room = WINDOW
        """Bytes that may be sent before credit comes."""
        self._moved = asyncio.Event()
        self._read_all = self._written_all = self._cut = False

    def take(self, kind: int, data: bytes) -> None:
        """Raises LinkBroken."""
        match kind:
            case Kind.DATA if self.waiting + len(data) <= WINDOW:
                self.waiting += len(data)
                self._come.append(data)
            case Kind.CREDIT if len(data) == _COUNT.size:
                self._room += _COUNT.unpack(data)[0]
            case Kind.END | Kind.CUT:
                self._come.append(Kind(kind))
            case _:
                raise LinkBroken("What came for a channel cannot be taken.")
        self._moved.set()

    def abort(self) -> None:
        if self.writer is not None:
            self.writer.transport.abort()

    async def run(self, connect: Callable[[], Awaitable[Streams]]) -> None:
        """To the end of both directions."""
        try:
            reader, self.writer = await connect()
        except OSError:
            self._put(Kind.CUT)
            return
        await self._carry(reader, self.writer)
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._read(reader))
                both.create_task(self._write(writer))
        except* OSError:
            if not self._cut:
                self._put(Kind.CUT)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        while True:
            while not self._room:
                await self._wait()
            data = await reader.read(min(CHUNK, self._room))
            if not data:
                break
            self._room -= len(data)
            self._put(Kind.DATA, data)
        self._put(Kind.END)
        self._read_all = True
        self._moved.set()

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        """Until both directions have ended. Raises OSError, also where the other side is cut."""
        owed = 0
        while self._come or not (self._read_all and self._written_all):
            if not self._come:
                await self._wait()
                continue
            match self._come.popleft():
                case bytes(data):
                    writer.write(data)
                    await writer.drain()
                    self.waiting -= len(data)
                    owed += len(data)
                    if owed >= WINDOW // 2:
                        self._put(Kind.CREDIT, _COUNT.pack(owed))
                        owed = 0
                case Kind.END:
                    writer.write_eof()
                    self._written_all = True
                case _:
                    self._cut = True
                    raise ConnectionResetError

    async def _wait(self) -> None:
        """Until something came, or all is read."""
        self._moved.clear()
        await self._moved.wait()


async def _give_back(streams: Streams) -> Streams:
    return streams


def _split(batch: bytes) -> Iterator[tuple[int, int, bytes]]:
    """(channel, kind, bytes). Raises LinkBroken."""
    at = 0
    while at < len(batch):
        try:
            number, kind, size = _HEAD.unpack_from(batch, at)
        except struct.error as error:
            raise LinkBroken("A batch ends in the middle of an item.") from error
        at += _HEAD.size + size
        if at > len(batch):
            raise LinkBroken("A batch ends in the middle of an item.")
        yield number, kind, batch[at - size : at]
