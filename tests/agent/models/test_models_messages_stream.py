"""The reader of Messages: what its parts come to, how a reply ends, and what goes wrong in the middle of one."""

import json
from typing import Any

import pytest
from messages_talk import STOPS
from models_wire import read_whole, recordings, request

from agent.models.client import Delta, ReasoningDelta, TextDelta, ToolCallStarted
from agent.models.messages_stream import MessagesStream
from agent.models.reading import MAX_CALLS
from agent.models.settle import charge
from agent.models.verdicts import Faulty, Finished
from eventlog.ids import CallId
from eventlog.messages import OpaquePart, ReasoningPart, TextPart, ToolCall, Usage

OWN = {recording.name: recording.body for recording in recordings("messages-sse-*.json")}


def read(*chunks: bytes) -> Finished | Faulty:
    return read_whole(MessagesStream(CallId("c1")), *chunks)


def finished(*chunks: bytes) -> Finished:
    verdict = read(*chunks)
    assert isinstance(verdict, Finished), verdict
    return verdict


def faulty(*chunks: bytes) -> Faulty:
    verdict = read(*chunks)
    assert isinstance(verdict, Faulty), verdict
    return verdict


def own(name: str) -> bytes:
    return OWN[f"messages-sse-{name}"]


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def begin(**usage: int) -> bytes:
    return event("message_start", message={"model": "m", "content": [], "usage": {"input_tokens": 9, **usage}})


def block(first: dict[str, Any], *deltas: dict[str, Any], index: int = 0) -> bytes:
    pieces = [event("content_block_delta", index=index, delta=delta) for delta in deltas]
    start = event("content_block_start", index=index, content_block=first)
    return b"".join((start, *pieces, event("content_block_stop", index=index)))


def text(*pieces: str, index: int = 0) -> bytes:
    return block(
        {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces), index=index
    )


def tool(*pieces: str, index: int = 0, **first: Any) -> bytes:
    return block(
        {"type": "tool_use", "id": "t", "name": "read", "input": {}, **first}, *map(json_delta, pieces), index=index
    )


def json_delta(piece: str) -> dict[str, Any]:
    return {"type": "input_json_delta", "partial_json": piece}


def end(reason: str | None = "end_turn", output: int = 4, **more: Any) -> bytes:
    usage = {"output_tokens": output}
    return event("message_delta", delta={"stop_reason": reason, **more}, usage=usage) + event("message_stop")


def error(kind: str) -> bytes:
    return event("error", error={"type": kind, "message": "so it is"})


def test_the_deltas_of_a_reply_come_in_its_order() -> None:
    reader, deltas = MessagesStream(CallId("c7")), list[Delta]()
    for at in range(0, len(own("two-calls")), 7):
        deltas += reader.feed(own("two-calls")[at : at + 7])
    assert deltas == [
        ReasoningDelta("I need"),
        ReasoningDelta(" both."),
        TextDelta("I look."),
        ToolCallStarted(1, "read"),
        ToolCallStarted(2, "grep"),
        ToolCallStarted(3, "status"),
    ]
    assert reader.ended
    verdict = reader.finish()
    assert isinstance(verdict, Finished)
    thinking = '{"type":"thinking","thinking":"I need both.","signature":"c2lnbmVk"}'
    assert verdict.message.parts == (
        ReasoningPart(text="I need both."),
        OpaquePart(provider="messages", data=thinking),
        TextPart(text="I look."),
        ToolCall(id=CallId("c7_1"), provider_id="toolu_a", name="read", arguments='{"path": "a.py"}'),
        ToolCall(id=CallId("c7_2"), provider_id="toolu_b", name="grep", arguments='{"pattern":"é"}'),
        ToolCall(id=CallId("c7_3"), provider_id="toolu_c", name="status", arguments="{}"),
    )
    assert verdict.usage == Usage(input=325, cached=300, cache_written=5, output=40, reasoning=11)


# Cut streams and errors.


@pytest.mark.parametrize("reason", [None, ""])
def test_a_reply_that_does_not_say_how_it_ended_is_a_cut(reason: str | None) -> None:
    verdict = faulty(begin(), text("yes"), end(reason))
    assert (verdict.fault.kind, verdict.fault.retry) == ("cut", True)


def test_a_stop_reason_counts_without_the_end_mark_and_without_the_last_blank_line() -> None:
    reply = begin() + text("yes") + end()
    assert finished(reply[: reply.rfind(b"event: message_stop")]).stop == "stop"
    assert finished(reply.rstrip()).stop == "stop"


def test_nothing_that_follows_the_end_mark_is_read() -> None:
    assert finished(begin(), text("yes"), end(), text(" no"), b"data: {").message.text == "yes"


@pytest.mark.parametrize(
    ("kind", "fault", "retry"),
    [
        ("overloaded_error", "overloaded", True),
        ("rate_limit_error", "rate_limited", True),
        ("api_error", "server", True),
        ("timeout_error", "server", True),
        ("invalid_request_error", "refused", False),
        ("authentication_error", "refused", False),
        ("billing_error", "refused", False),
        ("permission_error", "refused", False),
        ("not_found_error", "refused", False),
        ("request_too_large", "context_too_long", False),
    ],
)
def test_an_error_in_the_stream_is_the_right_fault(kind: str, fault: str, retry: bool) -> None:
    for reply in (error(kind), begin() + text("I beg") + error(kind) + end()):
        verdict = faulty(reply)
        assert (verdict.fault.kind, verdict.fault.retry) == (fault, retry)
        assert "so it is" in verdict.fault.text


def test_an_error_without_a_type_of_event_is_one() -> None:
    assert faulty(begin(), b'data: {"error": {"message": "Overloaded"}}\n\n').fault.kind == "overloaded"


def test_what_a_broken_reply_may_cost_is_its_input_and_what_had_come_of_its_output() -> None:
    verdict = faulty(begin(cache_read_input_tokens=91, output_tokens=1), text("x" * 400))
    assert verdict.usage == Usage(input=100, cached=91, output=100)
    assert charge(verdict, request()) == pytest.approx((9 * 1.0 + 91 * 0.1 + 100 * 2.0) / 1e6)
    assert faulty(text("x" * 400)).usage is None


@pytest.mark.parametrize(
    "reply",
    [
        event("content_block_delta", index=3, delta={"type": "text_delta", "text": "lost"}),
        b"data: {broken\n\n",
        b"data: [1]\n\n",
        b"<html>",
        b"",
    ],
)
def test_what_is_no_reply_is_malformed(reply: bytes) -> None:
    verdict = faulty(begin() + reply if reply.startswith((b"event", b"data")) else reply)
    assert (verdict.fault.kind, verdict.fault.retry) == ("malformed", True)


def test_more_calls_than_anyone_needs_are_malformed() -> None:
    calls = [tool(index=index) for index in range(MAX_CALLS + 1)]
    assert finished(begin(), *calls[:-1], end("tool_use")).stop == "tool_calls"
    assert faulty(begin(), *calls, end("tool_use")).fault.kind == "malformed"


@pytest.mark.parametrize("said", [b"", text(" \n"), block({"type": "thinking", "thinking": "hm", "signature": "s"})])
def test_an_empty_reply_is_tried_again_but_where_its_end_explains_it(said: bytes) -> None:
    assert faulty(begin(), said, end()).fault.kind == "malformed"
    assert finished(begin(), said, end("max_tokens")).stop == "length"
    assert finished(begin(), said, end("refusal")).stop == "refusal"


# How a reply ends.


@pytest.mark.parametrize(("reason", "stop"), [*STOPS.items(), ("news", "stop")])
def test_every_stop_reason_is_known(reason: str, stop: str) -> None:
    without_calls = "stop" if stop == "tool_calls" else stop
    assert finished(begin(), text("yes"), end(reason)).stop == without_calls
    assert finished(begin(), tool("{}"), text("yes", index=1), end(reason)).stop == (
        "tool_calls" if stop == "stop" else stop
    )


def test_a_call_that_was_cut_by_length_keeps_its_arguments_as_they_are() -> None:
    (call,) = finished(own("length")).message.tool_calls
    assert call.arguments == '{"path":"a","content":"abc'
    (call,) = finished(begin(), tool(), end("max_tokens")).message.tool_calls
    assert call.arguments == ""


def test_a_refusal_says_why_and_runs_nothing() -> None:
    assert finished(own("refusal")).message.text == "This is not allowed."
    verdict = finished(own("refusal-in-a-call"))
    assert (verdict.message.text, verdict.message.tool_calls) == ("I start", ())


def test_a_pause_keeps_what_the_provider_needs_to_go_on() -> None:
    verdict = finished(own("pause"))
    assert verdict.stop == "pause"
    search = '{"type":"server_tool_use","id":"srvtoolu_a","name":"web_search","input":{"query":"b"}}'
    assert verdict.message.parts[-1] == OpaquePart(provider="messages", data=search)


def test_the_servers_own_items_are_kept_as_it_wrote_them() -> None:
    first = {"type": "server_tool_use", "id": "s", "name": "n", "input": {}}
    given = '{"a": 1.50, "b": 123456789012345678901234567890}'
    (part,) = finished(begin(), block(first, *map(json_delta, (given[:9], given[9:]))), end()).message.parts
    assert part == OpaquePart(
        provider="messages", data=f'{{"type":"server_tool_use","id":"s","name":"n","input":{given}}}'
    )
    deep = "[" * 300 + "]" * 300
    item = (
        '{ "type":"web_search_tool_result", "score": 1.50, "big":123456789012345678901234567890, "deep": ' + deep + "}"
    )
    start = f'data: {{"type": "content_block_start", "index": 0, "content_block": {item} }}\n\n'
    (part,) = finished(begin(), start.encode(), end()).message.parts
    assert part == OpaquePart(provider="messages", data=item)


@pytest.mark.parametrize(
    "delta", [{"type": "news_delta", "news": 1}, {"type": "input_json_delta", "partial_json": "{"}]
)
def test_a_block_that_could_not_be_put_together_does_not_go_back(delta: dict[str, Any]) -> None:
    first = {"type": "server_tool_use", "id": "s", "name": "n", "input": {}}
    verdict = finished(begin(), text("yes"), block(first, delta, index=1), end())
    assert verdict.message.parts == (TextPart(text="yes"),)


# Odd servers.


def test_a_server_that_does_not_stream_is_read_too() -> None:
    message = {
        "type": "message",
        "model": "m",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "t", "name": "read", "input": {"path": "a"}},
        ],
        "stop_reason": "tool_use",
        "usage": {"input_tokens": 9, "output_tokens": 4},
    }
    verdict = finished(json.dumps(message).encode())
    assert [part.kind for part in verdict.message.parts] == ["reasoning", "opaque", "text", "tool_call"]
    assert verdict.message.tool_calls[0].arguments == '{"path":"a"}'
    assert (verdict.stop, verdict.usage, verdict.model) == ("tool_calls", Usage(input=9, output=4), "m")
    assert faulty(b'{"type":"error","error":{"type":"overloaded_error","message":"x"}}').fault.kind == "overloaded"


def test_events_without_names_and_with_a_foreign_end_mark_are_read() -> None:
    events = [begin(), text("yes"), event("message_delta", delta={"stop_reason": "end_turn"})]
    lines = b"".join(events).split(b"\n")
    unnamed = b"\n".join(line for line in lines if not line.startswith(b"event:"))
    reader = MessagesStream(CallId("c1"))
    reader.feed(unnamed)
    assert not reader.ended
    reader.feed(b"data: [DONE]\n\n")
    assert reader.ended
    verdict = reader.finish()
    assert isinstance(verdict, Finished) and verdict.message.text == "yes"


def test_blocks_without_numbers_are_taken_in_their_order() -> None:
    reply = (begin() + text("I ", "look.") + tool('{"a":', "1}") + end("tool_use")).replace(b'"index": 0, ', b"")
    verdict = finished(reply)
    assert (verdict.message.text, verdict.message.tool_calls[0].arguments) == ("I look.", '{"a":1}')


def test_words_where_a_block_begins_count() -> None:
    reader = MessagesStream(CallId("c1"))
    more = {"type": "text_delta", "text": "look."}
    assert reader.feed(begin() + block({"type": "text", "text": "I "}, more) + end()) == [
        TextDelta("I "),
        TextDelta("look."),
    ]
    verdict = reader.finish()
    assert isinstance(verdict, Finished) and verdict.message.text == "I look."


@pytest.mark.parametrize("odd", [None, 1, "text", [], {"a": []}])
def test_fields_of_an_odd_kind_break_nothing(odd: Any) -> None:
    for name in ("message", "content_block", "delta", "usage", "index"):
        for kind in ("message_start", "content_block_start", "content_block_delta", "message_delta", "message"):
            read(begin(), text("yes"), event(kind, **{name: odd}), end())
    for first in ({"type": odd}, {"type": "text", "text": odd}, {"type": "tool_use", "input": odd, "id": odd}):
        assert isinstance(read(begin(), block(first), text("yes", index=1), end()), Finished)


def test_calls_that_share_an_index_or_an_id_are_still_two() -> None:
    verdict = finished(begin(), tool('{"a":1}'), tool('{"b":2}', name="grep"), end("tool_use"))
    assert [(call.id, call.arguments) for call in verdict.message.tool_calls] == [
        ("c1_1", '{"a":1}'),
        ("c1_2", '{"b":2}'),
    ]


def test_a_usage_that_shrinks_or_is_missing_is_not_believed() -> None:
    last = event("message_delta", delta={"stop_reason": "end_turn"}, usage={"input_tokens": 0, "output_tokens": 3})
    assert finished(begin(), text("yes"), last).usage == Usage(input=9, output=3)
    assert finished(text("yes"), event("message_delta", delta={"stop_reason": "end_turn"})).usage is None
