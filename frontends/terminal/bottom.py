"""The last lines of a terminal, drawn in place: what is written otherwise goes above them and scrolls away."""

import codecs
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from frontends.terminal.escape import columns

_REST, _BELOW = "\x1b[K", "\x1b[J"
"""Clear from the cursor to the end of the line, of the screen."""
_HIDE, _SHOW = "\x1b[?25l", "\x1b[?25h"
_CLIP, _WRAP = "\x1b[?7l", "\x1b[?7h"
"""A letter that this terminal shows wider than others do is cut off, and moves no line."""


def can_redraw(out: TextIO, variables: Mapping[str, str]) -> bool:
    """Whether it is a terminal that knows the sequences above, and all letters: one that stands there as `\\u2026`
    takes more columns than it was given."""
    if not out.isatty() or variables.get("TERM", "") in ("", "dumb"):
        return False
    return codecs.lookup(out.encoding or "ascii").name == "utf-8"


def size_of(out: TextIO) -> tuple[int, int]:
    """Columns and rows; where it does not say, those of most."""
    size = os.get_terminal_size(out.fileno())
    return size.columns or 80, size.lines or 24


class Bottom:
    """Between two calls the cursor is to be seen, in the first column below the lines, and long lines wrap: whoever
    kills the program, or stops it for a while, has a terminal as it should be."""

    def __init__(self, out: TextIO, size: Callable[[], tuple[int, int]]) -> None:
        """`size`: columns and rows of the terminal as it is at the call."""
        self.lines: Sequence[str] = ()
        """What is to stand there; each has fewer columns than the terminal."""
        self._out, self._size = out, size
        self._shown: list[str] = []
        self._width = 0
        """Of the terminal, when they were drawn."""
        self._open = False
        """What was written last does not end its line; until it does, nothing stands below it."""

    @property
    def shown(self) -> bool:
        return bool(self._shown)

    @property
    def size(self) -> tuple[int, int]:
        return self._size()

    def write(self, text: str) -> None:
        """Above the lines, which are up to date afterwards."""
        if not text:
            return
        self._open = not text.endswith("\n")
        if self._shown or (self.lines and not self._open):
            self._put(self._above(text) + self._all())
        else:
            self._out.write(text)
            self._out.flush()

    def draw(self) -> None:
        """What has changed of the lines; all where the terminal has another width than before."""
        if self._open:
            return
        width, _ = self.size
        if self._shown and width != self._width:
            self._put(_move(-self._rows(width)) + _BELOW + self._all())
        else:
            self._width = width
            self._put(self._changes())

    def forget(self) -> None:
        """Somebody else wrote to the terminal: what stands there stays, and the lines are drawn anew below."""
        self._shown = []

    def _above(self, text: str) -> str:
        width, _ = self.size
        back = _move(-self._rows(width)) if self._shown else ""
        lines = text.split("\n")
        if self._open or any("\t" in line or columns(line) >= width for line in lines):
            return back + (_BELOW if self._shown else "") + text
        # Written over what stands there: nothing is away for a moment.
        return back + "".join(f"{line}{_REST}\n" for line in lines[:-1])

    def _all(self) -> str:
        self._width, _ = self.size
        self._shown = [] if self._open else list(self.lines)
        lines = "".join(f"{line}{_REST}\n" for line in self._shown)
        return "" if self._open else f"{_CLIP}{lines}{_BELOW}{_WRAP}"

    def _changes(self) -> str:
        """The cursor goes from below the old lines to each that is not the same, and to below the new ones."""
        old, new = self._shown, list(self.lines)
        self._shown = new
        at, text = len(old), ""
        for row, line in enumerate(new[: len(old)]):
            if line != old[row]:
                text += f"{_move(row - at)}{line}{_REST}"
                at = row
        more = "".join(f"{line}{_REST}\n" for line in new[len(old) :])
        if at != min(len(old), len(new)):
            text += _move(min(len(old), len(new)) - at)
        elif more:
            text += "\r"
        text += more + (_BELOW if len(new) < len(old) else "")
        return f"{_CLIP}{text}{_WRAP}" if text else ""

    def _rows(self, width: int) -> int:
        """That the lines take: those that have become too long for the terminal were wrapped by it."""
        return sum(max(-(-columns(line) // width), 1) for line in self._shown)

    def _put(self, text: str) -> None:
        if text:
            # In one piece, or the cursor would be seen on its way.
            self._out.write(f"{_HIDE}{text}{_SHOW}")
            self._out.flush()


def _move(rows: int) -> str:
    """To the first column, so many rows down."""
    return "\r" if rows == 0 else f"\r\x1b[{abs(rows)}{'B' if rows > 0 else 'A'}"
