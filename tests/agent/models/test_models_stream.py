"""The reader of replies: recorded traffic against the vendor's SDK, and what odd servers send."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from models_wire import Recording, raw_server, read_whole, recordings, stream

from agent.models.chat_stream import ChatStream
from agent.models.client import Delta, ReasoningDelta, TextDelta, ToolCallStarted
from agent.models.reading import MAX_REPLY_BYTES
from agent.models.verdicts import Faulty, Finished
from eventlog.ids import CallId
from eventlog.messages import OpaquePart, ReasoningPart, ToolCall, Usage

RECORDED = recordings("chat-sse-*.json")
each_recording = pytest.mark.parametrize("recording", RECORDED, ids=lambda recording: recording.name)


def read(*chunks: bytes) -> Finished | Faulty:
    return read_whole(ChatStream(CallId("c1")), *chunks)


def finished(*chunks: bytes) -> Finished:
    verdict = read(*chunks)
    assert isinstance(verdict, Finished), verdict
    return verdict


def fault(*chunks: bytes) -> str:
    verdict = read(*chunks)
    assert isinstance(verdict, Faulty), verdict
    return verdict.fault.kind


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choices = [{"index": 0, "delta": delta or {}, "finish_reason": finish}]
    return b"data: " + json.dumps({"model": "m", "choices": choices, **more}).encode() + b"\n\n"


def calls(*deltas: dict[str, Any], finish: str | None = "tool_calls") -> Finished | Faulty:
    return read(*(chunk({"tool_calls": [delta]}) for delta in deltas), chunk(finish=finish) if finish else b"")


def named(verdict: Finished | Faulty) -> list[tuple[str, str]]:
    assert isinstance(verdict, Finished), verdict
    return [(call.name, call.arguments) for call in verdict.message.tool_calls]


def piece(arguments: Any = None, name: str | None = None, id: str | None = None, index: Any = 0) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    fields = {key: value for key, value in (("id", id), ("index", index)) if value is not None}
    return {**fields, "function": function}


@dataclass(frozen=True, slots=True)
class Accumulated:
    text: str
    calls: list[tuple[str, str]]
    finish: str | None
    tokens: tuple[int, int] | None


async def accumulated_by_the_sdk(recording: Recording) -> Accumulated | None:
    """What the vendor's SDK makes of the same bytes; None where it raises for an error in the stream."""
    from openai import APIError, AsyncOpenAI
    from openai.lib.streaming.chat import ChatCompletionStreamState

    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    tokens: tuple[int, int] | None = None
    async with raw_server([stream(recording.body)]) as server:
        address = server.base_url
        async with AsyncOpenAI(api_key="k", base_url=address, max_retries=0) as client:
            made = await client.chat.completions.create(
                model="m", stream=True, messages=[{"role": "user", "content": "x"}]
            )
            try:
                async for part in made:
                    if part.usage is not None:
                        tokens = (part.usage.prompt_tokens, part.usage.completion_tokens)
                    for choice in part.choices:  # it cannot add up lists that it does not know
                        (choice.delta.model_extra or {}).clear()
                    state.handle_chunk(part)
            except APIError:
                return None
    choice = state.current_completion_snapshot.choices[0]
    message = choice.message
    found = [
        (call.function.name, call.function.arguments) for call in message.tool_calls or [] if call.type == "function"
    ]
    text = (message.content or "") + (message.refusal or "")
    return Accumulated(text, found, choice.finish_reason, tokens)


@each_recording
async def test_a_recorded_reply_is_what_the_sdk_makes_of_it(recording: Recording) -> None:
    expected, verdict = await accumulated_by_the_sdk(recording), read(recording.body)
    if expected is None:
        assert isinstance(verdict, Faulty)
        return
    assert isinstance(verdict, Finished), verdict
    assert verdict.message.text == expected.text
    whole = [(name, arguments or "{}") for name, arguments in expected.calls]
    assert named(verdict) == whole
    refused = verdict.stop == "refusal"
    assert (("stop" if refused else verdict.stop) if expected.finish else None) == expected.finish
    if expected.tokens is not None:
        assert verdict.usage is not None
        assert (verdict.usage.input, verdict.usage.output) == expected.tokens


def cuts(recording: Recording) -> Iterator[list[bytes]]:
    """Byte by byte where that is not too long, and three times at random places of a fixed seed."""
    body, random = recording.body, Random(recording.name)
    if len(body) < 40_000:
        yield [body[at : at + 1] for at in range(len(body))]
    for count in (3, 40, 400):
        ends = sorted({0, len(body), *(random.randrange(len(body)) for _ in range(count))})
        yield [body[start:end] for start, end in pairwise(ends)]


@each_recording
def test_a_reply_is_the_same_wherever_its_bytes_are_cut(recording: Recording) -> None:
    whole = read(recording.body)
    assert all(read(*chunks) == whole for chunks in cuts(recording))


@each_recording
def test_a_reply_that_ends_early_is_never_a_reply(recording: Recording) -> None:
    """Cut anywhere before its finish reason it is a fault: no call is made of its parts."""
    end = recording.body.find(b'"finish_reason":"')
    end = end if end >= 0 else recording.body.find(b'"finish_reason": "')
    random = Random(recording.name)
    for _ in range(20):
        at = random.randrange(max(end, 1)) if end >= 0 else random.randrange(len(recording.body) // 2)
        assert isinstance(read(recording.body[:at]), Faulty)


def test_the_deltas_of_a_reply_come_in_its_order() -> None:
    reader, deltas = ChatStream(CallId("c7")), list[Delta]()
    for part in (
        chunk({"reasoning": "hm"}),
        chunk({"content": "I "}),
        chunk({"content": "read."}),
        chunk({"tool_calls": [piece("", "read", "a")]}),
        chunk({"tool_calls": [piece('{"path":"a"}')]}),
        chunk(finish="tool_calls", usage={"prompt_tokens": 9, "completion_tokens": 4}),
        b"data: [DONE]\n\n",
    ):
        deltas += reader.feed(part)
    assert deltas == [ReasoningDelta("hm"), TextDelta("I "), TextDelta("read."), ToolCallStarted(1, "read")]
    verdict = reader.finish()
    assert isinstance(verdict, Finished)
    assert verdict.message.parts[0] == ReasoningPart(text="hm")
    id = CallId("c7_1")
    assert verdict.message.tool_calls == (ToolCall(id=id, provider_id="a", name="read", arguments='{"path":"a"}'),)
    assert (verdict.stop, verdict.usage, verdict.model) == ("tool_calls", Usage(input=9, output=4), "m")


# Cut streams: no call from partial data, never an empty object in its place.


@pytest.mark.parametrize("arguments", [(), ('{"pa',), ('{"path":', '"a"}')])
def test_a_call_without_a_finish_reason_is_a_cut(arguments: tuple[str, ...]) -> None:
    verdict = calls(piece("", "read", "a"), *(piece(text) for text in arguments), finish=None)
    assert isinstance(verdict, Faulty)
    assert (verdict.fault.kind, verdict.fault.retry) == ("cut", True)


def test_the_end_mark_alone_makes_no_call_but_a_text() -> None:
    done = b"data: [DONE]\n\n"
    assert fault(chunk({"tool_calls": [piece("{}", "read", "a")]}), done) == "cut"
    assert finished(chunk({"content": "yes"}), done).stop == "stop"
    assert fault(chunk({"content": "yes"})) == "cut"


def test_a_call_without_arguments_and_a_proper_stop_runs_with_an_empty_object() -> None:
    assert named(calls(piece("", "status", "a"))) == [("status", "{}")]
    assert named(calls(piece(None, "status", "a"), finish="stop")) == [("status", "{}")]


def test_a_reply_cut_by_length_leaves_its_arguments_as_they_are() -> None:
    assert named(calls(piece("", "status", "a"), finish="length")) == [("status", "")]
    assert named(calls(piece('{"a":', "status", "a"), finish="length")) == [("status", '{"a":')]


def test_a_stream_that_ends_in_the_middle_of_an_event_is_a_cut() -> None:
    assert fault(chunk({"content": "yes"}), chunk(finish="stop")[:-9]) == "cut"


def test_a_last_event_without_its_blank_line_counts() -> None:
    assert finished(chunk({"content": "yes"}), chunk(finish="stop").rstrip()).stop == "stop"


# Odd servers.


def test_calls_without_an_index_are_told_apart() -> None:
    by_id = calls(piece("{}", "read", "a", None), piece("", "grep", "b", None), piece('{"a":1}', None, "b", None))
    assert named(by_id) == [("read", "{}"), ("grep", '{"a":1}')]
    by_order = calls(piece('{"a":', "read", None, None), piece("1}", None, None, None), piece("{}", "grep", None, None))
    assert named(by_order) == [("read", '{"a":1}'), ("grep", "{}")]


def test_calls_that_are_all_numbered_zero_are_told_apart_by_id() -> None:
    assert named(calls(piece("{}", "read", "a"), piece('{"b":1}', "grep", "b"))) == [
        ("read", "{}"),
        ("grep", '{"b":1}'),
    ]


def test_two_calls_with_the_same_id_are_two_calls_under_our_ids() -> None:
    for index in (1, None):
        verdict = calls(piece("{}", "read", "same", 0 if index else None), piece('{"b":1}', "grep", "same", index))
        assert named(verdict) == [("read", "{}"), ("grep", '{"b":1}')]
        assert isinstance(verdict, Finished)
        assert [(call.id, call.provider_id) for call in verdict.message.tool_calls] == [
            ("c1_1", "same"),
            ("c1_2", "same"),
        ]


def test_id_and_name_that_come_again_with_every_piece_count_once() -> None:
    assert named(calls(*(piece(text, "read", "a") for text in ('{"a"', ":1", "}")))) == [("read", '{"a":1}')]


def test_a_name_may_come_in_pieces() -> None:
    assert named(calls(piece(None, "re", "a"), piece(None, "ad"), piece("{}"))) == [("read", "{}")]


def test_an_id_that_changes_with_every_piece_does_not_part_a_call() -> None:
    assert named(calls(piece('{"a"', "read", "x1"), piece(":1}", None, "x2"))) == [("read", '{"a":1}')]


@pytest.mark.parametrize(("arguments", "text"), [({"a": [1]}, '{"a":[1]}'), ([1], "[1]"), (None, "{}")])
def test_arguments_that_are_no_text_become_their_json(arguments: Any, text: str) -> None:
    assert named(calls(piece(arguments, "read", "a"))) == [("read", text)]


def test_arguments_stay_as_the_model_wrote_them() -> None:
    deep = '{"a":' + "[" * 300 + "]" * 300 + "}"
    for text in ("[1,2]", '{"a":', "no json", deep):
        assert named(calls(piece(text, "read", "a"))) == [("read", text)]


def test_a_call_beside_a_stop_of_text_is_still_asked_for() -> None:
    verdict = calls(piece("{}", "read", "a"), finish="stop")
    assert isinstance(verdict, Finished)
    assert verdict.stop == "tool_calls"


def test_what_comes_after_the_finish_reason_is_kept_and_after_the_end_mark_is_not() -> None:
    late = finished(
        chunk({"content": "yes"}, "stop"), chunk({"tool_calls": [piece("{}", "read", "a")]}), b"data: [DONE]\n\n",
        chunk({"content": " no"}),
    )  # fmt: skip
    assert (late.message.text, named(late), late.stop) == ("yes", [("read", "{}")], "tool_calls")


def test_a_legacy_function_call_is_a_call() -> None:
    parts = ({"name": "read", "arguments": ""}, {"arguments": "{}"})
    verdict = read(*(chunk({"function_call": part}) for part in parts), chunk(finish="function_call"))
    assert named(verdict) == [("read", "{}")]


def test_content_may_be_a_list_of_parts() -> None:
    assert finished(chunk({"content": [{"type": "text", "text": "a"}, {"text": "b"}]}, "stop")).message.text == "ab"


def test_events_without_blank_lines_between_them_are_read() -> None:
    body = chunk({"content": "a"}).rstrip() + b"\n" + chunk({"content": "b"}, "stop")
    assert finished(body).message.text == "ab"


def test_a_body_that_is_no_stream_is_taken_whole() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    message = {"role": "assistant", "content": "yes", "tool_calls": [call]}
    choices = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
    body = json.dumps(
        {"model": "m", "choices": choices, "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
    ).encode()
    whole = finished(b"\n ", body)
    assert (whole.message.text, named(whole), whole.usage) == ("yes", [("read", "{}")], Usage(input=3, output=2))
    assert finished(*(body[at : at + 1] for at in range(len(body)))) == whole
    assert fault(body[:-5]) == "cut"


def test_usage_is_found_where_servers_put_it() -> None:
    use = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_cache_hit_tokens": 4}
    expected = Usage(input=5, cached=4, output=1)
    assert finished(chunk({"content": "a"}, "stop", usage=use)).usage == expected
    assert (
        finished(chunk({"content": "a"}, usage={"prompt_tokens": 1}), chunk(finish="stop", usage=use)).usage == expected
    )
    assert finished(chunk({"content": "a"}, "stop", x_groq={"usage": use})).usage == expected
    assert finished(chunk({"content": "a"}, "stop")).usage is None


def test_reasoning_counted_beside_the_output_is_added_to_it() -> None:
    use = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 16}
    beside = {**use, "completion_tokens_details": {"reasoning_tokens": 10}}
    assert finished(chunk({"content": "a"}, "stop", usage=beside)).usage == Usage(input=5, output=11, reasoning=10)


def test_signed_reasoning_is_put_together_and_kept_to_go_back() -> None:
    def detail(**fields: str) -> bytes:
        return chunk({"reasoning_details": [{"type": "reasoning.text", "index": 0, **fields}]})

    signed = finished(detail(text="I th"), detail(text="ink"), detail(signature="s"), chunk({"content": "a"}, "stop"))
    item = {"type": "reasoning.text", "index": 0, "text": "I think", "signature": "s"}
    assert [json.loads(part.data) for part in signed.message.parts if isinstance(part, OpaquePart)] == [
        {"reasoning_details": [item]}
    ]
    plain = finished(detail(text="I think"), chunk({"content": "a"}, "stop"))
    assert not any(isinstance(part, OpaquePart) for part in plain.message.parts)


# What is no reply.


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "malformed"),
        (b" \n", "malformed"),
        (b"<!doctype html><html></html>", "malformed"),
        (b"data: not json\n\n", "malformed"),
        (b"data: [1]\n\n", "malformed"),
        (b"{}", "cut"),
        (chunk({"content": ""}, "stop"), "malformed"),
        (chunk({"content": " \n "}, "stop"), "malformed"),
        (chunk({"reasoning": "hm"}, "stop"), "malformed"),
        (chunk(finish="tool_calls"), "malformed"),
        (chunk({"content": "a"}, "error"), "server"),
        (chunk({"content": "a"}, "insufficient_system_resource"), "overloaded"),
        (b'data: {"error":"boom"}\n\n', "server"),
        (b'event: error\ndata: {"message":"boom"}\n\n', "server"),
        (b'data: {"error":{"code":429,"message":"slow down"}}\n\n', "rate_limited"),
        (b'data: {"error":{"code":502,"message":"bad gateway"}}\n\n', "server"),
        (b'data: {"error":{"message":"prompt is too long: 9 tokens"}}\n\n', "context_too_long"),
        (b'[{"error":{"code":400,"message":"no such field"}}]', "refused"),
    ],
)
def test_what_is_no_reply_is_named(body: bytes, kind: str) -> None:
    assert fault(body) == kind


def test_an_empty_reply_that_ran_into_its_bound_is_a_reply() -> None:
    verdict = finished(chunk({"reasoning": "hm"}), chunk(finish="length"))
    assert (verdict.stop, verdict.message.text) == ("length", "")


def test_a_refusal_is_its_own_stop() -> None:
    verdict = finished(chunk({"refusal": "I cannot."}), chunk(finish="stop"))
    assert (verdict.stop, verdict.message.text) == ("refusal", "I cannot.")


def test_a_reply_without_end_is_given_up() -> None:
    reader, filler = ChatStream(CallId("c1")), b": " + b"x" * (8 << 20) + b"\n"
    for _ in range(MAX_REPLY_BYTES // len(filler) + 1):
        reader.feed(filler)
    assert reader.ended
    verdict = reader.finish()
    assert isinstance(verdict, Faulty)
    assert verdict.fault.kind == "malformed"


def test_calls_without_end_are_given_up() -> None:
    verdict = calls(*(piece("{}", "read", f"a{index}", index) for index in range(300)))
    assert isinstance(verdict, Faulty)
    assert verdict.fault.kind == "malformed"
