"""Edits on the disk: plan from what is there, apply atomically file by file, and settle what a crash left behind.

An edit is announced by the hashes of its files before and after. A file is at one of the two at any time: the new
content is written beside it, synced, and renamed over it only if the file still is what it was.
"""

import hashlib
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from agent.permissions.paths import PathError, open_inside, open_parent
from agent.tools.access import NoAccess, explain, find_writable, read_current
from agent.tools.diffs import describe, summary, unified
from agent.tools.edits import CurrentFile, EditRefused, FileBytes, PlannedEdit, digest, named_paths, plan
from agent.tools.schemas import (
    EditArguments,
    EditingArguments,
    Invalid,
    PatchArguments,
    WriteArguments,
    parse_arguments,
)
from eventlog.effects import FileChange
from eventlog.ids import Digest
from eventlog.outcomes import Conflicted, ToolFailed, ToolSucceeded

Reached = Callable[[str], None]
Place = Literal["before", "after", "other"]
POINTS = ("before_write", "after_temp", "before_rename", "after_rename")
"""What `reached` is told for each file, in this order; a deletion has no `after_temp`."""


@dataclass(frozen=True, slots=True)
class FileNow:
    """Where a file of an announced edit stands. `found` is None where there is no readable file."""

    path: str
    at: Place
    found: Digest | None


def ignore_point(_: str) -> None:
    return


def plan_edit(
    worktree: Path,
    tool: str,
    arguments: str,
    seen: Mapping[str, Digest],
    main_checkout: Path | None = None,
) -> PlannedEdit | EditRefused:
    """What the call would change, computed from the disk, which stays as it is.

    `arguments`: JSON as in RunTool. `seen`: by relative path, what the agent read or wrote last.
    """
    parsed = _parsed(tool, arguments)
    return parsed if isinstance(parsed, EditRefused) else _plan(worktree, parsed, seen, frozenset(), main_checkout)


def apply_edit(
    worktree: Path, planned: PlannedEdit, reached: Reached = ignore_point
) -> ToolSucceeded | ToolFailed | Conflicted:
    """Bring each file to its new content. Files that are there already are passed over, so a repeat finishes the rest.

    Nothing is written when any file is neither before nor after. Blocks on fsync.
    """
    stopped = _write_all(worktree, planned, reached)
    if stopped is not None:
        return stopped
    return ToolSucceeded(text=describe(planned), display=unified(planned), wrote=True, seen=planned.seen)


def check_edit(worktree: Path, changes: Sequence[FileChange]) -> tuple[FileNow, ...]:
    """Where each file stands, in the order given. All after: done; a mix: apply the rest; any other: conflict."""
    return tuple(_file_now(worktree, change) for change in changes)


def redo(
    worktree: Path,
    tool: str,
    arguments: str,
    changes: Sequence[FileChange],
    reached: Reached = ignore_point,
) -> ToolSucceeded | ToolFailed | Conflicted:
    """Settle an announced edit whose outcome is missing: record it as done, or finish it, or report a conflict.

    The new content is computed again from the arguments and must have the announced hash. What the agent has seen
    is not told: it reads again before it writes a whole file.
    """
    now = check_edit(worktree, changes)
    if others := [file for file in now if file.at == "other"]:
        discard_temps(worktree, changes)
        return _conflict([file.path for file in others], others[0].found, [f.path for f in now if f.at == "after"])
    done = frozenset(file.path for file in now if file.at == "after")
    if len(done) == len(changes):
        discard_temps(worktree, changes)
        return ToolSucceeded(text=f"{summary(changes)} (found done after a restart)", wrote=True, recovered=True)
    parsed = _parsed(tool, arguments)
    if isinstance(parsed, EditRefused):
        return _not_redone(worktree, changes, done, parsed.text)
    seen = {change.path: change.before for change in changes if change.before is not None}
    planned = _plan(worktree, parsed, seen, done, None)
    if isinstance(planned, EditRefused):
        return _not_redone(worktree, changes, done, planned.text)
    rest = {change.path: (change.before, change.after) for change in changes if change.path not in done}
    if {change.path: (change.before, change.after) for change in planned.intent} != rest:
        return _not_redone(worktree, changes, done, "its arguments no longer give the content that was announced.")
    stopped = _write_all(worktree, planned, reached)
    if stopped is not None:
        return stopped
    return ToolSucceeded(
        text=f"{summary(changes)} (finished after a restart)",
        display=unified(planned),
        wrote=True,
        recovered=True,
    )


def _parsed(tool: str, arguments: str) -> EditingArguments | EditRefused:
    parsed = parse_arguments(tool, arguments)
    match parsed:
        case Invalid():
            return EditRefused(parsed.text)
        case WriteArguments() | EditArguments() | PatchArguments():
            return parsed
        case _:
            return EditRefused(f"{tool} does not edit files.")


def _plan(
    worktree: Path,
    arguments: EditingArguments,
    seen: Mapping[str, Digest],
    done: frozenset[str],
    main_checkout: Path | None,
) -> PlannedEdit | EditRefused:
    names = named_paths(arguments)
    if isinstance(names, EditRefused):
        return names
    files: dict[str, CurrentFile] = {}
    for given in names:
        facts = find_writable(worktree, given, main_checkout)
        if isinstance(facts, NoAccess):
            return EditRefused(facts.text)
        current = read_current(worktree, facts.relative or "")
        if isinstance(current, NoAccess):
            return EditRefused(current.text)
        files[given] = current
    return plan(arguments, files, seen, done)


def _write_all(worktree: Path, planned: PlannedEdit, reached: Reached) -> ToolFailed | Conflicted | None:
    now = check_edit(worktree, planned.intent)
    if others := [file for file in now if file.at == "other"]:
        return _conflict([file.path for file in others], others[0].found, [])
    written: list[str] = []
    for change, intent, file in zip(planned.changes, planned.intent, now, strict=True):
        if file.at == "after":
            continue
        try:
            changed = _write_one(worktree, change, intent, reached)
        except (PathError, OSError) as error:
            discard_temps(worktree, planned.intent)
            rest = f" Already written: {', '.join(written)}." if written else " Nothing was changed."
            return ToolFailed(text=explain(change.path, error) + rest, wrote=bool(written))
        if changed is not None:
            discard_temps(worktree, planned.intent)
            return _conflict([change.path], changed.found, written)
        written.append(change.path)
    return None


def _write_one(worktree: Path, change: FileBytes, intent: FileChange, reached: Reached) -> FileNow | None:
    """None when written; where the file stands when it was changed meanwhile. Raises PathError, OSError."""
    reached("before_write")
    made = _missing_folders(worktree, change.path) if change.after is not None else []
    with open_parent(worktree, change.path, create=change.after is not None) as (folder, name):
        for inner in made:
            with open_parent(worktree, inner) as (outer, _):
                os.fsync(outer)
        temp = _temp_name(intent)
        if change.after is not None:
            _write_temp(folder, temp, name, change.after, change.mode)
            reached("after_temp")
        now = _file_now(worktree, intent)
        if now.at != "before":
            return now
        reached("before_rename")
        if change.after is not None:
            os.rename(temp, name, src_dir_fd=folder, dst_dir_fd=folder)
        else:
            os.unlink(name, dir_fd=folder)
        os.fsync(folder)
        reached("after_rename")
    return None


def _write_temp(folder: int, temp: str, name: str, content: bytes, mode: int | None) -> None:
    """The content under another name, synced; the owner is that of the file it will replace, where that is possible."""
    with suppress(FileNotFoundError):
        os.unlink(temp, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(temp, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(content)
        file.flush()
        with suppress(FileNotFoundError, PermissionError):
            old = os.stat(name, dir_fd=folder, follow_symlinks=False)
            os.fchown(file.fileno(), old.st_uid, old.st_gid)
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        os.fsync(file.fileno())


def _missing_folders(worktree: Path, relative: str) -> list[str]:
    """Folders on the way that are not there yet, outermost first."""
    parents = [str(parent) for parent in reversed(PurePosixPath(relative).parents)][1:]
    return [parent for parent in parents if not os.path.lexists(Path(os.path.realpath(worktree)) / parent)]


def _file_now(worktree: Path, change: FileChange) -> FileNow:
    try:
        with os.fdopen(open_inside(worktree, change.path, os.O_RDONLY), "rb") as file:
            found: Digest | None = Digest(hashlib.file_digest(file, "sha256").hexdigest())
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except FileNotFoundError:
        found, mode = None, None
    except (PathError, OSError):
        return FileNow(change.path, "other", None)
    if found == change.after and (found != change.before or mode == change.mode):
        return FileNow(change.path, "after", found)
    return FileNow(change.path, "before" if found == change.before else "other", found)


def _temp_name(change: FileChange) -> str:
    """The same for a repeated attempt, which so finds what a crash left."""
    return f".thalia-{digest(f'{change.path} {change.after}'.encode())[:16]}.tmp"


def discard_temps(worktree: Path, changes: Sequence[FileChange]) -> None:
    for change in changes:
        with suppress(PathError, OSError), open_parent(worktree, change.path) as (folder, _):
            os.unlink(_temp_name(change), dir_fd=folder)


def _conflict(paths: Sequence[str], found: Digest | None, written: Sequence[str]) -> Conflicted:
    verb = "was" if len(paths) == 1 else "were"
    rest = f" Already written: {', '.join(written)}." if written else " Nothing was written."
    return Conflicted(
        text=f"{', '.join(paths)} {verb} changed by somebody else and left alone; read again before editing.{rest}",
        found=found,
    )


def _not_redone(worktree: Path, changes: Sequence[FileChange], done: frozenset[str], why: str) -> ToolFailed:
    discard_temps(worktree, changes)
    state = f"Only {', '.join(sorted(done))} was written." if done else "No file was changed."
    return ToolFailed(
        text=f"The edit was cut short and cannot be finished: {why} {state}", wrote=bool(done), recovered=True
    )
