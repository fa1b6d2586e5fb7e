"""The output of a command as text for the model: readable, without terminal control, and never too long. Pure."""

import re

from agent.tools.invisible import note, reveal

MAX_CHARACTERS = 16_000
_ESCAPE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # titles, links, other strings
    r"|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_OPEN_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\x07\x1b]*\x1b?|[ -/]*)$")
_OVERSTRIKE = re.compile("[^\x08\n]\x08")


def command_text(
    head: bytes, tail: bytes, omitted: int, exit_code: int | None, spill: str | None, *, limit: int = MAX_CHARACTERS
) -> str:
    """Head and tail of the output with a line between them that counts the bytes left out, and the exit code if it
    is not 0. `omitted`: bytes between `head` and `tail`. At most `limit` characters; spill and notes not counted.

    Invalid UTF-8 shows as U+FFFD, save for a character cut in two at the gap, which counts as left out. Bytes left
    out here are counted after terminal control was removed.
    """
    if omitted:
        head, lost_head = _without_cut_end(head)
        tail, lost_tail = _without_cut_start(tail)
        omitted += lost_head + lost_tail
        first, last = _OPEN_ESCAPE.sub("", head.decode("utf-8", "replace")), tail.decode("utf-8", "replace")
    else:
        first, last = (head + tail).decode("utf-8", "replace"), ""
    shown_first, shown_last = reveal(_plain(first)), reveal(_plain(last))
    found = dict(shown_first.found)
    for name, count in shown_last.found.items():
        found[name] = found.get(name, 0) + count
    body = _fitted(shown_first.text, shown_last.text, omitted, spill, limit)
    lines = [body.rstrip("\n")] if body.strip() else ["[no output]"]
    if found:
        lines.append(note(found))
    if exit_code != 0:
        lines.append("[no exit code]" if exit_code is None else f"[exit code {exit_code}]")
    return "\n".join(lines)


def _fitted(first: str, last: str, omitted: int, spill: str | None, limit: int) -> str:
    whole = first + last
    if not omitted and len(whole) <= limit:
        return whole
    room = max(limit, 200) // 2
    if omitted:
        start, end = first[:room], last[-room:]
        start_room = room + max(0, room - len(last))
        start, end = first[:start_room], last[-(room + max(0, room - len(first))) :]
        gone = omitted + _size(first[len(start) :]) + _size(last[: len(last) - len(end)])
    else:
        start, end = whole[:room], whole[-room:]
        gone = _size(whole[room : len(whole) - room])
    where = f"; whole output in {spill}" if spill else ""
    return f"{start}\n[… {gone:,} bytes omitted{where}]\n{end}"


def _plain(text: str) -> str:
    """As a terminal would leave it: escape sequences gone, of an overwritten line the last state."""
    text = _ESCAPE.sub("", text).replace("\r\n", "\n")
    for _ in range(3):
        text = _OVERSTRIKE.sub("", text)
    text = text.replace("\x07", "").replace("\x08", "")
    if "\r" not in text:
        return text
    return "\n".join(_last_state(line) if "\r" in line else line for line in text.split("\n"))


def _last_state(line: str) -> str:
    return next((part for part in reversed(line.split("\r")) if part.strip()), "")


def _without_cut_end(data: bytes) -> tuple[bytes, int]:
    for size in range(1, min(3, len(data)) + 1):
        byte = data[-size]
        if byte >= 0xC0:
            wanted = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return (data[:-size], size) if size < wanted else (data, 0)
        if byte < 0x80:
            break
    return data, 0


def _without_cut_start(data: bytes) -> tuple[bytes, int]:
    size = 0
    while size < min(3, len(data)) and 0x80 <= data[size] < 0xC0:
        size += 1
    return data[size:], size


def _size(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
