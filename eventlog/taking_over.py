"""Take a session from a process that lives and does not let go: it is ended, if it is that very process and ours.

A pid alone names nobody for long, so a handle of the process is opened first: what is found out about the pid while
that is open is true of the process that then gets the signal."""

import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eventlog.checking import LOCK
from eventlog.errors import CannotTakeOver
from eventlog.lock import Holder, is_held, read_holder, start_time

PATIENCE_S = 10.0
"""For a process to end after SIGKILL: one that waits for a disk takes its time."""
_PAUSE_S = 0.005


def end_writer(folder: Path, patience_s: float = PATIENCE_S) -> Holder | None:
    """End the process that has the lock of the session in `folder`, and wait until the lock is free. Its commands
    outlive it, as after any death. Who was ended; None where nobody had the lock any more.

    Raises CannotTakeOver: then nothing was ended, or it takes longer than `patience_s`."""
    lock = folder / LOCK
    if not is_held(lock):
        return None
    holder = read_holder(lock)
    if holder is None:
        raise CannotTakeOver("another process", "its lock does not name it")
    with _opened(holder) as handle:
        if handle is None or not _has_locked(holder.pid, lock):
            if not is_held(lock):
                return None
            raise CannotTakeOver("another process", f"process {holder.pid}, which its lock names, does not hold it")
        _end(handle, holder, patience_s)
    _wait_free(lock, holder, patience_s)
    return holder


def end_process(one: Holder, patience_s: float = PATIENCE_S) -> bool:
    """SIGKILL, and wait until it is gone. False where that very process was gone already. Raises CannotTakeOver."""
    with _opened(one) as handle:
        if handle is None:
            return False
        _end(handle, one, patience_s)
    return True


@contextmanager
def _opened(one: Holder) -> Iterator[int | None]:
    """A handle of that very process; None where it is gone, also where another has its pid. Raises CannotTakeOver."""
    name = f"process {one.pid}"
    if one.pid == os.getpid():
        raise CannotTakeOver(name, "it is the one that asks")
    if not hasattr(os, "pidfd_open"):
        raise CannotTakeOver(name, "this system has no handles of processes")
    try:
        handle = os.pidfd_open(one.pid)
    except ProcessLookupError:
        yield None
        return
    except OSError as error:
        raise CannotTakeOver(name, error.strerror or "it cannot be opened") from error
    try:
        if start_time(one.pid) != one.started:
            yield None
            return
        if _owner(one.pid) != os.getuid():
            raise CannotTakeOver(name, "it is another user's")
        yield handle
    finally:
        os.close(handle)


def _end(handle: int, one: Holder, patience_s: float) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    ended = select.poll()
    ended.register(handle, select.POLLIN)
    if not ended.poll(patience_s * 1000):
        raise CannotTakeOver(f"process {one.pid}", f"it did not end within {patience_s:g} s")


def _wait_free(lock: Path, holder: Holder, patience_s: float) -> None:
    """Until it is free, or another has it."""
    give_up = time.monotonic() + patience_s
    while is_held(lock) and read_holder(lock) == holder:
        if time.monotonic() > give_up:
            raise CannotTakeOver(f"process {holder.pid}", "it is gone, but a process that it began has its lock")
        time.sleep(_PAUSE_S)


def _owner(pid: int) -> int | None:
    """Real user id; None where there is no such process."""
    with suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("Uid:"):
                return int(line.split()[1])
    return None


def _describe(pid: int, descriptor: str) -> bytes:
    """With a line for each lock, which says WRITE where it is exclusive."""
    return Path(f"/proc/{pid}/fdinfo/{descriptor}").read_bytes()


def _has_locked(pid: int, path: Path) -> bool:
    """Whether it has the file open and locked for itself: what stands in the file may be of an earlier writer."""
    with suppress(OSError):
        wanted = path.stat()
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            # It may close one meanwhile.
            with suppress(OSError):
                if os.path.samestat(entry.stat(), wanted) and b"WRITE" in _describe(pid, entry.name):
                    return True
    return False
