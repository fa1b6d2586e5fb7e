"""The fence before what an agent does to the world: a file that names the one incarnation that may. Standard library
only, for the wrapper.

The file holds the number of a lease. Who performs holds the file shared while he does, and only where the number is his
own. A replacement takes it exclusively, so that nobody performs at that moment, and writes its own number: what an
earlier incarnation announced and had not begun is refused whenever that one wakes up. Who was stopped in the middle of
it still holds the file, and is ended for that: a check without a lock would leave the moment between itself and the
effect. The file's mtime says when the lease was renewed; commands whose lease nobody renews end (wrapper.py).

Where the lease is granted on another node, the file also says when it ends, in microseconds since boot: from then on
nobody performs, and commands end. Nobody renews that moment by himself.

All who perform in one place, and who takes it over from them, are on one node: an flock ends at its edge."""

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

from processes import tree

PATIENCE_S = 2.0
"""For one who is performing and not stopped: an edit or a snapshot ends by itself."""
GIVE_UP_S = 10.0
_WIDTH = 20


class Superseded(Exception):
    """The number in the file is another one: nothing was performed."""


class RanOut(Superseded):
    """The number is the right one, and its lease has ended."""


class CannotTake(Exception):
    """One sentence: somebody who performs can neither be waited for nor ended."""


@contextmanager
def performing(path: str, number: int) -> Iterator[None]:
    """Nobody takes the fence meanwhile, unless he ends this process. Raises Superseded, RanOut."""
    with _sharing(path, number, os.O_RDONLY) as fd:
        if has_ended(_read(fd, _WIDTH)):
            raise RanOut
        yield


def take(path: str, number: int, patience_s: float = PATIENCE_S, *, end_us: int = 0) -> None:
    """From its return on nobody performs under another number. `end_us`: since boot; 0 where the lease has no end of
    its own. Blocks. Raises Superseded where this number was used already, or a later one; CannotTake."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _hold_alone(fd, path, patience_s)
        if _read(fd) >= number:
            raise Superseded
        # One write of one width: nobody ever reads a half.
        if not end_us:
            os.ftruncate(fd, _WIDTH)
        os.pwrite(fd, b"%0*d" % (_WIDTH, number) + (b"%0*d" % (_WIDTH, end_us) if end_us else b""), 0)
    finally:
        os.close(fd)


def renew(path: str, number: int) -> None:
    """The lease lasts anew from now. Raises Superseded, OSError."""
    fd = _open(path)
    try:
        _check(fd, number)
        os.utime(fd)
    finally:
        os.close(fd)


def extend(path: str, number: int, end_us: int) -> None:
    """The lease lasts until then, in microseconds since boot. Raises Superseded, OSError."""
    # Who sleeps in it is ended before the lease is another's.
    with _sharing(path, number, os.O_RDWR) as fd:
        os.pwrite(fd, b"%0*d" % (_WIDTH, end_us), _WIDTH)


def look(path: str) -> tuple[int, int]:
    """(mtime in ns, end in microseconds since boot or 0). Raises FileNotFoundError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.fstat(fd).st_mtime_ns, _read(fd, _WIDTH)
    finally:
        os.close(fd)


def has_ended(end_us: int) -> bool:
    return 0 < end_us <= tree.boot_us()


@contextmanager
def _sharing(path: str, number: int, flags: int) -> Iterator[int]:
    """A descriptor of the file, held against who takes the fence. Raises Superseded."""
    fd = _open(path, flags)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH)
        _check(fd, number)
        yield fd
    finally:
        os.close(fd)


def _open(path: str, flags: int = os.O_RDONLY) -> int:
    try:
        return os.open(path, flags | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Superseded from None


def _check(fd: int, number: int) -> None:
    if _read(fd) != number:
        raise Superseded


def _read(fd: int, at: int = 0) -> int:
    """0 where the file says nothing."""
    text = os.pread(fd, _WIDTH, at)
    return int(text) if text.isdigit() else 0


def _hold_alone(fd: int, path: str, patience_s: float) -> None:
    began = time.monotonic()
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - began
        if waited > patience_s + GIVE_UP_S:
            raise CannotTake(f"A process that holds {path} cannot be ended; end it, and begin again.")
        for pid in tree.lock_holders(path):
            if waited > patience_s or tree.is_stopped(pid):
                _end(pid)
        time.sleep(0.005)


def _end(pid: int) -> None:
    """With what it started to perform by (git). Its commands are in a session of their own, and the replacement's."""
    tree.send([pid], signal.SIGSTOP)
    own = tree.session(pid)
    tree.send([pid, *(child for child in tree.descendants(pid) if tree.session(child) == own)], signal.SIGKILL)
