"""A small session with one of everything that the views and exports speak of."""

from eventlog.effects import AskUser, CallModel, RunTool
from eventlog.events import (
    Approved,
    Body,
    CallRejected,
    ContextSet,
    EffectFinished,
    EffectStarted,
    SessionOpened,
    TurnEnded,
    UserSaid,
)
from eventlog.ids import CallId, CommandId, Digest
from eventlog.messages import AssistantMessage, ReasoningPart, TextPart, ToolCall, Usage
from eventlog.outcomes import AttemptLost, ModelReplied, ToolSucceeded

HASH = Digest("a" * 64)


def call(number: int, index: int, name: str, arguments: str) -> ToolCall:
    return ToolCall(id=CallId(f"c{number}_{index}"), provider_id=f"p{number}{index}", name=name, arguments=arguments)


def started_model(number: int, attempt: int = 1) -> EffectStarted:
    effect = CallModel(model="m/one", builder="chat/1", request_hash=HASH, request_bytes=10, messages=number)
    return EffectStarted(call_id=CallId(f"c{number}"), attempt=attempt, effect=effect)


def replied(number: int, message: AssistantMessage, attempt: int = 1, cost: float | None = 0.25) -> EffectFinished:
    outcome = ModelReplied(
        message=message,
        stop="stop",
        usage=Usage(input=100, cached=40, output=7),
        cost_usd=cost,
        model="one-1",
        first_byte_ms=5,
        total_ms=9,
    )
    return EffectFinished(call_id=CallId(f"c{number}"), attempt=attempt, outcome=outcome)


def session() -> list[Body]:
    listing = call(1, 1, "shell", '{"command":"ls"}')
    deleting = call(1, 2, "shell", '{"command":"rm -r /"}')
    return [
        SessionOpened(epoch=1, version="0", pid=1, host="h"),
        ContextSet(
            builder="chat/1",
            model="m/one",
            wire_model="one",
            system="be good",
            tools='[{"name":"shell"}]',
            parameters="{}",
            window=1000,
        ),
        UserSaid(id=CommandId("u1"), text="list the files\nplease"),
        started_model(1),
        EffectFinished(call_id=CallId("c1"), attempt=1, outcome=AttemptLost(evidence="killed", charged_usd=0.5)),
        started_model(1, attempt=2),
        replied(
            1, AssistantMessage(parts=(ReasoningPart(text="hm"), TextPart(text="ok"), listing, deleting)), attempt=2
        ),
        EffectStarted(
            call_id=listing.id,
            attempt=1,
            effect=RunTool(tool="shell", arguments=listing.arguments, effect_class="command", allowed_by="mode auto"),
        ),
        EffectStarted(
            call_id=CallId("c1_2_ask"),
            attempt=1,
            effect=AskUser(about=deleting.id, tool="shell", arguments="{}", reason="deletes", binding=HASH),
        ),
        UserSaid(id=CommandId("u2"), text="meanwhile"),
        CallRejected(call_id=deleting.id, why="denied", text="the user said no"),
        Approved(id=CommandId("u3"), ask=CallId("c1_2_ask"), binding=HASH),
        EffectFinished(call_id=listing.id, attempt=1, outcome=ToolSucceeded(text="a b", exit_code=0)),
        started_model(2),
        replied(2, AssistantMessage(parts=(TextPart(text="a and b"),))),
        TurnEnded(ending="done", text="a and b"),
    ]
