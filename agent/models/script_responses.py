"""A script over Responses. Reasoning is an item with sealed content, which the next request must bring back whole.
Nothing is stored, so a request says `store: false` and asks for that content."""

from typing import Any

from agent.models.script import Play, ScriptedCall, Turn
from agent.models.script_chat import error
from agent.models.script_dialect import (
    Answers,
    BadRequest,
    Conversation,
    Dialect,
    Kind,
    Object,
    Piece,
    Said,
    arguments_of,
    check_arguments,
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

_FOREIGN = ("messages", "max_tokens", "max_completion_tokens", "stream_options", "system", "stop")
_ENCRYPTED = "reasoning.encrypted_content"
_LEAST_BOUND = 16
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
_PARTS = {"input_text": "text", "output_text": "text", "refusal": "refusal"}


def read(request: Object) -> Conversation:
    check_fields(request, _FOREIGN, ("model", "input", "stream"))
    need(request.get("store") is False, "store must be false: nothing is stored here")
    need(_ENCRYPTED in request.get("include", []), f"include must hold {_ENCRYPTED}: nothing is stored here")
    bound = request.get("max_output_tokens")
    need(
        bound is None or (isinstance(bound, int) and bound >= _LEAST_BOUND),
        f"max_output_tokens: from {_LEAST_BOUND} on",
    )
    if request.get("instructions") is not None:
        spoken(request["instructions"], "instructions")
    tools = objects(request.get("tools", []), "tools")
    need(all(tool.get("type") == "function" for tool in tools), "tools must be functions")
    check_tools(tools, "parameters", "tools")
    input = request["input"]
    reader = _Input()
    for at, item in enumerate(
        [{"role": "user", "content": input}] if isinstance(input, str) else objects(input, "input")
    ):
        reader.take(item, f"input[{at}]")
    reader.answers.settled("the end")
    reader.close("the end")
    return Conversation(reader.first or "", tuple(reader.said))


class _Input:
    """Reads items one by one. Within a turn of the model come reasoning, a message, calls, in this order."""

    def __init__(self) -> None:
        self.answers = Answers()
        self.first: str | None = None
        self.said: list[Said] = []
        self._ids: set[str] = set()
        self._text: str | None = None
        self._calls: list[str] = []
        self._kept: list[Object] = []

    def take(self, item: Object, where: str) -> None:
        kind = item.get("type", "message")
        if kind == "function_call_output":
            self.close(where)
            self.answers.answer(item.get("call_id"), f"{where}.call_id")
            _text(item.get("output"), f"{where}.output")
        elif kind == "message" and item.get("role") != "assistant":
            need(item.get("role") in {"user", "system", "developer"}, f"{where}.role: {item.get('role')} is none")
            self.close(where)
            self.answers.settled(where)
            text = _text(item.get("content"), f"{where}.content")
            self.first = text if self.first is None and item["role"] == "user" else self.first
        else:
            self._take_said(kind, item, where)

    def close(self, where: str) -> None:
        """The end of a turn, if one was open."""
        spoke = self._text is not None or self._calls
        need(spoke or not self._kept, f"{where}: an item of the type reasoning stands without the item that follows it")
        if spoke:
            self.said.append(Said(self._text or "", tuple(self._calls), tuple(self._kept)))
        self._text, self._calls, self._kept = None, [], []

    def _take_said(self, kind: object, item: Object, where: str) -> None:
        if (self._text is not None or self._calls) and kind in {"reasoning", "message"}:
            self.close(where)
        match kind:
            case "reasoning":
                self._check_id(item, "rs_", where)
                self._kept.append(item)
            case "message":
                self.answers.settled(where)
                self._check_id(item, "msg_", where)
                self._text = _text(item.get("content"), f"{where}.content")
            case "function_call":
                self._check_id(item, "fc_", where)
                self.answers.call(item.get("call_id"), f"{where}.call_id")
                check_arguments(item.get("arguments"), f"{where}.arguments")
                self._calls.append(check_name(item.get("name"), f"{where}.name"))
            case _:
                raise BadRequest(f"{where}.type: {kind} is not read here")

    def _check_id(self, item: Object, start: str, where: str) -> None:
        """Ids may be left out, but for those of reasoning."""
        id = item.get("id")
        if id is None and start != "rs_":
            return
        need(isinstance(id, str) and id.startswith(start), f"{where}.id: expected an id that begins with {start}")
        need(id not in self._ids, f"{where}: there is an item with the id {id} before it")
        self._ids.add(str(id))


def _text(content: object, where: str) -> str:
    if not isinstance(content, list):
        return spoken(content, where)
    parts = objects(content, where)
    need(parts and all(part.get("type") in _PARTS for part in parts), f"{where}: only text is read here")
    return "".join(spoken(part.get(_PARTS[part["type"]]), where) for part in parts)


def _unseal(item: Object) -> str | None:
    """Fields that are null count as left out: so the vendor's own library sends them."""
    found = unseal(item.get("encrypted_content"))
    if found is None or len(found) != 3:
        return None
    id, text, hidden = found
    whole = {name: value for name, value in item.items() if value is not None}
    return text if whole == _reasoning(id, text, hidden) else None


def _reasoning(id: str, text: str, hidden: bool) -> Object:
    summary = [] if hidden else [{"type": "summary_text", "text": text}]
    return {"id": id, "type": "reasoning", "summary": summary, "encrypted_content": seal(id, text, hidden)}


class _Reply:
    """A stream being written: events are numbered, and so are the items of the output."""

    def __init__(self, play: Play, turn: Turn) -> None:
        self.pieces: list[Piece] = []
        self._turn, self._number = turn, play.number
        self._output: list[Object] = []
        usage, stop = usage_of(play, turn), stop_of(turn)
        self._why = _INCOMPLETE.get(stop)
        self._status = "incomplete" if self._why else "completed"
        self._refuses = stop == "refusal"
        self._usage = {
            "input_tokens": usage.input,
            "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": usage.cache_written},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.input + usage.output,
        }
        self._response: Object = {"id": f"resp_scripted_{play.number}", "object": "response", "created_at": 0}
        self._response |= {"model": play.model, "error": None, "parallel_tool_calls": True, "tool_choice": "auto"}
        self._response |= {"tools": [], "store": False, "metadata": {}, "incomplete_details": None}

    def write(self) -> list[Piece]:
        begun = {**self._response, "status": "in_progress", "output": [], "usage": None}
        self._say("opening", "response.created", response=begun)
        self._say("opening", "response.in_progress", response=begun)
        if self._turn.reasoning:
            self._reason()
        if self._turn.text:
            self._speak()
        for at, call in enumerate(self._turn.tool_calls):
            self._call(at, call)
        whole = {**self._response, "status": self._status, "output": self._output, "usage": self._usage}
        whole["incomplete_details"] = {"reason": self._why} if self._why else None
        self._say("ending", f"response.{self._status}", response=whole)
        return self.pieces

    def _say(self, kind: Kind, name: str, /, **fields: object) -> None:
        self.pieces.append(Piece(event({"type": name, "sequence_number": len(self.pieces), **fields}, name), kind))

    def _item(self, kind: Kind, name: str, /, **fields: object) -> None:
        self._say(kind, name, output_index=len(self._output), **fields)

    def _finish(self, kind: Kind, item: Object) -> None:
        self._item(kind, "response.output_item.done", item=item)
        self._output.append(item)

    def _reason(self) -> None:
        """The content that the item begins with is not yet the one to keep."""
        turn = self._turn
        item = _reasoning(f"rs_{self._number}", turn.reasoning, turn.hide_reasoning)
        begun = {**item, "summary": [], "encrypted_content": seal(item["id"], "", True)}
        self._item("body", "response.output_item.added", item=begun)
        part: dict[str, Any] = {"item_id": item["id"], "summary_index": 0}
        for summary in item["summary"]:
            name, empty = "response.reasoning_summary", {**summary, "text": ""}
            self._item("body", f"{name}_part.added", **part, part=empty)
            for piece in pieces(turn.reasoning):
                self._item("body", f"{name}_text.delta", **part, delta=piece)
            self._item("body", f"{name}_text.done", **part, text=turn.reasoning)
            self._item("body", f"{name}_part.done", **part, part=summary)
        self._finish("body", item)

    def _speak(self) -> None:
        text, common = self._turn.text, {"id": f"msg_{self._number}", "type": "message", "role": "assistant"}
        name, field = ("refusal", "refusal") if self._refuses else ("output_text", "text")
        more: Object = {} if self._refuses else {"annotations": [], "logprobs": []}
        odds: Object = {} if self._refuses else {"logprobs": []}
        at: Object = {"item_id": common["id"], "content_index": 0}
        whole = {"type": name, field: text, **more}
        self._item("body", "response.output_item.added", item={**common, "status": "in_progress", "content": []})
        self._item("body", "response.content_part.added", **at, part={**whole, field: ""})
        for piece in pieces(text):
            self._item("body", f"response.{name}.delta", **at, delta=piece, **odds)
        self._item("body", f"response.{name}.done", **at, **{field: text}, **odds)
        self._item("body", "response.content_part.done", **at, part=whole)
        self._finish("body", {**common, "status": self._status, "content": [whole]})

    def _call(self, at: int, call: ScriptedCall) -> None:
        id, arguments = f"fc_{self._number}_{at}", arguments_of(call)
        item = {"id": id, "type": "function_call", "status": "in_progress", "name": call.name, "arguments": ""}
        item["call_id"] = call.id or f"call_{self._number}_{at}"
        self._item("call", "response.output_item.added", item=item)
        for piece in pieces(arguments):
            self._item("arguments", "response.function_call_arguments.delta", item_id=id, delta=piece)
        done = {"item_id": id, "name": call.name, "arguments": arguments}
        self._item("arguments", "response.function_call_arguments.done", **done)
        self._finish("arguments", {**item, "status": "completed", "arguments": arguments})


def _stream(play: Play, turn: Turn) -> list[Piece]:
    return _Reply(play, turn).write()


def _break_off(sent: int, overloaded: bool) -> bytes:
    """An event of the error, and one of the reply that failed of it."""
    fault = {"code": "server_is_overloaded" if overloaded else "server_error", "message": "scripted failure"}
    first = {"type": "error", "sequence_number": sent, **fault, "param": None}
    response = {"id": "resp_scripted", "object": "response", "status": "failed", "error": fault, "output": []}
    second = {"type": "response.failed", "sequence_number": sent + 1, "response": response}
    return event(first, "error") + event(second, "response.failed")


RESPONSES = Dialect(
    read=read,
    unseal=_unseal,
    must_echo=True,
    marks_pause=False,
    stream=_stream,
    break_off=_break_off,
    error=error,
    too_long=(
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "context_length_exceeded",
    ),
)
