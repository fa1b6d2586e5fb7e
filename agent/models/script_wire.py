"""A play of a script as the bytes of an HTTP answer."""

from dataclasses import dataclass
from typing import Any, Literal

import orjson

from agent.models.client import estimated_usage
from agent.models.script import PlannedFault, Play, ScriptedCall, Turn
from eventlog.messages import Usage

Ending = Literal["whole", "cut", "reset", "silence"]
"""`cut` closes without ending the body, `reset` resets the connection, `silence` keeps it open and says no more."""

EVENTS = "text/event-stream"
JSON = "application/json"
_PIECE = 8
"""Characters of text, or of arguments, in one event."""
_LONG = "This model's maximum context length is 8192 tokens. Please reduce the length of the messages."


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes
    ending: Ending = "whole"
    delay_ms: int = 0
    chunk_bytes: int = 0


def render(play: Play) -> Answer:
    """What goes over the wire."""
    turn, fault = play.turn, play.fault
    if fault is None:
        return _stream(play, _events(play, turn))
    if fault.fail.isdecimal():
        return _error(int(fault.fail), f"scripted failure {fault.fail}", fault)
    return _odd(play, fault) or _broken(play, fault)


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


def _odd(play: Play, fault: PlannedFault) -> Answer | None:
    """Replies that are whole, but strange."""
    deep = '{"a":' + "[" * 300 + "]" * 300 + "}"
    calls = {
        "unknown_tool": (ScriptedCall(name="no_such_tool", arguments={"path": "a"}),),
        "same_id": tuple(call.model_copy(update={"id": "same"}) for call in play.turn.tool_calls),
        "list_arguments": (ScriptedCall(name="read", arguments=["a"]),),
        "deep_arguments": (ScriptedCall(name="read", arguments=deep),),
    }
    if fault.fail in calls:
        turn = play.turn.model_copy(update={"tool_calls": calls[fault.fail], "stop": None})
        return _stream(play, _events(play, turn))
    if fault.fail in {"empty", "spaces"}:
        turn = Turn(text="   " if fault.fail == "spaces" else "", usage=play.turn.usage)
        return _stream(play, _events(play, turn))
    return None


def _broken(play: Play, fault: PlannedFault) -> Answer:
    match fault.fail:
        case "context_too_long":
            return _error(400, _LONG, fault, code="context_length_exceeded")
        case "html":
            return Answer(200, (("content-type", "text/html"),), b"<!doctype html><html><body>Sign in</body></html>")
        case "reset":
            return Answer(200, (), b"", "reset", delay_ms=play.turn.delay_ms)
        case "silence":
            return Answer(200, (("content-type", EVENTS),), b"", "silence", delay_ms=play.turn.delay_ms)
        case "error_in_stream":
            error = {"error": {"message": "scripted failure", "type": "server_error", "code": "server_error"}}
            return _stream(play, [*_events(play, play.turn)[:2], _event(error)])
        case "clean_close":
            return _stream(play, _events(play, play.turn)[:-3])
        case _:
            body = _cut(play, fault)
            return Answer(200, (("content-type", EVENTS),), body, "cut", play.turn.delay_ms, play.turn.chunk_bytes)


def _cut(play: Play, fault: PlannedFault) -> bytes:
    """The body up to where it is cut. A turn without calls gets one, so that there are arguments to cut."""
    if fault.fail == "cut_at":
        return b"".join(_events(play, play.turn))[: fault.bytes]
    turn = play.turn
    if not turn.tool_calls:
        turn = turn.model_copy(update={"tool_calls": (ScriptedCall(name="read", arguments={"path": "a file"}),)})
    events = _events(play, turn)
    first = next(at for at, event in enumerate(events) if b'"tool_calls":[' in event)
    if fault.fail == "cut_before_arguments":
        return b"".join(events[: first + 1])
    if fault.fail == "cut_arguments":
        return b"".join(events[: first + 2])
    return b"".join(events[:-3])


def _events(play: Play, turn: Turn) -> list[bytes]:
    """The last three: finish reason, usage, end mark."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning_content": piece} for piece in _pieces(turn.reasoning)]
    deltas += [{"content": piece} for piece in _pieces(turn.text)]
    output = len(turn.reasoning) + len(turn.text)
    for index, call in enumerate(turn.tool_calls):
        arguments = call.arguments if isinstance(call.arguments, str) else orjson.dumps(call.arguments).decode()
        id = call.id or f"call_{play.number}_{index}"
        head = {"index": index, "id": id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        deltas.append({"tool_calls": [head]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": p}}]} for p in _pieces(arguments)]
        output += len(call.name) + len(arguments)
    finish = turn.stop or ("tool_calls" if turn.tool_calls else "stop")
    usage = turn.usage or estimated_usage(play.request_bytes, output)
    common = {"id": f"scripted-{play.number}", "object": "chat.completion.chunk", "created": 0, "model": play.model}
    events = [_event({**common, "choices": [{"index": 0, "delta": d, "finish_reason": None}]}) for d in deltas]
    events.append(_event({**common, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}))
    events.append(_event({**common, "choices": [], "usage": _usage(usage)}))
    return [*events, b"data: [DONE]\n\n"]


def _stream(play: Play, events: list[bytes]) -> Answer:
    headers = (("content-type", EVENTS),)
    turn = play.turn
    return Answer(200, headers, b"".join(events), delay_ms=turn.delay_ms, chunk_bytes=turn.chunk_bytes)


def _error(status: int, message: str, fault: PlannedFault, code: str | None = None) -> Answer:
    headers = [("content-type", JSON)]
    if fault.retry_after is not None:
        headers.append(("retry-after", f"{fault.retry_after:g}"))
    body = orjson.dumps({"error": {"message": message, "type": "scripted", "code": code}})
    return Answer(status, tuple(headers), body)


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def _pieces(text: str) -> list[str]:
    """At least two where there are two characters, so that there is a middle to cut."""
    step = max(1, min(_PIECE, len(text) // 2))
    return [text[at : at + step] for at in range(0, len(text), step)]


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }
