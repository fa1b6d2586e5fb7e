"""A project whose tests need its `.venv`: they pass, confined, and test the worktree's code."""

import subprocess
import sys
from pathlib import Path

from tests.actors.playing import DONE, Stage, call, shell, turn

TEST = "import answer, sys\nprint(answer.__file__)\nprint(sys.prefix)\nassert answer.VALUE == 42, answer.VALUE\n"


def make_project(folder: Path) -> Stage:
    """An editable install as pip makes one: a `.pth` in the venv that points at the checkout."""
    stage = Stage(folder, {"src/answer.py": "VALUE = 41\n", "check.py": TEST, ".gitignore": ".venv/\n"})
    venv = stage.repository / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "answer.pth").write_text(f"{stage.repository}/src\n")
    return stage


def test_the_venv_of_the_checkout_runs_the_worktrees_code_in_auto_mode(tmp_path: Path) -> None:
    stage = make_project(tmp_path)
    fix = call("edit", path="src/answer.py", old_text="41", new_text="42")
    played = stage.start(
        turn(shell("python check.py; touch ran.txt")),
        turn(fix, shell(".venv/bin/python check.py"), shell("python check.py")),
        turn(shell("echo x > .venv/x")),
        DONE,
        merge=True,
    )
    worktree = str(played.worktree)
    assert "AssertionError: 41" in played.results[0]
    for result in played.results[2:4]:
        assert result.splitlines()[:2] == [f"{worktree}/src/answer.py", f"{worktree}/.venv"], result
    assert played.kinds("c2_2") == played.kinds("c2_3") == ["tool_succeeded"]
    assert "Read-only" in played.results[4], "the user's venv is not the agent's to change"
    assert not (stage.repository / ".venv" / "x").exists()
    assert played.code == 0 and (stage.repository / "src" / "answer.py").read_text() == "VALUE = 42\n"
