"""Recorded traffic of Messages: what the vendor's SDK makes of it, cut anywhere; and recorded errors."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from messages_talk import STOPS
from models_wire import Recording, raw_server, read_whole, recordings, stream

from agent.models.faults import fault_of_response
from agent.models.messages_stream import MessagesStream
from agent.models.verdicts import Faulty, Finished
from eventlog.ids import CallId
from eventlog.messages import AssistantMessage, OpaquePart, ToolCall

each_recording = pytest.mark.parametrize(
    "recording", recordings("messages-sse-*.json"), ids=lambda recording: recording.name
)


def read(*chunks: bytes) -> Finished | Faulty:
    return read_whole(MessagesStream(CallId("c1")), *chunks)


@dataclass(frozen=True, slots=True)
class Accumulated:
    blocks: list[dict[str, Any]]
    stop: str
    model: str
    usage: tuple[int, ...]


async def accumulated_by_the_sdk(recording: Recording) -> Accumulated | None:
    """What the vendor's SDK makes of the same bytes; None where it raises for an error in the stream."""
    from anthropic import APIError, AsyncAnthropic

    async with raw_server([stream(recording.body)]) as server:
        address = server.base_url
        async with AsyncAnthropic(api_key="k", base_url=address, max_retries=0) as client:
            asked: Any = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
            async with client.beta.messages.stream(**asked) as made:
                try:
                    async for _ in made:
                        pass
                except APIError:
                    return None
                message = made.current_message_snapshot
    cached, written = message.usage.cache_read_input_tokens or 0, message.usage.cache_creation_input_tokens or 0
    details = message.usage.output_tokens_details
    thinking = details.thinking_tokens if details else 0
    tokens = (message.usage.input_tokens + cached + written, cached, written, message.usage.output_tokens, thinking)
    blocks = [made.model_dump(mode="json", exclude_unset=True) for made in message.content]
    return Accumulated(blocks, message.stop_reason or "", message.model, tokens)


def expected_parts(blocks: list[dict[str, Any]], stop: str) -> Iterator[tuple[str, Any]]:
    """What a message should hold of the SDK's blocks, in their order."""
    for made in blocks:
        match made["type"]:
            case "text":
                yield "text", made["text"]
            case "tool_use" if stop == "max_tokens":
                yield made["name"], "cut"  # the SDK completes what was cut; we do not
            case "tool_use":
                if stop != "refusal":
                    yield made["name"], made["input"]
            case kind:
                if made.get("thinking"):
                    yield "reasoning", made["thinking"]
                yield kind, made


def parts_of(message: AssistantMessage, stop: str) -> Iterator[tuple[str, Any]]:
    for part in message.parts:
        match part:
            case ToolCall():
                yield part.name, "cut" if stop == "max_tokens" else json.loads(part.arguments)
            case OpaquePart():
                assert part.provider == "messages"
                item = json.loads(part.data)
                yield item["type"], item
            case _:
                yield part.kind, part.text


@each_recording
async def test_a_recorded_reply_is_what_the_sdk_makes_of_it(recording: Recording) -> None:
    expected, verdict = await accumulated_by_the_sdk(recording), read(recording.body)
    if expected is None:
        assert isinstance(verdict, Faulty)
        return
    assert isinstance(verdict, Finished), verdict
    assert (verdict.stop, verdict.model) == (STOPS[expected.stop], expected.model)
    if expected.blocks:
        found = list(parts_of(verdict.message, expected.stop))
        assert found == list(expected_parts(expected.blocks, expected.stop))
    usage = verdict.usage
    assert usage is not None
    assert (usage.input, usage.cached, usage.cache_written, usage.output, usage.reasoning) == expected.usage


def cuts(recording: Recording) -> Iterator[list[bytes]]:
    """Byte by byte, in two at every byte of a short one, and at random places of a fixed seed."""
    body, random = recording.body, Random(recording.name)
    yield [body[at : at + 1] for at in range(len(body))]
    if len(body) < 2_500:
        yield from ([body[:at], body[at:]] for at in range(len(body)))
    for count in (3, 40, 400):
        ends = sorted({0, len(body), *(random.randrange(len(body)) for _ in range(count))})
        yield [body[start:end] for start, end in pairwise(ends)]


@each_recording
def test_a_reply_is_the_same_wherever_its_bytes_are_cut(recording: Recording) -> None:
    whole = read(recording.body)
    assert all(read(*chunks) == whole for chunks in cuts(recording))


@each_recording
def test_a_reply_that_ends_early_is_never_a_reply(recording: Recording) -> None:
    """Cut anywhere before its stop reason it is a fault: no call is made of its parts."""
    stop = recording.body.rfind(b'"stop_reason"')
    random = Random(recording.name)
    for _ in range(20):
        assert isinstance(read(recording.body[: random.randrange(stop)]), Faulty)


@pytest.mark.parametrize("recording", recordings("messages-error-*.json"), ids=lambda recording: recording.name)
def test_a_recorded_error_is_the_right_fault(recording: Recording) -> None:
    expected = {
        "messages-error-rate": ("rate_limited", True),
        "messages-error-too-long": ("context_too_long", False),
        "messages-error-too-large": ("context_too_long", False),
        "messages-error-server": ("server", True),
        "messages-error-overloaded": ("overloaded", True),
    }
    fault = fault_of_response(recording.status, recording.headers, recording.body)
    assert (fault.kind, fault.retry) == expected.get(recording.name, ("refused", False))
    assert json.loads(recording.body)["error"]["message"] in fault.text
