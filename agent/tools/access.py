"""The way from a path in a tool's arguments to a file of the worktree, or to a sentence that says why not."""

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from agent.permissions.paths import NotRegularFile, PathError, PathFacts, locate, open_inside
from agent.tools.edits import CurrentFile

MAX_FILE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class NoAccess:
    """One sentence for the model."""

    text: str


def find(worktree: Path, given: str, main_checkout: Path | None = None) -> PathFacts | NoAccess:
    """Facts about a path that really is inside the worktree; `relative` is then set and storable."""
    facts = locate(worktree, given, main_checkout=main_checkout)
    if facts.in_main_checkout is not None:
        return NoAccess(
            f"{given} is in the user's own checkout, which is not touched; "
            f"the same file in this worktree is {facts.in_main_checkout}."
        )
    if facts.escapes:
        return NoAccess(f"{given} leads outside the worktree through a symbolic link.")
    if facts.relative is None:
        return NoAccess(f"{given} is outside the worktree {facts.root}; use a path inside it.")
    try:
        facts.relative.encode()
    except UnicodeEncodeError:
        return NoAccess(f"{given} leads to a name that is not UTF-8; use a command for it.")
    return facts


def find_writable(worktree: Path, given: str, main_checkout: Path | None = None) -> PathFacts | NoAccess:
    facts = find(worktree, given, main_checkout)
    if isinstance(facts, NoAccess):
        return facts
    if facts.protected is not None:
        return NoAccess(f"{given} is protected ({facts.protected}) and is not written by tools.")
    if facts.is_dir:
        return NoAccess(f"{given} is a folder, not a file.")
    return facts


def read_current(worktree: Path, relative: str) -> CurrentFile | NoAccess:
    """The file as it is now, `content=None` where there is none."""
    try:
        descriptor = open_inside(worktree, relative, os.O_RDONLY)
    except FileNotFoundError:
        return CurrentFile(relative, None)
    except (PathError, OSError) as error:
        return NoAccess(explain(relative, error))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if status.st_size > MAX_FILE_BYTES:
            return NoAccess(f"{relative} has {status.st_size:,} bytes, which is too much to edit; use a command.")
        return CurrentFile(relative, file.read(), stat.S_IMODE(status.st_mode))


def explain(relative: str, error: PathError | OSError) -> str:
    match error:
        case NotRegularFile():
            return f"{relative} is not a regular file."
        case PathError():
            return str(error)
        case OSError(errno=errno.ENOTDIR):
            return f"{relative} goes through a file that is not a folder."
        case OSError(errno=errno.ENAMETOOLONG):
            return f"{relative[:80]}… is too long a name."
        case OSError():
            return f"{relative} cannot be used: {os.strerror(error.errno or 0)}."
