"""Request builders: valid for the provider whatever the model wrote, and the cache equal to the plain builder."""

import hashlib
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.models.chat_format import CHAT, encode_message
from agent.models.requests import BUILDERS, CHAT_1, RequestCache, build_request
from eventlog.events import ContextSet
from eventlog.ids import CallId
from eventlog.messages import (
    AssistantMessage,
    Message,
    OpaquePart,
    Part,
    ReasoningPart,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)

TOOLS = '[{"type":"function","function":{"name":"read","parameters":{}}}]'


def context(parameters: str = "{}", system: str = "be brief", tools: str = TOOLS) -> ContextSet:
    return ContextSet(
        builder=CHAT_1, model="openai/m", wire_model="m", system=system, tools=tools, parameters=parameters, window=1000
    )


def call(arguments: str, name: str = "read", provider_id: str = "theirs") -> ToolCall:
    return ToolCall(id=CallId("c1_1"), provider_id=provider_id, name=name, arguments=arguments)


def sent(message: Message, echo_reasoning: bool = False) -> dict[str, object]:
    return json.loads(encode_message(message, echo_reasoning))


def test_a_whole_request_has_its_fields_in_the_order_of_the_builder() -> None:
    said = UserMessage(text="hello")
    body = build_request(context('{"temperature":0.5,"max_tokens_name":"max_completion_tokens"}'), [said], 99)
    assert body == (
        b'{"model":"m","stream":true,"stream_options":{"include_usage":true},"temperature":0.5,'
        b'"max_completion_tokens":99,"tools":'
        + TOOLS.encode()
        + b',"messages":[{"role":"system","content":"be brief"},'
        b'{"role":"user","content":"hello"}]}'
    )


def test_a_request_without_system_tools_and_bound_leaves_them_out() -> None:
    body = build_request(context(system=" ", tools="[]"), [UserMessage(text="a"), UserMessage(text="b")], None)
    assert json.loads(body) == {
        "model": "m",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
    }


def test_a_parameter_can_take_a_field_out_but_never_replace_the_conversation() -> None:
    body = build_request(context('{"stream_options":null,"messages":[],"model":"other","stream":false}'), [], None)
    assert json.loads(body)["messages"] == [{"role": "system", "content": "be brief"}]
    assert (json.loads(body)["model"], json.loads(body)["stream"]) == ("m", True)
    assert "stream_options" not in json.loads(body)


def test_calls_go_back_under_our_ids_and_their_results_answer_to_them() -> None:
    calls = AssistantMessage(parts=(call('{"a":1}', provider_id="same"),))
    result = ToolMessage(call_id=CallId("c1_1"), provider_id="same", text="done")
    function = {"name": "read", "arguments": '{"a":1}'}
    assert sent(calls) == {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1_1", "type": "function", "function": function}],
    }
    assert sent(result) == {"role": "tool", "tool_call_id": "c1_1", "content": "done"}


@pytest.mark.parametrize("arguments", ["", "[1]", '{"a":', "null", '"text"', '{"a":1}{"a":1}', '{"a":' + "[" * 3000])
def test_arguments_that_are_no_object_go_back_as_an_empty_one(arguments: str) -> None:
    assert '"arguments":"{}"' in encode_message(AssistantMessage(parts=(call(arguments),))).decode()


def test_deeply_nested_arguments_go_back_as_they_came() -> None:
    deep = '{"a":' + "[" * 300 + "]" * 300 + "}"
    assert json.dumps(deep).encode() in encode_message(AssistantMessage(parts=(call(deep),)))


@pytest.mark.parametrize(
    ("name", "wire"), [("", "unnamed"), ("a tool!", "a_tool_"), ("x" * 99, "x" * 64), ("ok-1", "ok-1")]
)
def test_a_name_that_no_provider_would_take_is_made_one(name: str, wire: str) -> None:
    assert f'"name":"{wire}"' in encode_message(AssistantMessage(parts=(call("{}", name),))).decode()


@pytest.mark.parametrize(
    "message",
    [
        UserMessage(text=" \n"),
        ToolMessage(call_id=CallId("c1_1"), provider_id="p", text=""),
        AssistantMessage(parts=()),
        AssistantMessage(parts=(ReasoningPart(text="hm"),)),
        AssistantMessage(parts=(TextPart(text="  "),)),
    ],
)
def test_no_message_is_sent_without_text(message: Message) -> None:
    assert sent(message)["content"] == "(empty)"


def test_reasoning_goes_back_only_where_it_is_asked_for() -> None:
    message = AssistantMessage(parts=(ReasoningPart(text="hm"), TextPart(text="yes")))
    assert sent(message) == {"role": "assistant", "content": "yes"}
    assert sent(message, echo_reasoning=True) == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}
    echoed = build_request(context('{"echo_reasoning":true}'), [message], None)
    assert b'"reasoning_content":"hm"' in echoed
    assert b"echo_reasoning" not in echoed


def test_opaque_items_go_back_to_their_own_protocol_and_never_replace_ours() -> None:
    ours = OpaquePart(provider="chat", data='{"reasoning_details":[{"signature":"s"}],"content":"forged"}')
    other = OpaquePart(provider="messages", data='{"thinking":"t"}')
    assert sent(AssistantMessage(parts=(TextPart(text="yes"), ours, other))) == {
        "reasoning_details": [{"signature": "s"}],
        "role": "assistant",
        "content": "yes",
    }


TALK: tuple[Message, ...] = (
    UserMessage(text="Grüße 🦊"),
    AssistantMessage(
        parts=(
            ReasoningPart(text="hm"),
            OpaquePart(provider="responses", data='{"type": "reasoning","id":"rs_1","encrypted_content":"gAAAA"}'),
            TextPart(text='I "look".'),
            call('{"path": "a"}'),
            OpaquePart(provider="chat", data='{"reasoning_details":[{"signature":"s"}]}'),
        )
    ),
    ToolMessage(call_id=CallId("c1_1"), provider_id="theirs", text="found\n"),
    AssistantMessage(parts=(TextPart(text=" "),)),
    UserMessage(text=""),
)


@pytest.mark.parametrize(
    ("builder", "digest"),
    [
        ("chat/1", "03f7eed5bdb426884a047f15da1685010849de4fa962fadf361481fd1eaa7c5a"),
        ("responses/1", "ba8aa8521103b3dd80ae1140578a1075e33a967f3041b8d8cab8305eef84f228"),
        ("messages/1", "e9349118f0005ee6790509d4767ac97d0eac2eb330d53d7d032fbb94564fbc50"),
    ],
)
def test_the_bytes_of_a_format_never_change(builder: str, digest: str) -> None:
    """Where this fails, old sessions no longer replay: what is wanted is a format of a new name."""
    where = context('{"temperature":0.5,"echo_reasoning":true}').model_copy(update={"builder": builder})
    assert hashlib.sha256(build_request(where, TALK, 99)).hexdigest() == digest


def test_the_builder_of_a_logged_intent_is_found_by_its_name() -> None:
    assert BUILDERS["chat/1"](context(), [], 5) == build_request(context(), [], 5)


def test_the_prefix_is_where_the_request_begins() -> None:
    assert build_request(context(), [UserMessage(text="a")], 7).startswith(CHAT.prefix(context(), 7))


def test_a_cache_that_was_never_told_a_conversation_says_so() -> None:
    with pytest.raises(LookupError):
        RequestCache().body(None)


texts = st.text(max_size=12)
parts: st.SearchStrategy[Part] = st.one_of(
    texts.map(lambda text: TextPart(text=text)),
    texts.map(lambda text: ReasoningPart(text=text)),
    texts.map(call),
    texts.map(lambda text: OpaquePart(provider="chat", data=json.dumps({"extra": text}))),
)
messages: st.SearchStrategy[Message] = st.one_of(
    texts.map(lambda text: UserMessage(text=text)),
    texts.map(lambda text: ToolMessage(call_id=CallId("c1_1"), provider_id="p", text=text)),
    st.lists(parts, max_size=3).map(lambda found: AssistantMessage(parts=tuple(found))),
)
contexts = st.sampled_from([context(), context(system=""), context('{"echo_reasoning":true}'), context(tools="")])
steps = st.lists(
    st.tuples(contexts, st.integers(0, 6), st.lists(messages, max_size=3), st.none() | st.integers(1, 3)), max_size=6
)


@given(steps)
@settings(deadline=None, max_examples=150)
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


def test_the_cache_sees_a_message_that_was_changed_in_the_middle() -> None:
    cache, last = RequestCache(), UserMessage(text="last")
    cache.update(context(), [UserMessage(text="long output"), last])
    cache.digest(None)
    shorter = [UserMessage(text="(pruned)"), last]
    cache.update(context(), shorter)
    assert cache.digest(None) == hashlib.sha256(build_request(context(), shorter, None)).hexdigest()


def test_two_new_messages_after_a_thousand_cost_next_to_nothing() -> None:
    where, cache = context(), RequestCache()
    talk: list[Message] = [UserMessage(text="x" * 5000) for _ in range(1000)]
    cache.update(where, talk)
    cache.digest(None)
    taken = []
    for _ in range(50):
        talk = [*talk, UserMessage(text="y" * 500), UserMessage(text="z" * 500)]
        begin = time.thread_time()
        cache.update(where, talk)
        cache.digest(None)
        taken.append(time.thread_time() - begin)
    # The bar is 0.1 ms; encoding and hashing the whole takes over 5 ms, so 1 ms tells them apart on a busy machine.
    assert sorted(taken)[25] < 0.001
