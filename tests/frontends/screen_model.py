"""What a person sees: a small terminal that obeys the sequences it knows and takes any other one for a mistake."""

import re
import unicodedata
from dataclasses import dataclass, field

_PIECE = re.compile("\x1b\\[([?0-9;]*)([A-Za-z])|([\r\n\t])|([^\x00-\x1f\x7f-\x9f])|(.)", re.DOTALL)
Row = list[str]
"""One text a column: a letter with its marks; the right half of a wide one is empty."""


@dataclass(slots=True)
class ScreenModel:
    """`rows` are all that was ever written, the last `height` of them are on the screen."""

    width: int = 80
    height: int = 24
    rows: list[Row] = field(default_factory=lambda: [[]])
    row: int = 0
    column: int = 0
    wraps: bool = True
    cursor: bool = True
    """Is to be seen."""
    _rest: str = ""

    @property
    def lines(self) -> list[str]:
        """All of them, without the empty ones at the end."""
        lines = ["".join(row).rstrip() for row in self.rows]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    @property
    def on_screen(self) -> list[str]:
        return self.lines[self._top :]

    @property
    def _top(self) -> int:
        return max(len(self.rows) - self.height, 0)

    def feed(self, text: str) -> None:
        """LF goes to the first column, as a terminal's line discipline has it. A sequence may come in two pieces."""
        text, self._rest = self._rest + text, ""
        if (cut := re.search("\x1b(\\[[?0-9;]*)?$", text)) is not None:
            text, self._rest = text[: cut.start()], cut.group()
        for number, name, end, letter, other in _PIECE.findall(text):
            assert not other, f"not to be sent to a terminal: {other!r}"
            if name:
                self._obey(number, name)
            elif letter:
                self._put(letter)
            elif end == "\r":
                self.column = 0
            elif end == "\t":
                self.column = min(self.column // 8 * 8 + 8, self.width - 1)
            else:
                self._down()

    def resize(self, width: int, height: int) -> None:
        """Lines that are too long now are wrapped; those that were wrapped stay so."""
        above: list[Row] = []
        for at, row in enumerate(self.rows):
            if at == self.row:
                self.row = len(above)
            trimmed = list(row)
            while trimmed and trimmed[-1] in ("", " "):
                trimmed.pop()
            above += [trimmed[start : start + width] for start in range(0, len(trimmed), width)] or [[]]
        self.rows, self.width, self.height = above, width, height

    def _obey(self, number: str, name: str) -> None:
        count = int(number or 1) if number.isdecimal() or not number else 0
        match name, number:
            case "A", _:
                self.row = max(self.row - count, self._top)
            case "B", _:
                self.row = min(self.row + count, len(self.rows) - 1)
            case "K", "":
                self._clear()
            case "J", "":
                self._clear()
                del self.rows[self.row + 1 :]
            case "h" | "l", "?7":
                self.wraps = name == "h"
            case "h" | "l", "?25":
                self.cursor = name == "h"
            case _:
                raise AssertionError(f"not to be sent to a terminal: {number}{name}")

    def _clear(self) -> None:
        """Behind a full row the cursor still stands on its last letter."""
        del self._row[min(self.column, self.width - 1) :]

    @property
    def _row(self) -> Row:
        return self.rows[self.row]

    def _put(self, letter: str) -> None:
        wide = 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if (unicodedata.combining(letter) or letter == "\u200d") and self.column:
            self._row[self.column - 1] += letter
            return
        if self.column + wide > self.width:
            if self.wraps:
                self._down()
            else:
                self.column = self.width - wide
        row = self._row
        row += [" "] * (self.column + wide - len(row))
        row[self.column : self.column + wide] = [letter, ""][:wide]
        self.column += wide

    def _down(self) -> None:
        self.row, self.column = self.row + 1, 0
        if self.row == len(self.rows):
            self.rows.append([])
