"""`thalia models`: the table as it would be used now, a question to a real server, and what is said without one."""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from agent.models.client import ModelError
from agent.models.probe import WORD
from agent.models.resolve import CannotChoose
from frontends.commands.models import models
from tests.cli.cli_program import serving

app = typer.Typer()
app.add_typer(models, name="models")
app.command("other")(lambda: None)

CALL = {"tool_calls": [{"name": "ping", "arguments": {}}], "usage": {"input": 90, "output": 7}}
ANSWER = {"text": f"It said {WORD}, and nothing else."}
KEY = "planted-key-0123456789"


def thalia(folder: Path, *arguments: str, config: str = "", **variables: str) -> Result:
    """As a person with this settings file and these variables; a key of the machine's own is not seen."""
    (folder / "config.toml").write_text(config)
    own = {"THALIA_HOME": str(folder / "state"), "THALIA_CONFIG": str(folder / "config.toml")}
    unset: dict[str, str | None] = dict.fromkeys(
        ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY", "MODEL_API_KEY")
    )
    return CliRunner().invoke(app, ["models", *arguments], env={**unset, **own, **variables})


def rows(result: Result, kind: str = "") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in result.output.splitlines()]
    return [row for row in found if not kind or row["kind"] == kind]


def test_the_list_says_where_in_what_protocol_and_whether_a_key_is_set(tmp_path: Path) -> None:
    shown = thalia(tmp_path, OPENAI_API_KEY=KEY).output
    assert "openai  https://api.openai.com/v1 · responses, chat · OPENAI_API_KEY is set\n" in shown
    assert "anthropic  https://api.anthropic.com/v1 · messages · ANTHROPIC_API_KEY is not set\n" in shown
    assert "ollama  http://127.0.0.1:11434/v1 · chat · no key needed\n" in shown
    assert KEY not in shown and "scripted" not in shown


def test_the_list_shows_prices_windows_and_warnings(tmp_path: Path) -> None:
    lines = thalia(tmp_path).output.splitlines()
    at = next(index for index, line in enumerate(lines) if "muse-spark-1.2-contributor" in line)
    assert "1,048,576 tokens  $0.1 in · $0.002 cached · $0.2 out  2026-08" in lines[at]
    assert lines[at + 1].startswith("    ! Meta uses what is sent")
    assert any("gemini-2.5-pro" in line and "price unknown" in line for line in lines)
    assert any("smollm2" in line and "free" in line for line in lines)


def test_the_users_own_providers_addresses_and_prices_stand_in_the_list(tmp_path: Path) -> None:
    config = '[providers.mine]\nbase_url = "http://127.0.0.1:9/v1"\n'
    config += '[prices."mine/m"]\ninput = 2.0\noutput = 3.0\nwindow = 9000\n'
    result = thalia(tmp_path, "--output-format", "json", config=config, OPENAI_BASE_URL="http://127.0.0.1:8/v1")
    owners = {row["provider"]: row for row in rows(result, "provider")}
    assert (owners["mine"]["base_url"], owners["mine"]["protocols"]) == ("http://127.0.0.1:9/v1", ["chat"])
    assert owners["openai"]["base_url"] == "http://127.0.0.1:8/v1"
    assert owners["openai"]["protocols"] == ["chat", "responses"], "the one in use first"
    (own,) = [row for row in rows(result, "model") if row["model"] == "mine/m"]
    assert (own["window"], own["input_usd"], own["cached_usd"], own["output_usd"]) == (9000, 2.0, 2.0, 3.0)


def test_an_address_that_holds_a_password_is_not_shown(tmp_path: Path) -> None:
    shown = thalia(tmp_path, OPENAI_BASE_URL="https://me:hunter2@host/v1").output
    assert "the address in OPENAI_BASE_URL cannot be used" in shown and "hunter2" not in shown


@pytest.mark.parametrize("protocol", ["chat", "responses", "messages"])
def test_a_probe_says_in_a_line_each_what_works(protocol: str, tmp_path: Path) -> None:
    config = (
        f'[providers.mine]\nbase_url = "%s"\nprotocol = "{protocol}"\n[prices."mine/m"]\ninput = 1.0\noutput = 1.0\n'
    )
    with serving(CALL, ANSWER) as server:
        result = thalia(tmp_path, "probe", "mine/m", config=config % server.base_url)
    assert result.exit_code == 0, result.output
    answer, streaming, usage, tools = result.output.splitlines()
    assert answer.startswith("ok  answer: first byte after ") and answer.endswith(" ms, as scripted")
    assert streaming.startswith("ok  streaming: ") and streaming.endswith(" pieces")
    assert usage == "ok  usage: 90 tokens in, 7 out, $0.000097"
    assert tools == "ok  tool calls: it called the tool and used the result"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("turns", "name", "says"),
    [
        ((ANSWER,), "tool calls", "it wrote text where it was to call a tool"),
        ((CALL, {"text": "I do not know."}), "tool calls", "it called the tool, and did not use the result"),
        ((CALL, {"faults": [{"fail": "400", "times": 9}]}), "tool calls", "and did not take the result"),
        ((CALL, {"text": ""}), "streaming", "a reply comes as a whole"),
    ],
)
def test_a_probe_says_what_does_not_work(
    turns: tuple[Mapping[str, Any], ...], name: str, says: str, tmp_path: Path
) -> None:
    with serving(*turns) as server:
        result = thalia(tmp_path, "probe", "openai/m", "--output-format", "json", OPENAI_BASE_URL=server.base_url)
    (found,) = [row for row in rows(result) if row["name"] == name]
    assert not found["ok"] and says in found["text"]
    assert result.exit_code == 0, "it answers"


@pytest.mark.parametrize("fail", ["401", "503"])
def test_a_server_that_gives_no_answer_is_unreachable(fail: str, tmp_path: Path) -> None:
    with serving({"faults": [{"fail": fail, "times": 9}]}) as server:
        result = thalia(tmp_path, "probe", "openai/m", OPENAI_BASE_URL=server.base_url, OPENAI_API_KEY=KEY)
        assert len(server.requests) == 1, "a probe is not tried again"
    assert result.exit_code == 13
    assert result.output.startswith("NO  answer: ") and result.output.count("\n") == 1
    assert KEY not in result.output


def test_where_no_server_listens_it_says_so(tmp_path: Path) -> None:
    result = thalia(tmp_path, "probe", "openai/m", OPENAI_BASE_URL="http://127.0.0.1:1/v1")
    assert (result.exit_code, result.output) == (
        13,
        "NO  answer: No connection to http://127.0.0.1:1/v1; is the server running?\n",
    )


def test_the_warning_comes_before_the_question(tmp_path: Path) -> None:
    address = {"MODEL_API_BASE_URL": "http://127.0.0.1:1/v1"}
    result = thalia(tmp_path, "probe", "meta/muse-spark-1.2-contributor", **address)
    assert result.stderr.startswith("! Meta uses what is sent")


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (("probe", "openai/gpt-5"), CannotChoose, "OPENAI_API_KEY is not set"),
        (("probe", "gpt-5"), CannotChoose, "provider/name"),
        (("get", "gpt-5"), ModelError, "there is smollm2"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(
    arguments: tuple[str, ...], error: type[Exception], says: str, tmp_path: Path
) -> None:
    result = thalia(tmp_path, *arguments)
    assert isinstance(result.exception, error) and says in str(result.exception)


def test_a_script_is_no_server(tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text('{"turns":[]}')
    result = thalia(tmp_path, "probe", f"scripted/{tmp_path}/script.json")
    assert isinstance(result.exception, ModelError) and "not a server" in str(result.exception)


def test_the_command_costs_the_start_of_the_program_nothing() -> None:
    slow = "{'pydantic', 'httpx', 'asyncio', 'orjson'}"
    code = f"import sys, frontends.commands.models\nprint(sorted({slow} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
