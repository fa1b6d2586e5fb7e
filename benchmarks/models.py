"""What a model call costs beside its network. Run: python -m benchmarks.models [ITERATIONS]

One server in a process of its own plays the same reply to a raw asyncio exchange and to HttpModel.complete,
interleaved; ScriptedModel plays it in process. Then the request of a long conversation: two new messages by the
cache, against building and hashing it whole. Prints milliseconds (p50, p99) and ratios.
"""

import asyncio
import hashlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from agent.models.client import ModelRequest, ignore_delta
from agent.models.http import HttpModel
from agent.models.requests import CHAT_1, RequestCache, build_request
from agent.models.scripted import Script, ScriptedCall, ScriptedModel, Turn
from agent.models.wires import WIRES
from eventlog.events import ContextSet
from eventlog.ids import CallId
from eventlog.messages import AssistantMessage, Message, TextPart, ToolCall, ToolMessage

CHAT = WIRES["chat"]
REPLY = Turn(
    text="I read the file and found the place to change; here is what I do next.",
    tool_calls=(ScriptedCall(name="read", arguments={"path": "agent/models/http.py", "limit": 200}),),
)
CONTEXT = ContextSet(
    builder=CHAT_1,
    model="scripted/bench",
    wire_model="bench",
    system="You are an agent. " * 100,
    tools="[]",
    parameters="{}",
    window=128_000,
)
Way = Callable[[], Awaitable[object]]


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def start_server(folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    """A server that plays the reply for ever; it ends when its standard input is closed."""
    script, port_file = folder / "script.json", folder / "port"
    script.write_text(Script(turns=(REPLY,), loop=True).model_dump_json())
    command = [sys.executable, "-m", "agent.models.server", "--script", str(script), "--port-file", str(port_file)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: ASYNC220 - once
    assert server.stdout is not None
    server.stdout.readline()  # its address: it listens now
    return server, int(port_file.read_text())


def raw_exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> Way:
    """The least that speaks HTTP: one write, the chunks read and thrown away."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)

    async def exchange() -> None:
        writer.write(head + body)
        await reader.readuntil(b"\r\n\r\n")
        while size := int(await reader.readline(), 16):
            await reader.readexactly(size + 2)
        await reader.readline()

    return exchange


async def measure(ways: dict[str, Way], iterations: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(iterations + 20):
        for name, way in ways.items():
            begin = time.perf_counter()
            await way()
            if number >= 20:
                times[name].append(1000 * (time.perf_counter() - begin))
    return times


async def measure_calls(iterations: int) -> dict[str, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        server, port = await start_server(Path(folder))
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        request = ModelRequest(CallId("c1"), build_request(CONTEXT, conversation(5), None))
        scripted = ScriptedModel(Script(turns=(REPLY,), loop=True))
        async with HttpModel(CHAT, f"http://127.0.0.1:{port}/v1") as client:
            ways: dict[str, Way] = {
                "raw asyncio": raw_exchange(reader, writer, request.body),
                "HttpModel.complete": lambda: client.complete(request, ignore_delta),
                "ScriptedModel.complete": lambda: scripted.complete(request, ignore_delta),
            }
            times = await measure(ways, iterations)
        writer.close()
        await writer.wait_closed()
        server.communicate()
    return times


def conversation(rounds: int) -> tuple[Message, ...]:
    messages: list[Message] = []
    for number in range(1, rounds + 1):
        id = CallId(f"c{number}_1")
        call = ToolCall(id=id, provider_id=id, name="read", arguments='{"path":"a.py"}')
        messages.append(AssistantMessage(parts=(TextPart(text="I read."), call)))
        messages.append(ToolMessage(call_id=id, provider_id=id, text="a line of a file\n" * 600))
    return tuple(messages)


async def measure_requests(iterations: int) -> tuple[dict[str, list[float]], int]:
    """A step of a conversation of 1,000 messages, and its bytes."""
    messages = conversation(500 + iterations + 20)
    cache, at = RequestCache(), 1000
    cache.update(CONTEXT, messages[:at])
    cache.digest(None)

    async def extend() -> None:
        nonlocal at
        at += 2
        cache.update(CONTEXT, messages[:at])
        cache.digest(None)

    async def send() -> None:
        cache.body(None)

    async def whole() -> None:
        hashlib.sha256(build_request(CONTEXT, messages[:1000], None)).hexdigest()

    size = cache.size(None)
    times: dict[str, list[float]] = {}
    for name, way in (("cache, two new", extend), ("cache, body", send), ("whole", whole)):
        times |= await measure({name: way}, iterations)  # not interleaved: the whole one empties the processor's caches
    return times, size


def report(times: dict[str, list[float]]) -> str:
    base = percentile(next(iter(times.values())), 0.5)
    lines: list[str] = []
    for name, series in times.items():
        middle = percentile(series, 0.5)
        lines.append(f"{name:24} {middle:8.3f} {percentile(series, 0.99):8.3f}   x{middle / base:.2f}")
    return "\n".join(lines)


async def main(iterations: int) -> None:
    print(report(await measure_calls(iterations)))
    times, size = await measure_requests(max(iterations // 4, 20))
    print(f"request of {size / 1e6:.1f} MB")
    print(report(times))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 400))
