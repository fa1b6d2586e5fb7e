"""Recorded and hand-made traffic, and servers that play raw answers: what the tests of models share."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.models.client import ModelRequest, Prices
from agent.models.script_wire import Answer
from agent.models.server import parse_head, send
from agent.models.verdicts import Faulty, Finished, Reader
from eventlog.ids import CallId

HERE = Path(__file__).resolve().parent
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "do it"}]}).encode()


@dataclass(frozen=True, slots=True)
class Recording:
    name: str
    status: int
    headers: dict[str, str]
    body: bytes


def wire_folders() -> list[Path]:
    """Our own, and a `shared/fixtures/wire` beside any folder above, where there is one."""
    beside = (folder / "shared" / "fixtures" / "wire" for folder in HERE.parents)
    return [HERE / "wire", *(folder for folder in beside if folder.is_dir())]


def recordings(pattern: str) -> list[Recording]:
    found = (path for folder in wire_folders() for path in sorted(folder.glob(pattern)))
    return [read_recording(path) for path in found]


def read_recording(path: Path) -> Recording:
    data: dict[str, Any] = json.loads(path.read_text())
    body = data["body"] if isinstance(data["body"], str) else json.dumps(data["body"])
    return Recording(path.stem, data["status"], data["headers"], body.encode())


def request(sent_before: int = 0, body: bytes = BODY, prices: Prices = Prices(1.0, 0.1, 2.0)) -> ModelRequest:  # noqa: B008 - frozen
    return ModelRequest(CallId("c1"), body, prices, sent_before)


def stream(body: bytes, **more: Any) -> Answer:
    return Answer(200, (("content-type", "text/event-stream"),), body, **more)


@asynccontextmanager
async def raw_server(answers: Sequence[Answer]) -> AsyncIterator["Played"]:
    """Each request gets the next answer; the last one is repeated."""
    played = Played()
    # The loop knows of tasks and open connections only weakly: what waits for nothing else would be collected.
    talks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        played.connections += 1
        try:
            while True:
                _, path, headers = parse_head(await reader.readuntil(b"\r\n\r\n"))
                body = await reader.readexactly(int(headers.get("content-length", "0")))
                played.requests.append((headers, body))
                played.paths.append(path)
                played.arrived.set()
                answer = answers[min(len(played.requests), len(answers)) - 1]
                if not await send(writer, answer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            writer.close()
            played.closed.set()

    def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks[asyncio.create_task(serve(reader, writer))] = writer

    server = await asyncio.start_server(begin, "127.0.0.1", 0)
    played.port = server.sockets[0].getsockname()[1]
    try:
        yield played
    finally:
        server.close()
        for task in talks:
            task.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        for writer in talks.values():
            writer.close()
        await server.wait_closed()


class Played:
    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.paths: list[str] = []
        """Of each of them."""
        self.arrived = asyncio.Event()
        self.closed = asyncio.Event()
        """A connection has ended."""

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


def read_whole(reader: Reader, *chunks: bytes) -> Finished | Faulty:
    """The verdict on what came in these pieces."""
    for chunk in chunks:
        reader.feed(chunk)
    return reader.finish()
