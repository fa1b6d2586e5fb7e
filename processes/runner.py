"""Runs commands through one helper process, and finds again those that an earlier harness began."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import folder, tree
from processes.calls import Output, end_tree, inspect, is_held, is_orphaned, overdue, read_output, read_start
from processes.commands import (
    Command,
    CommandResult,
    Done,
    Lost,
    NothingStarted,
    NotStarted,
    RunnerBroken,
    Running,
    Superseded,
    shell_argv,
)
from processes.etc import prepare_etc
from processes.sandbox import find_host, sandbox_options

__all__ = ["Output", "Runner", "end_tree", "inspect", "read_output"]

BOOT = "import sys; sys.path.append(sys.argv[1]); from processes.helper import main; main()"
BASH = "/bin/bash"
POLL_S = (0.002, 0.05)
PATIENCE_S = 2.5
"""How long an end waits for the wrapper, which itself waits 1 s between SIGTERM and SIGKILL."""


@dataclass(slots=True)
class Waiting:
    number: int
    word: asyncio.Future[str]


class Runner:
    """One per process and event loop. A run that is cancelled as a task leaves its command running: see end()."""

    def __init__(
        self,
        bwrap: Path | None = None,
        crash_at: str | None = None,
        etc: Path | None = None,
        interpreter: Path | None = None,
    ) -> None:
        """`crash_at` names a point (wrapper.py) at which every wrapper kills itself, `name:3` that of the third
        command alone; for crash tests.
        `etc` is where copies of /etc are kept (etc.py), for all; by default each folder of calls has its own.
        `interpreter`: a Python for the helper other than this one."""
        self._bwrap, self._crash_at, self._shared_etc = bwrap, crash_at, etc
        self._interpreter = str(interpreter or sys.executable)
        self._waiting: dict[Path, Waiting] = {}
        self._number = self._commands = 0
        self._etc: dict[Path, Path] = {}
        self._helper: subprocess.Popen[bytes] | None = None
        self._requests: asyncio.Transport | None = None
        self._notices: asyncio.ReadTransport | None = None
        self._starting = asyncio.Lock()
        self._closed = False

    async def start(self) -> None:
        """Start the helper where none lives. Costs about 20 ms, once."""
        async with self._starting:
            if self._closed:
                raise RunnerBroken("The command runner was closed; open a new one.")
            if self._requests is None:
                self._drop()
                await self._start()

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        read_end, write_end = os.pipe()
        root = str(Path(__file__).resolve().parent.parent)
        try:
            # Returns at once, and a loop that another thread's child watcher serves would be one more thing to close.
            self._helper = subprocess.Popen(  # noqa: ASYNC220
                [self._interpreter, "-I", "-S", "-c", BOOT, root],
                stdin=theirs.fileno(),
                stdout=write_end,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                # A command can read the environment of its ancestors.
                env={"PATH": os.defpath},
                cwd="/",
            )
        finally:
            theirs.close()
            os.close(write_end)
        self._requests, _ = await loop.create_unix_connection(lambda: Link(self._helper_gone, None), sock=ours)
        source = os.fdopen(read_end, "rb", buffering=0)
        self._notices, _ = await loop.connect_read_pipe(lambda: Link(None, self._hear), source)

    async def run(self, call_dir: Path, command: Command) -> CommandResult | Lost:
        """Returns when `done` is whole. A call that was started before is never run again, but waited for.

        Lost where the wrapper was killed. SandboxMissing, RunnerBroken, Superseded: nothing was started.
        """
        call_dir = Path(call_dir).absolute()
        if call_dir in self._waiting:
            raise RunnerBroken(f"The call {call_dir.name} is being run already; wait for it with attach.")
        if command.confinement is not None and call_dir.parent not in self._etc:
            self._etc[call_dir.parent] = await asyncio.to_thread(prepare_etc, self._shared_etc or call_dir.parent)
        for _ in range(3):
            await self.start()
            word = await self._ask(call_dir, self._request(call_dir, command))
            match word, inspect(call_dir):
                case "done", Done(result):
                    return result
                case "refused", _:
                    raise RunnerBroken("The system refused a new process; end some, or raise the limit.")
                case "superseded", _:
                    raise Superseded("The command was not started: its agent was replaced, and has to stop.")
                case "died", NotStarted():
                    raise RunnerBroken("The command runner was killed before it started the command; run it again.")
                case _, NotStarted() if not self._closed:
                    continue
                case _:
                    return await self.attach(call_dir)
        raise RunnerBroken("The command runner's helper was killed three times; nothing was started.")

    def _request(self, call_dir: Path, command: Command) -> dict[str, Any]:
        name, mark = call_dir.name, folder.mark(str(call_dir))
        env = {**command.env, folder.NAME_VARIABLE: name, folder.MARK_VARIABLE: mark}
        sandbox = None
        if command.confinement is not None:
            host = find_host(self._bwrap)
            etc = self._etc[call_dir.parent]
            sandbox = [str(host.bwrap), *sandbox_options(host, etc, command.confinement, env, command.cwd)]
        lease = command.lease
        self._commands += 1
        return {
            "call_dir": str(call_dir),
            "argv": shell_argv(BASH, command.text, command.limits),
            "sandbox": sandbox,
            "cwd": str(command.cwd),
            "env": env,
            "timeout_s": command.limits.timeout_s,
            "output_bytes": command.limits.output_bytes,
            "lease": None if lease is None else [str(lease.path), lease.seconds, lease.number],
            "crash_at": crash_point(self._crash_at, self._commands),
        }

    async def _ask(self, call_dir: Path, request: dict[str, Any]) -> str:
        """The notice that came: done, exists, superseded, died, refused, or `gone` where the helper is."""
        self._number += 1
        waiting = Waiting(self._number, asyncio.get_running_loop().create_future())
        self._waiting[call_dir] = waiting
        try:
            if not self._send(waiting.number, json.dumps(request)):
                return "gone"
            return await waiting.word
        finally:
            del self._waiting[call_dir]

    def _send(self, number: int, message: str) -> bool:
        if self._requests is None:
            return False
        self._requests.write(f"{number} {message}\n".encode())
        return True

    def _hear(self, lines: list[bytes]) -> None:
        by_number = {waiting.number: waiting for waiting in self._waiting.values()}
        for line in lines:
            number, word = line.split()
            waiting = by_number.get(int(number))
            if waiting is not None and not waiting.word.done():
                waiting.word.set_result(word.decode())

    def _helper_gone(self) -> None:
        """Its wrappers live on and would still tell, but a request that it had not read yet would wait for ever."""
        self._requests = None
        for waiting in self._waiting.values():
            if not waiting.word.done():
                waiting.word.set_result("gone")

    async def attach(self, call_dir: Path) -> CommandResult | Lost:
        """Wait until the tree is gone, then say how it ended. NothingStarted where there is nothing to wait for.

        Where the wrapper is dead, a confined tree is ended here at once and another one when its timeout is over.
        """
        pause, longest = POLL_S
        while True:
            match inspect(call_dir):
                case Done(result) if not is_held(call_dir):
                    return result
                case NotStarted():
                    raise NothingStarted(f"The call {call_dir.name} was never started; run it.")
                case Lost(started_us):
                    # What gave the lock away, or is being killed with its namespace, may be writing still.
                    await asyncio.to_thread(end_tree, call_dir)
                    return Lost(started_us)
                case Done() | Running():
                    if overdue(call_dir):
                        await asyncio.to_thread(end_tree, call_dir)
                    await asyncio.sleep(pause)
                    pause = min(longest, pause * 1.5)

    def waits_for(self, call_dir: Path) -> bool:
        """A run of this call was handed to the helper and has not ended."""
        return Path(call_dir).absolute() in self._waiting

    def cancel(self, call_dir: Path) -> bool:
        """Ask the wrapper to end the whole tree and to record it as cancelled; does not wait. False: nobody to ask."""
        call_dir = Path(call_dir).absolute()
        waiting = self._waiting.get(call_dir)
        if waiting is not None and self._send(waiting.number, "cancel"):
            return True
        start = read_start(call_dir)
        return start is not None and is_held(call_dir) and signal_wrapper(start["pid"], start["pid_start"])

    async def end(self, call_dir: Path) -> None:
        """Returns when no process of the call is left: SIGTERM, soon after it SIGKILL, at last without the wrapper."""
        call_dir = Path(call_dir).absolute()
        give_up = time.monotonic() + PATIENCE_S
        asked = False
        while (call_dir in self._waiting or is_held(call_dir)) and time.monotonic() < give_up:
            asked = asked or self.cancel(call_dir)
            if is_orphaned(call_dir):
                break
            await asyncio.sleep(0.005)
        if not isinstance(inspect(call_dir), Done) or is_held(call_dir):
            await asyncio.to_thread(end_tree, call_dir)

    async def close(self) -> None:
        """The helper ends; commands that still run go on."""
        self._closed = True
        requests, self._requests = self._requests, None
        if requests is not None:
            requests.close()
            # The transports close in the loop's next rounds.
            await asyncio.sleep(0)
        if self._helper is not None:
            await asyncio.to_thread(self._helper.wait)
        self._drop()
        await asyncio.sleep(0)

    def _drop(self) -> None:
        """Forget a helper that is dead or about to be."""
        if self._notices is not None:
            self._notices.close()
        if self._helper is not None:
            self._helper.wait()
        self._notices = self._helper = None


def crash_point(wanted: str | None, number: int) -> str | None:
    """What the wrapper of command `number`, from 1, is told."""
    name, _, count = (wanted or "").partition(":")
    return name if name and count in ("", str(number)) else None


class Link(asyncio.Protocol):
    """Whole lines in, and a call when the other end is gone."""

    def __init__(self, gone: Callable[[], None] | None, hear: Callable[[list[bytes]], None] | None) -> None:
        self._gone, self._hear, self._rest = gone, hear, b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if self._hear is not None:
            self._hear(lines)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._gone is not None:
            self._gone()


def signal_wrapper(pid: int, pid_start: int) -> bool:
    """SIGTERM to exactly this process, never to one that got its number later; False where it is gone."""
    try:
        fd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    except OSError:
        return False
    try:
        if tree.start_time(pid) != pid_start:
            return False
        if fd is None:
            os.kill(pid, signal.SIGTERM)
        else:
            signal.pidfd_send_signal(fd, signal.SIGTERM)
    except ProcessLookupError:
        return False
    finally:
        if fd is not None:
            os.close(fd)
    return True
