"""Requests of Responses: valid for the provider whatever the model wrote, and its own items untouched."""

import hashlib
import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from models_folds import conversations, is_object

from agent.models.requests import RESPONSES_1, RequestCache, build_request
from agent.models.responses_format import RESPONSES, cache_key
from agent.models.responses_stream import ResponsesStream
from agent.models.verdicts import Finished
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

TOOLS = '[{"type":"function","function":{"name":"read","description":"Reads.","parameters":{"type":"object"}}}]'
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
THOUGHT = '{"type": "reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAAA"}'
SEARCH = '{"type": "web_search_call",  "id":"ws_1","status":"completed"}'


def context(parameters: str = "{}", system: str = "be brief", tools: str = TOOLS) -> ContextSet:
    return ContextSet(
        builder=RESPONSES_1,
        model="openai/m",
        wire_model="m",
        system=system,
        tools=tools,
        parameters=parameters,
        window=1000,
    )


def call(arguments: str = "{}", name: str = "read", id: str = "c1_1") -> ToolCall:
    return ToolCall(id=CallId(id), provider_id="theirs", name=name, arguments=arguments)


def theirs(data: str) -> OpaquePart:
    return OpaquePart(provider="responses", data=data)


def sent(*messages: Message, parameters: str = "{}") -> list[dict[str, Any]]:
    return json.loads(build_request(context(parameters), messages, None))["input"]


def reply(*parts: Part) -> list[dict[str, Any]]:
    """What goes back of a reply with these parts."""
    return sent(AssistantMessage(parts=parts))


def said(text: str, **fields: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text}]
    return {"type": "message", "role": "assistant", "content": content, **fields}


def test_a_whole_request_has_its_fields_in_the_order_of_the_builder_and_its_input_last() -> None:
    body = build_request(context('{"temperature":0.5,"max_tokens_name":"max_tokens"}'), [UserMessage(text="hello")], 99)
    assert body == (
        b'{"model":"m","stream":true,"store":false,"include":["reasoning.encrypted_content"],"prompt_cache_key":"'
        + cache_key(context()).encode()
        + b'","temperature":0.5,"max_output_tokens":99,"instructions":"be brief","tools":[{"type":"function",'
        b'"strict":false,"name":"read","description":"Reads.","parameters":{"type":"object"}}],'
        b'"input":[{"role":"user","content":"hello"}]}'
    )


@pytest.mark.parametrize(
    ("parameters", "bound", "sent"),
    [
        ("{}", None, None),
        ('{"max_output":64000}', None, 64_000),
        ('{"max_output":64000,"max_output_tokens":100}', None, 100),
        ('{"max_output":64000,"max_output_tokens":100}', 70, 70),
        ('{"max_output":"many","max_output_tokens":true}', None, None),
    ],
)
def test_the_bound_is_the_one_given_else_the_one_among_the_parameters(
    parameters: str, bound: int | None, sent: int | None
) -> None:
    made = json.loads(build_request(context(parameters), [UserMessage(text="a")], bound))
    assert made.get("max_output_tokens") == sent == RESPONSES.bound(context(parameters), bound)
    assert "max_output" not in made


def test_a_request_without_system_tools_and_bound_leaves_them_out_here_too() -> None:
    fields = json.loads(build_request(context(system=" ", tools="[]"), [UserMessage(text="a")], None))
    assert fields.keys() == {"model", "stream", "store", "include", "prompt_cache_key", "input"}


def test_a_parameter_can_take_a_field_out_but_never_replace_what_is_logged() -> None:
    """A model that does not reason refuses `include`, and some servers refuse a cache key."""
    forged = '{"include":null,"prompt_cache_key":null,"input":[],"model":"other","previous_response_id":"r","tools":[]}'
    fields = json.loads(build_request(context(forged), [UserMessage(text="a")], None))
    assert fields.keys() == {"model", "stream", "store", "instructions", "tools", "input"}
    assert (fields["model"], len(fields["input"]), len(fields["tools"])) == ("m", 1, 1)


def test_requests_that_begin_alike_have_one_cache_key_and_others_another() -> None:
    key = cache_key(context())
    assert cache_key(context('{"temperature":1}')) == key
    assert len({key, cache_key(context(system="other")), cache_key(context(tools="[]"))}) == 3
    assert re.fullmatch(r"[0-9a-f]{32}", key)


def test_a_tool_that_asks_to_be_strict_stays_so() -> None:
    tools = '[{"type":"function","function":{"name":"a","strict":true}},{"type":"web_search"}]'
    fields = json.loads(build_request(context(tools=tools), [], None))
    assert fields["tools"] == [{"type": "function", "strict": True, "name": "a"}, {"type": "web_search"}]


def test_calls_go_back_under_our_ids_and_their_outputs_answer_to_them() -> None:
    result = ToolMessage(call_id=CallId("c1_1"), provider_id="theirs", text=" ")
    assert sent(AssistantMessage(parts=(call('{"a":1}'),)), result) == [
        {"type": "function_call", "call_id": "c1_1", "name": "read", "arguments": '{"a":1}'},
        {"type": "function_call_output", "call_id": "c1_1", "output": "(empty)"},
    ]


def test_reasoning_stands_to_the_letter_right_before_the_call_that_it_led_to() -> None:
    parts = (ReasoningPart(text="hm"), theirs(THOUGHT), TextPart(text="I look."), theirs(THOUGHT), call())
    body = build_request(context(), [AssistantMessage(parts=parts)], None).decode()
    assert body.count(THOUGHT) == 2
    assert [item["type"] for item in reply(*parts)] == ["reasoning", "message", "reasoning", "function_call"]


def test_reasoning_that_leads_to_nothing_is_left_out() -> None:
    """A reply cut by its bound in the middle of its reasoning must not make every later request invalid."""
    assert reply(theirs(THOUGHT)) == [said("(empty)")]
    assert reply(theirs(THOUGHT), TextPart(text=" ")) == [said("(empty)")]
    assert reply(TextPart(text="yes"), theirs(THOUGHT)) == [said("yes")]


def test_reasoning_that_is_only_a_name_is_left_out_and_in_plain_text_it_stays() -> None:
    named, plain = (
        '{"type":"reasoning","id":"rs_1","summary":[{"type":"summary_text","text":"s"}]}',
        '{"type":"reasoning","id":"rs_1","summary":[],"content":[{"type":"reasoning_text","text":"hm"}]}',
    )
    assert reply(theirs(named), TextPart(text="yes")) == [said("yes")]
    assert reply(theirs(plain), TextPart(text="yes")) == [json.loads(plain), said("yes")]


def test_items_of_kinds_unknown_here_go_back_to_the_letter_and_in_their_place() -> None:
    message = AssistantMessage(parts=(theirs(THOUGHT), theirs(SEARCH), TextPart(text="yes")))
    assert f"{THOUGHT},{SEARCH},".encode() in build_request(context(), [message], None)
    assert reply(theirs(SEARCH)) == [json.loads(SEARCH)]


def test_the_phase_of_a_message_goes_back_with_it_and_never_replaces_ours() -> None:
    phase = theirs('{"type":"message","phase":"commentary","role":"user","content":"forged"}')
    assert reply(phase, TextPart(text="yes"), TextPart(text="no")) == [said("yes", phase="commentary"), said("no")]
    assert reply(phase, call())[0]["type"] == "function_call"
    space = theirs('{"type":"function_call","namespace":"n","call_id":"forged"}')
    sent_back = [(item.get("namespace"), item["call_id"]) for item in reply(space, call(), call(id="c1_2"))]
    assert sent_back == [("n", "c1_1"), (None, "c1_2")]


def test_items_of_other_providers_and_what_is_no_item_are_not_sent() -> None:
    others = (
        OpaquePart(provider="chat", data='{"reasoning_details":[]}'),
        OpaquePart(provider="messages", data='{"type":"thinking","thinking":"t"}'),
        theirs("not json"),
        theirs("[1]"),
    )
    assert reply(*others, TextPart(text="yes")) == [said("yes")]


@pytest.mark.parametrize("arguments", ["", "[1]", '{"a":', "null", '{"a":1}{"a":1}'])
def test_arguments_that_are_no_object_go_back_as_an_empty_one_here_too(arguments: str) -> None:
    assert reply(call(arguments))[0]["arguments"] == "{}"


def test_a_reply_that_was_read_goes_back_as_it_came() -> None:
    """From the bytes of one response into the next request."""
    output = [
        json.loads(THOUGHT),
        said("I look.", phase="commentary"),
        {"type": "function_call", "call_id": "a", "name": "read", "arguments": '{"path":"a"}', "namespace": "n"},
    ]
    response = {"object": "response", "status": "completed", "output": output}
    reader = ResponsesStream(CallId("c1"))
    reader.feed(json.dumps(response).encode())
    verdict = reader.finish()
    assert isinstance(verdict, Finished)
    assert sent(verdict.message) == [output[0], output[1], {**output[2], "call_id": "c1_1"}]


@given(conversations())
@settings(deadline=None, max_examples=300)
def test_any_conversation_of_a_session_makes_a_valid_request(messages: tuple[Message, ...]) -> None:
    items = sent(*messages)
    open_calls: set[str] = set()
    for item, after in zip(items, [*items[1:], {}], strict=True):
        match item.get("type", item.get("role")):
            case "user":
                assert not open_calls and item["content"].strip()
            case "message":
                assert item["role"] == "assistant" and item["content"][0]["text"].strip()
            case "function_call":
                assert NAME.fullmatch(item["name"]) and is_object(item["arguments"])
                assert item["call_id"] not in open_calls
                open_calls.add(item["call_id"])
            case "function_call_output":
                assert item["output"].strip()
                open_calls.remove(item["call_id"])
            case "reasoning":
                assert item["encrypted_content"]
                assert after.get("type") in {"reasoning", "message", "function_call", "web_search_call"}
            case other:
                assert other == "web_search_call"
    assert not open_calls


@given(conversations())
@settings(deadline=None, max_examples=100)
def test_the_cache_gives_the_bytes_and_the_hash_of_the_whole_request(messages: tuple[Message, ...]) -> None:
    cache = RequestCache()
    for count in range(len(messages) + 1):
        cache.update(context(), messages[:count])
        whole = build_request(context(), messages[:count], 7)
        assert cache.body(7) == whole
        assert cache.digest(7) == hashlib.sha256(whole).hexdigest()
        assert cache.size(7) == len(whole)
