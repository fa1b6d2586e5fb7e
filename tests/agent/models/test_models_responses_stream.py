"""The reader of Responses: recorded traffic against the vendor's SDK, and what odd servers send."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models_wire import Recording, raw_server, read_whole, recordings, stream

from agent.models.client import Delta, ReasoningDelta, TextDelta, ToolCallStarted
from agent.models.responses_items import items_of
from agent.models.responses_stream import ResponsesStream
from agent.models.verdicts import Faulty, Finished
from eventlog.ids import CallId
from eventlog.messages import OpaquePart, Part, ReasoningPart, TextPart, ToolCall, Usage

RECORDED = recordings("responses-sse-*.json")
OURS = ("message", "function_call")
BROKEN = {"responses-sse-failed": "server", "responses-sse-error": "rate_limited"}
"""Recordings that are no replies, with their faults."""
LONGEST_CUT_EVERYWHERE = 9_000
ODD = recordings("responses-odd-*.json")
"""Which the SDK cannot take."""
each_recording = pytest.mark.parametrize("recording", RECORDED + ODD, ids=lambda recording: recording.name)


def read(*chunks: bytes) -> Finished | Faulty:
    return read_whole(ResponsesStream(CallId("c1")), *chunks)


def finished(*chunks: bytes) -> Finished:
    verdict = read(*chunks)
    assert isinstance(verdict, Finished), verdict
    return verdict


def faulty(*chunks: bytes) -> Faulty:
    verdict = read(*chunks)
    assert isinstance(verdict, Faulty), verdict
    return verdict


def event(type: str, **fields: Any) -> bytes:
    return b"data: " + json.dumps({"type": f"response.{type}", **fields}).encode() + b"\n\n"


def end(*output: dict[str, Any], status: str = "completed", **fields: Any) -> bytes:
    response = {"object": "response", "status": status, "model": "m", "output": list(output), **fields}
    return event(status, response=response)


def message(text: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"type": "message", "id": "m1", "role": "assistant", "status": "completed", "content": content, **fields}


def call(arguments: Any = "{}", name: str = "read", call_id: str = "a", **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "id": "f1", "call_id": call_id, "name": name, "arguments": arguments, **fields}


def reasoning(**fields: Any) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs1", "summary": [], **fields}


def opaque(verdict: Finished) -> list[dict[str, Any]]:
    """The whole items that go back untouched."""
    found = [json.loads(part.data) for part in verdict.message.parts if isinstance(part, OpaquePart)]
    return [item for item in found if item["type"] not in OURS]


def named(verdict: Finished) -> list[tuple[str, str]]:
    return [(call.name, call.arguments) for call in verdict.message.tool_calls]


# Recorded traffic.


@dataclass(frozen=True, slots=True)
class Accumulated:
    status: str
    text: str
    calls: list[tuple[str, str, str]]
    rest: list[dict[str, Any]]
    """Items of other kinds, reasoning among them, with all their fields."""
    usage: Usage
    model: str


async def accumulated_by_the_sdk(recording: Recording) -> Accumulated | None:
    """What the vendor's SDK makes of the same bytes; None where it makes no reply of them."""
    from openai import APIError, AsyncOpenAI

    response = None
    async with (
        raw_server([stream(recording.body)]) as server,
        AsyncOpenAI(api_key="k", base_url=server.base_url, max_retries=0) as client,
        client.responses.stream(model="m", input="x") as made,
    ):
        try:
            async for part in made:
                match part.type:
                    case "response.completed" | "response.incomplete":
                        response = part.response
                    case _:
                        continue
        except APIError:
            return None
    if response is None:
        return None
    items = [item.to_dict(warnings=False) for item in response.output]
    said = [part for item in items if item["type"] == "message" for part in _list(item["content"])]
    used = response.usage
    assert used is not None
    return Accumulated(
        str(response.status),
        "".join(part.get("text") or part.get("refusal") for part in said),
        [(str(i["call_id"]), str(i["name"]), str(i["arguments"])) for i in items if i["type"] == "function_call"],
        [item for item in items if item["type"] not in OURS],
        Usage(
            input=used.input_tokens,
            cached=used.input_tokens_details.cached_tokens,
            cache_written=used.input_tokens_details.cache_write_tokens or 0,  # left out by some servers
            output=used.output_tokens,
            reasoning=used.output_tokens_details.reasoning_tokens,
        ),
        response.model,
    )


def _list(value: object) -> list[Any]:
    assert isinstance(value, list)
    return value


@pytest.mark.parametrize("recording", RECORDED, ids=lambda recording: recording.name)
async def test_a_recorded_reply_of_responses_is_what_the_sdk_makes_of_it(recording: Recording) -> None:
    expected, verdict = await accumulated_by_the_sdk(recording), read(recording.body)
    if expected is None:
        assert isinstance(verdict, Faulty)
        assert verdict.fault.kind == BROKEN[recording.name]
        return
    assert isinstance(verdict, Finished), verdict
    assert verdict.message.text == expected.text
    calls = [(call.provider_id, call.name, call.arguments) for call in verdict.message.tool_calls]
    assert calls == [(id, name, arguments or "{}") for id, name, arguments in expected.calls]
    assert opaque(verdict) == expected.rest
    assert (verdict.usage, verdict.model) == (expected.usage, expected.model)
    assert (verdict.stop in {"length", "content_filter"}) == (expected.status == "incomplete")


def cuts(recording: Recording) -> Iterator[list[bytes]]:
    """Byte by byte and in two at every byte where that is not too long; and at random places of a fixed seed."""
    body, random = recording.body, Random(recording.name)
    if len(body) < 40_000:
        yield [body[at : at + 1] for at in range(len(body))]
    if len(body) < LONGEST_CUT_EVERYWHERE:
        yield from ([body[:at], body[at:]] for at in range(1, len(body)))
    for count in (1, 3, 40, 400):
        ends = sorted({0, len(body), *(random.randrange(len(body)) for _ in range(count))})
        yield [body[start:end] for start, end in pairwise(ends)]


@each_recording
def test_a_reply_of_responses_is_the_same_wherever_its_bytes_are_cut(recording: Recording) -> None:
    whole = read(recording.body)
    assert all(read(*chunks) == whole for chunks in cuts(recording))


@each_recording
def test_a_reply_of_responses_that_ends_early_is_never_a_reply(recording: Recording) -> None:
    """Cut anywhere before the event that ends it, it is a fault: no call is made of its parts."""
    found = (recording.body.rfind(b'"response.%b"' % how) for how in (b"completed", b"incomplete", b"failed"))
    last = max(*found, recording.body.find(b'"type": "error"'))
    random = Random(recording.name)
    for at in (0, 1, last, *(random.randrange(last) for _ in range(20))):
        assert isinstance(read(recording.body[:at]), Faulty)


@each_recording
def test_what_was_streamed_is_the_reply_where_the_last_event_leaves_its_output_out(recording: Recording) -> None:
    if recording.name in BROKEN:
        return
    whole, bare = finished(recording.body), finished(_without_output(recording.body))
    assert (bare.message.text, named(bare), bare.stop) == (whole.message.text, named(whole), whole.stop)
    assert [item["id"] for item in opaque(bare)] == [item["id"] for item in opaque(whole)]


def _without_output(body: bytes) -> bytes:
    lines = body.splitlines(keepends=True)
    for at, line in enumerate(lines):
        value = json.loads(line[6:]) if line.startswith(b"data: {") else {}
        if value.get("type") in {"response.completed", "response.incomplete"}:
            value["response"]["output"] = []
            lines[at] = b"data: " + json.dumps(value).encode() + b"\n"
    return b"".join(lines)


@each_recording
def test_the_screen_shows_the_text_that_is_kept(recording: Recording) -> None:
    reader = ResponsesStream(CallId("c1"))
    deltas = reader.feed(recording.body)
    verdict = reader.finish()
    if isinstance(verdict, Finished):
        assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == verdict.message.text
        started = [delta.name for delta in deltas if isinstance(delta, ToolCallStarted)]
        assert started == [call.name for call in verdict.message.tool_calls]


# What is kept of a reply.


def test_the_parts_and_the_deltas_of_a_reply_come_in_its_order() -> None:
    [recording] = [one for one in RECORDED if one.name == "responses-sse-reasoning-two-calls"]
    reader, deltas = ResponsesStream(CallId("c7")), list[Delta]()
    for at in range(0, len(recording.body), 50):
        deltas += reader.feed(recording.body[at : at + 50])
    thoughts = [ReasoningDelta(text) for text in ("Look ", "at a.", "\n\n", "Then ", "at b.")]
    calls = [ToolCallStarted(1, "read"), ToolCallStarted(2, "grep")]
    assert deltas == [*thoughts, TextDelta("I look."), *calls]
    verdict = reader.finish()
    assert isinstance(verdict, Finished)
    thought, secret, phase, said, *asked = verdict.message.parts
    assert (thought, said) == (ReasoningPart(text="Look at a.\n\nThen at b."), TextPart(text="I look."))
    assert phase == OpaquePart(provider="responses", data='{"type":"message","phase":"commentary"}')
    assert isinstance(secret, OpaquePart) and json.loads(secret.data)["encrypted_content"] == "gAAAA-first"
    first, second = CallId("c7_1"), CallId("c7_2")
    wanted: list[Part] = [
        ToolCall(id=first, provider_id="call_a", name="read", arguments='{"path": "a"}'),
        ToolCall(id=second, provider_id="call_b", name="grep", arguments='{"pattern":"x"}'),
    ]
    assert asked == wanted
    assert (verdict.stop, verdict.model) == ("tool_calls", "m-1")
    assert verdict.usage == Usage(input=120, cached=64, cache_written=8, output=30, reasoning=12)


def test_an_item_of_a_kind_unknown_here_is_kept_to_the_letter() -> None:
    [recording] = [one for one in ODD if one.name == "responses-odd-item"]
    for body in (recording.body, _without_output(recording.body)):
        kept = [part.data for part in finished(body).message.parts if isinstance(part, OpaquePart)][1]
        assert kept in recording.body.decode()
        assert '"amount":  1.50' in kept and "123456789012345678901234567890" in kept


def test_an_item_whose_letters_cannot_be_found_is_kept_by_its_value() -> None:
    deep = {"type": "novel", "deep": json.loads("[" * 600 + "]" * 600)}
    [item] = items_of({"output": [deep]}, "not the JSON of it")
    assert json.loads(item.raw) == deep


def test_reasoning_that_ends_without_its_encryption_is_taken_as_it_was_streamed() -> None:
    done = event("output_item.done", output_index=0, item=reasoning(encrypted_content="gAAAA"))
    assert opaque(finished(done, end(reasoning(), message("yes")))) == [reasoning(encrypted_content="gAAAA")]
    nameless = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    unnamed = event("output_item.done", output_index=0, item=nameless)
    assert opaque(finished(unnamed, end({"type": "reasoning", "summary": []}, message("yes", id="")))) == [
        {"type": "reasoning", "summary": []}
    ]
    changed = finished(done, end(reasoning(encrypted_content="gBBBB"), message("yes")))
    assert opaque(changed) == [reasoning(encrypted_content="gBBBB")]


def test_reasoning_in_plain_text_is_shown_and_kept() -> None:
    thought = reasoning(content=[{"type": "reasoning_text", "text": "hm"}])
    verdict = finished(event("reasoning_text.delta", output_index=0, delta="hm"), end(thought, message("yes")))
    assert verdict.message.parts[0] == ReasoningPart(text="hm")
    assert opaque(verdict) == [thought]


def test_what_a_call_holds_besides_is_kept_before_it() -> None:
    parts = finished(end(call(namespace="files", status="completed", caller=None))).message.parts
    assert parts[0] == OpaquePart(provider="responses", data='{"type":"function_call","namespace":"files"}')
    assert isinstance(parts[1], ToolCall)


def test_arguments_that_are_no_text_become_their_json_here_too() -> None:
    assert named(finished(end(call({"a": [1]})))) == [("read", '{"a":[1]}')]
    assert named(finished(end(call(None)))) == [("read", "{}")]


# How a reply ends.


@pytest.mark.parametrize(
    ("output", "more", "stop"),
    [
        ([message("yes")], {}, "stop"),
        ([message("yes"), call()], {}, "tool_calls"),
        ([message("yes"), reasoning()], {"status": "incomplete"}, "length"),
        ([], {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}, "length"),
        ([message("yes")], {"status": "incomplete", "incomplete_details": {"reason": "new"}}, "length"),
        ([], {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}, "content_filter"),
        ([message("", content=[{"type": "refusal", "refusal": "No."}])], {}, "refusal"),
    ],
)
def test_the_status_says_why_a_reply_ended(output: list[dict[str, Any]], more: dict[str, Any], stop: str) -> None:
    assert finished(end(*output, **more)).stop == stop


def test_a_call_cut_by_the_bound_keeps_its_arguments_as_they_are() -> None:
    assert named(finished(end(call('{"a":', status="incomplete"), status="incomplete"))) == [("read", '{"a":')]
    assert named(finished(end(call(""), status="incomplete"))) == [("read", "")]


def test_the_status_of_the_response_counts_for_more_than_the_name_of_the_event() -> None:
    response = {"object": "response", "status": "incomplete", "output": [message("yes")]}
    assert finished(event("completed", response=response)).stop == "length"


def test_a_call_that_ends_as_another_one_is_never_run() -> None:
    for other in (call('{"a":2}'), call('{"a":1}', name="shell"), call('{"a":1}', call_id="b")):
        streamed = event("output_item.done", output_index=0, item=call('{"a":1}'))
        verdict = faulty(streamed, end(other))
        assert (verdict.fault.kind, verdict.fault.retry) == ("malformed", True)
        assert faulty(streamed, end(message("yes"))).fault.kind == "malformed"


def test_a_call_that_is_only_written_another_way_is_the_same() -> None:
    done = event("output_item.done", output_index=0, item=call('{"a": 1, "b":2}'))
    assert named(finished(done, end(call('{"b":2,"a":1}')))) == [("read", '{"b":2,"a":1}')]


def test_a_reply_whose_items_were_never_said_to_be_done_is_made_of_its_pieces() -> None:
    pieces = (
        event("output_item.added", output_index=0, item=message("", content=[])),
        event("output_text.delta", output_index=0, delta="I "),
        event("output_text.delta", output_index=0, delta="read."),
        event("output_item.added", output_index=1, item=call("")),
        event("function_call_arguments.delta", output_index=1, delta='{"a"'),
        event("function_call_arguments.delta", output_index=1, delta=":1}"),
    )
    verdict = finished(*pieces, end())
    assert (verdict.message.text, named(verdict)) == ("I read.", [("read", '{"a":1}')])
    assert faulty(*pieces).fault.kind == "cut"


def test_items_that_are_not_numbered_are_told_apart_by_id() -> None:
    pieces = (
        event("output_item.added", item=message("", content=[])),
        event("output_text.delta", item_id="m1", delta="I read."),
        event("output_item.added", item=call("", call_id="a")),
        event("output_item.added", item=call("", call_id="b", name="grep", id="f2")),
        event("function_call_arguments.delta", item_id="f2", delta='{"b":1}'),
        event("function_call_arguments.delta", item_id="f1", delta='{"a":1}'),
    )
    verdict = finished(*pieces, end())
    assert (verdict.message.text, named(verdict)) == ("I read.", [("read", '{"a":1}'), ("grep", '{"b":1}')])


def test_text_without_an_item_around_it_is_a_message() -> None:
    assert finished(event("output_text.delta", delta="yes"), end()).message.parts == (TextPart(text="yes"),)


def test_an_event_that_is_only_named_outside_its_data_is_understood() -> None:
    body = b'event: response.output_text.delta\ndata: {"delta":"yes"}\n\n'
    assert finished(body, end()).message.text == "yes"


def test_what_follows_the_end_is_not_read() -> None:
    late = event("output_text.delta", output_index=3, delta="no")
    reader = ResponsesStream(CallId("c1"))
    assert reader.feed(end(message("yes")) + late + b"data: [DONE]\n\n") == []
    assert reader.ended
    verdict = reader.finish()
    assert isinstance(verdict, Finished)
    assert verdict.message.text == "yes"


def test_a_response_that_is_no_stream_is_taken_whole() -> None:
    output = [reasoning(encrypted_content="gAAAA"), message("yes"), call()]
    usage = {"input_tokens": 3, "output_tokens": 2}
    response = {"object": "response", "status": "completed", "error": None, "output": output, "usage": usage}
    body = json.dumps(response).encode()
    whole = finished(b"\n ", body)
    assert (whole.message.text, named(whole), whole.usage) == ("yes", [("read", "{}")], Usage(input=3, output=2))
    assert opaque(whole) == [output[0]]
    assert finished(*(body[at : at + 1] for at in range(len(body)))) == whole
    assert faulty(body[:-5]).fault.kind == "cut"


def test_a_missing_usage_is_none_and_its_bytes_are_counted() -> None:
    verdict = finished(event("output_text.delta", output_index=0, delta="yes!"), end(message("yes!")))
    assert (verdict.usage, verdict.output_bytes) == (None, 4)
    assert finished(end(message("yes!"))).output_bytes == 4


# What is no reply.


@pytest.mark.parametrize(
    ("body", "kind", "retry"),
    [
        (b"", "malformed", True),
        (b"<!doctype html><html></html>", "malformed", True),
        (b"data: not json\n\n", "malformed", True),
        (b"{}", "cut", True),
        (b"data: [DONE]\n\n", "cut", True),
        (event("output_text.delta", output_index=0, delta="yes") + b"data: [DONE]\n\n", "cut", True),
        (end(), "malformed", True),
        (end(message(" \n")), "malformed", True),
        (end(reasoning(encrypted_content="gAAAA")), "malformed", True),
        (end(status="cancelled"), "cut", True),
        (end(message("yes"), status="in_progress"), "cut", True),
        (end(status="failed"), "server", True),
        (end(status="failed", error={"code": "rate_limit_exceeded", "message": "wait"}), "rate_limited", True),
        (end(status="failed", error={"code": "insufficient_quota", "message": "pay"}), "rate_limited", False),
        (end(status="failed", error={"code": "context_length_exceeded", "message": "m"}), "context_too_long", False),
        (end(status="failed", error={"code": "invalid_prompt", "message": "no"}), "refused", False),
        (end(status="failed", error={"code": "bio_policy", "message": "no"}), "refused", False),
        (b'data: {"type":"error","code":null,"message":"boom"}\n\n', "server", True),
        (b'data: {"type":"error","error":{"type":"invalid_request_error","message":"no"}}\n\n', "refused", False),
        (b'event: error\ndata: {"message":"server is overloaded"}\n\n', "overloaded", True),
    ],
)
def test_what_is_no_reply_of_responses_is_named(body: bytes, kind: str, retry: bool) -> None:
    fault = faulty(body).fault
    assert (fault.kind, fault.retry) == (kind, retry)


odd = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.sampled_from(["", "m1", "{}"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "id", "content", "text", "call_id", "arguments", "encrypted_content", "summary"]),
            inner,
        )
    ),
    max_leaves=6,
)
odd_items = st.dictionaries(st.sampled_from(["id", "content", "summary", "call_id", "name", "arguments"]), odd)
odd_typed = st.tuples(odd_items, st.sampled_from(["message", "function_call", "reasoning", "novel"])).map(
    lambda pair: {**pair[0], "type": pair[1]}
)
KINDS = ("output_item.added", "output_item.done", "output_text.delta", "function_call_arguments.delta", "completed")
odd_events = st.tuples(
    st.sampled_from(KINDS),
    st.fixed_dictionaries(
        {},
        optional={
            "item": odd | odd_typed,
            "delta": odd,
            "output_index": odd,
            "item_id": odd,
            "response": odd
            | st.fixed_dictionaries(
                {"output": st.lists(odd | odd_typed, max_size=3)},
                optional={"status": odd, "usage": odd, "incomplete_details": odd, "model": odd},
            ),
        },
    ),
)


@given(st.lists(odd_events, max_size=6))
@settings(deadline=None, max_examples=300)
def test_no_event_however_odd_is_more_than_a_verdict(events: list[tuple[str, dict[str, Any]]]) -> None:
    """A client raises nothing for what a server does."""
    read(*(event(kind, **fields) for kind, fields in events))


def test_a_failed_reply_tells_what_it_used() -> None:
    usage = {"input_tokens": 9, "output_tokens": 4, "output_tokens_details": {"reasoning_tokens": 4}}
    verdict = faulty(end(status="failed", error={"code": "server_error", "message": "m"}, usage=usage))
    assert verdict.usage == Usage(input=9, output=4, reasoning=4)


def test_calls_without_end_are_given_up_here_too() -> None:
    added = (event("output_item.added", output_index=at, item=call(call_id=f"a{at}")) for at in range(300))
    assert faulty(*added).fault.kind == "malformed"
    assert faulty(end(*(call(call_id=f"a{at}") for at in range(300)))).fault.kind == "malformed"
