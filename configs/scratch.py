"""Folders for what is not kept, in the system's folder for that. What a killed process leaves there, the next process
that needs such a folder removes: each is locked by its owner for as long as that lives, whatever pids come and go."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

PREFIX = "thalia-scratch-"
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def scratch(purpose: str, parent: Path | None = None) -> Iterator[Path]:
    """A new folder, 0700, of this process's alone; gone at the end. Raises OSError. With a `parent` it is there, and
    what others left there goes each time: it is a small folder, in which processes that live on may have company."""
    if parent is None:
        _remove_once(tempfile.gettempdir())
    else:
        remove_abandoned(parent)
    path, held = _make(f"{PREFIX}{purpose}-", parent)
    try:
        yield path
    finally:
        try:
            shutil.rmtree(path)
        finally:
            os.close(held)


def remove_abandoned(parent: Path) -> list[Path]:
    """Remove the folders of dead processes of this user from `parent`: those that nobody locks."""
    removed: list[Path] = []
    for path in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):
            descriptor = os.open(path, _FLAGS)
            try:
                if os.fstat(descriptor).st_uid == os.getuid() and _lock(descriptor):
                    shutil.rmtree(path)
                    removed.append(path)
            finally:
                os.close(descriptor)
    return removed


@cache
def _remove_once(parent: str) -> None:
    """Once a process: there are new ones only after a kill, and that ended this process too."""
    remove_abandoned(Path(parent))


def _make(prefix: str, parent: Path | None) -> tuple[Path, int]:
    """The folder and its lock, a descriptor that no child inherits."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        # Until it is locked it looks abandoned, and somebody may have removed it.
        with suppress(FileNotFoundError):
            descriptor = os.open(path, _FLAGS)
            if _lock(descriptor) and path.exists():
                return path, descriptor
            os.close(descriptor)


def _lock(descriptor: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
