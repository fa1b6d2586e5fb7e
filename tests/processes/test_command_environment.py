"""No secret reaches a command, and nothing that it starts waits for a person (G19, G37)."""

import os
from pathlib import Path

import pytest

from processes.environment import child_env
from processes.runner import Runner
from tests.processes.running import command, finished, text_of

SECRETS = {
    "FOO_API_KEY": "cnry-1",
    "GITHUB_TOKEN": "ghp_" + "a" * 36,
    "SSH_AUTH_SOCK": "/tmp/agent.sock",
    "DB": "https://u:p@host",
    "LD_PRELOAD": "/x.so",
    "BASH_ENV": "/x.sh",
}


def test_only_the_allow_list_and_the_extra_pass():
    env = child_env({**SECRETS, "PATH": "/bin", "HOME": "/h", "LC_ALL": "C", "TERM": "xterm"}, {"THALIA_RUN": "r1"})
    assert not set(env) & set(SECRETS)
    assert {name: env[name] for name in ("PATH", "HOME", "LC_ALL", "TERM", "THALIA_RUN")} == {
        "PATH": "/bin",
        "HOME": "/h",
        "LC_ALL": "C",
        "TERM": "dumb",
        "THALIA_RUN": "r1",
    }


def test_relative_entries_of_the_path_are_dropped():
    assert child_env({"PATH": "/usr/bin:.::bin:/bin"}, {})["PATH"] == "/usr/bin:/bin"
    assert child_env({"PATH": "."}, {})["PATH"].startswith("/")


@pytest.mark.parametrize("confined", [False, True])
async def test_a_command_finds_no_secret_in_its_own_or_its_ancestors_environment(
    runner: Runner, work: Path, call_dir: Path, confined: bool, monkeypatch: pytest.MonkeyPatch
):
    for name, value in SECRETS.items():
        if name != "LD_PRELOAD":
            monkeypatch.setenv(name, value)
    text = "env; cat /proc/$PPID/environ; cat /proc/1/environ" if confined else "env; cat /proc/$PPID/environ"
    assert finished(await runner.run(call_dir, command(text, work, confined))).exit_code == 0
    said = text_of(call_dir)
    assert "THALIA_CALL=c1_1" in said
    assert not [value for value in SECRETS.values() if value in said]
    assert os.environ["FOO_API_KEY"] == SECRETS["FOO_API_KEY"]


@pytest.mark.parametrize(
    "text",
    [
        "read x",
        "cat && false",
        "python3 -c 'input()'",
        "git init -q . && echo a > a && git add a && git -c user.name=a -c user.email=a@b commit",
        "git init -q . && git -p log",
        "python3 -c 'open(\"/dev/tty\").read()'",
        "ssh-keygen",
        "exec 3<>/dev/tty",
    ],
)
@pytest.mark.parametrize("confined", [False, True])
async def test_what_would_wait_for_a_person_ends_with_an_error(
    runner: Runner, work: Path, call_dir: Path, text: str, confined: bool
):
    result = finished(await runner.run(call_dir, command(text, work, confined)))
    assert result.exit_code not in (0, None)
    assert not result.timed_out
    assert result.finished_us - result.started_us < 3_000_000
