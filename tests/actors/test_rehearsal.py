"""What a process does once, so that no session waits for it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from actors.building import try_sandbox
from eventlog.events import ModeChosen
from eventlog.ids import CommandId
from processes.sandbox import candidates

AUTO = ModeChosen(id=CommandId("m"), mode="auto", sandbox="workspace-write", attended=False)


@pytest.fixture
def counting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A bubblewrap that is found first, and writes a line for each of its runs."""
    program, real = tmp_path / "bin" / "bwrap", candidates()[-1]
    program.parent.mkdir()
    program.write_text(f'#!/bin/bash\necho ran >> {tmp_path}/runs\nexec {real} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


def count(program: Path) -> int:
    return len((program.parent.parent / "runs").read_text().splitlines())


def test_a_sandbox_that_held_is_not_tried_again(counting: Path) -> None:
    assert try_sandbox(AUTO).ok
    tries = count(counting)
    assert try_sandbox(AUTO).ok
    assert count(counting) == tries > 0


def test_another_program_of_the_same_name_is_tried(counting: Path) -> None:
    try_sandbox(AUTO)
    tries = count(counting)
    other = counting.with_name("other")
    other.write_text(counting.read_text())
    other.chmod(0o755)
    other.rename(counting)
    assert try_sandbox(AUTO).ok
    assert count(counting) > tries


def test_after_a_rehearsal_a_session_imports_neither_parser_nor_database(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom actors.building import rehearse\n"
        f"rehearse(Path({str(tmp_path)!r}))\nprint('tree_sitter_bash' in sys.modules, 'duckdb' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True True\n"
