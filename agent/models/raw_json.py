"""The text of a part of a JSON document as it was written: what must go back untouched is cut out, not written anew."""

import re
from collections.abc import Iterator
from json import JSONDecoder

_decoder = JSONDecoder()
_SPACE = re.compile(r"[ \t\r\n]*")


def raw_member(text: str, name: str) -> str:
    """The value under a name of an object. Of equal names the last counts, as for most parsers. Raises LookupError
    where there is none, ValueError and RecursionError for what cannot be read."""
    found = [value for key, value in _members(text) if key == name]
    if not found:
        raise LookupError(name)
    return found[-1]


def raw_elements(text: str) -> list[str]:
    """The elements of an array. Raises ValueError, RecursionError."""
    at, elements = _open(text, "["), list[str]()
    while text[at : at + 1] != "]":
        start, end = at, _decoder.raw_decode(text, at)[1]
        elements.append(text[start:end])
        at = _next(text, end, "]")
    return elements


def _members(text: str) -> Iterator[tuple[str, str]]:
    at = _open(text, "{")
    while text[at : at + 1] != "}":
        key, at = _decoder.raw_decode(text, at)
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise ValueError("a name without a value")
        start = _skip(text, at + 1)
        end = _decoder.raw_decode(text, start)[1]
        yield str(key), text[start:end]
        at = _next(text, end, "}")


def _open(text: str, bracket: str) -> int:
    at = _skip(text, 0)
    if text[at : at + 1] != bracket:
        raise ValueError(f"no {bracket}")
    return _skip(text, at + 1)


def _next(text: str, at: int, bracket: str) -> int:
    """Where the next element begins, or the bracket stands."""
    at = _skip(text, at)
    if text[at : at + 1] == ",":
        return _skip(text, at + 1)
    if text[at : at + 1] != bracket:
        raise ValueError(f"no {bracket}")
    return at


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found is not None else at
