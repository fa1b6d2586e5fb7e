"""The helper: a small process that forks one wrapper a request, since a fork costs less than a fresh interpreter.

Lines on standard input (a stream socket): `NUMBER REQUEST` (JSON, see wrapper.py) or `NUMBER cancel`. Notices are
lines on standard output: `NUMBER WORD`, WORD one of done, exists, died, refused. It ends when its input does.
"""

import ctypes
import gc
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

from processes import folder, tree, wrapper

PR_SET_CHILD_SUBREAPER = 36


def subreaper() -> Callable[[], None]:
    """Makes the caller the parent of all orphans among its descendants, on Linux; elsewhere it does nothing."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    prctl = ctypes.CDLL(None).prctl
    return lambda: prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Helper:
    """Keeps one wrapper forked ahead: the fork, and the copying of pages after it, happen before a request comes."""

    def __init__(self) -> None:
        self.adopt_orphans = subreaper()
        self.notices = os.dup(1)
        null = os.open("/dev/null", os.O_RDWR)
        os.dup2(null, 1)
        self.requests = os.dup(0)
        os.dup2(null, 0)
        os.set_blocking(self.requests, False)
        self.wake, self.wake_end = os.pipe()
        for fd in (self.wake, self.wake_end):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(self.wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.wrappers: dict[int, int] = {}
        self.spare, self.spare_input = -1, -1

    def serve(self) -> None:
        poll = select.poll()
        poll.register(self.requests, select.POLLIN)
        poll.register(self.wake, select.POLLIN)
        rest = b""
        while True:
            if self.spare < 0:
                self.fork_spare()
            poll.poll()
            with suppress(BlockingIOError):
                os.read(self.wake, 4096)
            self.reap()
            with suppress(BlockingIOError):
                data = os.read(self.requests, 1 << 18)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self.obey(line)

    def obey(self, line: bytes) -> None:
        """A line is `NUMBER cancel` or `NUMBER REQUEST`."""
        number, _, request = line.partition(b" ")
        if request == b"cancel":
            tree.send([pid for pid, known in self.wrappers.items() if known == int(number)], signal.SIGTERM)
        elif not self.hand_over(int(number), request):
            self.tell(int(number), "refused")

    def hand_over(self, number: int, request: bytes) -> bool:
        """To the spare; to a new one where it is gone. False where the system gives us no process."""
        for _ in range(3):
            if self.spare < 0 and not self.fork_spare():
                return False
            pid, fd, self.spare = self.spare, self.spare_input, -1
            try:
                folder.write_all(fd, b"%d %b" % (number, request))
            except BrokenPipeError:
                continue
            finally:
                os.close(fd)
            self.wrappers[pid] = number
            return True
        return False

    def fork_spare(self) -> bool:
        read_end, write_end = os.pipe()
        # Blocked until the wrapper has its handler: a cancel that comes at once must not kill it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        try:
            pid = os.fork()
        except OSError:
            pid = -1
        if pid == 0:
            os.close(write_end)
            self.become_wrapper(read_end)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.close(read_end)
        if pid < 0:
            os.close(write_end)
            return False
        self.spare, self.spare_input = pid, write_end
        return True

    def become_wrapper(self, source: int) -> None:
        code = 1
        try:
            for fd in (self.requests, self.wake, self.wake_end):
                os.close(fd)
            asked = wrapper.prepare(self.adopt_orphans)
            number, _, request = read_all(source).partition(b" ")
            if request:
                wrapper.wrap(json.loads(request), *asked, tell=lambda word: self.tell(int(number), word))
            code = 0
        finally:
            os._exit(code)

    def reap(self) -> None:
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.spare:
                    os.close(self.spare_input)
                    self.spare = -1
                number = self.wrappers.pop(pid, None)
                if status and number is not None:
                    self.tell(number, "died")

    def tell(self, number: int, word: str) -> None:
        """Short enough to be one write; nobody may be listening any more."""
        with suppress(BrokenPipeError):
            os.write(self.notices, f"{number} {word}\n".encode())


def read_all(fd: int) -> bytes:
    parts: list[bytes] = []
    while part := os.read(fd, 1 << 18):
        parts.append(part)
    os.close(fd)
    return b"".join(parts)


def main() -> None:
    gc.disable()
    helper = Helper()
    gc.freeze()
    with suppress(ConnectionResetError):
        helper.serve()
