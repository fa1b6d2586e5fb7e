"""Servers on this machine are found by asking."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agent.models.discovery import Found, find_servers
from agent.models.script import Script
from agent.models.server import ModelServer


@asynccontextmanager
async def answering(answer: bytes | None) -> AsyncIterator[int]:
    """The port of a server that says this to everybody; None is silence."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if answer is None:
            await over.wait()
        else:
            writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        over.set()
        server.close()
        await server.wait_closed()


async def test_servers_are_found_in_the_order_of_their_ports() -> None:
    async with ModelServer(Script(model="one")) as first, ModelServer(Script(model="two")) as second:
        found = await find_servers([("vllm", second.port), ("ollama", first.port)], limit_s=5)
        assert found == (Found("vllm", second.base_url, ("two",)), Found("ollama", first.base_url, ("one",)))


@pytest.mark.parametrize(
    ("answer", "models"),
    [
        (b'HTTP/1.1 200 OK\r\n\r\n{"object":"list","data":[{"id":"a"},{"id":"b"}]}', ("a", "b")),
        (b'HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\n{"dat\r\n6\r\na":[]}\r\n0\r\n\r\n', ()),
        (b'HTTP/1.1 200 OK\r\ncontent-length: 29\r\n\r\n{"object":"list","data":null}', ()),
        (b"HTTP/1.1 404 Not Found\r\n\r\n{}", None),
        (b"HTTP/1.1 200 OK\r\n\r\n<html></html>", None),
        (b"HTTP/1.1 200 OK\r\n\r\n[]", None),
        (b"SSH-2.0-OpenSSH\r\n\r\n", None),
        (b"", None),
    ],
)
async def test_only_a_list_of_models_is_a_model_server(answer: bytes, models: tuple[str, ...] | None) -> None:
    async with answering(answer) as port:
        found = await find_servers([("llamacpp", port)], limit_s=5)
    assert [server.models for server in found] == ([] if models is None else [models])


async def test_a_silent_port_costs_no_more_than_the_limit() -> None:
    async with answering(None) as one, answering(None) as two:
        begin = time.monotonic()
        assert await find_servers([("ollama", one), ("vllm", two)], limit_s=0.15) == ()
        assert time.monotonic() - begin < 2


def test_looking_for_servers_does_not_load_httpx() -> None:
    code = (
        "import sys, agent.models.discovery, agent.models.resolve, agent.models.http; sys.exit('httpx' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
