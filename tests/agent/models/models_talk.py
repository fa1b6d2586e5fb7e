"""Requests of every protocol, built as sessions build them."""

from collections.abc import Sequence

from agent.models.client import ModelRequest, Prices
from agent.models.requests import build_request
from agent.models.wires import WIRES
from configs.models import Protocol
from eventlog.events import ContextSet
from eventlog.ids import CallId
from eventlog.messages import Message, ToolMessage, UserMessage
from eventlog.outcomes import ModelReplied

PROTOCOLS: tuple[Protocol, ...] = ("chat", "responses", "messages")
TOOLS = '[{"type":"function","function":{"name":"read","parameters":{"type":"object","properties":{}}}}]'


def context(protocol: Protocol, system: str = "You code.", tools: str = TOOLS, model: str = "m") -> ContextSet:
    return ContextSet(
        builder=WIRES[protocol].builder,
        model=f"made-up/{model}",
        wire_model=model,
        system=system,
        tools=tools,
        parameters="{}",
        window=1000,
    )


def asked(
    protocol: Protocol,
    messages: Sequence[Message] = (UserMessage(text="do it"),),
    sent_before: int = 0,
    bound: int = 100,
) -> ModelRequest:
    """The id of the call follows from the length of the conversation."""
    body = build_request(context(protocol), messages, bound)
    return ModelRequest(CallId(f"c{len(messages)}"), body, Prices(1.0, 0.1, 2.0), sent_before)


def answered(messages: Sequence[Message], outcome: ModelReplied, then: str = "go on") -> tuple[Message, ...]:
    """The conversation with the reply in it, its calls answered; after a reply without calls, a word of the user. A
    paused reply is sent back as it is."""
    calls = outcome.message.tool_calls
    results = [ToolMessage(call_id=call.id, provider_id=call.provider_id, text="found") for call in calls]
    more = results or ([] if outcome.stop == "pause" else [UserMessage(text=then)])
    return (*messages, outcome.message, *more)
