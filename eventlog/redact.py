"""Secrets leave a text before it is stored: known values in any usual encoding, and shapes that keys have.

A marker keeps eight digits of the value's hash, so that equal secrets stay equal."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from typing import NamedTuple
from urllib.parse import quote, quote_plus

_MARKER = re.compile(r"\[redacted:[0-9a-f]{8}\]")
SHORTEST = 8
"""Characters. Shorter values are words that would be cut out everywhere."""

_EDGE = r"(?:(?<![A-Za-z0-9])|(?<=\\[bfnrt])|(?<=\\u[0-9A-Fa-f]{4})|(?<=%[0-9A-Fa-f]{2})|(?<=[0-9\[]m))"
"""Where a key may begin whose first letters also end words ("task-"): not inside a word. The letter of an escaped line
break, the digits of a percent code and the end of a colour code are no words."""

_PEM = (
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----"
    r"(?:(?:[^-]|-(?!----)){0,20000}+-----END [A-Z ]{0,40}PRIVATE KEY-----"
    r"|(?:(?:\\[nr]|\s)*+[A-Za-z0-9+/=]{30,}+)++)"  # Its end was cut off.
)


class _Shape(NamedTuple):
    hints: tuple[str, ...]
    """A text with none of these holds no such key: a substring search is ten times cheaper than a pattern."""
    loose: re.Pattern[str]
    """Found in any JSON of a text in which `pattern` is found: it knows no edges, and escapes do not mislead it."""
    pattern: re.Pattern[str]
    """A group `secret` is what is cut out; without one, all of the match."""


def _shape(hints: str, pattern: str, loose: str | None = None) -> _Shape:
    return _Shape(tuple(hints.split("|")), re.compile(loose or pattern), re.compile(pattern))


_SHAPES = (
    # OpenAI, Anthropic, OpenRouter
    _shape(
        "sk-",
        rf"sk-(?:ant|proj|or-v1|svcacct|admin)-[A-Za-z0-9_-]{{20,}}|{_EDGE}sk-[A-Za-z0-9_-]{{20,}}",
        r"sk-[A-Za-z0-9_-]{20,}",
    ),
    _shape("gh", r"gh[pousr]_[A-Za-z0-9]{36,}"),
    _shape("github_pat_", r"github_pat_[A-Za-z0-9_]{22,}"),
    _shape("glpat-", r"glpat-[A-Za-z0-9_-]{20,}"),
    _shape("xox", r"xox[abprs]-[A-Za-z0-9-]{10,}"),
    _shape("AKIA|ASIA", rf"(?:{_EDGE}|(?<=[a-z]))(?:AKIA|ASIA)[A-Z0-9]{{16}}(?![A-Z0-9])", r"A[KS]IA[A-Z0-9]{16}"),
    _shape("AIza", r"AIza[A-Za-z0-9_-]{35}"),
    _shape("hf_", r"hf_[A-Za-z0-9]{30,}"),
    # JSON web token
    _shape("eyJ", r"eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    _shape("PRIVATE KEY", _PEM, "PRIVATE KEY-----"),
    _shape(
        "uthorization|UTHORIZATION",
        r"(?i:authorization)[\\\"']{0,4}\s{0,4}[:=]\s{0,4}[\\\"']{0,4}(?i:bearer|basic|token)\s{1,4}"
        r"(?P<secret>[A-Za-z0-9._~+/=-]{8,})",
        r"(?i:authorization).{1,60}?(?i:bearer|basic|token)",
    ),
    # user:password@host
    _shape(
        "://",
        r"://(?P<secret>[^\s/:@\"'\[]{0,64}:[^\s/@\"'\[]{3,128})(?=@[A-Za-z0-9.-])",
        r"://[^\s/@\"'\[]{4,1200}@",
    ),
)


_LOOSE = tuple((hint, shape.loose) for shape in _SHAPES for hint in shape.hints)


class Redactor:
    def __init__(self, values: Iterable[str] = ()) -> None:
        known = {form for value in values if len(value) >= SHORTEST for form in encodings(value)}
        longest_first = sorted(known, key=lambda form: (-len(form), form))
        self._known = re.compile("|".join(re.escape(form) for form in longest_first)) if known else None
        # Substring searches of a dozen forms cost less than one alternation of them.
        self._in_json = tuple({_as_json(form) for form in known})

    def suspects(self, text: str) -> bool:
        """Whether `clean` might change a string that stands in this JSON. Cheap, never wrong in saying no."""
        # Plain loops: every text passes here, and a generator costs as much as the search it wraps.
        for form in self._in_json:
            if form in text:
                return True
        for hint, loose in _LOOSE:  # noqa: SIM110 - as above
            if hint in text and loose.search(text) is not None:
                return True
        return False

    def clean(self, text: str) -> str:
        text = self.clean_known(text)
        for shape in _SHAPES:
            if _hinted(shape, text):
                text = shape.pattern.sub(_mark, text)
        return text

    def clean_known(self, text: str) -> str:
        """For a provider's opaque items: known values only, for random bytes may look like a key."""
        return self._known.sub(_mark, text) if self._known is not None else text


def has_marker(text: str) -> bool:
    return _MARKER.search(text) is not None


def markers(text: str) -> frozenset[str]:
    return frozenset(_MARKER.findall(text))


def encodings(value: str) -> set[str]:
    """The value itself, and as JSON (also inside a JSON text), URL and base64 (at each alignment) spell it."""
    raw = value.encode("utf-8", "surrogatepass")
    forms = {value, _as_json(value), _as_json(_as_json(value))}
    forms |= {json.dumps(value)[1:-1], _as_json(json.dumps(value)[1:-1])}
    for quoted in (quote(raw, safe=""), quote(raw), quote_plus(raw)):
        forms |= {quoted, re.sub("%[0-9A-F]{2}", lambda code: code.group().lower(), quoted)}
    for shift in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            text = encode(b"\0" * shift + raw).decode().rstrip("=")
            # The characters at both ends mix with the neighbours' bits.
            forms.add(text[(0, 2, 3)[shift] : len(text) - (0 if (shift + len(raw)) % 3 == 0 else 1)])
    return {form for form in forms if len(form) >= SHORTEST}


def _hinted(shape: _Shape, text: str) -> bool:
    return any(hint in text for hint in shape.hints)


def _as_json(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _mark(match: re.Match[str]) -> str:
    found = match.group()
    if _MARKER.fullmatch(found):
        return found
    secret = match["secret"] if match.re.groups else found
    mark = f"[redacted:{hashlib.sha256(secret.encode('utf-8', 'replace')).hexdigest()[:8]}]"
    # What stands before the secret stays, so that a reader sees what kind of line it was.
    return found[: match.start(1) - match.start()] + mark if match.re.groups else mark
