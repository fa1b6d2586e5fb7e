"""Make characters visible that a reader does not see but a model may obey: bidi controls, tags, zero width.

Pure. What scripts and emoji need stays: joiners inside words and emoji, one variation selector, three flags."""

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

_JOINERS = "\u200c\u200d"
# Besides control and format characters (category Cc, Cf): fillers and selectors that show nothing.
_SUSPECTS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_CANCEL = "\U000e007f"
_FLAGS = tuple(
    "\U0001f3f4" + "".join(chr(0xE0000 + ord(letter)) for letter in region) + _CANCEL
    for region in ("gbeng", "gbsct", "gbwls")
)
_LONGEST_FLAG = max(map(len, _FLAGS))
# Scripts whose letters need a joiner: Arabic and its kin, the Indic ones, Khmer, Mongolian, presentation forms.
_JOINING = ((0x0600, 0x08FF), (0x0900, 0x109F), (0x1780, 0x18AF), (0xA840, 0xABFF), (0xFB50, 0xFDFF), (0xFE70, 0xFEFC))


@dataclass(frozen=True, slots=True)
class Revealed:
    text: str
    found: Mapping[str, int] = field(default_factory=dict)
    """How often each code point was made visible, as `U+202E`."""

    @property
    def note(self) -> str:
        """One line for the model; empty where nothing was found."""
        return note(self.found)


def reveal(text: str) -> Revealed:
    """Each invisible character as `<U+202E>`; tabs and line feeds stay."""
    if text.isascii() and text.isprintable():
        return Revealed(text)
    found: Counter[str] = Counter()

    def show(match: re.Match[str]) -> str:
        if _belongs(text, match.start()):
            return match.group()
        name = f"U+{ord(match.group()):04X}"
        found[name] += 1
        return f"<{name}>"

    return Revealed(_SUSPECTS.sub(show, text), found)


def note(found: Mapping[str, int]) -> str:
    if not found:
        return ""
    names = [f"{name} ({count})" for name, count in sorted(found.items())]
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"[invisible or control characters are shown as <U+…>: {shown}; the source holds the real ones]"


def _belongs(text: str, at: int) -> bool:
    letter = text[at]
    before = text[at - 1] if at else ""
    after = text[at + 1] if at + 1 < len(text) else ""
    if letter in _JOINERS:
        return _joins(before, after)
    if "\ufe00" <= letter <= "\ufe0f":
        return bool(before) and not before.isspace() and _SUSPECTS.match(before) is None
    if "\U000e0000" <= letter <= _CANCEL:
        start = text.rfind("\U0001f3f4", max(0, at - _LONGEST_FLAG), at)
        return start >= 0 and any(text.startswith(flag, start) and at < start + len(flag) for flag in _FLAGS)
    if "\U000e0100" <= letter <= "\U000e01ef":
        return "CJK UNIFIED" in unicodedata.name(before, "") if before else False
    return False


def _joins(before: str, after: str) -> bool:
    if not before or not after:
        return False
    if _is_joining(before):
        return _is_joining(after) or not after.isascii()
    return _is_emoji(before) and _is_emoji(after)


def _is_joining(letter: str) -> bool:
    return unicodedata.category(letter)[0] in "LM" and any(low <= ord(letter) <= high for low, high in _JOINING)


def _is_emoji(letter: str) -> bool:
    return unicodedata.category(letter) == "So" or letter == "\ufe0f" or "\U0001f3fb" <= letter <= "\U0001f3ff"
