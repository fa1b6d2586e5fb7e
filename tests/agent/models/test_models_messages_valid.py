"""`messages/1` on every conversation that a fold can hold: the provider takes it whatever the model wrote."""

import hashlib
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages_talk import FOUND, MARK, SEARCH, SIGNED, context, marks, own, said
from models_wire import Recording, recordings

from agent.models.messages_stream import MessagesStream
from agent.models.requests import RequestCache, build_request
from agent.models.verdicts import Finished
from eventlog.events import ContextSet
from eventlog.ids import CallId, tool_call_id
from eventlog.messages import (
    AssistantMessage,
    Message,
    OpaquePart,
    Part,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolMessage,
)

texts = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(["", " \n", "x "])
json_values = st.recursive(
    st.none() | st.integers() | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner)
)
arguments = st.dictionaries(texts, json_values, max_size=2).map(json.dumps) | texts
items = st.sampled_from(
    [SIGNED, SEARCH, FOUND, '{"type":"redacted_thinking","data":"eA=="}', '{"type":"thinking"}', "{"]
)
plain_parts: st.SearchStrategy[Part] = st.one_of(
    texts.map(lambda words: TextPart(text=words)),
    texts.map(lambda words: ReasoningPart(text=words)),
    items.map(own),
    items.map(lambda data: OpaquePart(provider="responses", data=data)),
)


@st.composite
def turns(draw: st.DrawFn, number: int) -> list[Message]:
    """One reply as a fold holds it: its calls answered in their order, what the user said behind them; or a pause."""
    parts = draw(st.lists(plain_parts, max_size=4))
    calls = [
        ToolCall(
            id=tool_call_id(CallId(f"c{number}"), at), provider_id="x", name=draw(texts), arguments=draw(arguments)
        )
        for at in range(1, 1 + draw(st.integers(0, 3)))
    ]
    for made in calls:
        parts.insert(draw(st.integers(0, len(parts))) if draw(st.booleans()) else len(parts), made)
    order = [part for part in parts if isinstance(part, ToolCall)]
    results = [ToolMessage(call_id=made.id, provider_id="x", text=draw(texts)) for made in order]
    users = draw(st.lists(texts.map(said), max_size=2))
    return [AssistantMessage(parts=tuple(parts)), *results, *users]


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    talk: list[Message] = [*draw(st.lists(texts.map(said), max_size=2))]
    for number in range(1, 1 + draw(st.integers(0, 4))):
        talk += draw(turns(number))
    return talk or [said("go")]


contexts = st.sampled_from([context(), context(system=""), context('{"echo_reasoning":true}'), context(tools="")])


def no_doubles(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


def check(made: bytes) -> None:
    """What the provider asks of a request, as its documentation and its errors say."""
    request = json.loads(made, object_pairs_hook=no_doubles)
    talk = request["messages"]
    assert [message["role"] for message in talk] == [("user", "assistant")[at % 2] for at in range(len(talk))]
    for message, following in zip(talk, [*talk[1:], None], strict=True):
        assert message["content"]
        for block in message["content"]:
            check_block(block)
        assert message["role"] == "user" or message["content"][-1]["type"] not in {"thinking", "redacted_thinking"}
        calls = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        first = [] if following is None else following["content"][: len(calls)]
        assert calls == [block.get("tool_use_id") for block in first]
        if message["role"] == "assistant" and following is not None:
            assert all(block["type"] == "text" for block in following["content"][len(calls) :])
    last = talk[-1]["content"][-1]
    assert not last.get("text", "x")[-1].isspace() or talk[-1]["role"] == "user"
    assert len(marks(request)) == sum(bool(request.get(name)) for name in ("system", "tools")) + 1
    assert last["cache_control"] == MARK


def check_block(block: dict[str, Any]) -> None:
    match block["type"]:
        case "text":
            assert block["text"].strip()
        case "tool_use":
            assert re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]) and re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", block["name"])
            assert isinstance(block["input"], dict)
        case "tool_result":
            assert block["content"]
        case "thinking" | "redacted_thinking":
            assert "cache_control" not in block


@given(conversations(), contexts)
@settings(deadline=None, max_examples=200)
def test_every_conversation_that_a_fold_can_hold_is_a_request_that_the_provider_takes(
    talk: list[Message], where: ContextSet
) -> None:
    check(build_request(where, talk, None))


@given(st.lists(st.tuples(contexts, st.integers(0, 6), conversations(), st.none() | st.integers(1, 3)), max_size=5))
@settings(deadline=None, max_examples=80)
def test_the_cache_gives_the_bytes_and_the_hash_of_the_plain_builder(
    taken: list[tuple[ContextSet, int, list[Message], int | None]],
) -> None:
    """Each step keeps some of the conversation, as a rewind or a compaction does, and adds to it."""
    cache, talk = RequestCache(), list[Message]()
    for where, kept, added, bound in taken:
        talk = talk[:kept] + added
        cache.update(where, talk)
        whole = build_request(where, talk, bound)
        assert cache.body(bound) == whole
        assert cache.digest(bound) == hashlib.sha256(whole).hexdigest()
        assert cache.size(bound) == len(whole)


@pytest.mark.parametrize("recording", recordings("messages-sse-*.json"), ids=lambda recording: recording.name)
def test_a_recorded_reply_goes_back_as_it_came_and_the_sdk_takes_it(recording: Recording) -> None:
    from anthropic.types.beta import BetaContentBlockParam
    from pydantic import TypeAdapter

    reader = MessagesStream(CallId("c1"))
    reader.feed(recording.body)
    verdict = reader.finish()
    if not isinstance(verdict, Finished):
        assert "error" in recording.body.decode()
        return
    results = [ToolMessage(call_id=made.id, provider_id="x", text="done") for made in verdict.message.tool_calls]
    talk: list[Message] = [said("go"), verdict.message, *results]
    made = build_request(context(), talk if verdict.stop == "pause" else [*talk, said("on")], None)
    check(made)
    blocks = [block for message in json.loads(made)["messages"] for block in message["content"]]
    TypeAdapter(list[BetaContentBlockParam]).validate_python(blocks)
    kept = [part.data.encode() for part in verdict.message.parts if isinstance(part, OpaquePart)]
    assert all(item[:-1] in made for item in kept if b'"signature":""' not in item)
