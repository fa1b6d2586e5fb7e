"""Put the hunks of a patch into a file's bytes: all of them or none. Line ends and untouched lines are kept. Pure."""

from collections.abc import Callable, Sequence

from agent.tools.matching import NotReplaced, end_of, nearest_lines, usual_end
from agent.tools.operations import Hunk

_Key = Callable[[str], str]


def apply_hunks(content: bytes, hunks: Sequence[Hunk]) -> bytes | NotReplaced:
    """Context has to match exactly, or else but for spaces at line ends, and in one place only."""
    *whole, last = content.split(b"\n")
    lines = [line + b"\n" for line in whole] + ([last] if last else [])
    usual = usual_end([end_of(line) for line in lines[:1000]]) or b"\n"
    result: list[bytes] = []
    done = 0
    for number, hunk in enumerate(hunks, 1):
        place = _find(lines, hunk, done)
        if isinstance(place, str):
            near = nearest_lines(content, "\n".join(hunk.before)) if hunk.before else ""
            return NotReplaced(f"does not take hunk {number}: {place}{f'; the nearest: {near}' if near else ''}")
        result += lines[done:place]
        done = place + len(hunk.before)
        result += _rewritten(lines[place:done], hunk, usual)
        if done == len(lines):
            result = _ended(result, hunk, usual, content.endswith(b"\n") or not content)
    return b"".join([*result, *lines[done:]])


def _find(lines: list[bytes], hunk: Hunk, first: int) -> int | str:
    """Index of the hunk's first old line, or why there is none."""
    for anchor in hunk.anchors:
        found = next((i for i in range(first, len(lines)) if _text(lines[i]).strip() == anchor), None)
        if found is None:
            return f'no line reads "{anchor[:200]}" there'
        first = found
    wanted = hunk.before
    if not wanted:
        return _insertion(lines, hunk, first)
    for key in _KEYS:
        places = _places(lines, wanted, first, key, hunk.at_end)
        if not places:
            continue
        if hunk.start is not None and hunk.start - 1 in places:
            return hunk.start - 1
        if len(places) == 1 or hunk.anchors:
            return places[0]
        numbers = ", ".join(str(place + 1) for place in places[:5])
        return f"its lines are there {len(places)} times (lines {numbers}); give more context or an @@ line"
    return "its context and removed lines are not in the file in this order"


def _insertion(lines: list[bytes], hunk: Hunk, first: int) -> int:
    if hunk.start is not None:
        return min(max(hunk.start, first), len(lines))
    return min(first + 1, len(lines)) if hunk.anchors and not hunk.at_end else len(lines)


def _places(lines: list[bytes], wanted: list[str], first: int, key: _Key, at_end: bool) -> list[int]:
    keys = [key(_text(line)) for line in lines[first:]]
    target = [key(line) for line in wanted]
    size = len(target)
    starts = [len(keys) - size] if at_end else range(len(keys) - size + 1)
    return [first + i for i in starts if i >= 0 and keys[i] == target[0] and keys[i : i + size] == target]


def _text(line: bytes) -> str:
    """Bytes that are not UTF-8 stay different from all that a patch can say."""
    return line.decode("utf-8", "surrogateescape").removesuffix("\n")


def _exact(line: str) -> str:
    return line.removesuffix("\r")


_KEYS: tuple[_Key, ...] = (_exact, str.rstrip)


def _rewritten(region: list[bytes], hunk: Hunk, usual: bytes) -> list[bytes]:
    """An added line takes the end of the removed line that it replaces, else what is usual around it."""
    fallback = usual_end([end_of(line) for line in region]) or usual
    result: list[bytes] = []
    freed: list[bytes] = []
    at = 0
    for sign, text in hunk.lines:
        match sign:
            case " ":
                result.append(region[at])
                freed.clear()
                at += 1
            case "-":
                freed.append(end_of(region[at]))
                at += 1
            case "+":
                end = (freed.pop(0) if freed else b"") or fallback
                result.append(text.encode() + (b"\n" if text.endswith("\r") else end))
    return result


def _ended(lines: list[bytes], hunk: Hunk, usual: bytes, was_ended: bool) -> list[bytes]:
    """The end of the file: as the patch says, else with or without a final newline as it was."""
    closed = [line if end_of(line) or i == len(lines) - 1 else line + usual for i, line in enumerate(lines)]
    if not closed or (hunk.lines[-1][0] != "+" and not (hunk.old_unended or hunk.new_unended)):
        return closed
    last = closed[-1]
    bare = last[: len(last) - len(end_of(last))]
    if hunk.new_unended or (not was_ended and not hunk.old_unended):
        closed[-1] = bare
    elif not end_of(last):
        closed[-1] = bare + usual
    return closed
