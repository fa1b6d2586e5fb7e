"""A program of a person's own as a tool, as they meet it: asked about with all it gets, allowed by name, withheld."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cli_program import Place, serving, terminal

PROMPT = "run it? [y/N, or a word of why not]"
TOOL = Path(__file__).resolve().parents[1] / "chaos" / "ledger_tool.py"
TURNS: tuple[Mapping[str, Any], ...] = (
    {"text": "May I?", "tool_calls": [{"name": "deploy", "arguments": {"to": "live"}}]},
    {"text": "Thank you."},
)


def configure(place: Place) -> None:
    command = [sys.executable, "-I", str(TOOL), "post", str(ledger(place))]
    place.config.write_text(f'[tools.deploy]\ndescription = "Deploys the service."\ncommand = {json.dumps(command)}\n')


def ledger(place: Place) -> Path:
    return place.folder / "ledger"


def posted(place: Place) -> int:
    return len(ledger(place).read_text().splitlines()) if ledger(place).exists() else 0


def test_a_person_is_asked_with_its_arguments_and_a_yes_runs_it(place: Place) -> None:
    configure(place)
    with serving(*TURNS) as server:
        place.use(server)
        with terminal(place, "exec", "Do it.", "-m", "openai/test") as screen:
            screen.wait_for(PROMPT)
            assert '"to": "live"' in screen.text and "deploy wants to run; deploy reaches outside" in screen.text
            assert posted(place) == 0
            screen.type("y\n")
            screen.wait_for("Thank you.")
            assert screen.finish() == 0
        assert b"Deploys the service." in server.requests[0] and b"posted " in server.requests[1]
    assert posted(place) == 1


@pytest.mark.both_ways
def test_with_nobody_there_it_is_withheld_unless_it_is_allowed_by_name(place: Place) -> None:
    configure(place)
    result = place.run("exec", "Do it.", "-m", place.script(*TURNS))
    assert (result.code, posted(place)) == (11, 0), result
    result = place.run("exec", "Do it.", "-m", place.script(*TURNS), "--allowedTools", "deploy")
    assert (result.code, posted(place)) == (0, 1), result


def test_a_repositorys_own_settings_bring_no_tool(place: Place) -> None:
    configure(place)
    (place.repository / ".thalia").mkdir()
    place.config.rename(place.repository / ".thalia" / "config.toml")
    result = place.run("exec", "Do it.", "-m", place.script(*TURNS), "--allowedTools", "deploy")
    assert (result.code, posted(place)) == (0, 0), result
    assert "There is no tool named" in str(place.events())


def test_a_tool_that_cannot_be_used_is_one_sentence(place: Place) -> None:
    place.config.write_text('[tools.deploy]\ndescription = "D."\ncommand = ["deploy"]\n')
    result = place.run("exec", "Do it.", "-m", place.script(*TURNS))
    assert (result.code, result.err.count("\n")) == (2, 1), result
    assert "`tools.deploy.command`" in result.err and "Traceback" not in result.err
