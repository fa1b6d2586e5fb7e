"""Hypothesis strategies for the vocabulary, derived from its types: a new kind is covered, or fails by name."""

import types
from typing import Annotated, Any, Literal, NewType, Union, get_args, get_origin

from hypothesis import strategies as st
from pydantic import BaseModel

from eventlog.effects import Effect
from eventlog.events import Body
from eventlog.outcomes import Outcome


def members(union: Any) -> tuple[type[BaseModel], ...]:
    """The kinds of a closed union."""
    return get_args(get_args(union)[0])


BODIES, EFFECTS, OUTCOMES = members(Body), members(Effect), members(Outcome)
TEXT = st.text(max_size=40) | st.sampled_from(
    ("", "\0", "line\r\n\ttab", '"\\u0000"', '{"$blob":"x"}', "é漢😀", "\u2028")
)
SCALARS: dict[type, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    types.NoneType: st.none(),
}


def anything(kind: Any) -> st.SearchStrategy[Any]:
    """Every value of a type of the vocabulary. Raises TypeError for a type that it does not know."""
    if kind in SCALARS:
        return SCALARS[kind]
    if isinstance(kind, NewType):
        return anything(kind.__supertype__)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return st.builds(kind, **{name: anything(field.annotation) for name, field in kind.model_fields.items()})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return anything(arguments[0])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Union, types.UnionType):
        return st.one_of([anything(argument) for argument in arguments])
    if origin is tuple and arguments[1:] == (...,):
        return st.lists(anything(arguments[0]), max_size=3).map(tuple)
    raise TypeError(f"no strategy for {kind}")
