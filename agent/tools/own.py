"""Arguments for a tool of the user's own: read, held against its schema, and spelled in one way. Runs nothing."""

import json
from typing import Any

from agent.tools.schemas import Invalid, parse_object
from configs.tools import OwnTool

_USAGE = "one JSON object that fits the tool's schema"
_SHOWN = 200


def read_arguments(name: str, tool: OwnTool, text: str) -> str | Invalid:
    """The object as the program will get it: its one spelling, so that no two readers of it find different values
    (of a name that stands there twice, the last counts). Never raises."""
    data = parse_object(name, text, _USAGE)
    if isinstance(data, Invalid):
        return data
    if (problem := _mismatch(tool, data)) is not None:
        return Invalid(f"The arguments of {name} are wrong: {problem}; send {_USAGE}.")
    try:
        return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return Invalid(f"The arguments of {name} hold a number with too many digits; send it as a string.")


def _mismatch(tool: OwnTool, data: dict[str, Any]) -> str | None:
    """Where the object breaks which rule of the schema. The input itself is not repeated: it may be long, and hold a
    secret."""
    from jsonschema.exceptions import best_match
    from jsonschema.validators import Draft202012Validator, validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    # With a registry of its own it fetches nothing.
    validator = validator_for(tool.parameters, default=Draft202012Validator)(tool.parameters, registry=Registry())
    try:
        found = best_match(validator.iter_errors(data))
    except (Unresolvable, RecursionError):
        return "its schema refers to what cannot be found; the user has to correct it in the settings"
    if found is None:
        return None
    wanted = json.dumps(found.validator_value, ensure_ascii=False)
    if len(wanted) > _SHOWN:
        wanted = f"{wanted[:_SHOWN]}…"
    return f"at {found.json_path[:_SHOWN]} they break the rule {found.validator}: {wanted}"
