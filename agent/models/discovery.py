"""Model servers that already run on this machine, found by asking the usual ports. No third-party import."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

USUAL_PORTS: tuple[tuple[str, int], ...] = (("ollama", 11434), ("lmstudio", 1234), ("llamacpp", 8080), ("vllm", 8000))
LIMIT_S = 0.15
_MAX_ANSWER = 1 << 20


@dataclass(frozen=True, slots=True)
class Found:
    name: str
    """The provider, as in `ollama/model`."""
    base_url: str
    models: tuple[str, ...]
    """As the server names them; may be empty."""


async def find_servers(ports: Sequence[tuple[str, int]] = USUAL_PORTS, limit_s: float = LIMIT_S) -> tuple[Found, ...]:
    """Those that answer within the limit, in the order of `ports`. Asks the loopback address only."""
    answers = await asyncio.gather(*(_ask(name, port, limit_s) for name, port in ports))
    return tuple(found for found in answers if found is not None)


async def _ask(name: str, port: int, limit_s: float) -> Found | None:
    try:
        async with asyncio.timeout(limit_s):
            body = await _get(port, "/v1/models")
        models = _models(body)
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        return None
    return None if models is None else Found(name, f"http://127.0.0.1:{port}/v1", models)


async def _get(port: int, path: str) -> bytes:
    """The body of a 200. Raises ValueError for any other answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"GET {path} HTTP/1.0\r\nhost: 127.0.0.1:{port}\r\naccept: application/json\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        if first.split(" ")[1:2] != ["200"]:
            raise ValueError("no such page")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await _chunked(reader)
        if "content-length" in headers:
            return await reader.readexactly(min(int(headers["content-length"]), _MAX_ANSWER))
        body = b""
        while len(body) < _MAX_ANSWER and (piece := await reader.read(_MAX_ANSWER)):
            body += piece
        return body
    finally:
        writer.close()


async def _chunked(reader: asyncio.StreamReader) -> bytes:
    body = b""
    while (size := int((await reader.readline()).split(b";")[0], 16)) and len(body) < _MAX_ANSWER:
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    return body


def _models(body: bytes) -> tuple[str, ...] | None:
    """None where this is no list of models: some other program has the port."""
    value = orjson.loads(body)
    data = value.get("data") if isinstance(value, dict) else None
    if data is None and isinstance(value, dict) and value.get("object") == "list":
        return ()  # a server that has no model yet
    if not isinstance(data, list):
        return None
    return tuple(item["id"] for item in data if isinstance(item, dict) and isinstance(item.get("id"), str))
