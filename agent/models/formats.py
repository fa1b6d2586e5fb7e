"""How a conversation becomes the body of a request: what every format is, and what they share. Pure.

A body has three parts: a prefix up to where the first message stands, the messages, and an end. What a message gave is
never changed by what comes after it, so that a growing conversation is encoded and hashed once."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from agent.models.client import ModelError
from eventlog.events import ContextSet
from eventlog.messages import Message

ECHO_REASONING = "echo_reasoning"
"""Parameter, not sent: reasoning goes back to the provider as text."""
MAX_TOKENS_NAME = "max_tokens_name"
"""Parameter, not sent: what a provider of Chat Completions calls the bound on output tokens."""
MAX_OUTPUT = "max_output"
"""Parameter, not sent: the output tokens to ask for where nothing else bounds them; Responses and Messages."""
NO_TEXT = "(empty)"
"""Providers refuse a message without text."""

_OURS = frozenset({ECHO_REASONING, MAX_TOKENS_NAME, MAX_OUTPUT})
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_IN_NAME = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True)
class Format:
    """Three functions whose results, one behind the other, are a body, and one that reads in it. No message at all is a
    body too."""

    prefix: Callable[[ContextSet, int | None], bytes]
    """The body up to where the first message stands; the number bounds the output, in tokens."""
    encode: Callable[[ContextSet, Message | None, Message], bytes]
    """What stands behind the message before (None: there is none), the separator included. Depends on nothing later."""
    end: Callable[[ContextSet, Message | None], bytes]
    """What stands behind the last message and closes the body."""
    bound: Callable[[ContextSet, int | None], int | None]
    """The output tokens that the body with this prefix lets a reply have; None where it sets no bound."""


class UnknownFormat(ModelError):
    """A session was written with a request format that this version does not have."""

    def __init__(self, builder: str) -> None:
        super().__init__(f"This session asks for the request format {builder!r}; open it with a newer Thalia.")


def parameters(context: ContextSet) -> dict[str, Any]:
    """All of them, ours too; none where they cannot be read."""
    return json_object(context.parameters)


def sent_parameters(context: ContextSet, owned: frozenset[str]) -> dict[str, Any]:
    """What goes into a body beside the fields that the format owns. A null takes a field out of the body."""
    return {name: value for name, value in parameters(context).items() if name not in _OURS and name not in owned}


def bound_in(context: ContextSet, *names: str) -> int | None:
    """The first of these parameters that is a number of tokens."""
    chosen = parameters(context)
    found = (chosen.get(name) for name in names)
    return next((value for value in found if type(value) is int and value > 0), None)


def some_text(text: str) -> str:
    return text if text.strip() else NO_TEXT


def safe_name(name: str) -> str:
    """A tool's name as every provider takes it, whatever the model wrote."""
    return name if _NAME.fullmatch(name) else _NOT_IN_NAME.sub("_", name)[:64] or "unnamed"


def safe_arguments(arguments: str) -> str:
    """As the model wrote them where they are a JSON object, else an empty one."""
    return arguments if is_object(arguments) else "{}"


def is_object(text: str) -> bool:
    try:
        return isinstance(orjson.loads(text), dict)
    except orjson.JSONDecodeError:
        return False


def json_object(text: str) -> dict[str, Any]:
    """The object; an empty one for all else."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return value if isinstance(value, dict) else {}
