"""What a patch asks for, as data: files to add, delete or update, and the hunks of an update. Pure."""

from dataclasses import dataclass
from typing import Literal

Sign = Literal[" ", "-", "+"]
_SIGNS: dict[str, Sign] = {" ": " ", "-": "-", "+": "+"}


@dataclass(frozen=True, slots=True)
class Hunk:
    lines: tuple[tuple[Sign, str], ...]
    """Without line ends."""
    anchors: tuple[str, ...] = ()
    """Lines that stand before the hunk, outermost first."""
    start: int | None = None
    """First old line, from 1; for a hunk without old lines the line after which it goes."""
    at_end: bool = False
    """Its last old line is the file's last."""
    old_unended: bool = False
    """The patch says that the old file has no final newline; the next field says it of the new one."""
    new_unended: bool = False

    @property
    def before(self) -> list[str]:
        return [text for sign, text in self.lines if sign != "+"]


@dataclass(frozen=True, slots=True)
class AddFile:
    path: str
    content: str
    executable: bool = False


@dataclass(frozen=True, slots=True)
class DeleteFile:
    path: str


@dataclass(frozen=True, slots=True)
class UpdateFile:
    path: str
    hunks: tuple[Hunk, ...]
    move_to: str | None = None
    executable: bool | None = None
    """None keeps the mode."""


FileOperation = AddFile | DeleteFile | UpdateFile


@dataclass(frozen=True, slots=True)
class NotAPatch:
    """Why it cannot be read; one sentence for the model."""

    text: str


class BadPatch(ValueError):
    """The message is a sentence; never leaves this package."""


def signed(path: str, line: str) -> tuple[Sign, str]:
    sign = _SIGNS.get(line[:1] or " ")
    if sign is None:
        raise BadPatch(f"A line of the patch for {path} begins with neither ' ', '-' nor '+': {line[:80]!r}.")
    return sign, line[1:]
