"""Tools of the user's own: programs that act outside, named in the user's settings and nowhere else.

The program gets one JSON object on its input, {"tool", "key", "arguments"}, and prints its result; an exit code that is
not 0 says that it failed. `find`, asked later for the same key with {"tool", "key"}, says what became of the call:
0 and the result on its output: it was done; NOT_DONE: it was not, and will not be; anything else: it cannot tell."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

NOT_DONE = 3
"""Exit code of `find`."""
KEY_VARIABLE = "THALIA_IDEMPOTENCY"
"""Variable that holds the key too. It is no secret, and its name looks like none: those are cut out of logs."""
_OURS = ("read", "write", "edit", "apply_patch", "glob", "grep", "shell", "commit", "todo")
RESERVED = frozenset((*_OURS, "recall", "fan_out", "ask_agent", "report", "stay_silent", "bash", "multiedit"))
"""Names of our own tools, of those to come, and what rules call them by."""

_NAME = re.compile(r"(?!mcp__)[A-Za-z][A-Za-z0-9_-]{0,63}")


class OwnTool(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    description: str = Field(min_length=1, max_length=4000)
    """What the model reads of it."""
    command: tuple[str, ...]
    """Program and first words, passed as they are: no shell reads them."""
    find: tuple[str, ...] = ()
    """The same, of the program that knows what became of a call. Empty: nobody can be asked."""
    parameters: Mapping[str, Any] = Field(default_factory=lambda: {"type": "object", "properties": {}})
    """JSON schema of the arguments."""
    timeout_s: float = Field(default=120.0, gt=0, le=86_400)
    """Of one run, of the program and of `find` alike."""

    @field_validator("command", "find")
    @classmethod
    def _names_a_program(cls, words: tuple[str, ...]) -> tuple[str, ...]:
        # A relative name would be looked up in a folder that an agent writes.
        if not words or not words[0].startswith("/") or any("\0" in word for word in words):
            raise ValueError("begin it with the absolute path of a program")
        return words

    @field_validator("parameters")
    @classmethod
    def _are_a_schema(cls, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
        import jsonschema
        from jsonschema.validators import validator_for

        if parameters.get("type") != "object":
            raise ValueError('the arguments are one object; write type = "object"')
        try:
            json.dumps(parameters, allow_nan=False)
            validator_for(parameters).check_schema(dict(parameters))
        except (TypeError, ValueError) as error:
            raise ValueError(f"it is no JSON: {error}") from error
        except jsonschema.SchemaError as error:
            raise ValueError(f"it is no JSON schema: {error.message.splitlines()[0]}") from error
        return parameters


def check_names(names: Iterable[str]) -> None:
    """Raises ValueError: one clause."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of a tool; use up to 64 letters, digits, _ and -, a letter first")
        if name.lower() in RESERVED:
            raise ValueError(f"{name!r} is a tool that Thalia has itself; choose another name")
