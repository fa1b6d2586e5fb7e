"""Many connections share a link, and each has its own order, its own ends and its own room."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from struct import pack

import pytest
from playing import wait_until

from actors.channels import BATCH, CHUNK, WINDOW, Channels, Kind, LinkBroken, Streams

BOUND_S = 20
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True)
class Link:
    """`near` opens what clients of `path` connect, and `far` connects to a server."""

    path: Path
    near: Channels
    far: Channels
    batches: list[int] = field(default_factory=list)
    """Sizes, of both directions."""
    most: int = 0
    """Bytes that waited on both sides together."""

    async def come(self) -> Streams:
        return await asyncio.open_unix_connection(str(self.path))

    async def carry(self, giver: Channels, taker: Channels) -> None:
        while batch := await giver.give():
            self.batches.append(len(batch))
            taker.take(batch)
            self.most = max(self.most, self.near.size + self.far.size)

    async def emptied(self) -> None:
        await asyncio.to_thread(wait_until, lambda: self.near.count == self.far.count == 0)


@asynccontextmanager
async def linked(folder: Path, serve: Serve) -> AsyncIterator[Link]:
    link = Link(
        folder / "n", Channels(), Channels(lambda word: asyncio.open_unix_connection(str(folder / word.decode())))
    )

    async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link.near.open(b"s", (reader, writer))

    servers = [
        await asyncio.start_unix_server(serve, folder / "s"),
        await asyncio.start_unix_server(welcome, link.path),
    ]
    carrying = [asyncio.create_task(link.carry(*sides)) for sides in ((link.near, link.far), (link.far, link.near))]
    try:
        async with asyncio.timeout(BOUND_S):
            yield link
    finally:
        for server in servers:
            server.close()
        await link.near.close()
        await link.far.close()
        await asyncio.gather(*carrying)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()
    writer.close()


async def say(streams: Streams, text: bytes, pieces: random.Random) -> bytes:
    """What comes back of it, said in pieces while it comes."""
    reader, writer = streams
    reading = asyncio.ensure_future(reader.read(-1))
    left = text
    while left:
        size = pieces.choice((1, 100, 1 << 20))
        writer.write(left[:size])
        await writer.drain()
        left = left[size:]
    writer.write_eof()
    heard = await reading
    writer.close()
    return heard


async def test_each_connection_carries_its_own_bytes_in_order_however_they_come(tmp_path: Path) -> None:
    texts = [random.Random(number).randbytes(3 << 20) for number in range(8)]
    async with linked(tmp_path, echo) as link:
        visits = [await link.come() for _ in texts]
        spoken = (say(visit, text, random.Random(text[0])) for visit, text in zip(visits, texts, strict=True))
        assert await asyncio.gather(*spoken) == texts
        await link.emptied()
    assert max(link.batches) <= BATCH + 2 * CHUNK


async def test_what_comes_while_a_batch_is_under_way_goes_together_and_alone_it_goes_at_once(tmp_path: Path) -> None:
    channels = Channels()
    server = await asyncio.start_unix_server(
        lambda reader, writer: channels.open(b"s", (reader, writer)), tmp_path / "n"
    )
    visits = [await asyncio.open_unix_connection(str(tmp_path / "n")) for _ in range(20)]
    await asyncio.to_thread(wait_until, lambda: channels.count == 20)
    opened = await channels.give()
    assert opened.count(b"s") == 20
    visits[0][1].write(b"alone")
    assert (await channels.give()).endswith(b"alone")
    before = channels.size
    for _, writer in visits:
        writer.write(b"together")
    await asyncio.to_thread(wait_until, lambda: channels.size == before + 20 * (9 + 8))
    assert (await channels.give()).count(b"together") == 20
    await channels.close()
    assert [await reader.read() for reader, _ in visits] == [b""] * 20
    for _, writer in visits:
        writer.close()
    server.close()


async def test_one_direction_ends_and_the_other_goes_on(tmp_path: Path) -> None:
    async def answer_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read()
        writer.write(asked.upper())
        writer.close()

    async with linked(tmp_path, answer_at_the_end) as link:
        reader, writer = await link.come()
        writer.write(b"question")
        writer.write_eof()
        assert await reader.read() == b"QUESTION"
        writer.close()
        await link.emptied()


async def test_who_cannot_be_reached_is_a_connection_that_ends(tmp_path: Path) -> None:
    async with linked(tmp_path, echo) as link:
        (tmp_path / "s").unlink()
        reader, writer = await link.come()
        writer.write(b"nobody is there")
        assert await reader.read() == b""
        writer.close()
        await link.emptied()


@pytest.mark.parametrize("side", ["client", "server"])
async def test_a_side_that_breaks_off_is_heard_to_its_last_word_and_then_gone(tmp_path: Path, side: str) -> None:
    met = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.set_result((reader, writer))
        await over.wait()

    async with linked(tmp_path, serve) as link:
        client = await link.come()
        client[1].write(b"come")
        server = await met
        assert await server[0].readexactly(4) == b"come"
        (_, breaker), (listener, answers) = (client, server) if side == "client" else (server, client)
        breaker.write(b"last words")
        breaker.transport.abort()
        assert await listener.read() == b"last words"
        # Whoever goes on to speak finds out.
        with pytest.raises(OSError):
            while True:
                answers.write(b"still there?")
                await answers.drain()
        over.set()
        await link.emptied()


async def test_what_came_before_a_cut_is_heard(tmp_path: Path) -> None:
    heard = asyncio.get_running_loop().create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.set_result(await reader.read())
        writer.close()

    async with linked(tmp_path, listen) as link:
        link.far.take(item(1, Kind.OPEN, b"s") + item(1, Kind.DATA, b"last words") + item(1, Kind.CUT))
        assert await heard == b"last words"
        await link.emptied()


async def test_who_does_not_read_holds_up_no_other_and_takes_bounded_memory(tmp_path: Path) -> None:
    async def stream_or_echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if await reader.readexactly(1) == b"e":
            return await echo(reader, writer)
        for number in range(350):
            writer.write(pack(">I", number) * 15_000)
            await writer.drain()
        return writer.close()

    async with linked(tmp_path, stream_or_echo) as link:
        stuck = await link.come()
        stuck[1].write(b"s")
        await asyncio.to_thread(wait_until, lambda: link.near.size > WINDOW // 2)
        text = random.Random(1).randbytes(3 << 20)
        other = await link.come()
        other[1].write(b"e")
        assert await say(other, text, random.Random(2)) == text
        assert WINDOW // 2 < link.near.size <= WINDOW and link.far.size == 0
        heard = await stuck[0].read()
        assert heard == b"".join(pack(">I", number) * 15_000 for number in range(350))
        stuck[1].close()
        await link.emptied()
    assert link.most <= 4 * WINDOW


async def test_the_end_of_a_link_cuts_every_connection_at_once(tmp_path: Path) -> None:
    ended = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionResetError):
            await reader.read()
        ended.set()
        writer.close()

    async with linked(tmp_path, listen) as link:
        reader, writer = await link.come()
        writer.write(b"x")
        await asyncio.to_thread(wait_until, lambda: link.far.count == 1 and link.far.size == 0)
        await link.near.close()
        assert await reader.read() == b"" and link.near.count == 0
        await link.far.close()
        await ended.wait()
        assert await link.far.give() == b"" and link.far.count == 0
        writer.close()


def item(number: int, kind: int, data: bytes = b"") -> bytes:
    return pack(">IBI", number, kind, len(data)) + data


BROKEN = {
    "half a head": b"\0\0\0",
    "half of the bytes": item(1, Kind.DATA, b"abc")[:-1],
    "more than there is room for": item(1, Kind.DATA, bytes(WINDOW)) + item(1, Kind.DATA, b"x"),
    "no such kind": item(1, 9),
    "no credit": item(1, Kind.CREDIT, b"1"),
    "the same channel again": item(1, Kind.OPEN, b"s"),
}


@pytest.mark.parametrize("batch", BROKEN.values(), ids=BROKEN)
async def test_a_side_that_does_not_keep_to_the_rules_is_not_believed(batch: bytes) -> None:
    async def never(word: bytes) -> Streams:
        return await asyncio.get_running_loop().create_future()

    far = Channels(never)
    far.take(item(1, Kind.OPEN, b"s") + item(7, Kind.DATA, b"to one that is over") + item(7, Kind.CUT))
    with pytest.raises(LinkBroken):
        far.take(batch)
    with pytest.raises(LinkBroken):
        Channels().take(item(1, Kind.OPEN, b"s"))
    await far.close()
