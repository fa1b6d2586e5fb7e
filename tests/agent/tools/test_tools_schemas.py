"""What the model is told of the tools, and what becomes of the arguments it writes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.tools.schemas import (
    TOOLS,
    EditArguments,
    Invalid,
    ReadArguments,
    TodoArguments,
    parse_arguments,
    tool_named,
    tools_json,
)

CLASSES = {
    "read": "read",
    "glob": "read",
    "grep": "read",
    "todo": "read",
    "fan_out": "spawn",
    "ask_agent": "spawn",
    "report": "read",
    "stay_silent": "read",
    "write": "edit",
    "edit": "edit",
    "apply_patch": "edit",
    "shell": "command",
    "commit": "commit",
}


def refusal(name: str, text: str) -> str:
    parsed = parse_arguments(name, text)
    assert isinstance(parsed, Invalid)
    return parsed.text


def test_each_tool_has_its_effect_class():
    assert {tool.name: tool.effect_class for tool in TOOLS} == CLASSES


def test_tool_schemas_are_the_same_bytes_whatever_order_they_are_asked_in():
    assert tools_json(["grep", "read"]) == tools_json(iter(["read", "grep"]))
    assert [item["function"]["name"] for item in json.loads(tools_json(["grep", "read"]))] == ["read", "grep"]


def test_the_schema_of_edit_is_plain_json_schema():
    (function,) = (item["function"] for item in json.loads(tools_json(["edit"])))
    parameters = function["parameters"]
    assert list(parameters["properties"]) == ["path", "old_text", "new_text", "replace_all"]
    assert parameters["required"] == ["path", "old_text", "new_text"]
    assert parameters["additionalProperties"] is False
    assert {name: value["type"] for name, value in parameters["properties"].items()} == {
        "path": "string",
        "old_text": "string",
        "new_text": "string",
        "replace_all": "boolean",
    }


def test_no_schema_holds_references_bounds_or_null():
    text = tools_json(CLASSES)
    assert not any(word in text for word in ('"$ref"', '"anyOf"', '"null"', '"maxLength"', '"maximum"', '"title"'))
    items = json.loads(tools_json(["todo"]))[0]["function"]["parameters"]["properties"]["items"]
    assert items["items"]["properties"]["status"]["enum"] == ["pending", "in_progress", "done"]


def test_schemas_for_an_unknown_name_are_an_error():
    with pytest.raises(ValueError, match="no tool named fly"):
        tools_json(["fly"])


def test_arguments_are_read():
    parsed = parse_arguments("edit", '{"path":"a","old_text":"x","new_text":"y"}')
    assert parsed == EditArguments(path="a", old_text="x", new_text="y", replace_all=False)


def test_a_number_may_come_as_a_string_and_what_is_left_out_as_null():
    assert parse_arguments("read", '{"path":"a","offset":"3","limit":null}') == ReadArguments(path="a", offset=3)


def test_a_todo_list_is_read():
    parsed = parse_arguments("todo", '{"items":[{"text":"a","status":"done"}]}')
    assert isinstance(parsed, TodoArguments)
    assert parsed.items[0].status == "done"


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("read", '{"path":', "not valid JSON"),
        ("read", "[1]", "a JSON list"),
        ("read", '"a"', "a JSON string"),
        ("read", "null", "a JSON null"),
        ("read", "[" * 300 + "]" * 300, "not valid JSON"),
        ("read", '{"path":' * 300 + "1" + "}" * 300, "not valid JSON"),
        ("read", "", "path is missing"),
        ("read", '{"path":"a","colour":"red"}', "colour is not known"),
        ("read", '{"path":["a"]}', "path: input should be a valid string"),
        ("read", '{"path":"a","offset":0}', "offset: input should be greater than or equal to 1"),
        ("read", '{"path":"\\ud800"}', "not valid JSON"),
        ("todo", '{"items":[{"text":"a","status":"maybe"}]}', "items.0.status: input should be 'pending'"),
        ("fly", "{}", "There is no tool named 'fly'; the tools are read, write,"),
    ],
)
def test_what_cannot_be_run_is_one_clear_sentence(name: str, text: str, said: str):
    told = refusal(name, text)
    assert said in told
    assert "\n" not in told
    assert len(told) < 500


def test_a_refusal_does_not_repeat_the_values():
    assert "hunter2-secret" not in refusal("read", '{"path":{"password":"hunter2-secret"}}')


@given(st.sampled_from([*CLASSES, "other"]), st.text(max_size=200))
def test_no_text_makes_an_exception(name: str, text: str):
    assert isinstance(parse_arguments(name, text), Invalid) or tool_named(name) is not None
