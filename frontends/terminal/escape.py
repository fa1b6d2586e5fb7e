"""Text from outside, made safe to print: a repository, a tool or a model never moves the cursor or hides a word."""

import re
import unicodedata
from functools import lru_cache

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_INVISIBLE = re.compile("[\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]")


def safe(text: str) -> str:
    """Control characters (not line feed and tab), invisible ones and bytes that are no text are shown as `<U+001B>`."""
    return _INVISIBLE.sub(_name, _CONTROL.sub(_name, text))


def safe_line(text: str) -> str:
    """The same on one line: line feeds and tabs are shown too."""
    return safe(text).replace("\n", "\\n").replace("\t", "\\t")


def columns(text: str) -> int:
    """How wide a terminal shows a line of safe text."""
    return len(text) if text.isascii() else sum(map(_columns, text))


@lru_cache(4096)
def _columns(letter: str) -> int:
    if unicodedata.east_asian_width(letter) in "WF":
        return 2
    # A mark stands over the letter before it, and a joiner between two.
    return 0 if unicodedata.category(letter) in ("Mn", "Me") or letter in "\u200c\u200d" else 1


def shorten(text: str, width: int) -> str:
    """At most `width` columns, which is 1 at least; says that something was left out."""
    if text.isascii():
        return text if len(text) <= width else text[: width - 1] + "…"
    used = end = 0
    for index, letter in enumerate(text):
        used += _columns(letter)
        if used > width:
            return text[:end] + "…"
        if used < width:
            end = index + 1
    return text


def _name(match: re.Match[str]) -> str:
    return f"<U+{ord(match.group()):04X}>"
