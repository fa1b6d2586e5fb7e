"""Plan an edit: from arguments and current bytes to new bytes, or to a refusal that tells the model what to do. Pure.

Recovery relies on the order of the changes: files are written first and deleted last, and no file is named by a patch
again once it was added, moved or deleted. So what is not yet written can always be computed from what is there."""

import hashlib
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import assert_never

from agent.tools.hunks import apply_hunks
from agent.tools.invisible import reveal
from agent.tools.matching import NotReplaced, replace_text
from agent.tools.operations import AddFile, DeleteFile, FileOperation, NotAPatch, UpdateFile
from agent.tools.patches import parse_patch
from agent.tools.schemas import EditArguments, EditingArguments, PatchArguments, WriteArguments
from eventlog.effects import FileChange
from eventlog.ids import Digest
from eventlog.outcomes import FileSeen
from eventlog.redact import markers

NEW_FILE_MODE = 0o644
HEAD_LINES = 40
HEAD_CHARACTERS = 4000


@dataclass(frozen=True, slots=True)
class CurrentFile:
    path: str
    """Relative to the worktree, real."""
    content: bytes | None
    """None where there is no file."""
    mode: int | None = None


@dataclass(frozen=True, slots=True)
class FileBytes:
    """One file before and after; None is no file. `mode`: permission bits afterwards."""

    path: str
    before: bytes | None
    after: bytes | None
    mode: int | None


@dataclass(frozen=True, slots=True)
class PlannedEdit:
    changes: tuple[FileBytes, ...]
    """In the order in which they are made."""
    intent: tuple[FileChange, ...]
    """The same as hashes, for the log."""
    seen: tuple[FileSeen, ...]
    """What the agent knows of the files afterwards."""


@dataclass(frozen=True, slots=True)
class EditRefused:
    """Nothing was changed; `text` is for the model."""

    text: str


def digest(content: bytes) -> Digest:
    return Digest(hashlib.sha256(content).hexdigest())


def named_paths(arguments: EditingArguments) -> tuple[str, ...] | EditRefused:
    """The paths that the arguments name, as they spell them; `plan` wants the current file of each."""
    if not isinstance(arguments, PatchArguments):
        return (arguments.path,)
    operations = parse_patch(arguments.patch)
    if isinstance(operations, NotAPatch):
        return EditRefused(operations.text)
    names: list[str] = []
    for operation in operations:
        names.append(operation.path)
        if isinstance(operation, UpdateFile) and operation.move_to:
            names.append(operation.move_to)
    return tuple(dict.fromkeys(names))


def plan(
    arguments: EditingArguments,
    files: Mapping[str, CurrentFile],
    seen: Mapping[str, Digest],
    done: Set[str] = frozenset(),
) -> PlannedEdit | EditRefused:
    """`files` by the path as the arguments spell it, `seen` by the relative path, as is `done`: the files of an edit
    begun earlier that are already as they should be, and are left alone."""
    draft = _Draft(files, seen, done)
    try:
        match arguments:
            case WriteArguments():
                draft.write(arguments)
            case EditArguments():
                draft.edit(arguments)
            case PatchArguments():
                operations = parse_patch(arguments.patch)
                if isinstance(operations, NotAPatch):
                    return EditRefused(operations.text)
                for operation in operations:
                    draft.operate(operation)
            case _:
                assert_never(arguments)
        return draft.finished()
    except _Refusal as refusal:
        return EditRefused(str(refusal))


class _Refusal(Exception):
    """Never leaves this module: becomes EditRefused."""


@dataclass(slots=True)
class _Slot:
    before: CurrentFile
    content: bytes | None
    mode: int | None
    known: bool
    """The agent knows the whole content."""
    markers_from: list[bytes] = field(default_factory=list)
    closed: bool = False
    """Added, moved or deleted: not to be named again."""


class _Draft:
    """The files as they will be, while the arguments are gone through."""

    def __init__(self, files: Mapping[str, CurrentFile], seen: Mapping[str, Digest], done: Set[str]) -> None:
        self._files = files
        self._seen = seen
        self._done = done
        self._slots: dict[str, _Slot] = {}

    def write(self, arguments: WriteArguments) -> None:
        slot = self._slot(arguments.path)
        after = arguments.content.encode()
        if slot.content is not None and slot.content != after:
            self._must_be_seen(slot.before)
        if slot.content == after:
            raise _Refusal(f"{slot.before.path} already has exactly this content; nothing was changed.")
        slot.content, slot.known = after, True

    def edit(self, arguments: EditArguments) -> None:
        slot = self._slot(arguments.path)
        path, content = slot.before.path, self._text(slot)
        if arguments.old_text == arguments.new_text:
            raise _Refusal("old_text and new_text are the same; nothing was changed.")
        after = replace_text(content, arguments.old_text, arguments.new_text, arguments.replace_all)
        if isinstance(after, NotReplaced):
            hidden = markers(arguments.old_text)
            hint = " (a redaction marker stands for text that is not shown; choose lines without it)" if hidden else ""
            raise _Refusal(f"{path} {after.reason}{hint}. Nothing was changed.")
        slot.content = after

    def operate(self, operation: FileOperation) -> None:
        match operation:
            case AddFile():
                self._add(operation)
            case DeleteFile():
                self._delete(operation.path)
            case UpdateFile():
                self._update(operation)
            case _:
                assert_never(operation)

    def finished(self) -> PlannedEdit | EditRefused:
        changes: list[FileBytes] = []
        intent: list[FileChange] = []
        seen: list[FileSeen] = []
        # A deletion comes last: until then a moved file can be computed again.
        for slot in sorted(self._slots.values(), key=lambda slot: slot.content is None):
            path, before, after = slot.before.path, slot.before.content, slot.content
            if before == after and (after is None or slot.mode == slot.before.mode):
                continue
            self._check_markers(slot)
            mode = None if after is None else slot.mode if slot.mode is not None else NEW_FILE_MODE
            changes.append(FileBytes(path, before, after, mode))
            intent.append(FileChange(path=path, before=_hash(before), after=_hash(after), mode=mode))
            if after is not None and slot.known and (hashed := intent[-1].after) is not None:
                seen.append(FileSeen(path=path, digest=hashed))
        if not changes and not self._done:
            return EditRefused("This changes nothing: the files already are as it would make them.")
        _check_nesting(changes)
        return PlannedEdit(tuple(changes), tuple(intent), tuple(seen))

    def _slot(self, given: str) -> _Slot:
        file = self._files[given]
        slot = self._slots.get(file.path)
        if slot is None:
            sources = [file.content] if file.content is not None else []
            slot = _Slot(file, file.content, file.mode, self._is_seen(file), sources)
            self._slots[file.path] = slot
        if slot.closed:
            raise _Refusal(f"The patch names {file.path} again after adding, moving or deleting it; use two patches.")
        return slot

    def _is_seen(self, file: CurrentFile) -> bool:
        known = self._seen.get(file.path)
        return file.content is not None and known is not None and known == digest(file.content)

    def _is_done(self, given: str) -> bool:
        return self._files[given].path in self._done

    def _add(self, operation: AddFile) -> None:
        if self._is_done(operation.path):
            return
        slot = self._slot(operation.path)
        if slot.content is not None:
            raise _Refusal(f"{slot.before.path} exists already; use Update File, or another name.")
        slot.content, slot.known, slot.closed = operation.content.encode(), True, True
        slot.mode = 0o755 if operation.executable else None

    def _delete(self, given: str) -> None:
        if self._is_done(given):
            return
        slot = self._slot(given)
        if slot.content is None:
            raise _Refusal(f"{slot.before.path} does not exist, so it cannot be deleted.")
        if slot.before.path in self._seen and not self._is_seen(slot.before):
            self._must_be_seen(slot.before)
        slot.content, slot.closed = None, True

    def _update(self, operation: UpdateFile) -> None:
        if operation.move_to is not None and self._is_done(operation.move_to):
            self._delete(operation.path)
            return
        if operation.move_to is None and self._is_done(operation.path):
            return
        slot = self._slot(operation.path)
        content = self._text(slot) if operation.hunks else slot.content
        if content is None:
            raise _Refusal(f"{slot.before.path} does not exist; use Add File to create it.")
        after = apply_hunks(content, operation.hunks)
        if isinstance(after, NotReplaced):
            raise _Refusal(f"{slot.before.path} {after.reason}. No file was changed.")
        mode = _with_execution(slot.mode, operation.executable)
        if operation.move_to is None or self._files[operation.move_to].path == slot.before.path:
            slot.content, slot.mode = after, mode
            return
        target = self._slot(operation.move_to)
        if target.content is not None:
            raise _Refusal(f"{target.before.path} exists already; {slot.before.path} cannot be moved there.")
        target.content, target.mode, target.known, target.closed = after, mode, slot.known, True
        target.markers_from += slot.markers_from
        slot.content, slot.closed = None, True

    def _text(self, slot: _Slot) -> bytes:
        if slot.content is None:
            raise _Refusal(f"{slot.before.path} does not exist; look with glob, or use write to create it.")
        if slot.content.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise _Refusal(f"{slot.before.path} is UTF-16, which is not edited as text; use write or a command.")
        if b"\0" in slot.content:
            raise _Refusal(f"{slot.before.path} is binary and is not edited as text.")
        return slot.content

    def _must_be_seen(self, file: CurrentFile) -> None:
        if self._is_seen(file) or file.content is None:
            return
        if file.path not in self._seen:
            raise _Refusal(f"{file.path} exists and was not read yet; read it first, then write or edit it.")
        raise _Refusal(f"{file.path} has changed since it was read; read it again first. Now it begins:\n{_head(file)}")

    def _check_markers(self, slot: _Slot) -> None:
        if slot.content is None:
            return
        had = {found for source in slot.markers_from for found in markers(source.decode("latin-1"))}
        if new := markers(slot.content.decode("latin-1")) - had:
            raise _Refusal(
                f"The text for {slot.before.path} holds {min(new)}, which stands for a secret that is not shown; "
                "leave these lines to an edit that does not touch them. Nothing was changed."
            )


def _hash(content: bytes | None) -> Digest | None:
    return None if content is None else digest(content)


def _head(file: CurrentFile) -> str:
    text = (file.content or b"")[: 4 * HEAD_CHARACTERS].decode("utf-8", "replace")
    lines = text.split("\n")[:HEAD_LINES]
    shown = "\n".join(f"{number:>6}\t{line.removesuffix(chr(13))}" for number, line in enumerate(lines, 1))
    return reveal(shown[:HEAD_CHARACTERS]).text


def _with_execution(mode: int | None, executable: bool | None) -> int | None:
    """As git does: who may read may execute, or nobody."""
    if mode is None or executable is None:
        return mode
    return mode | ((mode & 0o444) >> 2) if executable else mode & ~0o111


def _check_nesting(changes: list[FileBytes]) -> None:
    """A file that becomes a folder, or the other way round, cannot be done file by file."""
    names = {change.path for change in changes}
    for name in names:
        parts = name.split("/")
        for depth in range(1, len(parts)):
            if (folder := "/".join(parts[:depth])) in names:
                raise _Refusal(f"The patch uses {folder} both as a file and as a folder; use two patches.")
