"""The record files of a pool: whose each worktree is, and how far it is. Changed under the pool's lock alone.

Whoever makes or resets a worktree, which takes long, holds the file of its record meanwhile. A record is written as a
new file under its old name, so who waits for one that changed holds the old file, and has to look again."""

import contextlib
import fcntl
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from eventlog.blobs import sync_folder
from worktrees.git import PointerRecord
from worktrees.repository import Worktree

State = Literal["adding", "resetting", "ready", "free", "kept"]


@dataclass(frozen=True, slots=True)
class Record:
    """What a record file says. `base`: the commit with which its owner began."""

    name: str
    key: str
    state: State
    base: str
    path: str
    git_dir: str
    pointers: tuple[str, str, str] | None = None
    reason: str = ""

    def worktree(self) -> Worktree | None:
        if self.pointers is None:
            return None
        parts = [text.encode("utf-8", "surrogateescape") for text in self.pointers]
        return Worktree(Path(self.path), Path(self.git_dir), self.key, PointerRecord(*parts))


def read_records(folder: Path) -> list[Record]:
    """By name."""
    found = []
    for file in sorted(folder.glob("*.json")):
        # Who reads without the pool's lock may find one that is retired just now.
        with contextlib.suppress(FileNotFoundError):
            row = json.loads(file.read_text())
            row["pointers"] = tuple(row["pointers"]) if row["pointers"] else None
            found.append(Record(**row))
    return found


def write_record(folder: Path, record: Record) -> None:
    # One for all, since one writes at a time: what a kill leaves of it goes with the next.
    draft = folder / ".record.draft"
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(handle, "w") as out:
        out.write(json.dumps(asdict(record)))
        out.flush()
        os.fsync(out.fileno())
    draft.rename(folder / f"{record.name}.json")
    sync_folder(folder)


def hold_record(folder: Path, record: Record) -> int:
    """A handle; to close it, or to die, ends the hold. For one that was just written: nobody else can hold it yet."""
    return _lock(folder, record, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_at_work(folder: Path, record: Record) -> bool:
    """Whether somebody who lives is just making or resetting its worktree."""
    try:
        os.close(_lock(folder, record, fcntl.LOCK_SH | fcntl.LOCK_NB))
    except BlockingIOError:
        return True
    return False


def wait_released(folder: Path, record: Record) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.close(_lock(folder, record, fcntl.LOCK_SH))


def _lock(folder: Path, record: Record, how: int) -> int:
    """Raises BlockingIOError, FileNotFoundError."""
    handle = os.open(folder / f"{record.name}.json", os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        os.close(handle)
        raise
    return handle
