"""A fan-out as a person asks for it: a model that says to each agent what is meant for it, commands that wait."""

import json
from collections.abc import Mapping
from typing import Any

from cli_program import Place, Turns


def wait_at_gate(place: Place) -> str:
    """A command that waits until somebody opens the gate of its worktree, which git does not see there."""
    (place.repository / ".git" / "info" / "exclude").write_text("gate\n")
    return "until [ -e gate ]; do sleep 0.05; done"


def script(place: Place, agents: Mapping[str, Turns]) -> str:
    """The name of a model: an agent's turns are found by words of its task."""
    file = place.folder / f"fan-{len(list(place.folder.glob('fan-*')))}.json"
    conversations = [{"when": words, "turns": turns} for words, turns in agents.items()]
    file.write_text(json.dumps({"conversations": conversations}))
    return f"scripted/{file}"


def write(path: str, content: str) -> dict[str, Any]:
    return {"name": "write", "arguments": {"path": path, "content": content}}


def writing(path: str, content: str, text: str = "Done.") -> Turns:
    return ({"tool_calls": [write(path, content)]}, {"text": text})
