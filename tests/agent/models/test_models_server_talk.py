"""Whole conversations with the scripted server, by the client of each protocol: it refuses what is not brought back."""

from collections.abc import Sequence
from typing import Any

import pytest
from models_talk import PROTOCOLS, answered, asked

from agent.models.client import Delta, ModelClient, ReasoningDelta, TextDelta, ToolCallStarted, ignore_delta
from agent.models.http import HttpModel
from agent.models.script import Script, ScriptedCall, Turn
from agent.models.scripted import ScriptedModel
from agent.models.server import ModelServer
from agent.models.wires import WIRES
from configs.models import Protocol
from eventlog.messages import AssistantMessage, Message, OpaquePart, UserMessage
from eventlog.outcomes import ModelFailed, ModelReplied

CALL = ScriptedCall(name="read", arguments={"path": "a"})
TURNS = (
    Turn(text="First I look.", reasoning="What is asked?", tool_calls=(CALL, CALL), chunk_bytes=13),
    Turn(reasoning="Not for show.", hide_reasoning=True, tool_calls=(CALL,)),
    Turn(text="It is done.", reasoning="Enough."),
    Turn(text="I will not.", stop="refusal"),
    Turn(text="It goes on and", reasoning="Long.", stop="length"),
    Turn(text="Good-bye."),
)
START: tuple[Message, ...] = (UserMessage(text="do it"),)


async def talk(model: ModelClient, protocol: Protocol, turns: Sequence[Turn]) -> list[ModelReplied]:
    messages, replies = START, list[ModelReplied]()
    for _ in turns:
        outcome = await model.complete(asked(protocol, messages), ignore_delta)
        assert isinstance(outcome, ModelReplied), outcome
        messages = answered(messages, outcome)
        replies.append(outcome)
    return replies


def without_times(replies: Sequence[ModelReplied]) -> list[dict[str, Any]]:
    return [reply.model_dump(exclude={"first_byte_ms", "total_ms"}) for reply in replies]


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_whole_conversation_is_held_and_the_same_in_process(protocol: Protocol) -> None:
    script = Script(turns=TURNS)
    async with ModelServer(script) as server, HttpModel(WIRES[protocol], server.base_url) as client:
        replies = await talk(client, protocol, TURNS)
    assert [reply.message.text for reply in replies] == [turn.text for turn in TURNS]
    assert [len(reply.message.tool_calls) for reply in replies] == [len(turn.tool_calls) for turn in TURNS]
    assert [reply.stop for reply in replies] == ["tool_calls", "tool_calls", "stop", "refusal", "length", "stop"]
    assert without_times(replies) == without_times(await talk(ScriptedModel(script, None, protocol), protocol, TURNS))


async def test_a_paused_reply_goes_on() -> None:
    turns = (Turn(text="One moment.", reasoning="Search.", stop="pause"), *TURNS)
    async with ModelServer(Script(turns=turns)) as server, HttpModel(WIRES["messages"], server.base_url) as client:
        replies = await talk(client, "messages", turns)
    assert [reply.message.text for reply in replies] == [turn.text for turn in turns]
    assert replies[0].stop == "pause"


@pytest.mark.parametrize("protocol", ["responses", "messages"])
async def test_a_client_that_loses_what_was_sealed_is_refused(protocol: Protocol) -> None:
    async with ModelServer(Script(turns=TURNS)) as server, HttpModel(WIRES[protocol], server.base_url) as client:
        reply = await client.complete(asked(protocol, START), ignore_delta)
        assert isinstance(reply, ModelReplied)
        parts = tuple(part for part in reply.message.parts if not isinstance(part, OpaquePart))
        lost = reply.model_copy(update={"message": AssistantMessage(parts=parts)})
        outcome = await client.complete(asked(protocol, answered(START, lost)), ignore_delta)
    assert isinstance(outcome, ModelFailed)
    assert (outcome.fault, outcome.status, outcome.retry) == ("refused", 400, False)
    assert "missing" in outcome.text


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_deltas_come_in_the_order_of_the_reply(protocol: Protocol) -> None:
    deltas: list[Delta] = []
    async with ModelServer(Script(turns=TURNS)) as server, HttpModel(WIRES[protocol], server.base_url) as client:
        await client.complete(asked(protocol), deltas.append)
    kinds = [type(delta) for delta in deltas]
    assert kinds == sorted(kinds, key=[ReasoningDelta, TextDelta, ToolCallStarted].index)
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "First I look."
    assert "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)) == "What is asked?"
    assert [delta.name for delta in deltas if isinstance(delta, ToolCallStarted)] == ["read", "read"]


@pytest.mark.parametrize("other", PROTOCOLS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_conversation_goes_on_with_another_model_of_any_protocol(protocol: Protocol, other: Protocol) -> None:
    """What one provider sealed is not shown to the next."""
    followed = Script(turns=(Turn(text="Not said."), Turn(text="Not said."), Turn(text="Here I take over.")))
    messages = START
    async with (
        ModelServer(Script(turns=TURNS)) as server,
        ModelServer(followed) as second,
        HttpModel(WIRES[protocol], server.base_url) as client,
        HttpModel(WIRES[other], second.base_url) as fallback,
    ):
        for _ in range(2):
            reply = await client.complete(asked(protocol, messages), ignore_delta)
            assert isinstance(reply, ModelReplied)
            messages = answered(messages, reply)
        outcome = await fallback.complete(asked(other, messages), ignore_delta)
    assert isinstance(outcome, ModelReplied), outcome
    assert outcome.message.text == "Here I take over."
