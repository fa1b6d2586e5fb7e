"""Tools of a person's settings: read as written, and one sentence where they cannot be used."""

from pathlib import Path

import pytest

from agent.permissions.rules import tool_name
from agent.tools.schemas import TOOLS
from configs.models import SECRET_NAME
from configs.settings import Environment, Settings, SettingsError, load_settings
from configs.tools import KEY_VARIABLE, RESERVED

WHOLE = """
[tools.deploy]
description = "Deploys the service."
command = ["/usr/local/bin/deploy-tool", "post"]
find = ["/usr/local/bin/deploy-tool", "find"]
parameters = { type = "object", properties = { to = { enum = ["test", "live"] } }, required = ["to"] }
timeout_s = 60
"""


def settings(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return load_settings(Environment({}, tmp_path, file))


def test_a_tool_is_read_as_it_is_written(tmp_path: Path) -> None:
    tool = settings(tmp_path, WHOLE).tools["deploy"]
    assert tool.command == ("/usr/local/bin/deploy-tool", "post")
    assert (tool.find, tool.timeout_s) == (("/usr/local/bin/deploy-tool", "find"), 60)
    assert tool.parameters["properties"] == {"to": {"enum": ["test", "live"]}}


def test_a_description_and_a_command_are_enough(tmp_path: Path) -> None:
    tool = settings(tmp_path, '[tools.d]\ndescription = "D."\ncommand = ["/bin/d"]').tools["d"]
    assert (tool.find, tool.parameters["type"]) == ((), "object")


@pytest.mark.parametrize(
    ("name", "line", "told"),
    [
        ("deploy", 'command = ["deploy-tool"]', "`tools.deploy.command`: begin it with the absolute path"),
        ("deploy", 'command = ["./tools/deploy"]', "absolute path"),
        ("deploy", "command = []", "absolute path"),
        ("deploy", 'command = ["/bin/a", "b\\u0000"]', "absolute path"),
        ("deploy", 'command = ["/bin/a"]\nfind = ["a"]', "`tools.deploy.find`"),
        ("deploy", 'command = ["/bin/a"]\nfind = []', "`tools.deploy.find`"),
        ("deploy", 'command = ["/bin/a"]\ntimeout_s = 0', "`tools.deploy.timeout_s`"),
        ("deploy", 'command = ["/bin/a"]\nparameters = { type = "array" }', 'write type = "object"'),
        ("deploy", 'command = ["/bin/a"]\nparameters = { type = "object", required = 3 }', "no JSON schema"),
        ("deploy", 'command = ["/bin/a"]\nparameters = { type = "object", default = 2020-01-01 }', "no JSON"),
        ("deploy", 'command = ["/bin/a"]\nparameters = { type = "object", default = nan }', "no JSON"),
        ("deploy", 'command = ["/bin/a"]\nshell = true', "`tools.deploy.shell`"),
        ("read", 'command = ["/bin/a"]', "'read' is a tool that Thalia has itself"),
        ("Bash", 'command = ["/bin/a"]', "'Bash' is a tool that Thalia has itself"),
        ("mcp__a__b", 'command = ["/bin/a"]', "is no name of a tool"),
        ('"a b"', 'command = ["/bin/a"]', "is no name of a tool"),
    ],
)
def test_what_cannot_be_used_is_named_in_one_sentence(name: str, line: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refused:
        settings(tmp_path, f'[tools.{name}]\ndescription = "D."\n{line}')
    assert told in str(refused.value) and "\n" not in str(refused.value)


def test_no_tool_of_ours_can_be_replaced() -> None:
    assert {tool.name for tool in TOOLS} <= RESERVED
    assert {name for name in ("bash", "multiedit", "grep") if tool_name(name) != name} <= RESERVED


def test_the_name_of_the_keys_variable_looks_like_no_secret() -> None:
    assert SECRET_NAME.search(KEY_VARIABLE) is None
