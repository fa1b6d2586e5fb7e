"""`messages/1`: what a request is made of, message by message, and the marks of the provider's cache that move."""

import json

import pytest
from messages_talk import (
    ALL_TOOLS,
    FOUND,
    MARK,
    SEARCH,
    SIGNED,
    body,
    call,
    contents,
    context,
    marks,
    own,
    reply,
    result,
    said,
    text,
    unmarked,
)

from agent.models.messages_format import MESSAGES
from agent.models.requests import build_request
from agent.tools.schemas import TOOLS
from eventlog.messages import Message, OpaquePart, Part, ReasoningPart


def test_a_whole_request_has_its_fields_in_the_order_of_the_builder() -> None:
    tools = '[{"type":"function","function":{"name":"read","description":"Read.","parameters":{"type":"object"}}}]'
    talk = [said("go"), reply("I look.", call(1, '{"a": 1.0}')), result()]
    assert build_request(context('{"temperature":0.5}', tools=tools), talk, 99) == (
        b'{"model":"m","stream":true,"max_tokens":99,"temperature":0.5,'
        b'"system":[{"type":"text","text":"be brief","cache_control":{"type":"ephemeral"}}],'
        b'"tools":[{"name":"read","description":"Read.","input_schema":{"type":"object"},'
        b'"cache_control":{"type":"ephemeral"}}],"messages":['
        b'{"role":"user","content":[{"type":"text","text":"go"}]},'
        b'{"role":"assistant","content":[{"type":"text","text":"I look."},'
        b'{"type":"tool_use","id":"c1_1","name":"read","input":{"a": 1.0}}]},'
        b'{"role":"user","content":[{"type":"tool_result","tool_use_id":"c1_1","content":"done",'
        b'"cache_control":{"type":"ephemeral"}}]}]}'
    )


def test_a_request_without_system_and_tools_leaves_them_out() -> None:
    bare = body(said("a"), where=context(system=" ", tools="[]"))
    assert list(bare) == ["model", "stream", "max_tokens", "messages"]


@pytest.mark.parametrize("tools", ["", "[]", "{}", "broken"])
def test_tools_that_are_none_are_left_out(tools: str) -> None:
    assert "tools" not in body(where=context(tools=tools))


def test_our_tools_go_out_in_the_providers_shape_and_theirs_as_they_are() -> None:
    for tool, sent in zip(json.loads(ALL_TOOLS), body()["tools"], strict=True):
        function = tool["function"]
        wanted = {"name": function["name"], "description": function["description"]}
        assert unmarked(sent) == {**wanted, "input_schema": function["parameters"]}
    theirs = '[{"type":"web_search_20250305","name":"web_search"},{"type":"function","function":{"name":"a"}}]'
    assert [unmarked(tool) for tool in body(where=context(tools=theirs))["tools"]] == [
        {"type": "web_search_20250305", "name": "web_search"},
        {"name": "a", "input_schema": {"type": "object", "properties": {}}},
    ]


@pytest.mark.parametrize(
    ("parameters", "bound", "sent"),
    [
        ("{}", None, 32_000),
        ('{"max_output":64000}', None, 64_000),
        ('{"max_output":64000,"max_tokens":100}', None, 100),
        ('{"max_output":64000,"max_tokens":100}', 7, 7),
        ('{"max_output":"many","max_tokens":true}', None, 32_000),
        ('{"max_tokens":0}', None, 32_000),
    ],
)
def test_the_bound_that_the_protocol_wants_is_always_there(parameters: str, bound: int | None, sent: int) -> None:
    made = body(where=context(parameters), bound=bound)
    assert made["max_tokens"] == sent == MESSAGES.bound(context(parameters), bound)
    assert "max_output" not in made


def test_parameters_pass_but_never_replace_what_the_format_owns() -> None:
    thinking = {"type": "enabled", "budget_tokens": 1024}
    given = {"thinking": thinking, "top_k": None, "max_tokens_name": "x", "messages": [], "system": "no", "model": "no"}
    made = body(said("a"), where=context(json.dumps(given)))
    assert made["thinking"] == thinking
    assert not {"top_k", "max_tokens_name"} & made.keys()
    assert made["model"] == "m" and made["messages"] and made["system"][0]["text"] == "be brief"


# Messages and their blocks.


def test_results_of_one_reply_and_what_the_user_said_meanwhile_stand_in_one_message() -> None:
    talk = [said("go"), reply(call(1), call(2)), result(1, "one"), result(2, ""), said("and hurry"), said("please")]
    assert contents(*talk)[2] == (
        "user",
        [
            {"type": "tool_result", "tool_use_id": "c1_1", "content": "one"},
            {"type": "tool_result", "tool_use_id": "c1_2", "content": "(empty)"},
            text("and hurry"),
            text("please"),
        ],
    )


def test_a_reply_that_was_paused_and_went_on_is_one_message() -> None:
    talk = [said("go"), reply(own(SIGNED), own(SEARCH)), reply(own(FOUND), "Found.")]
    assert contents(*talk)[1:] == [
        ("assistant", [json.loads(SIGNED), json.loads(SEARCH), json.loads(FOUND), text("Found.")])
    ]
    paused = body(*talk[:2])["messages"]
    assert paused[-1]["role"] == "assistant"
    assert paused[-1]["content"][-1] == {**json.loads(SEARCH), "cache_control": MARK}


def test_a_conversation_begins_with_the_user() -> None:
    assert contents(reply("Hello."), said("hi")) == [
        ("user", [text("(empty)")]),
        ("assistant", [text("Hello.")]),
        ("user", [text("hi")]),
    ]


@pytest.mark.parametrize("message", [said(" \n"), reply(), reply("  "), reply(ReasoningPart(text="hm"))])
def test_no_message_is_sent_without_text(message: Message) -> None:
    assert contents(said("go"), message)[-1][1][-1] == text("(empty)")


def test_text_that_is_only_white_space_is_left_out_and_the_last_one_ends_in_none() -> None:
    assert contents(said("go"), reply("one ", "\n", " two \n"))[1][1] == [text("one "), text(" two")]


def test_thinking_goes_back_byte_for_byte_before_what_it_led_to() -> None:
    redacted = '{"type":"redacted_thinking","data":"\\u0041\\/"}'
    talk = [said("go"), reply(ReasoningPart(text="hm"), own(SIGNED), own(redacted), "I look.", call()), result()]
    made = build_request(context(), talk, None)
    assert f"[{SIGNED},{redacted},".encode() in made
    assert made.count(b"hm") == 1


def test_thinking_at_the_end_of_a_message_is_left_out() -> None:
    talk = [said("go"), reply("So.", own(SIGNED), own('{"type":"redacted_thinking","data":"eA=="}')), said("on")]
    assert contents(*talk)[1][1] == [text("So.")]


def test_thinking_without_a_signature_goes_back_only_where_it_is_asked_for() -> None:
    unsigned = '{"type":"thinking","thinking":"hm","signature":""}'
    talk = [said("go"), reply(own(unsigned), "So."), said("on")]
    assert contents(*talk)[1][1] == [text("So.")]
    assert contents(*talk, parameters='{"echo_reasoning":true}')[1][1] == [json.loads(unsigned), text("So.")]


@pytest.mark.parametrize(
    "part",
    [
        OpaquePart(provider="chat", data='{"type":"thinking","thinking":"hm","signature":"s"}'),
        OpaquePart(provider="responses", data='{"type":"reasoning","encrypted_content":"x"}'),
        own("{}"),
        own('{"type":7}'),
        own("broken"),
        own("[1]"),
    ],
)
def test_items_of_other_protocols_and_broken_ones_are_left_out(part: Part) -> None:
    assert contents(said("go"), reply(part, "So."), said("on"))[1][1] == [text("So.")]


@pytest.mark.parametrize("arguments", ["", "[1]", '{"a":', "null", '"text"', '{"a":1}{"a":1}', '{"a":' + "[" * 3000])
def test_arguments_that_are_no_object_go_back_as_an_empty_one(arguments: str) -> None:
    assert contents(said("go"), reply(call(1, arguments)), result())[1][1][0]["input"] == {}


def test_a_name_that_no_provider_would_take_is_made_one() -> None:
    names = [contents(said("go"), reply(call(1, "{}", name)), result())[1][1][0]["name"] for name in ("", "a tool!")]
    assert names == ["unnamed", "a_tool_"]


# The cache of the provider.


def test_the_mark_moves_with_the_last_message_over_bytes_that_stay() -> None:
    talk: list[Message] = [said("go"), reply(own(SIGNED), call(1), call(2)), result(1), result(2), said("hurry")]
    seen = [marks(body(*talk[:count])) for count in (1, 3, 4, 5)]
    last = TOOLS[-1].name
    assert seen == [["system", last, f"{kind}"] for kind in ("text 0", "tool_result 2", "tool_result 2", "text 2")]
    before = b""
    for count in range(len(talk) + 1):
        end = MESSAGES.end(context(), talk[count - 1] if count else None)
        stays = build_request(context(), talk[:count], None).removesuffix(end)
        assert stays.startswith(before)
        before = stays


@pytest.mark.parametrize(("item", "marked"), [(SEARCH, True), (FOUND, True), ('{"type":"news","id":"n"}', False)])
def test_a_kind_that_is_not_known_to_bear_a_mark_gets_none(item: str, marked: bool) -> None:
    made = body(said("go"), reply("So", own(item)))
    assert (len(marks(made)) == 3) is marked
