"""Instruction files for the model: the user's own, then AGENTS.md (else CLAUDE.md) of each folder down to the work.

Pure over a read function; `reader` is the one for the disk."""

import os
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from agent.permissions.paths import PathError, locate, open_inside
from agent.tools.invisible import reveal

NAMES = ("AGENTS.md", "CLAUDE.md")
MAX_BYTES = 32 * 1024

Read = Callable[[str], bytes | None]
"""Of a path relative to the root the first bytes, one more than MAX_BYTES if there are; None where there is no file."""


def collect(root: Path, cwd: Path, read: Read, user: tuple[str, bytes] | None = None) -> str:
    """The texts under headers that name their origin, the most general first; empty where there is none.

    `root` and `cwd` are real paths; a `cwd` elsewhere counts as the root. `user`: name and content of the user's file.
    """
    sections = [_section(*user)] if user is not None else []
    for folder in _folders(root, cwd):
        for name in NAMES:
            path = name if folder == "." else f"{folder}/{name}"
            content = read(path)
            if content is not None and content.strip():
                sections.append(_section(path, content))
                break
    return "\n\n".join(sections)


def reader(root: Path) -> Read:
    """Reads below `root`. A link is followed if it leads to a file inside; all else counts as no file."""

    def read(path: str) -> bytes | None:
        facts = locate(root, path)
        if facts.relative is None:
            return None
        try:
            with os.fdopen(open_inside(root, facts.relative, os.O_RDONLY), "rb") as file:
                return file.read(MAX_BYTES + 1)
        except (PathError, OSError):
            return None

    return read


def _folders(root: Path, cwd: Path) -> list[str]:
    if not cwd.is_relative_to(root):
        return ["."]
    inner = PurePosixPath(cwd.relative_to(root).as_posix())
    return [str(folder) for folder in reversed([inner, *inner.parents])]


def _section(origin: str, content: bytes) -> str:
    shown = reveal(content[:MAX_BYTES].decode("utf-8", "replace").removeprefix("\ufeff").replace("\r\n", "\n"))
    notes = [f"[cut after {MAX_BYTES:,} bytes]"] if len(content) > MAX_BYTES else []
    notes += [shown.note] if shown.note else []
    return "\n".join([f"# Instructions from {origin}", "", shown.text.strip(), *notes])
