"""What a scripted model says, as a value read from JSON:

    {"model": "scripted", "loop": false, "turns": [
       {"text": "I read it.", "reasoning": "", "tool_calls": [{"name": "read", "arguments": {"path": "a"}}],
        "usage": {"input": 10, "output": 5}, "stop": "tool_calls", "delay_ms": 0, "chunk_bytes": 0,
        "faults": [{"fail": "429", "times": 2, "retry_after": 1},
                   {"fail": "cut_at", "bytes": 100}]}],
     "conversations": [{"when": "text in the first user message", "turns": []}]}

The turn is chosen by the number of assistant messages in the request, so that a retry or a resumed run gets the same
reply. A turn's faults come first, one an attempt; attempts are counted for each conversation (by its first user
message) and turn. After the last turn the model says that the script has ended, or with `loop` begins again."""

import hashlib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import orjson
from pydantic import AfterValidator, Field, JsonValue, ValidationError

from agent.models.client import BadScript
from eventlog.messages import Usage
from eventlog.values import Value

Fail = Literal[
    "context_too_long",
    "cut_before_arguments",
    "cut_arguments",
    "cut_after_arguments",
    "cut_at",
    "clean_close",
    "reset",
    "silence",
    "html",
    "empty",
    "spaces",
    "error_in_stream",
    "unknown_tool",
    "same_id",
    "list_arguments",
    "deep_arguments",
]
ENDED = "The script has ended."


def _known(fail: str) -> str:
    if fail not in get_args(Fail) and not (fail.isdecimal() and 400 <= int(fail) <= 599):
        raise ValueError(f"a script can fail with a status from 400 on, or {', '.join(get_args(Fail))}")
    return fail


class ScriptedCall(Value):
    name: str
    arguments: JsonValue = Field(default_factory=dict)
    """A string goes out as it is, anything else as its JSON."""
    id: str | None = None


class PlannedFault(Value):
    """One way to fail, and how often before the next one or the turn.

    `cut_before_arguments`, `cut_arguments`, `cut_after_arguments` and `cut_at` (after `bytes` of the body) close the
    connection there. `clean_close` ends the body properly without a finish reason. `reset` resets the connection in
    place of an answer. `silence` sends headers, then nothing. `unknown_tool`, `same_id`, `list_arguments` and
    `deep_arguments` are whole replies, and count as the turn."""

    fail: Annotated[str, AfterValidator(_known)]
    """One of Fail, or an HTTP status such as `429`."""
    times: int = 1
    retry_after: float | None = None
    """Seconds, sent with a status."""
    bytes: int = 0


class Turn(Value):
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ScriptedCall, ...] = ()
    usage: Usage | None = None
    """None: a quarter of the bytes that went in and came out."""
    stop: str | None = None
    """None: `tool_calls` where there are some, else `stop`."""
    delay_ms: int = 0
    """Before the first byte."""
    chunk_bytes: int = 0
    """Send the body in pieces of this size; 0 is at once."""
    faults: tuple[PlannedFault, ...] = ()


class ScriptedConversation(Value):
    when: str
    """Stands in the first user message."""
    turns: tuple[Turn, ...]


class Script(Value):
    turns: tuple[Turn, ...] = ()
    conversations: tuple[ScriptedConversation, ...] = ()
    model: str = "scripted"
    loop: bool = False


class Play(Value):
    """What one request gets."""

    turn: Turn
    fault: PlannedFault | None
    model: str
    number: int
    """Of the turn, from 0."""
    request_bytes: int


def load_script(path: Path) -> Script:
    """Raises BadScript with the place of the first mistake."""
    try:
        return Script.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadScript(f"The script {path} cannot be read: {error.strerror}.") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise BadScript(f"The script {path} is not valid at {where or 'its start'}: {first['msg']}.") from None


class Player:
    """A script being played: all it remembers is how often each turn has been asked for."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._attempts: dict[tuple[str, int], int] = {}

    def play(self, body: bytes) -> Play | None:
        """None where the request is not one for Chat Completions."""
        messages = read_messages(body)
        if messages is None:
            return None
        first = next((_text(message) for message in messages if message.get("role") == "user"), "")
        number = sum(message.get("role") == "assistant" for message in messages)
        turn = self._turn(first, number)
        key = (hashlib.sha256(first.encode("utf-8", "replace")).hexdigest(), number)
        attempt = self._attempts[key] = self._attempts.get(key, 0) + 1
        fault = next(iter(_planned(turn, attempt)), None)
        return Play(turn=turn, fault=fault, model=self.script.model, number=number, request_bytes=len(body))

    def _turn(self, first: str, number: int) -> Turn:
        found = (talk.turns for talk in self.script.conversations if talk.when in first)
        turns = next(found, self.script.turns)
        if self.script.loop and turns:
            return turns[number % len(turns)]
        return turns[number] if number < len(turns) else Turn(text=ENDED)


def read_messages(body: bytes) -> list[dict[str, Any]] | None:
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    messages = request.get("messages") if isinstance(request, dict) else None
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return None
    return messages


def _planned(turn: Turn, attempt: int) -> list[PlannedFault]:
    for fault in turn.faults:
        if attempt <= fault.times:
            return [fault]
        attempt -= fault.times
    return []


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))
