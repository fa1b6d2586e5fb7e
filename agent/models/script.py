"""What a scripted model says, as a value read from JSON:

    {"model": "scripted", "loop": false, "turns": [
       {"text": "I read it.", "reasoning": "", "tool_calls": [{"name": "read", "arguments": {"path": "a"}}],
        "usage": {"input": 10, "output": 5}, "stop": "tool_calls", "delay_ms": 0, "chunk_bytes": 0,
        "faults": [{"fail": "429", "times": 2, "retry_after": 1},
                   {"fail": "cut_at", "bytes": 100}]}],
     "conversations": [{"when": "text in the first user message", "turns": []}]}

A script knows no protocol: the same turns are said in each protocol's own form (script_player.py). The turn is chosen
by the number of the model's turns in the request, so that a retry or a resumed run gets the same reply. A turn's faults
come first, one an attempt. After the last turn the model says that the script has ended, or with `loop` begins
again."""

from pathlib import Path
from typing import Annotated, Literal, get_args

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
    "overloaded_in_stream",
    "unknown_tool",
    "same_id",
    "list_arguments",
    "deep_arguments",
]


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
    place of an answer. `silence` sends headers, then nothing. `error_in_stream` and `overloaded_in_stream` begin a
    reply and break it off with the protocol's own event of an error. `unknown_tool`, `same_id`, `list_arguments` and
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
    """Sealed where the protocol knows that, and then the next request must bring it back untouched."""
    hide_reasoning: bool = False
    """Only the seal is shown; nothing at all in a protocol without one."""
    tool_calls: tuple[ScriptedCall, ...] = ()
    usage: Usage | None = None
    """None: a quarter of the bytes that went in and came out."""
    stop: str | None = None
    """One of StopReason, said in the protocol's own words; anything else goes out as it is, where the protocol has a
    word for it. None: `tool_calls` where there are some, else `stop`. `pause` ends a turn that the model itself goes
    on with; of the three protocols only Messages has that."""
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
