"""A tiny conversation with a model, to see what works: an answer, streaming, counted tokens, a tool and its result."""

from dataclasses import dataclass, replace
from random import Random

import orjson
from pydantic import SecretStr

from agent.models.client import Delta, ModelClient, ModelError, ModelRequest, Prices, cost_usd
from agent.models.http import Timeouts
from agent.models.requests import build_request
from agent.models.resolve import Target, close_client, open_client
from agent.models.verdicts import Faulty, Finished, Reader
from agent.models.wires import WIRES
from eventlog.events import ContextSet
from eventlog.ids import model_call_id
from eventlog.messages import Message, ToolMessage, UserMessage
from eventlog.outcomes import ModelFailed, ModelReplied

SILENCE_S = 60.0
MAX_OUTPUT_TOKENS = 2000
"""Enough for a model that thinks before it calls; most use a twentieth of it."""
WORD = "thalia-7431"
"""What the tool returns: a reply that holds it was made of the result."""
TOOL = {
    "type": "function",
    "function": {
        "name": "ping",
        "description": "Returns a word.",
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    },
}
SYSTEM = "You are asked one question. Do as it says, in as few words as you can."
QUESTION = "Call the tool `ping`, then tell me the word that it returned."


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    ok: bool
    text: str
    needed: bool = True
    """A session cannot do without."""


async def probe(target: Target, key: SecretStr | None) -> tuple[Finding, ...]:
    """At most two requests. The first finding is `answer`: where it is not ok there is no other. Raises ModelError."""
    if target.provider == "scripted":
        raise ModelError(f"{target.model} is a script that is played, not a server; there is nothing to probe.")
    counted: list[bool] = []
    wire = WIRES[target.protocol]
    watched = replace(wire, reader=lambda call_id: _Watched(wire.reader(call_id), counted))
    client = open_client(target, key, Random(), Timeouts(silence_s=SILENCE_S), watched)
    try:
        return await _converse(client, target, counted)
    finally:
        await close_client(client)


async def _converse(client: ModelClient, target: Target, counted: list[bool]) -> tuple[Finding, ...]:
    context = _context(target)
    asked = UserMessage(text=QUESTION)
    pieces: list[Delta] = []
    first = await _ask(client, target, context, (asked,), 1, pieces)
    if isinstance(first, ModelFailed):
        return (Finding("answer", False, first.text),)
    reported = bool(counted) and counted[-1]
    calls = first.message.tool_calls
    tools = Finding("tool calls", False, "it wrote text where it was to call a tool")
    if calls:
        results = [ToolMessage(call_id=call.id, provider_id=call.provider_id, text=WORD) for call in calls]
        tools = _tool_calls(await _ask(client, target, context, (asked, first.message, *results), 2, pieces))
    return _answer(first), _streaming(len(pieces)), _usage(first, reported, target.prices), tools


async def _ask(
    client: ModelClient,
    target: Target,
    context: ContextSet,
    messages: tuple[Message, ...],
    number: int,
    pieces: list[Delta],
) -> ModelReplied | ModelFailed:
    body = build_request(context, messages, MAX_OUTPUT_TOKENS)
    return await client.complete(ModelRequest(model_call_id(number), body, target.prices), pieces.append)


def _context(target: Target) -> ContextSet:
    return ContextSet(
        builder=WIRES[target.protocol].builder,
        model=target.model,
        wire_model=target.wire_model,
        system=SYSTEM,
        tools=orjson.dumps([TOOL]).decode(),
        parameters=orjson.dumps(target.parameters({})).decode(),
        window=target.profile.window,
    )


def _answer(reply: ModelReplied) -> Finding:
    named = f", as {reply.model}" if reply.model else ""
    return Finding("answer", True, f"first byte after {reply.first_byte_ms} ms, all after {reply.total_ms} ms{named}")


def _streaming(pieces: int) -> Finding:
    if pieces < 2:
        return Finding("streaming", False, "a reply comes as a whole", needed=False)
    return Finding("streaming", True, f"{pieces} pieces", needed=False)


def _usage(reply: ModelReplied, reported: bool, prices: Prices) -> Finding:
    if not reported:
        return Finding("usage", False, "not reported; tokens are estimated from bytes", needed=False)
    cost = cost_usd(reply.usage, prices)
    price = "cost unknown" if cost is None else f"${cost:.6f}" if cost else "free"
    return Finding("usage", True, f"{reply.usage.input} tokens in, {reply.usage.output} out, {price}", needed=False)


def _tool_calls(reply: ModelReplied | ModelFailed) -> Finding:
    if isinstance(reply, ModelFailed):
        return Finding("tool calls", False, f"it called the tool, and did not take the result: {reply.text}")
    if WORD not in reply.message.text:
        return Finding("tool calls", False, "it called the tool, and did not use the result")
    return Finding("tool calls", True, "it called the tool and used the result")


class _Watched:
    """A reader that notes whether the server itself counted the tokens."""

    def __init__(self, reader: Reader, counted: list[bool]) -> None:
        self._reader, self._counted = reader, counted

    @property
    def output_bytes(self) -> int:
        return self._reader.output_bytes

    @property
    def ended(self) -> bool:
        return self._reader.ended

    def feed(self, chunk: bytes) -> list[Delta]:
        return self._reader.feed(chunk)

    def finish(self) -> Finished | Faulty:
        verdict = self._reader.finish()
        self._counted.append(verdict.usage is not None)
        return verdict
