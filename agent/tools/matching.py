"""Find and replace text in a file's bytes: line ends, encoding and everything around stay as they are. Pure."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from agent.tools.invisible import reveal

_NEWLINE = rb"(?:\r\n|(?<!\r)\n)"
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class NotReplaced:
    """Why not, as the rest of a sentence that begins with the file's name."""

    reason: str


def replace_text(content: bytes, old: str, new: str, replace_all: bool) -> bytes | NotReplaced:
    """`old` with line feeds matches CRLF lines too; new lines then end as the ones around them do.

    Without `replace_all` there must be one match, overlapping ones counted. An empty `old` fits an empty file alone.
    """
    if not old:
        return new.encode() if not content else NotReplaced("is not empty, so old_text must name what to replace")
    if not new.isascii() and not _is_utf8(content):
        return NotReplaced("is not UTF-8, so only ASCII text can be put into it")
    finder = _finder(old)
    spans = [match.span() for match in finder.finditer(content)]
    if not spans:
        return NotReplaced(f"does not hold old_text{_why_absent(content, old)}")
    second = finder.search(content, spans[0][0] + 1)
    if not replace_all and second is not None:
        return NotReplaced(_ambiguous(content, spans if len(spans) > 1 else [spans[0], second.span()]))
    pieces: list[bytes] = []
    done = 0
    for start, end in spans:
        pieces += (content[done:start], _in_place_of(content, start, end, old, new))
        done = end
    return b"".join([*pieces, content[done:]])


def end_of(line: bytes) -> bytes:
    """How a line ends: CRLF, LF or not at all."""
    if line.endswith(b"\r\n"):
        return b"\r\n"
    return b"\n" if line.endswith(b"\n") else b""


def usual_end(ends: Sequence[bytes]) -> bytes:
    """The most frequent line end, the first of equals; empty where there is none."""
    counted = Counter(end for end in ends if end)
    return max(counted, key=counted.__getitem__) if counted else b""


def nearest_lines(content: bytes, wanted: str, count: int = 3) -> str:
    """The lines most like the first telling line of `wanted`, as `line 12: "text"`; empty where none is like it."""
    target = max(wanted.split("\n")[:20], key=lambda line: len(_words(line)))
    words = _words(target)
    if not words:
        return ""
    scored: list[tuple[float, int, str]] = []
    for number, raw in enumerate(content.split(b"\n", 200_000), 1):
        line = raw[:2000].decode("utf-8", "replace")
        found = _words(line)
        if common := len(words & found):
            scored.append((-common / len(words | found), number, line))
    best = sorted(scored)[:count]
    return ", ".join(
        f'line {number}: "{reveal(line.strip()[:200]).text}"' for score, number, line in best if score < -0.3
    )


def _finder(old: str) -> re.Pattern[bytes]:
    wanted = old.encode()
    if b"\r" in wanted:
        return re.compile(re.escape(wanted))
    return re.compile(_NEWLINE.join(re.escape(part) for part in wanted.split(b"\n")))


def _in_place_of(content: bytes, start: int, end: int, old: str, new: str) -> bytes:
    """`new` with the line ends of the place. A carriage return written by the model is taken at its word."""
    if "\n" not in new or "\r" in old or "\r" in new:
        return new.encode()
    olds, news = old.split("\n"), new.split("\n")
    ends = [end_of(part + b"\n") for part in content[start:end].split(b"\n")[:-1]]
    return b"".join(
        line.encode() + line_end
        for line, line_end in zip(news, [*_ends_for(olds, news, ends, _end_at(content, end)), b""], strict=True)
    )


def _ends_for(olds: list[str], news: list[str], ends: list[bytes], local: bytes) -> list[bytes]:
    """The line ends between `news`: those of unchanged first and last lines are kept one by one."""
    if len(olds) == len(news):
        return ends
    wanted = len(news) - 1
    shared = min(len(ends), wanted)
    first = _common(zip(olds, news, strict=False), shared)
    last = max(0, _common(zip(reversed(olds), reversed(news), strict=False), shared - first + 1) - 1)
    middle = usual_end(ends) or local
    return [*ends[:first], *[middle] * (wanted - first - last), *(ends[-last:] if last else [])]


def _common(pairs: Iterator[tuple[str, str]], most: int) -> int:
    count = 0
    for one, other in pairs:
        if one != other or count >= most:
            break
        count += 1
    return count


def _end_at(content: bytes, at: int) -> bytes:
    """The end of the line that holds `at`, else of the one before, else a line feed."""
    place = content.find(b"\n", at)
    if place < 0:
        place = content.rfind(b"\n")
    return b"\r\n" if place > 0 and content[place - 1 : place] == b"\r" else b"\n"


def _ambiguous(content: bytes, spans: list[tuple[int, int]]) -> str:
    lines: list[str] = []
    number, done = 1, 0
    for start, _ in spans[:5]:
        number += content.count(b"\n", done, start)
        done = start
        lines.append(str(number))
    more = ", …" if len(spans) > 5 else ""
    return (
        f"holds old_text {len(spans)} times (lines {', '.join(lines)}{more}); "
        "give more lines around it to make it unique, or set replace_all"
    )


def _why_absent(content: bytes, old: str) -> str:
    near = nearest_lines(content, old)
    likely = f"; the nearest: {near}" if near else ""
    if not _is_utf8(content) and not old.isascii():
        return f"; it is not UTF-8, so only ASCII text is found in it{likely}"
    flexible = re.compile(rb"\s+".join(re.escape(part) for part in old.encode().split()) or rb"(?!)")
    if len(content) <= 2_000_000 and (match := flexible.search(content)):
        number = content.count(b"\n", 0, match.start()) + 1
        return f"; line {number} differs in white space only{likely}"
    return f"{likely}; read it again and copy the text exactly"


def _words(line: str) -> frozenset[str]:
    return frozenset(_WORD.findall(line))


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
