"""Read a patch as the model wrote it: the `*** Begin Patch` form or a unified diff. Pure; knows nothing of files.

Line numbers of hunk headers are taken as a hint, counts as far as they agree with the lines that follow."""

import re

from agent.tools.operations import AddFile, BadPatch, DeleteFile, FileOperation, Hunk, NotAPatch, UpdateFile, signed
from agent.tools.unified import parse_unified

_HEADER = re.compile(r"@@+ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@+")


def parse_patch(text: str) -> tuple[FileOperation, ...] | NotAPatch:
    """The operations in order, at least one. Text around the patch (a fence, a commit message) is passed over."""
    lines = text.split("\n")
    if any(line.endswith("\r") for line in lines) and all(line.endswith("\r") for line in lines if line):
        lines = [line.removesuffix("\r") for line in lines]
    begin = next((i for i, line in enumerate(lines) if line.strip() == "*** Begin Patch"), None)
    try:
        operations = _parse_sections(lines[begin + 1 :]) if begin is not None else parse_unified(lines)
    except BadPatch as error:
        return NotAPatch(str(error))
    if not operations:
        return NotAPatch("The patch changes no file; begin with *** Begin Patch, or send a unified diff.")
    return tuple(operations)


def _parse_sections(lines: list[str]) -> list[FileOperation]:
    operations: list[FileOperation] = []
    body: list[str] = []
    header = ""
    for line in [*lines, "*** End Patch"]:
        ends = line.strip() == "*** End Patch"
        if ends or line.startswith(("*** Update File: ", "*** Add File: ", "*** Delete File: ")):
            if header:
                operations.append(_section(header, body))
            elif any(text.strip() for text in body):
                raise BadPatch(f"The patch has a line before its first file header: {body[0][:80]!r}.")
            header, body = line, []
            if ends:
                break
        else:
            body.append(line)
    return operations


def _section(header: str, body: list[str]) -> FileOperation:
    kind, _, path = header.removeprefix("*** ").partition(" File: ")
    path = path.strip()
    if not path:
        raise BadPatch(f"The patch has a file header without a path: {header!r}.")
    match kind:
        case "Add":
            return _added(path, body)
        case "Delete":
            if any(line.strip() for line in body):
                raise BadPatch(f"Delete File: {path} is followed by lines; it takes none.")
            return DeleteFile(path)
        case _:
            return _updated(path, body)


def _added(path: str, body: list[str]) -> AddFile:
    while body and not body[-1].strip():
        body.pop()
    for number, line in enumerate(body, 1):
        if not line.startswith("+"):
            raise BadPatch(f"Line {number} of Add File: {path} does not begin with '+'.")
    return AddFile(path, "".join(f"{line[1:]}\n" for line in body))


def _updated(path: str, body: list[str]) -> UpdateFile:
    target = None
    if body and body[0].startswith("*** Move to: "):
        target = body.pop(0).removeprefix("*** Move to: ").strip() or None
    hunks: list[Hunk] = []
    anchors: list[str] = []
    lines: list[str] = []
    for line in [*body, "@@"]:
        if line.strip() == "*** End of File":
            hunks += as_hunks(path, lines, anchors, at_end=True)
            anchors, lines = [], []
        elif line == "@@" or line.startswith("@@ "):
            if lines:
                hunks += as_hunks(path, lines, anchors)
                anchors, lines = [], []
            # In this form a header names a line of the file; one with numbers says nothing that can be trusted.
            anchor = _HEADER.sub("", line).removeprefix("@@").strip().removesuffix("@@").strip()
            anchors += [anchor] if anchor else []
        else:
            lines.append(line)
    if not hunks and target is None:
        raise BadPatch(f"Update File: {path} has no changed lines.")
    return UpdateFile(path, tuple(hunks), target)


def as_hunks(path: str, lines: list[str], anchors: list[str], *, at_end: bool = False) -> list[Hunk]:
    """One hunk; none where there are only blank lines. A blank line in the middle is context that lost its space."""
    lines = list(lines)
    while lines and not lines[-1]:
        lines.pop()
    while lines and not lines[0]:
        lines.pop(0)
    if not lines:
        return []
    return [Hunk(tuple(signed(path, line) for line in lines), tuple(anchors), at_end=at_end)]
