"""Read a unified diff, plain or as git writes it. Pure."""

import re

from agent.tools.operations import AddFile, BadPatch, DeleteFile, FileOperation, Hunk, Sign, UpdateFile, signed

_HEADER = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_NO_FILE = "/dev/null"


class _Section:
    """What the headers of one file say, and its hunks."""

    def __init__(self) -> None:
        self.old: str | None = None
        self.new: str | None = None
        self.rename_from: str | None = None
        self.rename_to: str | None = None
        self.git_line: str = ""
        self.old_mode: str | None = None
        self.new_mode: str | None = None
        self.created = self.deleted = False
        self.hunks: list[Hunk] = []

    @property
    def begun(self) -> bool:
        return bool(self.git_line or self.old is not None)


def parse_unified(lines: list[str]) -> list[FileOperation]:
    """Raises BadPatch."""
    sections: list[_Section] = []
    current = _Section()
    at = 0
    while at < len(lines):
        line = lines[at]
        if line.startswith("diff --git "):
            sections.append(current)
            current = _Section()
            current.git_line = line.removeprefix("diff --git ")
        elif _names_files(lines, at):
            if current.old is not None:
                sections.append(current)
                current = _Section()
            current.old, current.new = _name(line[4:]), _name(lines[at + 1][4:])
            at += 1
        elif line.startswith("@@ "):
            hunk, at = _hunk(lines, at, current)
            current.hunks.append(hunk)
            continue
        else:
            _header(line, current)
        at += 1
    return [_operation(section) for section in [*sections, current] if section.begun]


def _names_files(lines: list[str], at: int) -> bool:
    return lines[at].startswith("--- ") and at + 1 < len(lines) and lines[at + 1].startswith("+++ ")


def _header(line: str, section: _Section) -> None:
    key, _, value = line.partition(" ")
    match key, value.split(" "):
        case "rename", ["from", *_]:
            section.rename_from = _name(value.removeprefix("from "))
        case "rename", ["to", *_]:
            section.rename_to = _name(value.removeprefix("to "))
        case "new", ["file", "mode", mode]:
            section.created, section.new_mode = True, mode
        case "new", ["mode", mode]:
            section.new_mode = mode
        case "old", ["mode", mode]:
            section.old_mode = mode
        case "deleted", ["file", "mode", *_]:
            section.deleted = True
        case "GIT", _:
            raise BadPatch("The patch holds binary changes, which are not applied.")
        case "Binary", ["files", *_]:
            raise BadPatch("The patch holds binary changes, which are not applied.")
        case "copy", _:
            raise BadPatch("The patch copies a file; add the new file with its content instead.")
        case _:
            return


def _hunk(lines: list[str], at: int, section: _Section) -> tuple[Hunk, int]:
    match = _HEADER.match(lines[at])
    if match is None or section.old is None:
        what = "stands before any file name" if match else "has no line numbers"
        raise BadPatch(f"The hunk header {lines[at][:80]!r} {what}.")
    start, old_left = int(match[1]), int(match[2] or 1)
    new_left = int(match[4] or 1)
    path = section.new if section.new not in {None, _NO_FILE} else section.old
    body: list[tuple[Sign, str]] = []
    unended = {"-": False, "+": False}
    at += 1
    while at < len(lines) and not _ends_hunk(lines, at, old_left > 0 or new_left > 0):
        line = lines[at]
        at += 1
        if line.startswith("\\"):
            for side in body[-1][0].replace(" ", "-+") if body else "":
                unended[side] = True
            continue
        sign, text = signed(path or "", line)
        old_left -= sign != "+"
        new_left -= sign != "-"
        body.append((sign, text))
    if not body:
        raise BadPatch(f"The hunk {match[0]} for {path} has no lines.")
    return Hunk(tuple(body), start=start, old_unended=unended["-"], new_unended=unended["+"]), at


def _ends_hunk(lines: list[str], at: int, expected: bool) -> bool:
    """`expected`: by the counts of the header there are more lines. They are often wrong, so only hints."""
    line = lines[at]
    if line.startswith(("@@ ", "diff --git ", "```")):
        return True
    if line.startswith("\\"):
        return False
    if expected:
        return not line and not any(rest.strip() for rest in lines[at:])
    return line[:1] not in {" ", "-", "+"} or _names_files(lines, at) or line == "-- "


def _name(text: str) -> str:
    if text.startswith('"'):
        return _unquoted(text[1 : text.rindex('"')] if text.count('"') > 1 else text[1:])
    return text.split("\t", maxsplit=1)[0].rstrip()


def _unquoted(text: str) -> str:
    """git quotes a name as C does, with octal bytes."""
    raw = bytearray()
    for piece in re.findall(r"\\[0-7]{3}|\\.|[^\\]+", text):
        if len(piece) == 4 and piece[0] == "\\" and piece[1:].isdigit():
            raw.append(int(piece[1:], 8) & 0xFF)
        elif piece[0] == "\\":
            raw += (_ESCAPES.get(piece[1]) or piece[1]).encode()
        else:
            raw += piece.encode()
    return raw.decode("utf-8", "replace")


def _operation(section: _Section) -> FileOperation:
    old, new = _without_prefix(section)
    executable = section.new_mode == "100755" if section.new_mode else None
    if section.new_mode in {"120000", "160000"} or section.old_mode in {"120000", "160000"}:
        raise BadPatch(f"The patch makes {new} a symbolic link or submodule, which is not applied.")
    if section.created or old == _NO_FILE:
        return AddFile(new, _content(section, new), bool(executable))
    if section.deleted or new == _NO_FILE:
        return DeleteFile(old)
    if not section.hunks and old == new and executable is None:
        raise BadPatch(f"The patch for {new} has no changed lines.")
    return UpdateFile(old, tuple(section.hunks), new if new != old else None, executable)


def _without_prefix(section: _Section) -> tuple[str, str]:
    """Names of the old and the new file, without the a/ and b/ that git puts before them."""
    if section.rename_from and section.rename_to:
        return section.rename_from, section.rename_to
    old, new = section.old, section.new
    if old is None or new is None:
        found = re.fullmatch(r'"?a/(.+?)"? "?b/(\1)"?', section.git_line)
        if found is None:
            raise BadPatch(f"The file names of the patch cannot be told: {section.git_line[:120]!r}.")
        name = _unquoted(found[1]) if section.git_line.startswith('"') else found[1]
        return name, name
    if old.startswith("a/") and new == _NO_FILE:
        old = old[2:]
    elif new.startswith("b/") and old == _NO_FILE:
        new = new[2:]
    elif old.startswith("a/") and new.startswith("b/"):
        old, new = old[2:], new[2:]
    if not old or not new or (old == new == _NO_FILE):
        raise BadPatch("The patch names no file.")
    return old, new


def _content(section: _Section, path: str) -> str:
    if any(sign != "+" for hunk in section.hunks for sign, _ in hunk.lines):
        raise BadPatch(f"The patch adds {path} but has lines that do not begin with '+'.")
    text = "".join(f"{line}\n" for hunk in section.hunks for _, line in hunk.lines)
    return text[:-1] if section.hunks and section.hunks[-1].new_unended else text
