"""The gateway's side of a session's door: one connection a question or a stream."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from actors.frames import FrameError, decode, encode, read_payload


class DoorGone(Exception):
    """Nobody opens, or the connection ended: the session's process died, or the session is over."""


async def ask(door: Path, question: Mapping[str, object]) -> dict[str, Any]:
    """One answer. Raises DoorGone."""
    async with _connection(door) as (reader, writer):
        return await _exchange(reader, writer, question)


async def follow(door: Path, after: int) -> AsyncIterator[bytes]:
    """Messages as the door sends them, encoded. Ends by raising DoorGone."""
    async with _connection(door) as (reader, writer):
        writer.write(encode({"op": "attach", "id": 1, "after": after}))
        try:
            while (payload := await read_payload(reader)) is not None:
                yield payload
        except (OSError, FrameError) as error:
            raise DoorGone(str(error)) from error
    raise DoorGone("the stream ended")


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: Mapping[str, object]
) -> dict[str, Any]:
    try:
        writer.write(encode({"id": 1, **question}))
        payload = await read_payload(reader)
    except (OSError, FrameError) as error:
        raise DoorGone(str(error)) from error
    if payload is None:
        raise DoorGone("no answer came")
    return decode(payload)


@asynccontextmanager
async def _connection(door: Path) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    try:
        reader, writer = await asyncio.open_unix_connection(str(door))
    except OSError as error:
        raise DoorGone(str(error)) from error
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
