"""A model server on the loopback address that plays a script in all three protocols, faults included. Plain asyncio,
HTTP/1.1, kept alive. It refuses every request that the strictest provider of the protocol would refuse.

Run: python -m agent.models.server --script FILE --port-file FILE [--requests FILE]
It prints its base URL, and stops on SIGTERM or when the pipe on its standard input closes."""

import asyncio
import contextlib
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import orjson

from agent.models.script import Script, load_script
from agent.models.script_player import DIALECTS, Player
from agent.models.script_wire import JSON, Answer, answer_bytes, refuse
from configs.models import Protocol

_MAX_BODY = 256 << 20
_PATHS: Mapping[str, Protocol] = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
_VERSION = "anthropic-version"
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class ModelServer:
    """`async with ModelServer(script) as server:` … `server.base_url`."""

    def __init__(self, script: Script, requests_file: Path | None = None, port: int = 0) -> None:
        self.requests: list[bytes] = []
        """Every request body, in the order of arrival."""
        self.headers: list[Mapping[str, str]] = []
        """Of each of them; names in lower case."""
        self.connections = 0
        """Accepted so far."""
        self._player = Player(script)
        self._requests_file = requests_file
        self._port = port
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped = asyncio.Event()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port, limit=1 << 20)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    @property
    def port(self) -> int:
        return self._port

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._port}/v1"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
        try:
            while await self._exchange(reader, writer):
                continue
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            return
        except asyncio.CancelledError:
            return  # only our own __aexit__ ends a connection so
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError, asyncio.CancelledError):
                await writer.wait_closed()
            if task is not None:
                self._tasks.discard(task)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """One request and its answer; whether the connection is good for another."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        method, path, headers = parse_head(head)
        length = int(headers.get("content-length", "0"))
        if length > _MAX_BODY:
            return False
        body = await reader.readexactly(length) if length else b""
        answer = self._answer(method, path.split("?")[0], headers, body)
        return await send(writer, answer) and headers.get("connection", "").lower() != "close"

    def _answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Answer:
        if method == "GET" and path == "/v1/models":
            return _json(200, _models(self._player.script.model))
        protocol = _PATHS.get(path)
        if method != "POST" or protocol is None:
            return _json(404, {"error": {"message": f"no {method} {path} here", "code": "not_found"}})
        self._keep(headers, body)
        if protocol == "messages" and not headers.get(_VERSION):
            return refuse(DIALECTS[protocol], 400, f"{_VERSION}: header is required")
        return self._player.answer(protocol, body)

    def _keep(self, headers: Mapping[str, str], body: bytes) -> None:
        self.requests.append(body)
        self.headers.append(headers)
        if self._requests_file is not None:
            handle = os.open(self._requests_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                os.write(handle, body.replace(b"\n", b" ") + b"\n")
            finally:
                os.close(handle)


def parse_head(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Method, path, headers. Raises ValueError for what is no HTTP."""
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    pairs = (line.partition(":") for line in lines if line)
    return method, path, {name.strip().lower(): value.strip() for name, _, value in pairs}


async def send(writer: asyncio.StreamWriter, answer: Answer) -> bool:
    """Whether the connection is good for another request."""
    if answer.delay_ms:
        await asyncio.sleep(answer.delay_ms / 1000)
    if answer.ending == "reset":
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        writer.transport.abort()
        return False
    head, pieces = answer_bytes(answer, chunked=answer.status == 200)
    if len(pieces) == 1:
        head, pieces = head + pieces[0], []
    writer.write(head)
    for piece in pieces:
        await writer.drain()
        await asyncio.sleep(0)
        writer.write(piece)
    await writer.drain()
    if answer.ending == "silence":
        await asyncio.Event().wait()
    return answer.ending == "whole"


def _models(name: str) -> dict[str, object]:
    """A list as the clients of every protocol read it."""
    model = {"id": name, "object": "model", "created": 0, "owned_by": "scripted"}
    model |= {"type": "model", "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
    return {"object": "list", "data": [model], "has_more": False, "first_id": name, "last_id": name}


def _json(status: int, value: object) -> Answer:
    return Answer(status, (("content-type", JSON),), orjson.dumps(value))


async def run_program(script: Script, port_file: Path, requests_file: Path | None) -> None:
    """Serve until SIGTERM, SIGINT, or the end of a pipe on standard input."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    watched = watch_stdin(loop, stopped)
    async with ModelServer(script, requests_file) as server:
        write_port(port_file, server.port)
        print(server.base_url, flush=True)
        await stopped.wait()
    if watched is not None:
        loop.remove_reader(watched)


def write_port(port_file: Path, port: int) -> None:
    """The file is there whole or not at all."""
    part = port_file.with_name(port_file.name + ".part")
    part.write_text(f"{port}\n")
    part.replace(port_file)


def watch_stdin(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> int | None:
    """Only a pipe or a socket tells that its other end is gone; a terminal or /dev/null is left alone."""
    descriptor = sys.stdin.fileno()
    mode = os.fstat(descriptor).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        return None

    def read() -> None:
        if not os.read(descriptor, 4096):
            stopped.set()
            loop.remove_reader(descriptor)

    loop.add_reader(descriptor, read)
    return descriptor


def main(arguments: list[str] | None = None) -> int:
    import argparse

    parser = argparse.ArgumentParser(prog="python -m agent.models.server", description=__doc__)
    parser.add_argument("--script", type=Path, required=True)
    parser.add_argument("--port-file", type=Path, required=True)
    parser.add_argument("--requests", type=Path)
    options = parser.parse_args(arguments)
    asyncio.run(run_program(load_script(options.script), options.port_file, options.requests))
    return 0


if __name__ == "__main__":
    sys.exit(main())
