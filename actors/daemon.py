"""The supervisor: one process per user and state folder, which keeps two others alive, the Ray head and the gateway.

It holds the lock that makes it the only one, the gateway's listening socket (so that whoever connects while a gateway
is being replaced waits, and is not refused), and an anonymous memory file in which the gateway keeps the variables
that sessions were started with: they may hold keys, and so stand in no file with a name. It imports neither Ray nor
DuckDB."""

import argparse
import asyncio
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from actors.head import Head, HeadError
from actors.heartbeat import wait_silent
from actors.joining import start_as_told, stop_head
from actors.vault import Vault
from configs.crash import reached
from configs.places import (
    MARK,
    RUN_MARK,
    DaemonPlace,
    PlaceUnsafe,
    append_line,
    daemon_environment,
    daemon_place,
    hung_limit_s,
)
from processes import tree
from processes.helper import subreaper

STOPPED, RAY_LOST = 0, 3
"""Exit codes of a gateway: after the first the daemon ends, after any other the gateway is started again; the second is
no failure of its own."""
PDEATHSIG = 1
_RETRY_S = (0.0, 0.5, 2.0, 5.0)
_STEADY_S = 5.0
"""A process that lived so long did not fail because of how it was started."""
_GRACE_S = 10.0
_BEGIN_S = 60.0
"""For a gateway to be loaded and to say its first word: some tenths of a second, but the machine may be busy."""


class ServerLost(HeadError):
    """It had begun."""


class Supervisor:
    def __init__(
        self, place: DaemonPlace, listener: socket.socket, memory: int, environment: Mapping[str, str]
    ) -> None:
        self._place, self._listener, self._memory = place, listener, memory
        self._environment = {**environment, MARK: str(place.folder)}
        self._hung_s = hung_limit_s(environment)
        self._stopping = asyncio.Event()
        self._gateway: asyncio.subprocess.Process | None = None
        self._ray: dict[str, str] = {"state": "starting"}
        self._channel: socket.socket | None = None

    async def run(self) -> None:
        """Until a gateway says that it is over, or a signal does. Leaves nothing running."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        ray, gateway = asyncio.create_task(self._keep_ray()), asyncio.create_task(self._keep_gateway())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait([ray, gateway, stopping], return_when=asyncio.FIRST_COMPLETED)
        finally:
            # The gateway first: it may still tell its clients.
            for task in (stopping, gateway, ray):
                task.cancel()
                await asyncio.wait([task])
        for task in (ray, gateway):
            if not task.cancelled():
                task.result()

    async def _keep_ray(self) -> None:
        failures = 0
        while True:
            head: Head | None = None
            began = asyncio.get_running_loop().time()
            try:
                reached("before_ray")
                head, told = await self._start_ray()
                reached("after_ray")
                self._tell({"state": "up", "address": head.address, "token": str(head.files.token), **told})
                why = await head.died()
                if asyncio.get_running_loop().time() - began > _STEADY_S:
                    failures = 0
                self._complain(f"Ray ended ({why}) and is started again.")
                self._tell({"state": "starting"})
            except (HeadError, OSError) as error:
                self._complain(str(error))
                # What somebody ended may well start the next time.
                again = isinstance(error, ServerLost) and failures < 2
                self._tell({"state": "starting"} if again else {"state": "failed", "text": str(error)})
            finally:
                if head is not None:
                    await asyncio.shield(stop_head(head))
            await asyncio.sleep(_RETRY_S[min(failures, len(_RETRY_S) - 1)])
            failures += 1

    async def _start_ray(self) -> tuple[Head, dict[str, str]]:
        """One that drivers can join, and what to tell of it. Raises HeadError; ServerLost as soon as a server of it is
        gone, for which the start command would wait half a minute."""
        earlier, seen = _servers(), set[int]()
        starting = asyncio.ensure_future(start_as_told(self._place, self._environment))
        try:
            while not starting.done():
                seen |= _servers() - earlier
                if gone := [pid for pid in seen if not tree.is_alive(pid)]:
                    raise ServerLost(f"Ray's process {gone[0]} ended while Ray started.")
                await asyncio.wait([starting], timeout=0.1)
            return starting.result()
        finally:
            if not starting.done():
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)

    async def _keep_gateway(self) -> None:
        failures = 0
        while True:
            began = asyncio.get_running_loop().time()
            reached("before_gateway")
            code = await self._run_gateway()
            if code == STOPPED:
                return
            steady = code == RAY_LOST or asyncio.get_running_loop().time() - began > _STEADY_S
            failures = 0 if steady else failures + 1
            await asyncio.sleep(_RETRY_S[min(max(failures - 1, 0), len(_RETRY_S) - 1)])

    async def _run_gateway(self) -> int:
        ours, theirs = socket.socketpair()
        inherited = (self._listener.fileno(), self._memory, theirs.fileno())
        command = [sys.executable, "-I", "-m", "actors.gateway", str(self._place.state_folder), *map(str, inherited)]
        with self._place.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._place.folder,
                pass_fds=inherited,
                preexec_fn=_die_with_parent(),
            )
        reached("after_gateway")
        theirs.close()
        ours.setblocking(False)
        self._channel = ours
        self._tell(self._ray)
        try:
            return await self._wait_ended(process, ours)
        finally:
            self._channel = None
            ours.close()
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.terminate()
                with suppress(TimeoutError):
                    await asyncio.shield(asyncio.wait_for(process.wait(), _GRACE_S))
                if process.returncode is None:
                    process.kill()
                    await asyncio.shield(process.wait())

    async def _wait_ended(self, process: asyncio.subprocess.Process, channel: socket.socket) -> int:
        """The exit code. One that is stopped or hangs is ended; whoever waits for its answer asks the next one."""
        silent = asyncio.create_task(wait_silent(lambda: _hear(channel), self._hung_s, _BEGIN_S))
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait([silent, ended], return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                self._complain(f"The gateway said nothing for {self._hung_s:g} s and is replaced.")
                process.kill()
            return await ended
        finally:
            for task in (silent, ended):
                task.cancel()
            await asyncio.gather(silent, ended, return_exceptions=True)

    def _tell(self, ray: dict[str, str]) -> None:
        """What Ray's state is: a line to the gateway that lives, and the first line of the next one."""
        self._ray = ray
        if self._channel is not None:
            with suppress(OSError):
                self._channel.sendall(json.dumps(ray).encode() + b"\n")

    def _complain(self, text: str) -> None:
        append_line(self._place.log, text)


async def _hear(gateway: socket.socket) -> None:
    """Until it says something, or its end is closed."""
    with suppress(OSError):
        await asyncio.get_running_loop().sock_recv(gateway, 4096)


def _servers() -> set[int]:
    """Ray's, below this process; also those that died and were not reaped."""
    names = (b"gcs_server", b"raylet")
    return {pid for pid in tree.descendants(os.getpid()) if tree.read(f"/proc/{pid}/comm").strip() in names}


def _die_with_parent() -> Callable[[], object] | None:
    """A gateway without its supervisor would be replaced by nobody. Sessions go on without either."""
    if not sys.platform.startswith("linux"):
        return None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def take_lock(place: DaemonPlace) -> int | None:
    """The descriptor that holds it; None where another daemon has it."""
    descriptor = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
    if not _is_still(place.lock, descriptor):
        # The one before removed its folder between our opening and our locking.
        os.close(descriptor)
        return take_lock(place)
    return descriptor


def _is_still(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        return False


def listen(path: Path) -> socket.socket:
    """Only whoever holds the lock may: an older socket is replaced."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(512)
    return listener


def memory_file() -> int:
    """A file without a name: in memory on Linux, elsewhere on disk and unlinked."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("thalia-variables", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def sweep(place: DaemonPlace) -> None:
    """End what an earlier daemon left: all that carries the mark, except ourselves."""
    left = tree.end_carriers(MARK, str(place.folder), _GRACE_S)
    if left:
        append_line(place.log, f"Process {left[0]} of an earlier daemon does not end; end it by hand.")


def abandon(place: DaemonPlace) -> None:
    """End the commands of the sessions that were to go on, which nobody is there to interrupt, and forget to go on."""
    for path in place.hosted.glob("*.json"):
        tree.end_carriers(RUN_MARK, path.stem, _GRACE_S)
        path.unlink(missing_ok=True)


def clear(place: DaemonPlace) -> None:
    """The folder, but not the lock: whoever waits for it must find the same file."""
    for path in place.folder.iterdir():
        if path == place.lock:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def serve(place: DaemonPlace, variables: Mapping[str, str]) -> None:
    """Until the daemon is over. `variables` are those of whoever started it."""
    # What Ray's own parents leave behind becomes ours, so that none stays as a zombie.
    subreaper()()
    listener, memory = listen(place.gateway), memory_file()
    reached("after_listen")
    Vault(memory).keep_default(variables)
    try:
        asyncio.run(Supervisor(place, listener, memory, daemon_environment(os.environ)).run())
    finally:
        reached("before_daemon_end")
        place.gateway.unlink(missing_ok=True)
        listener.close()
        sweep(place)
        reached("after_daemon_end")
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("state_folder", type=Path)
    parser.add_argument("--end", action="store_true", help="end what is left of a daemon, and start none")
    chosen = parser.parse_args()
    os.umask(0o077)
    place = daemon_place(chosen.state_folder)
    variables = json.loads(sys.stdin.buffer.read() or b"{}")
    try:
        place.make()
    except (PlaceUnsafe, OSError) as error:
        sys.exit(str(error))
    lock = take_lock(place)
    if lock is None:
        return
    reached("after_daemon_lock")
    os.chdir(place.folder)
    sweep(place)
    clear(place)
    place.make()
    reached("after_daemon_clear")
    if chosen.end:
        abandon(place)
    else:
        serve(place, variables)
    shutil.rmtree(place.folder, ignore_errors=True)
    os.close(lock)


if __name__ == "__main__":
    main()
