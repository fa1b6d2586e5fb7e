"""Commands and results are values that survive JSON; limits become a line of bash."""

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from processes.commands import (
    Command,
    CommandResult,
    Confinement,
    Lease,
    Limits,
    command_from_json,
    command_to_json,
    result_from_json,
    result_to_json,
    shell_argv,
)

FULL = Command(
    text="echo 'a b' é",
    cwd=Path("/work/tree"),
    env={"PATH": "/bin", "LANG": "C.UTF-8"},
    limits=Limits(None, 10, 1, 2, 3, 4),
    confinement=Confinement(
        (Path("/w"),), (Path("/r"), Path("/s")), Path("/g"), Path("/w/.git"), True, ((Path("/m"), Path("/w/m")),)
    ),
    lease=Lease(Path("/lease"), 2.5),
)


def test_a_full_and_a_plain_command_survive_a_round_trip():
    plain = Command("true", Path("/"), {})
    assert command_from_json(command_to_json(FULL)) == FULL
    assert command_from_json(command_to_json(plain)) == plain


@given(
    st.builds(CommandResult, *[st.integers() | st.none()] * 2, *[st.booleans()] * 2, *[st.integers()] * 4, st.text())
)
def test_every_result_survives_a_round_trip(result: CommandResult):
    assert result_from_json(result_to_json(result)) == result


def test_a_text_with_an_unknown_field_is_no_result():
    with pytest.raises(TypeError):
        result_from_json('{"exit_code": 0, "color": "red"}')


def test_without_limits_bash_runs_the_text_itself():
    assert shell_argv("/bin/bash", "echo $0", Limits()) == [
        "/bin/bash", "--noprofile", "--norc", "-c", "echo $0",
    ]  # fmt: skip


def test_limits_bind_the_text_and_not_its_words():
    limits = Limits(cpu_s=7, memory_bytes=1 << 30, processes=900, file_bytes=1500)
    argv = shell_argv("/bin/bash", "ulimit -t; ulimit -v; ulimit -u; ulimit -f; echo $# $0", limits)
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
    assert said == ["7", str(1 << 20), "900", "2", "0", "/bin/bash"]
