"""A tool of the user's own as the model sees it, and what it may be called with."""

import json
from typing import Any

import pytest

from agent.tools.own import read_arguments
from agent.tools.schemas import TOOLS, Invalid, tools_json
from configs.tools import OwnTool

SCHEMA = {
    "type": "object",
    "properties": {"to": {"enum": ["test", "live"]}, "copies": {"type": "integer", "maximum": 9}},
    "required": ["to"],
    "additionalProperties": False,
}


def own(parameters: Any = SCHEMA) -> OwnTool:
    return OwnTool(description="Deploys the service.", command=("/bin/deploy",), parameters=parameters)


def test_it_stands_behind_our_own_tools_as_it_was_described() -> None:
    names = [tool.name for tool in TOOLS]
    *ours, theirs = json.loads(tools_json(names, {"deploy": own()}))
    assert ours == json.loads(tools_json(names))
    function = {"name": "deploy", "description": "Deploys the service.", "parameters": SCHEMA}
    assert theirs == {"type": "function", "function": function}


def test_without_any_the_bytes_are_what_they_were() -> None:
    assert tools_json(["read"], {}) == tools_json(["read"])


def test_arguments_have_one_spelling() -> None:
    texts = [
        '{"to":"live","copies":2}',
        '{ "to" : "test", "to": "live",\n "copies": 2 }',
        '{"\\u0074o":"live","copies":2}',
    ]
    assert {str(read_arguments("deploy", own(), text)) for text in texts} == {'{"to":"live","copies":2}'}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", 'break the rule required: ["to"]'),
        ('{"to":"moon"}', 'at $.to they break the rule enum: ["test", "live"]'),
        ('{"to":"live","copies":12}', "at $.copies they break the rule maximum: 9"),
        ('{"to":"live","force":true}', "break the rule additionalProperties: false"),
        ('["live"]', "are a JSON list"),
        ('{"to":"live"', "not valid JSON"),
        ('{"to":NaN}', "not valid JSON"),
        ('{"to":' + "[" * 500 + "]" * 500 + "}", "not valid JSON"),
    ],
)
def test_what_does_not_fit_is_told_without_repeating_it(text: str, told: str) -> None:
    answer = read_arguments("deploy", own(), text)
    assert isinstance(answer, Invalid) and told in answer.text
    assert "moon" not in answer.text and "force" not in answer.text


@pytest.mark.parametrize("number", ["9" * 5000, "1e999", "-1e999"])
def test_a_number_that_cannot_be_spelled_again_is_refused(number: str) -> None:
    assert isinstance(read_arguments("deploy", own({"type": "object"}), f'{{"n":{number}}}'), Invalid)


@pytest.mark.parametrize("reference", ["https://127.0.0.1:9/schema.json", "#/nowhere", "#"])
def test_a_schema_that_leads_elsewhere_fetches_nothing(reference: str) -> None:
    answer = read_arguments("deploy", own({"type": "object", "$ref": reference}), "{}")
    assert isinstance(answer, Invalid) and "its schema refers to what cannot be found" in answer.text
