"""Frames on a stream socket: the length in four bytes, big-endian, then one JSON object of that many bytes.

All but `read_payload` is pure; a client without asyncio needs `encode` and `split` only."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson

LIMIT = 64 << 20
"""Bytes of JSON in one frame."""
HEAD = 4


class FrameError(Exception):
    """One sentence. What came is no frame, or what is to go does not fit into one: the connection is of no more use."""


def enclose(*parts: bytes) -> bytes:
    """A frame around JSON that is encoded already, in one part or several. Raises FrameError."""
    size = sum(map(len, parts))
    if size > LIMIT:
        raise FrameError(f"A message of {size >> 20} MiB is over the limit of {LIMIT >> 20} MiB; send it in parts.")
    return b"".join((size.to_bytes(HEAD, "big"), *parts))


def encode(message: Mapping[str, object]) -> bytes:
    """Raises FrameError, and orjson.JSONEncodeError on what is no JSON."""
    return enclose(orjson.dumps(message))


def decode(payload: bytes) -> dict[str, Any]:
    """The object of one frame. Raises FrameError."""
    try:
        message = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise FrameError("A message is not JSON; the other side speaks something else.") from error
    if not isinstance(message, dict):
        raise FrameError("A message is not a JSON object; the other side speaks something else.")
    return message


def split(buffer: bytearray) -> list[bytes]:
    """Take the payloads of all whole frames off the front of `buffer`. Raises FrameError."""
    payloads: list[bytes] = []
    start = 0
    while len(buffer) - start >= HEAD:
        end = start + HEAD + _size(buffer[start : start + HEAD])
        if len(buffer) < end:
            break
        payloads.append(bytes(buffer[start + HEAD : end]))
        start = end
    del buffer[:start]
    return payloads


async def read_payload(reader: asyncio.StreamReader) -> bytes | None:
    """The JSON of the next frame; None where the stream ended, at whatever byte. Raises FrameError, OSError."""
    try:
        return await reader.readexactly(_size(await reader.readexactly(HEAD)))
    except asyncio.IncompleteReadError:
        return None


def _size(head: bytes | bytearray) -> int:
    size = int.from_bytes(head, "big")
    if size > LIMIT:
        raise FrameError(f"A message of {size} bytes is announced, over the limit of {LIMIT >> 20} MiB.")
    return size
