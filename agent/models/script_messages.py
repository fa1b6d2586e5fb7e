"""A script over Messages. Reasoning is a thinking block with a signature, or a redacted one; a paused turn ends with a
call of a tool of the server's own, and the next request goes on behind it in the same message."""

import re
from collections.abc import Iterator

from agent.models.script import Play, Turn
from agent.models.script_dialect import (
    PAUSED,
    Answers,
    BadRequest,
    Conversation,
    Dialect,
    Kind,
    Object,
    Piece,
    Said,
    arguments_of,
    check_fields,
    check_name,
    check_tools,
    event,
    need,
    objects,
    pieces,
    seal,
    spoken,
    stop_of,
    unseal,
    usage_of,
)

_FOREIGN = (
    "input",
    "instructions",
    "max_output_tokens",
    "max_completion_tokens",
    "stream_options",
    "store",
    "include",
    "stop",
)
_STOPS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "content_filter": "refusal",
    "pause": "pause_turn",
}
_ERRORS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_MAX_MARKS = 4
_ID = re.compile(r"[A-Za-z0-9_-]+")
_KEPT = {"thinking", "redacted_thinking", "server_tool_use"}
_PAUSE: Object = {"type": "server_tool_use", "name": "web_search", "input": {"query": "how to go on"}}


def read(request: Object) -> Conversation:
    check_fields(request, _FOREIGN, ("model", "max_tokens", "stream", "messages"))
    bound = request["max_tokens"]
    need(isinstance(bound, int) and bound >= 1, "max_tokens must be a number from 1 on")
    if "system" in request:
        system = request["system"]
        for at, block in enumerate(_blocks(system, "system")):
            need(block.get("type") == "text", f"system[{at}] must be text")
            spoken(block.get("text"), f"system[{at}].text")
    check_tools(request.get("tools", []), "input_schema", "tools")
    messages = objects(request["messages"], "messages")
    _check_marks(request)
    answers, said, first = Answers(), list[Said](), ""
    for at, message in enumerate(messages):
        where, expected = f"messages[{at}]", "assistant" if at % 2 else "user"
        need(message.get("role") == expected, f"{where}: roles must alternate and begin with user")
        blocks = _blocks(message.get("content"), where)
        if expected == "user":
            text = _read_user(blocks, where, answers)
            first = text if at == 0 else first
        else:
            said += [_read_said(turn, where, answers) for turn in _turns(blocks)]
    answers.settled("the end")
    last = _blocks(messages[-1].get("content"), "")[-1]
    need(last.get("type") == "server_tool_use" or len(messages) % 2, "the last message must be of the user, or paused")
    return Conversation(first, tuple(said))


def _blocks(content: object, where: str) -> list[Object]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    blocks = objects(content, where)
    need(blocks, f"{where} must not be empty")
    return blocks


def _turns(blocks: list[Object]) -> Iterator[list[Object]]:
    """The turns in a message: each but the last was paused."""
    turn: list[Object] = []
    for block in blocks:
        turn.append(block)
        if block.get("type") == "server_tool_use":
            yield turn
            turn = []
    if turn:
        yield turn


def _read_user(blocks: list[Object], where: str, answers: Answers) -> str:
    text = ""
    for at, block in enumerate(blocks):
        here = f"{where}.content[{at}]"
        match block.get("type"):
            case "tool_result":
                need(not text, f"{here}: tool results must stand before text")
                answers.answer(block.get("tool_use_id"), f"{here}.tool_use_id")
                for part in _blocks(block.get("content"), f"{here}.content"):
                    spoken(part.get("text"), f"{here}.content")
            case "text":
                answers.settled(here)
                text += spoken(block.get("text"), f"{here}.text")
            case kind:
                raise BadRequest(f"{here}.type: {kind} is not read here")
    answers.settled(f"the end of {where}")
    return text


def _read_said(blocks: list[Object], where: str, answers: Answers) -> Said:
    texts, names, kept = list[str](), list[str](), list[Object]()
    for block in blocks:
        match block.get("type"):
            case "text":
                need(not names, f"{where}: text behind a tool_use")
                texts.append(spoken(block.get("text"), f"{where}: a block of text"))
            case "tool_use":
                need(_ID.fullmatch(str(block.get("id", ""))), f"{where}: the id of a tool_use must match {_ID.pattern}")
                answers.call(block["id"], where)
                names.append(check_name(block.get("name"), f"{where}: the name of a tool_use"))
                need(isinstance(block.get("input"), dict), f"{where}: the input of a tool_use must be an object")
            case kind if kind in _KEPT:
                early = kind == "server_tool_use" or not (texts or names)
                need(early, f"{where}: thinking must stand before what it led to")
                kept.append(block)
            case kind:
                raise BadRequest(f"{where}: a block of the type {kind} is not read here")
    return Said("".join(texts), tuple(names), tuple(kept))


def _check_marks(request: Object) -> None:
    """At most four marks of the cache, each on a block that can bear one."""
    lists = [request.get("tools", []), request.get("system", [])]
    lists += [message.get("content") for message in request["messages"]]
    blocks = [block for found in lists if isinstance(found, list) for block in found if isinstance(block, dict)]
    marked = [block for block in blocks if block.get("cache_control") is not None]
    need(len(marked) <= _MAX_MARKS, f"at most {_MAX_MARKS} blocks may have cache_control, {len(marked)} have")
    for block in marked:
        need("thinking" not in str(block.get("type")), "cache_control cannot stand on thinking")
        need(block["cache_control"].get("type") == "ephemeral", "cache_control must be ephemeral")


def _unseal(block: Object) -> str | None:
    match block:
        case {"type": "thinking", "thinking": text, "signature": signature, **more} if not more:
            return text if unseal(signature) == [text] else None
        case {"type": "redacted_thinking", "data": data, **more} if not more:
            found = unseal(data)
            return found[0] if found else None
        case {"type": "server_tool_use", "id": str(id)}:
            plain = {name: value for name, value in block.items() if name != "cache_control"}
            return PAUSED if id.startswith("srvtoolu_") and plain == {**_PAUSE, "id": id} else None
        case _:
            return None


class _Reply:
    """A stream being written: blocks by index."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self._index = 0

    def say(self, kind: Kind, name: str, /, **fields: object) -> None:
        self.pieces.append(Piece(event({"type": name, **fields}, name), kind))

    def block(self, start: Object, *deltas: tuple[str, str, str], kind: Kind = "body") -> None:
        """Deltas as type, field and text."""
        self.say("call" if kind == "arguments" else kind, "content_block_start", index=self._index, content_block=start)
        if kind == "arguments":
            self._delta("call", ("input_json_delta", "partial_json", ""))
        for delta in deltas:
            self._delta(kind, delta)
        self.say(kind, "content_block_stop", index=self._index)
        self._index += 1

    def _delta(self, kind: Kind, delta: tuple[str, str, str]) -> None:
        type, field, text = delta
        self.say(kind, "content_block_delta", index=self._index, delta={"type": type, field: text})


def _stream(play: Play, turn: Turn) -> list[Piece]:
    reply, stop, usage = _Reply(), stop_of(turn), usage_of(play, turn)
    reached = {
        "input_tokens": max(usage.input - usage.cached - usage.cache_written, 0),
        "cache_creation_input_tokens": usage.cache_written,
        "cache_read_input_tokens": usage.cached,
    }
    message = {"id": f"msg_scripted_{play.number}", "type": "message", "role": "assistant", "model": play.model}
    message |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": {**reached, "output_tokens": 1}}
    reply.say("opening", "message_start", message=message)
    reply.say("opening", "ping")
    _say_reasoning(reply, turn)
    if turn.text:
        deltas = [("text_delta", "text", piece) for piece in pieces(turn.text)]
        reply.block({"type": "text", "text": ""}, *deltas)
    for at, call in enumerate(turn.tool_calls):
        start = {"type": "tool_use", "id": call.id or f"toolu_{play.number}_{at}", "name": call.name, "input": {}}
        deltas = [("input_json_delta", "partial_json", piece) for piece in pieces(arguments_of(call))]
        reply.block(start, *deltas, kind="arguments")
    if stop == "pause":
        start = {**_PAUSE, "id": f"srvtoolu_{play.number}", "input": {}}
        query = event(_PAUSE["input"])[len(b"data: ") : -2].decode()
        reply.block(start, *[("input_json_delta", "partial_json", piece) for piece in pieces(query)])
    ending = {"stop_reason": _STOPS.get(stop, stop), "stop_sequence": None}
    reply.say("ending", "message_delta", delta=ending, usage={**reached, "output_tokens": usage.output})
    reply.say("ending", "message_stop")
    return reply.pieces


def _say_reasoning(reply: _Reply, turn: Turn) -> None:
    if turn.reasoning and turn.hide_reasoning:
        reply.block({"type": "redacted_thinking", "data": seal(turn.reasoning)})
    elif turn.reasoning:
        deltas = [("thinking_delta", "thinking", piece) for piece in pieces(turn.reasoning)]
        signature = ("signature_delta", "signature", seal(turn.reasoning))
        reply.block({"type": "thinking", "thinking": "", "signature": ""}, *deltas, signature)


def _break_off(sent: int, overloaded: bool) -> bytes:
    kind = "overloaded_error" if overloaded else "api_error"
    return event({"type": "error", "error": {"type": kind, "message": "scripted failure"}}, "error")


def error(status: int, message: str, code: str | None) -> Object:
    kind = _ERRORS.get(status) or ("invalid_request_error" if status < 500 else "api_error")
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": "req_scripted"}


MESSAGES = Dialect(
    read=read,
    unseal=_unseal,
    must_echo=True,
    marks_pause=True,
    stream=_stream,
    break_off=_break_off,
    error=error,
    too_long=("prompt is too long: 8204 tokens > 8192 maximum", None),
)
