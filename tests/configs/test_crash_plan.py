"""A plan of crashes is one for all processes that inherit it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REACH = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from configs.crash import reached; reached(sys.argv[1])"


def ends(folder: Path, *names: str) -> list[int]:
    """How processes end of which each reaches one place, one after the other."""
    env = {
        **os.environ,
        "THALIA_CRASH_PLAN": str(folder / "plan"),
        "THALIA_CRASH_TRACE": str(folder / "trace"),
    }
    return [
        subprocess.run([sys.executable, "-I", "-c", REACH, name], check=False, env=env).returncode for name in names
    ]


def test_whoever_is_the_third_of_all_to_reach_the_place_ends_and_nobody_else(tmp_path: Path) -> None:
    (tmp_path / "plan").write_text("here:3\n")
    assert ends(tmp_path, "here", "there", "here", "here", "here") == [0, 0, 0, -signal.SIGKILL, 0]
    assert not (tmp_path / "plan").exists()
    assert (tmp_path / "trace").read_text().split() == ["here:1", "there:1", "here:1", "here:1", "killed", "here:1"]


def test_the_next_plan_counts_from_the_kill_before_it(tmp_path: Path) -> None:
    (tmp_path / "plan").write_text("here:1\n")
    (tmp_path / "plan.next").write_text("here:2\n")
    assert ends(tmp_path, "here", "here", "here", "here") == [-signal.SIGKILL, 0, -signal.SIGKILL, 0]
