"""What a step costs: one streamed model call and one shell command, against a bare loop that keeps nothing.

    python -m benchmarks.step [--steps 100] [--rounds 3] [--large]

Rounds are interleaved, so that a slow moment of the machine meets all of them. Times in ms a step; ratios to the bare
loop of the same run. The model server is a process of its own, on loopback with TCP_NODELAY."""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from actors import local
from actors.building import Parts
from actors.coordinator import Coordinator
from actors.sessions import Options
from agent.models.client import Delta, ignore_delta
from agent.standing import Standing
from configs.settings import Environment, Settings
from configs.version import new_session_name
from eventlog.events import EffectStarted, Event
from eventlog.ids import SessionId
from eventlog.seams import SystemClock
from worktrees.sample import make_repository

READS, WRITES = "true", "wait"
"""A builtin each, equally fast. The second is not known to only read, so snapshots are taken around it."""

ROOT = Path(__file__).resolve().parent.parent


class Server:
    """The loopback model server, playing `steps` commands, with `delay_ms` before each reply."""

    def __init__(self, folder: Path, steps: int, command: str, delay_ms: int = 0) -> None:
        call = {"tool_calls": [{"name": "shell", "arguments": {"command": command}}], "delay_ms": delay_ms}
        script, port = folder / f"script-{command}-{delay_ms}.json", folder / f"port-{command}-{delay_ms}"
        script.write_text(json.dumps({"turns": [call] * steps + [{"text": "Done.", "delay_ms": delay_ms}]}))
        program = [sys.executable, "-m", "agent.models.server", "--script", str(script), "--port-file", str(port)]
        self.process = subprocess.Popen(program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        while not (port.exists() and port.read_text().strip()):
            time.sleep(0.01)
        self.port = int(port.read_text())

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


class Quiet:
    """A screen that only notes when the first and the last step began."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def on_event(self, event: Event, /) -> None:
        if isinstance(event.body, EffectStarted) and event.body.effect.kind == "call_model":
            self.times.append(time.perf_counter())

    def on_delta(self, delta: Delta, /) -> None:
        return

    def say(self, line: str) -> None:
        return

    def finish(self, standing: Standing, exit_code: int, files: tuple[str, ...]) -> None:
        assert standing.ending == "done", standing.result


async def bare(port: int, steps: int) -> float:
    """Raw asyncio to the same server, bash by subprocess, a growing conversation, nothing kept."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    messages: list[object] = [{"role": "user", "content": "go"}]
    begin = time.perf_counter()
    for _ in range(steps):
        body = json.dumps({"model": "m", "stream": True, "messages": messages}).encode()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head:
            raise SystemExit(f"The model server refused the bare loop: {head.decode(errors='replace')}")
        data = b""
        while size := int(await reader.readline(), 16):
            data += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readexactly(2)
        call = next(c for c in map(_delta, data.split(b"\n\n")) if c.get("tool_calls"))["tool_calls"][0]
        process = await asyncio.create_subprocess_exec("bash", "-c", WRITES, stdout=-1, stderr=-2)
        output, _ = await process.communicate()
        whole = {"name": "shell", "arguments": json.dumps({"command": WRITES})}
        made = {"id": call["id"], "type": "function", "function": whole}
        messages.append({"role": "assistant", "content": None, "tool_calls": [made]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": output.decode() or "(no output)"})
    writer.close()
    return (time.perf_counter() - begin) * 1000 / steps


def _delta(chunk: bytes) -> dict:
    if not chunk.startswith(b"data: {"):
        return {}
    choices = json.loads(chunk[6:]).get("choices") or [{}]
    return choices[0].get("delta") or {}


def session(folder: Path, repository: Path, port: int, *, shipped: bool) -> float:
    """ms a step, from the start of the third model call to the start of the last: the worktree stands by then."""
    variables = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1",
    }
    environment = Environment(variables, folder / "home", folder / "none.toml")
    parts = Parts(environment, Settings(), SystemClock(), ignore_delta)
    options = Options(folder=repository, model="openai/bench", mode="auto")
    if not shipped:
        options = Options(folder=repository, model="openai/bench", mode="bypass", sandbox="off", snapshots=False)
    screen = Quiet()
    run = local.Run(screen, drive)
    local.run_new(parts, SessionId(new_session_name()), options, "go", run)
    return (screen.times[-1] - screen.times[2]) * 1000 / (len(screen.times) - 3)


async def drive(coordinator: Coordinator, go: local.Go) -> None:
    await go()


def measure(rounds: int, runs: dict[str, Callable[[], float]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            found[name].append(run())
    return found


def report(found: dict[str, list[float]], floor: str) -> None:
    base = statistics.median(found[floor])
    for name, values in found.items():
        middle = statistics.median(values)
        print(f"{name:<44} {middle:8.2f} ms   {middle / base:5.2f} x   (of {', '.join(f'{v:.2f}' for v in values)})")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--large", action="store_true", help="20,000 files and 100 ms of model time")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="thalia-bench-") as name:
        folder = Path(name)
        make_repository(folder / "small", {f"src/file{i}.py": f"x = {i}\n" for i in range(20)})
        server, reader = Server(folder, chosen.steps, WRITES), Server(folder, chosen.steps, READS)
        small = folder / "small"
        runs = {
            "bare loop (raw asyncio, bash, nothing kept)": lambda: asyncio.run(bare(server.port, chosen.steps)),
            "unconfined, no snapshots": lambda: session(folder, small, server.port, shipped=False),
            "as shipped, a command that only reads": lambda: session(folder, small, reader.port, shipped=True),
            "as shipped, a command that may write": lambda: session(folder, small, server.port, shipped=True),
        }
        report(measure(chosen.rounds, runs), "bare loop (raw asyncio, bash, nothing kept)")
        server.close()
        reader.close()
        if chosen.large:
            large(folder, min(chosen.steps, 30))


def large(folder: Path, steps: int) -> None:
    files = {f"d{i // 200}/file{i}.py": f"x = {i}\n" for i in range(20_000)}
    make_repository(folder / "large", files)
    server = Server(folder, steps, WRITES, delay_ms=100)
    floor = asyncio.run(bare(server.port, steps))
    shipped = session(folder, folder / "large", server.port, shipped=True)
    print(
        f"20,000 files, 100 ms of model time: bare {floor:.1f} ms, as shipped {shipped:.1f} ms: +{shipped - floor:.1f}"
    )
    server.close()


if __name__ == "__main__":
    main()
