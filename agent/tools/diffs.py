"""What is told of an edit: a line for the model, a unified diff for people. Pure."""

import difflib
from collections.abc import Callable, Sequence

from agent.tools.edits import FileBytes, PlannedEdit
from agent.tools.invisible import reveal
from eventlog.effects import FileChange

MAX_DIFF_CHARACTERS = 20_000
_MAX_COMPARED_LINES = 2_000
_CONTEXT = 3
_MARGIN = 64 * 1024
"""Bytes in which the lines of context are looked for."""


def summary(changes: Sequence[FileChange]) -> str:
    """`Edited a.py, created b.py.`"""
    words = [f"{_verb(change.before is not None, change.after is not None)} {change.path}" for change in changes]
    text = ", ".join(words)
    return f"{text[:1].upper()}{text[1:]}."


def describe(planned: PlannedEdit) -> str:
    """As `summary`, with the lines added and removed."""
    counts = [_count(change) for change in planned.changes]
    added, removed = (sum(count[i] for count in counts) for i in (0, 1))
    return f"{summary(planned.intent)} (+{added} -{removed} lines)"


def unified(planned: PlannedEdit) -> str:
    """At most MAX_DIFF_CHARACTERS; invisible characters are shown."""
    text = "".join(_file_diff(change) for change in planned.changes)
    if len(text) > MAX_DIFF_CHARACTERS:
        text = f"{text[:MAX_DIFF_CHARACTERS]}\n[… the rest of the diff is not shown]\n"
    return reveal(text).text


def _verb(was: bool, is_now: bool) -> str:
    if not is_now:
        return "deleted"
    return "edited" if was else "created"


def _count(change: FileBytes) -> tuple[int, int]:
    _, _, old, new = _changed(change)
    return len(new), len(old)


def _changed(change: FileBytes) -> tuple[int, int, list[bytes], list[bytes]]:
    """(bytes before the first changed line, bytes after the last, old lines, new lines)."""
    old, new = change.before or b"", change.after or b""
    same = _equal_bytes(min(len(old), len(new)), lambda low, high: old[low:high] == new[low:high])
    first = old.rfind(b"\n", 0, same) + 1
    left = min(len(old), len(new)) - first
    end, other = len(old), len(new)
    same = _equal_bytes(left, lambda low, high: old[end - high : end - low] == new[other - high : other - low])
    at_line = old.find(b"\n", len(old) - same)
    last = len(old) - at_line - 1 if at_line >= 0 and same else 0
    if same == left and _starts_line(old, len(old) - same) and _starts_line(new, len(new) - same):
        last = same
    return first, last, _lines(old[first : len(old) - last]), _lines(new[first : len(new) - last])


def _starts_line(content: bytes, at: int) -> bool:
    return at == 0 or content[at - 1 : at] == b"\n"


def _equal_bytes(most: int, equal: Callable[[int, int], bool]) -> int:
    """How many bytes are equal, compared in slices that get shorter: far quicker than byte by byte."""
    size, step = 0, 1 << 20
    while step:
        while size + step <= most and equal(size, size + step):
            size += step
        step >>= 1
    return size


def _lines(content: bytes) -> list[bytes]:
    *whole, last = content.split(b"\n")
    return [line + b"\n" for line in whole] + ([last] if last else [])


def _file_diff(change: FileBytes) -> str:
    before = "/dev/null" if change.before is None else f"a/{change.path}"
    after = "/dev/null" if change.after is None else f"b/{change.path}"
    head = f"--- {before}\n+++ {after}\n"
    if any(b"\0" in content[:8192] for content in (change.before, change.after) if content):
        return f"{head}[binary]\n"
    first, last, old, new = _changed(change)
    was = change.before or b""
    number = was.count(b"\n", 0, first)
    if len(old) + len(new) > _MAX_COMPARED_LINES:
        return f"{head}[{len(old)} lines replaced by {len(new)}, from line {number + 1}]\n"
    before_it = _lines(was[max(0, first - _MARGIN) : first])[-_CONTEXT:]
    after_it = _lines(was[len(was) - last :][:_MARGIN])[:_CONTEXT]
    lead, tail = [_shown(line) for line in before_it], [_shown(line) for line in after_it]
    old_lines = [*lead, *map(_shown, old), *tail]
    new_lines = [*lead, *map(_shown, new), *tail]
    body = list(difflib.unified_diff(old_lines, new_lines, n=_CONTEXT, lineterm="\n"))[2:]
    return head + "".join(_moved(line, number - len(lead)) for line in body)


def _shown(line: bytes) -> str:
    text = line[:2000].decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
    mark = "" if line.endswith(b"\n") else "\n\\ No newline at end of file"
    return f"{text}{mark}\n"


def _moved(line: str, by: int) -> str:
    """A hunk header counted from the file's first line."""
    if not line.startswith("@@ "):
        return line
    parts = line.split(" ")
    for i in (1, 2):
        number, _, size = parts[i][1:].partition(",")
        parts[i] = f"{parts[i][0]}{int(number) + by}{',' + size if size else ''}"
    return " ".join(parts)
