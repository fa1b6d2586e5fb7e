"""What the tests of processes/ share: a runner that is always closed, commands in a folder, waits with a deadline."""

import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from processes.commands import Command, CommandResult, Confinement, Limits, Lost
from processes.environment import child_env
from processes.runner import Runner, end_tree, read_output


@asynccontextmanager
async def open_runner(crash_at: str | None = None) -> AsyncIterator[Runner]:
    runner = Runner(crash_at=crash_at)
    try:
        yield runner
    finally:
        await runner.close()


def command(text: str, cwd: Path, confined: bool = False, limits: Limits | None = None) -> Command:
    confinement = Confinement(writable=(cwd,)) if confined else None
    return Command(text, cwd, child_env(os.environ, {}), limits or Limits(timeout_s=30), confinement)


def text_of(call_dir: Path) -> str:
    return read_output(call_dir, 100_000, 0).head.decode()


def finished(outcome: CommandResult | Lost) -> CommandResult:
    assert isinstance(outcome, CommandResult)
    return outcome


def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    """Polls: the processes that are watched are nobody's children here."""
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up, f"not within {seconds} s"
        time.sleep(0.002)


def with_variable(variable: str, value: str) -> list[int]:
    """Living processes that carry variable=value."""
    needle = f"\0{variable}={value}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environ = (entry / "environ").read_bytes()
            except OSError:
                continue
            if needle in b"\0" + environ:
                found.append(int(entry.name))
    return found


def leave_nothing(call_dir: Path) -> None:
    assert end_tree(call_dir)
