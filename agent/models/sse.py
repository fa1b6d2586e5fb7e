"""Server-sent events from bytes that arrive cut anywhere. Knows nothing of models."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerEvent:
    name: str
    """Empty where the server named none."""
    data: bytes
    """The data lines, joined by newlines."""


class EventReader:
    """Feed it chunks; it gives whole events. Takes LF, CRLF and CR, comments, and an end without a blank line."""

    def __init__(self) -> None:
        self._rest = bytearray()
        """Of a line whose end has not come. Grown in place: one of 64 MB that is copied with each chunk takes 30 s."""
        self._after_cr = False
        self._name = ""
        self._data: list[bytes] = []
        self._first = True

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        if self._after_cr or b"\r" in chunk:
            chunk = self._with_newlines(chunk)
        *lines, rest = chunk.split(b"\n")
        if lines and self._rest:
            lines[0] = bytes(self._rest) + lines[0]
            self._rest.clear()
        self._rest += rest
        return [event for line in lines if (event := self._take(line)) is not None]

    def finish(self) -> list[ServerEvent]:
        """What an end without a blank line left behind: at most one event, which may be cut."""
        last = (self._take(bytes(self._rest)), self._take(b""))
        self._rest.clear()
        return [event for event in last if event is not None]

    def _with_newlines(self, chunk: bytes) -> bytes:
        """A CRLF may be cut in two: the CR ends the line, and a LF that follows in the next chunk is dropped."""
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take(self, line: bytes) -> ServerEvent | None:
        if self._first:
            line, self._first = line.removeprefix(b"\xef\xbb\xbf"), False
        if line.startswith(b"data:"):
            self._data.append(line[6:] if line.startswith(b"data: ") else line[5:])
        elif line.startswith(b"event:"):
            self._name = line[6:].strip().decode("utf-8", "replace")
        elif not line:
            return self._dispatch()
        return None

    def _dispatch(self) -> ServerEvent | None:
        name, data = self._name, self._data
        if not data:
            self._name = ""
            return None
        self._name, self._data = "", []
        return ServerEvent(name, data[0] if len(data) == 1 else b"\n".join(data))
