"""A play of a script as the bytes of an HTTP answer, whatever the protocol."""

from dataclasses import dataclass
from typing import Literal

import orjson

from agent.models.script import PlannedFault, Play, ScriptedCall, Turn
from agent.models.script_dialect import Dialect, Piece

Ending = Literal["whole", "cut", "reset", "silence"]
"""`cut` closes without ending the body, `reset` resets the connection, `silence` keeps it open and says no more."""

EVENTS = "text/event-stream"
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    ending: Ending = "whole"
    delay_ms: int = 0
    chunk_bytes: int = 0


def render(dialect: Dialect, play: Play) -> Answer:
    """What goes over the wire."""
    turn, fault = play.turn, play.fault
    if fault is None:
        return _stream(play, dialect.stream(play, turn))
    if fault.fail.isdecimal():
        return refuse(dialect, int(fault.fail), f"scripted failure {fault.fail}", retry_after=fault.retry_after)
    odd = _odd(play, fault)
    return _stream(play, dialect.stream(play, odd)) if odd is not None else _broken(dialect, play, fault)


def refuse(
    dialect: Dialect, status: int, message: str, code: str | None = None, retry_after: float | None = None
) -> Answer:
    """In the protocol's own form; `retry_after` in seconds."""
    headers = [("content-type", JSON)]
    if retry_after is not None:
        headers.append(("retry-after", f"{retry_after:g}"))
    return Answer(status, tuple(headers), orjson.dumps(dialect.error(status, message, code)))


def answer_bytes(answer: Answer, chunked: bool) -> tuple[bytes, list[bytes]]:
    """Head and pieces of the body as they go over HTTP/1.1."""
    lines = [f"HTTP/1.1 {answer.status} {'OK' if answer.status < 300 else 'Failure'}"]
    lines += [f"{name}: {value}" for name, value in answer.headers]
    lines.append("transfer-encoding: chunked" if chunked else f"content-length: {len(answer.body)}")
    step = answer.chunk_bytes or len(answer.body) or 1
    pieces = [answer.body[at : at + step] for at in range(0, len(answer.body), step)]
    if chunked:
        pieces = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
        if answer.ending == "whole":
            pieces = [*pieces[:-1], (pieces[-1] if pieces else b"") + b"0\r\n\r\n"]
    return ("\r\n".join(lines) + "\r\n\r\n").encode(), pieces


def _odd(play: Play, fault: PlannedFault) -> Turn | None:
    """A turn that is whole, but strange; None for all other faults."""
    deep = '{"a":' + "[" * 300 + "]" * 300 + "}"
    calls = {
        "unknown_tool": (ScriptedCall(name="no_such_tool", arguments={"path": "a"}),),
        "same_id": tuple(call.model_copy(update={"id": "same"}) for call in play.turn.tool_calls),
        "list_arguments": (ScriptedCall(name="read", arguments=["a"]),),
        "deep_arguments": (ScriptedCall(name="read", arguments=deep),),
    }
    if fault.fail in calls:
        return play.turn.model_copy(update={"tool_calls": calls[fault.fail], "stop": None})
    if fault.fail in {"empty", "spaces"}:
        return Turn(text="   " if fault.fail == "spaces" else "", usage=play.turn.usage)
    return None


def _broken(dialect: Dialect, play: Play, fault: PlannedFault) -> Answer:
    match fault.fail:
        case "context_too_long":
            message, code = dialect.too_long
            return refuse(dialect, 400, message, code, fault.retry_after)
        case "html":
            return Answer(200, (("content-type", "text/html"),), b"<!doctype html><html><body>Sign in</body></html>")
        case "reset":
            return Answer(200, (), b"", "reset", delay_ms=play.turn.delay_ms)
        case "silence":
            return Answer(200, (("content-type", EVENTS),), b"", "silence", delay_ms=play.turn.delay_ms)
        case "error_in_stream" | "overloaded_in_stream":
            said = dialect.stream(play, play.turn)
            said = said[: 1 + sum(piece.kind == "opening" for piece in said)]
            last = dialect.break_off(len(said), fault.fail == "overloaded_in_stream")
            return _stream(play, [*said, Piece(last, "ending")])
        case "clean_close":
            return _stream(play, _unended(dialect.stream(play, play.turn)))
        case _:
            body = _cut(dialect, play, fault)
            return Answer(200, (("content-type", EVENTS),), body, "cut", play.turn.delay_ms, play.turn.chunk_bytes)


def _cut(dialect: Dialect, play: Play, fault: PlannedFault) -> bytes:
    """The body up to where it is cut. A turn without calls gets one, so that there are arguments to cut."""
    turn = play.turn
    if fault.fail == "cut_at":
        return _joined(dialect.stream(play, turn))[: fault.bytes]
    if not turn.tool_calls:
        turn = turn.model_copy(update={"tool_calls": (ScriptedCall(name="read", arguments={"path": "a file"}),)})
    said = _unended(dialect.stream(play, turn))
    first = next((at for at, piece in enumerate(said) if piece.kind == "arguments"), len(said))
    if fault.fail == "cut_before_arguments":
        return _joined(said[:first])
    if fault.fail == "cut_arguments":
        return _joined(said[: first + 1])
    return _joined(said)


def _unended(said: list[Piece]) -> list[Piece]:
    return [piece for piece in said if piece.kind != "ending"]


def _joined(said: list[Piece]) -> bytes:
    return b"".join(piece.data for piece in said)


def _stream(play: Play, said: list[Piece]) -> Answer:
    headers = (("content-type", EVENTS),)
    return Answer(200, headers, _joined(said), delay_ms=play.turn.delay_ms, chunk_bytes=play.turn.chunk_bytes)
