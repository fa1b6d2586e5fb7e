"""Tools that only look: read a file or folder, and the dispatch of glob, grep and todo.

Whatever the bytes are, the answer is text for the model. The file on disk is not touched."""

import difflib
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import assert_never

from agent.permissions.paths import NotRegularFile, PathError, open_inside, open_parent
from agent.tools.access import NoAccess, explain, find
from agent.tools.invisible import note, reveal
from agent.tools.schemas import (
    GlobArguments,
    GrepArguments,
    ReadArguments,
    ReadingArguments,
    TodoArguments,
)
from eventlog.ids import Digest
from eventlog.outcomes import FileSeen, ToolFailed, ToolSucceeded

DEFAULT_LINES = 2000
MAX_LINE_CHARACTERS = 2000
MAX_TEXT_BYTES = 64 * 1024
MAX_FILE_BYTES = 1024 * 1024 * 1024
MAX_DECODED_BYTES = 16 * 1024 * 1024
MAX_ENTRIES = 500
_PIECE = 64 * 1024

Readable = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class ReadResult:
    outcome: ToolSucceeded | ToolFailed

    @property
    def seen(self) -> tuple[tuple[str, Digest], ...]:
        """Files whose content was shown, by relative path, with the hash of the whole content."""
        if isinstance(self.outcome, ToolFailed):
            return ()
        return tuple((file.path, file.digest) for file in self.outcome.seen)


def any_path(_: str) -> bool:
    return True


def run_reading(
    worktree: Path,
    arguments: ReadingArguments,
    main_checkout: Path | None = None,
    readable: Readable = any_path,
) -> ReadResult:
    """`readable` says of a relative path whether glob and grep may show it; read itself is judged beforehand."""
    from agent.tools.searching import find_files, find_ripgrep, search_files

    match arguments:
        case ReadArguments():
            return ReadResult(read_path(worktree, arguments, main_checkout))
        case GlobArguments():
            return ReadResult(find_files(worktree, arguments, main_checkout, readable, find_ripgrep()))
        case GrepArguments():
            return ReadResult(search_files(worktree, arguments, main_checkout, readable, find_ripgrep()))
        case TodoArguments():
            return ReadResult(show_todo(arguments))
        case _:
            assert_never(arguments)


def show_todo(arguments: TodoArguments) -> ToolSucceeded:
    marks = {"pending": "[ ]", "in_progress": "[~]", "done": "[x]"}
    lines = [f"{marks[item.status]} {' '.join(item.text.split())}" for item in arguments.items]
    return ToolSucceeded(text="\n".join(lines) or "The list is empty.")


def read_path(
    worktree: Path, arguments: ReadArguments, main_checkout: Path | None = None
) -> ToolSucceeded | ToolFailed:
    """Lines with their numbers, as `cat -n`; of a folder its names; of binary content the first bytes."""
    facts = find(worktree, arguments.path, main_checkout)
    if isinstance(facts, NoAccess):
        return ToolFailed(text=facts.text)
    relative = facts.relative or "."
    try:
        if facts.is_dir:
            return _listing(worktree, relative, arguments)
        descriptor = open_inside(worktree, relative, os.O_RDONLY)
    except FileNotFoundError:
        return ToolFailed(text=f"{relative} does not exist{_similar(worktree, relative)}.")
    except (NotRegularFile, PathError, OSError) as error:
        return ToolFailed(text=explain(relative, error))
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(descriptor).st_size
        if size > MAX_FILE_BYTES:
            return ToolFailed(text=f"{relative} has {size:,} bytes; show parts of it with a command (head, tail, sed).")
        return _shown(relative, file, size, arguments.offset or 1, arguments.limit or DEFAULT_LINES)


@dataclass(slots=True)
class _Window:
    """The lines first … last of a file, each cut to what can be shown, and the file's hash and size in lines."""

    first: int
    last: int
    lines: list[bytes] = field(default_factory=list)
    cut: dict[int, int] = field(default_factory=dict)
    """Bytes left out of a line, by its place in `lines`."""
    held: int = 0
    total: int = 0
    crlf: int = 0
    ended: bool = True

    def take(self, piece: bytes) -> None:
        """Pieces of at most one line, in order."""
        starts = self.ended
        self.total += starts
        self.ended = piece.endswith(b"\n")
        self.crlf += piece.endswith(b"\r\n")
        if not self.first <= self.total <= self.last or self.held > 4 * MAX_TEXT_BYTES:
            return
        if starts:
            self.lines.append(b"")
        line = self.lines[-1] + piece[: 4 * MAX_LINE_CHARACTERS + 4 - len(self.lines[-1])]
        left_out = len(self.lines[-1]) + len(piece) - len(line)
        self.held += len(line) - len(self.lines[-1])
        self.lines[-1] = line
        if left_out:
            at = len(self.lines) - 1
            self.cut[at] = self.cut.get(at, 0) + left_out


def _shown(relative: str, file: BufferedReader, size: int, offset: int, limit: int) -> ToolSucceeded | ToolFailed:
    head = file.read(8192)
    file.seek(0)
    wide = head.startswith((b"\xff\xfe", b"\xfe\xff")) and size <= MAX_DECODED_BYTES
    if b"\0" in head and not wide:
        digest = Digest(hashlib.file_digest(file, "sha256").hexdigest())
        text = f"{relative} is binary ({size:,} bytes). It begins:\n{_hex_lines(head[:256])}"
        return ToolSucceeded(text=text, seen=(FileSeen(path=relative, digest=digest),))
    window = _Window(offset, offset + limit - 1)
    digest = _fill(window, file, wide)
    seen = (FileSeen(path=relative, digest=digest),)
    if window.total == 0:
        return ToolSucceeded(text=f"{relative} is empty.", seen=seen)
    if not window.lines:
        return ToolFailed(text=f"{relative} has only {window.total:,} lines; offset {offset} is beyond its end.")
    return ToolSucceeded(text=_numbered(window, wide), seen=seen)


def _fill(window: _Window, file: BufferedReader, wide: bool) -> Digest:
    if wide:
        whole = file.read()
        text = whole.decode("utf-16", "replace").encode("utf-8", "replace")
        for line in _lines(text):
            window.take(line)
        return Digest(hashlib.sha256(whole).hexdigest())
    hashed = hashlib.sha256()
    while piece := file.readline(_PIECE):
        hashed.update(piece)
        window.take(piece)
    return Digest(hashed.hexdigest())


def _lines(text: bytes) -> list[bytes]:
    *whole, last = text.split(b"\n")
    return [line + b"\n" for line in whole] + ([last] if last else [])


def _numbered(window: _Window, wide: bool) -> str:
    found: dict[str, int] = {}
    shown: list[str] = []
    size = broken = 0
    for at, raw in enumerate(window.lines):
        text, bad = _decoded(raw, first=window.first + at == 1, cut=at in window.cut)
        revealed = reveal(_shortened(text, window.cut.get(at, 0)))
        line = f"{window.first + at:>6}\t{revealed.text}"
        size += len(line.encode()) + 1
        if size > MAX_TEXT_BYTES and shown:
            break
        broken += bad
        shown.append(line)
        for name, count in revealed.found.items():
            found[name] = found.get(name, 0) + count
    notes = [_where(window, len(shown)), _about_bytes(window, broken, wide), note(found)]
    return "\n".join([*shown, *filter(None, notes)])


def _decoded(raw: bytes, *, first: bool, cut: bool) -> tuple[str, bool]:
    """(text without the line end, whether bytes were not UTF-8). A character cut in two at the end is no fault."""
    line = raw.removesuffix(b"\n").removesuffix(b"\r")
    if first:
        line = line.removeprefix(b"\xef\xbb\xbf")
    if cut:
        return line.decode("utf-8", "ignore" if _is_cut_utf8(line) else "replace"), not _is_cut_utf8(line)
    try:
        return line.decode(), False
    except UnicodeDecodeError:
        return line.decode("utf-8", "replace"), True


def _is_cut_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data" and error.start >= len(line) - 3
    return True


def _shortened(text: str, left_out: int) -> str:
    if len(text) <= MAX_LINE_CHARACTERS and not left_out:
        return text
    rest = len(text[MAX_LINE_CHARACTERS:].encode()) + left_out
    return f"{text[:MAX_LINE_CHARACTERS]} [… {rest:,} bytes of this line are not shown]"


def _where(window: _Window, shown: int) -> str:
    last = window.first + shown - 1
    if window.first == 1 and last == window.total:
        return ""
    more = f"; go on with offset={last + 1}" if last < window.total else ""
    return f"[lines {window.first:,} to {last:,} of {window.total:,}{more}]"


def _about_bytes(window: _Window, broken: int, wide: bool) -> str:
    if wide:
        return "[UTF-16, shown as text; edit does not change it]"
    if broken:
        return f"[not UTF-8: in {broken:,} of these lines � stands for other bytes]"
    if window.crlf:
        return "[CRLF line ends]" if window.crlf >= window.total - 1 else "[some lines end with CRLF, some with LF]"
    return ""


def _hex_lines(data: bytes) -> str:
    rows = [data[i : i + 16] for i in range(0, len(data), 16)]
    return "\n".join(
        f"{16 * i:08x}  {row.hex(' '):<47}  {''.join(chr(b) if 32 <= b < 127 else '.' for b in row)}"
        for i, row in enumerate(rows)
    )


def _listing(worktree: Path, relative: str, arguments: ReadArguments) -> ToolSucceeded | ToolFailed:
    names = _entries(worktree, relative)
    first = (arguments.offset or 1) - 1
    shown = names[first : first + min(arguments.limit or MAX_ENTRIES, MAX_ENTRIES)]
    if not names:
        return ToolSucceeded(text=f"{relative}/ is empty.")
    if not shown:
        return ToolFailed(text=f"{relative}/ has only {len(names):,} entries; offset {first + 1} is beyond its end.")
    left = len(names) - first - len(shown)
    more = [f"[{left:,} more; go on with offset={first + len(shown) + 1}]"] if left else []
    return ToolSucceeded(text="\n".join([f"{relative}/", *(f"  {reveal(name).text}" for name in shown), *more]))


def _entries(worktree: Path, relative: str) -> list[str]:
    """Names in a folder, sorted, folders with `/`, links with `@`. Raises PathError, OSError."""
    with open_parent(worktree, f"{relative}/_") as (folder, _), os.scandir(folder) as entries:
        found = [(entry.name, entry.is_symlink(), entry.is_dir(follow_symlinks=False)) for entry in entries]
    return [
        os.fsencode(name).decode("utf-8", "replace") + ("@" if link else "/" if is_folder else "")
        for name, link, is_folder in sorted(found)
    ]


def _similar(worktree: Path, relative: str) -> str:
    """The nearest folder that exists with names like the missing one, as the rest of a sentence."""
    path = PurePosixPath(relative)
    for parent in path.parents:
        try:
            names = [name.rstrip("/@") for name in _entries(worktree, str(parent))]
        except (PathError, OSError):
            continue
        wanted = path.relative_to(parent).parts[0]
        lower = {name.lower(): name for name in reversed(names)}
        close = difflib.get_close_matches(wanted.lower(), list(lower), n=3, cutoff=0.5)
        place = "" if str(parent) == "." else f"{parent}/"
        if close:
            return f"; there is {', '.join(place + lower[name] for name in close)}"
        return f"; nor does {place}{wanted}" if len(path.relative_to(parent).parts) > 1 else "; look with glob"
    return ""
