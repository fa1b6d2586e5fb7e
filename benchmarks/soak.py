"""Memory, open files and time a step over a long session: they must not grow with its length.

    python -m benchmarks.soak [--steps 10000]

The model answers at once, in this process; the commands are real, unconfined. A conversation grows by two short
messages a step and is kept, so some memory a step is owed to it; what is printed says how much."""

import argparse
import os
import tempfile
import time
from pathlib import Path

from actors.building import Parts
from actors.local import run_fast
from actors.sessions import Options, Ready, prepare_new
from agent.models.client import ModelRequest, OnDelta, ignore_delta
from benchmarks.step import Quiet
from configs.settings import Environment, Settings
from eventlog.events import Event
from eventlog.ids import SessionId, tool_call_id
from eventlog.messages import AssistantMessage, TextPart, ToolCall, Usage
from eventlog.outcomes import ModelReplied
from eventlog.seams import SystemClock
from worktrees.sample import make_repository


class AtOnce:
    """A model that asks for one command, again and again, then is done."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> ModelReplied:
        self.left -= 1
        call = ToolCall(
            id=tool_call_id(request.call_id, 1), provider_id="p", name="shell", arguments='{"command":"true"}'
        )
        parts = (call,) if self.left >= 0 else (TextPart(text="Done."),)
        return ModelReplied(
            message=AssistantMessage(parts=parts),
            stop="tool_calls" if self.left >= 0 else "stop",
            usage=Usage(),
            cost_usd=0.0,
            model="m",
            first_byte_ms=0,
            total_ms=0,
        )


class Watch(Quiet):
    def __init__(self, every: int) -> None:
        super().__init__()
        self.every, self.since = every, time.perf_counter()

    def on_event(self, event: Event, /) -> None:
        before = len(self.times)
        super().on_event(event)
        if len(self.times) > before and before and before % self.every == 0:
            now = time.perf_counter()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            mib = pages * os.sysconf("SC_PAGESIZE") / 2**20
            files = len(list(Path("/proc/self/fd").iterdir()))
            took = (now - self.since) * 1000 / self.every
            print(f"{before:>7} steps   {mib:6.1f} MiB   {files:3} open files   {took:6.2f} ms a step", flush=True)
            self.since = now


async def run(ready: Ready, watch: Watch) -> None:
    ready.coordinator.listeners.append(watch.on_event)
    try:
        await ready.go()
    finally:
        await ready.coordinator.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10_000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="thalia-bench-") as name:
        folder = Path(name)
        make_repository(folder / "repo", {"a.py": "x = 1\n"})
        environment = Environment(
            {"PATH": os.environ["PATH"], "HOME": name, "OPENAI_API_KEY": "none-is-used"},
            folder / "home",
            folder / "none.toml",
        )
        settings = Settings(max_turns=chosen.steps + 10)
        parts = Parts(environment, settings, SystemClock(), ignore_delta)
        options = Options(folder=folder / "repo", model="openai/m", mode="bypass", sandbox="off", snapshots=False)
        ready = prepare_new(parts, SessionId("soak"), options, "go", AtOnce(chosen.steps))
        run_fast(run(ready, Watch(max(chosen.steps // 10, 1))))


if __name__ == "__main__":
    main()
