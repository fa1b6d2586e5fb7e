"""What tests with Ray share: heads in short folders of their own, and drivers as processes of their own.

A driver is a process since Ray can be configured only once in one, and since the test must not become part of it.
"""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

from actors.head import Head, end_head, start_head
from actors.ray_command import ALONE, HeadFiles, HeadSize, Reach

ROOT = Path(__file__).resolve().parent.parent.parent
BOOT = "import sys; sys.path.append(sys.argv[1]); from tests.actors import ray_drivers; ray_drivers.main(sys.argv[2:])"


@contextmanager
def short_folder() -> Iterator[HeadFiles]:
    """Pytest's own folders are too long for Ray's sockets. Nothing of a head is left when it is closed."""
    parent = Path(tempfile.mkdtemp(prefix="th"))
    files = HeadFiles(parent / "h")
    try:
        yield files
    finally:
        end_head(files)
        shutil.rmtree(parent)


@asynccontextmanager
async def running_head(
    size: HeadSize | None = None, environment: Mapping[str, str] | None = None
) -> AsyncIterator[Head]:
    """One that is ready, and is stopped at the end."""
    with short_folder() as files:
        head = await start_head(files, os.environ if environment is None else environment, size)
        try:
            await head.wait_ready()
            yield head
        finally:
            await head.stop()


@contextmanager
def module_head(
    size: HeadSize | None = None, reach: Reach = ALONE, environment: Mapping[str, str] | None = None
) -> Iterator[Head]:
    """For a fixture of module scope: it has a loop of its own, which stands still while tests run."""

    with short_folder() as files, asyncio.Runner() as runner:
        head = runner.run(start_head(files, environment or os.environ, size, reach))
        try:
            runner.run(head.wait_ready())
            yield head
        finally:
            runner.run(head.stop())


def free_ports() -> int:
    """The first of some that nobody uses, below those that the system gives out by itself."""
    for first in range(20_000 + os.getpid() % 100 * 100, 32_000, 100):
        with suppress(OSError), ExitStack() as held:
            for port in range(first, first + 4):
                held.enter_context(socket.socket(socket.AF_INET)).bind(("0.0.0.0", port))
            return first
    raise OSError("no ports are free")


def drive(head: Head, driver: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Any:
    """What a function of ray_drivers.py returns (JSON) when a driver of this head runs it."""
    outcome = run_driver(head.address, head.files.folder, driver, *arguments, environment=environment)
    assert outcome.returncode == 0, outcome.stderr
    # Ray may warn of many workers before it.
    return json.loads(outcome.stdout.splitlines()[-1])


def run_driver(
    address: str,
    folder: Path,
    driver: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", "-c", BOOT, str(ROOT), address, str(folder), driver, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ if environment is None else dict(environment),
        cwd=cwd,
        check=False,
    )


def listening(pids: set[int]) -> set[tuple[str, int]]:
    """(address in hexadecimal as the kernel shows it, port) of all TCP sockets on which these processes listen."""
    inodes = {link for pid in pids for link in _sockets(pid)}
    found: set[tuple[str, int]] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[3] == "0A" and columns[9] in inodes:
                address, port = columns[1].split(":")
                found.add((address, int(port, 16)))
    return found


def _sockets(pid: int) -> Iterator[str]:
    # It may close one, or end, while it is looked at.
    with suppress(FileNotFoundError, ProcessLookupError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                target = str(entry.readlink())
                if target.startswith("socket:["):
                    yield target.removeprefix("socket:[").removesuffix("]")
