"""Parts of a JSON document, cut out as they were written."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.raw_json import raw_elements, raw_member

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
written = st.sampled_from([{"indent": 2}, {"separators": (",", ":")}, {"separators": (" ,\t", " :\n")}])


@given(st.dictionaries(st.text(max_size=3), values, min_size=1, max_size=4), written)
def test_each_value_of_an_object_is_cut_out(value: dict[str, Any], how: dict[str, Any]) -> None:
    text = " " + json.dumps(value, **how)
    for name, inner in value.items():
        cut = raw_member(text, name)
        assert cut in text and cut == cut.strip() and json.loads(cut) == inner


@given(st.lists(values, max_size=4), written)
def test_each_element_of_an_array_is_cut_out(value: list[Any], how: dict[str, Any]) -> None:
    cuts = raw_elements(json.dumps(value, **how))
    assert [json.loads(cut) for cut in cuts] == value


def test_the_letters_stay_as_they_were() -> None:
    assert raw_member(r'{"a": {"b" :  1.50, "c":"\u00e9"} }', "a") == r'{"b" :  1.50, "c":"\u00e9"}'
    assert raw_elements("[ 1e2 , 10000000000000000000000 ]") == ["1e2", "10000000000000000000000"]


def test_of_equal_names_the_last_counts() -> None:
    assert raw_member('{"a":1,"a":2}', "a") == "2"


def test_what_is_not_there_or_cannot_be_read_is_said() -> None:
    with pytest.raises(LookupError):
        raw_member('{"a":1}', "b")
    for text in ("", "[1]", '{"a"}', '{"a":1', '{"a":1;"b":2}', '{"a":}'):
        with pytest.raises(ValueError):
            raw_member(text, "a")
    for text in ("", "{}", "[1", "[1;2]", "[,]"):
        with pytest.raises(ValueError):
            raw_elements(text)
