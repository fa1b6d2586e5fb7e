"""One writer a session: an flock on `writer.lock`, which names its holder."""

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path

import orjson

from eventlog.errors import LogBusy

_PATIENCE_S = 1.0
_PAUSE_S = 0.002
"""`is_held` takes the lock for an instant, longer where its process is not scheduled: no writer is refused for that."""


@dataclass(frozen=True, slots=True)
class Holder:
    pid: int
    started: int
    """Clock ticks after boot at which the process began (/proc/PID/stat, field 22): a reused pid differs."""


class WriterLock:
    """Held from construction to `release`, or the end of the process. Raises LogBusy where another holds it."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        held = os.fstat(self._descriptor)
        self._file = held.st_dev, held.st_ino
        if not _take(self._descriptor):
            os.close(self._descriptor)
            holder = read_holder(path)
            raise LogBusy(str(path.parent), holder.pid if holder else None)
        pid = os.getpid()
        data = orjson.dumps({"pid": pid, "started": start_time(pid) or 0})
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, data, 0)
        except OSError:
            self.release()
            raise

    @property
    def is_ours(self) -> bool:
        """Whether the file that a second writer would ask is still the one that is held. Where it was removed or
        replaced underneath, somebody else may hold another one."""
        try:
            found = os.stat(self._path)  # noqa: PTH116 - stands in every append
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._file

    def release(self) -> None:
        # Unlocked by name: a forked child that still has the descriptor would keep it locked.
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


def read_holder(path: Path) -> Holder | None:
    """Who holds the lock, or held it last. None where the file says nothing."""
    try:
        tree = orjson.loads(path.read_bytes())
        return Holder(int(tree["pid"]), int(tree["started"]))
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None


def is_held(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def start_time(pid: int) -> int | None:
    """Clock ticks after boot; None where there is no such process, or no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(stat.rpartition(")")[2].split()[19])


def _take(descriptor: int) -> bool:
    give_up = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > give_up:
                return False
            time.sleep(_PAUSE_S)
        else:
            return True
