"""A script over Chat Completions. Reasoning is shown as `reasoning_content` and need not come back."""

from agent.models.script import Play, Turn
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
    spoken,
    stop_of,
    usage_of,
)

_FOREIGN = ("input", "instructions", "system", "max_output_tokens", "store", "include")
_FINISH = {"refusal": "stop", "pause": "pause_turn"}
_LONG = "This model's maximum context length is 8192 tokens. Please reduce the length of the messages."


def read(request: Object) -> Conversation:
    check_fields(request, _FOREIGN)
    tools = objects(request.get("tools", []), "tools")
    need(all(tool.get("type") == "function" for tool in tools), "tools must be functions")
    check_tools([tool.get("function") for tool in tools], "parameters", "tools")
    answers, said = Answers(), list[Said]()
    messages = objects(request.get("messages"), "messages")
    for at, message in enumerate(messages):
        where = f"messages[{at}]"
        if message.get("role") == "tool":
            answers.answer(message.get("tool_call_id"), f"{where}.tool_call_id")
            _text(message.get("content"), where)
            continue
        answers.settled(where)
        match message.get("role"):
            case "user" | "system" | "developer":
                _text(message.get("content"), where)
            case "assistant":
                said.append(_read_said(message, where, answers))
            case role:
                raise BadRequest(f"{where}.role: {role} is none")
    answers.settled("the end")
    first = next((message for message in messages if message.get("role") == "user"), None)
    return Conversation(_text(first["content"], "") if first else "", tuple(said))


def _read_said(message: Object, where: str, answers: Answers) -> Said:
    names: list[str] = []
    for at, call in enumerate(objects(message.get("tool_calls", []), f"{where}.tool_calls")):
        here, function = f"{where}.tool_calls[{at}]", call.get("function")
        if call.get("type") != "function" or not isinstance(function, dict):
            raise BadRequest(f"{here} must be of the type function")
        answers.call(call.get("id"), f"{here}.id")
        names.append(check_name(function.get("name"), f"{here}.function.name"))
        check_arguments(function.get("arguments"), f"{here}.function.arguments")
    content = message.get("content")
    text = "" if content is None and names else _text(content, where)
    reasoning = message.get("reasoning_content")
    return Said(text, tuple(names), () if reasoning is None else ({"reasoning_content": reasoning},))


def _text(content: object, where: str) -> str:
    if isinstance(content, list):
        parts = objects(content, f"{where}.content")
        need(parts and all(part.get("type") == "text" for part in parts), f"{where}.content: only text is read here")
        return "".join(spoken(part.get("text"), f"{where}.content") for part in parts)
    return spoken(content, f"{where}.content")


def _unseal(item: Object) -> str | None:
    reasoning = item["reasoning_content"]
    return reasoning if isinstance(reasoning, str) else None


def _stream(play: Play, turn: Turn) -> list[Piece]:
    """The last three: finish reason, usage, end mark."""
    common = {"id": f"scripted-{play.number}", "object": "chat.completion.chunk", "created": 0, "model": play.model}
    stop, said = stop_of(turn), list[Piece]()

    def say(kind: Kind, delta: Object, finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        said.append(Piece(event({**common, "choices": [choice]}), kind))

    say("opening", {"role": "assistant", "content": ""})
    for piece in () if turn.hide_reasoning else pieces(turn.reasoning):
        say("body", {"reasoning_content": piece})
    for piece in pieces(turn.text):
        say("body", {"refusal" if stop == "refusal" else "content": piece})
    for index, call in enumerate(turn.tool_calls):
        id = call.id or f"call_{play.number}_{index}"
        function = {"name": call.name, "arguments": ""}
        say("call", {"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
        for piece in pieces(arguments_of(call)):
            say("arguments", {"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    say("ending", {}, _FINISH.get(stop, stop))
    said.append(Piece(event({**common, "choices": [], "usage": _usage(play, turn)}), "ending"))
    return [*said, Piece(b"data: [DONE]\n\n", "ending")]


def _usage(play: Play, turn: Turn) -> Object:
    usage = usage_of(play, turn)
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _break_off(sent: int, overloaded: bool) -> bytes:
    code = "overloaded" if overloaded else "server_error"
    return event({"error": {"message": "scripted failure", "type": code, "code": code}})


def error(status: int, message: str, code: str | None) -> Object:
    kind = "invalid_request_error" if status < 500 and status != 429 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


CHAT = Dialect(
    read=read,
    unseal=_unseal,
    must_echo=False,
    marks_pause=False,
    stream=_stream,
    break_off=_break_off,
    error=error,
    too_long=(_LONG, "context_length_exceeded"),
)
