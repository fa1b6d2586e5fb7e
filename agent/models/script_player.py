"""A script being played, in any protocol: a request in, an answer out."""

import hashlib
from collections.abc import Mapping

import orjson

from agent.models.script import PlannedFault, Play, Script, Turn
from agent.models.script_chat import CHAT
from agent.models.script_dialect import PAUSED, BadRequest, Conversation, Dialect, Object, Said, stop_of
from agent.models.script_messages import MESSAGES
from agent.models.script_responses import RESPONSES
from agent.models.script_wire import Answer, refuse, render
from configs.models import Protocol

ENDED = "The script has ended."
DIALECTS: Mapping[Protocol, Dialect] = {"chat": CHAT, "responses": RESPONSES, "messages": MESSAGES}


class Player:
    """All it remembers is how often each turn of each conversation has been asked for; a conversation is known by its
    first user message."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self._attempts: dict[tuple[str, int], int] = {}

    def answer(self, protocol: Protocol, body: bytes) -> Answer:
        """What goes over the wire; a 400 for a request that is not valid."""
        dialect = DIALECTS[protocol]
        try:
            talk = dialect.read(_object(body))
            turns = self._turns(talk.first)
            for number, said in enumerate(talk.said):
                _check_echo(dialect, number, said, self._turn(turns, number))
        except BadRequest as bad:
            return refuse(dialect, 400, str(bad))
        return render(dialect, self._play(talk, self._turn(turns, len(talk.said)), len(body)))

    def _play(self, talk: Conversation, turn: Turn, request_bytes: int) -> Play:
        number = len(talk.said)
        key = (hashlib.sha256(talk.first.encode("utf-8", "replace")).hexdigest(), number)
        attempt = self._attempts[key] = self._attempts.get(key, 0) + 1
        fault = _planned(turn, attempt)
        return Play(turn=turn, fault=fault, model=self.script.model, number=number, request_bytes=request_bytes)

    def _turns(self, first: str) -> tuple[Turn, ...]:
        found = (talk.turns for talk in self.script.conversations if talk.when in first)
        return next(found, self.script.turns)

    def _turn(self, turns: tuple[Turn, ...], number: int) -> Turn:
        if self.script.loop and turns:
            return turns[number % len(turns)]
        return turns[number] if number < len(turns) else Turn(text=ENDED)


def _object(body: bytes) -> Object:
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise BadRequest("the body is not JSON") from None
    if not isinstance(request, dict):
        raise BadRequest("the body is not an object")
    return request


def _check_echo(dialect: Dialect, number: int, said: Said, turn: Turn) -> None:
    """What must come back untouched. A turn that is not as the script has it was said by another model, or its place
    has moved: then only what stands there is checked."""
    found = [dialect.unseal(item) for item in said.kept]
    if None in found:
        raise BadRequest(f"an item of the model's turn {number + 1} is not as it was sent")
    if said.text.strip() != turn.text.strip() or said.calls != tuple(call.name for call in turn.tool_calls):
        return
    expected = [turn.reasoning] if turn.reasoning else []
    expected += [PAUSED] if dialect.marks_pause and stop_of(turn) == "pause" else []
    if found != expected and (found or dialect.must_echo):
        raise BadRequest(f"an item of the model's turn {number + 1} is missing, or stands in another place")


def _planned(turn: Turn, attempt: int) -> PlannedFault | None:
    for fault in turn.faults:
        if attempt <= fault.times:
            return fault
        attempt -= fault.times
    return None
