"""Names of things. Each kind of name is its own type; none is drawn here."""

from typing import NewType

SessionId = NewType("SessionId", str)
"""Unique over all sessions of a user: time-ordered, safe as a file name and in a ref."""

AgentId = NewType("AgentId", str)
"""Unique in a session; the main agent is `main`."""

CallId = NewType("CallId", str)
"""Unique in a session: `c7` is the seventh model call, `c7_2` the second tool call in its reply."""

CommandId = NewType("CommandId", str)
"""Chosen by a frontend; a repeated one is dropped."""

Commit = NewType("Commit", str)
"""A git object id, full length, lower case hex."""

Digest = NewType("Digest", str)
"""sha256, lower case hex."""

MAIN = AgentId("main")


def model_call_id(number: int) -> CallId:
    return CallId(f"c{number}")


def tool_call_id(model_call: CallId, index: int) -> CallId:
    """`index` counts from 1 in the order of the reply."""
    return CallId(f"{model_call}_{index}")


SETUP = CallId("setup")
"""The user's setup command; each time it is a new attempt."""


def snapshot_id(number: int) -> CallId:
    return CallId(f"s{number}")


def fan_id(number: int) -> CallId:
    """Of a fan-out that a person asked for; one that the model asked for has the id of its call."""
    return CallId(f"f{number}")


def agent_of(fan: CallId, index: int) -> AgentId:
    """`index` counts from 1. Safe as a file name and in a ref."""
    return AgentId(f"{fan}-{index}")


def part_id(agent: AgentId, part: str, number: int) -> CallId:
    """Of an effect for one agent of a fan-out; `number` is its round."""
    return CallId(f"{agent}_{part}{number}")


def ask_id(call: CallId) -> CallId:
    return CallId(f"{call}_ask")


def wake_id(agent: AgentId, number: int) -> CallId:
    """Of a background agent's wake-up, from 1."""
    return CallId(f"{agent}_w{number}")
