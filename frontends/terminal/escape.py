"""Text from outside, made safe to print: a repository, a tool or a model never moves the cursor or hides a word."""

import re
import unicodedata

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_INVISIBLE = re.compile("[\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]")


def safe(text: str) -> str:
    """Control characters (not line feed and tab), invisible ones and bytes that are no text are shown as `<U+001B>`."""
    return _INVISIBLE.sub(_name, _CONTROL.sub(_name, text))


def safe_line(text: str) -> str:
    """The same on one line: line feeds and tabs are shown too."""
    return safe(text).replace("\n", "\\n").replace("\t", "\\t")


def shorten(text: str, width: int) -> str:
    """At most `width` columns; says that something was left out."""
    columns = 0
    for index, letter in enumerate(text):
        columns += 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        if columns > width:
            return text[: max(index - 1, 0)] + "…"
    return text


def _name(match: re.Match[str]) -> str:
    return f"<U+{ord(match.group()):04X}>"
