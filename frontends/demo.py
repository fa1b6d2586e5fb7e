"""`thalia demo`: a scripted model mends a failing test, everything is killed half-way, and the session goes on.

No key and no network are needed. The kill is real: SIGKILL for every process of the run, in the middle of a command."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from processes.tree import descendants, is_alive, send
from worktrees.sample import make_repository

SCRIPT = Path(__file__).resolve().parent.parent / "configs" / "demo" / "script.json"
PATIENCE_S = 60.0
FILES = {
    "scores.py": '''"""High scores of a small game."""


def top(scores: dict[str, int], count: int) -> list[str]:
    """The names with the highest scores, the best first."""
    ranked = sorted(scores.items(), key=lambda item: item[1])
    return [name for name, _ in ranked[:count]]
''',
    "test_scores.py": """import unittest

from scores import top


class TopTest(unittest.TestCase):
    def test_the_best_come_first(self) -> None:
        self.assertEqual(top({"ada": 3, "bob": 9, "eve": 5}, 2), ["bob", "eve"])

    def test_nobody_has_played(self) -> None:
        self.assertEqual(top({}, 3), [])
""",
}


def run_demo(keep: bool) -> int:
    """The exit code of the first part that failed, else 0."""
    folder = Path(tempfile.mkdtemp(prefix="thalia-demo-"))
    try:
        return _play(folder)
    finally:
        if keep:
            print(f"The sample repository and the log stay in {folder}.")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _play(folder: Path) -> int:
    make_repository(folder / "game", FILES)
    print("This demo uses a scripted model: its replies are fixed, all else is real.\n", flush=True)
    run = _start(folder, "exec", "The test of scores.py fails. Mend it.", "-m", f"scripted/{SCRIPT}")
    if not _wait_for_command(folder, run):
        run.wait()
        print("The run ended before it could be killed.")
        return run.returncode or 1
    killed = _kill(run)
    print(f"\n*** SIGKILL: {killed} processes of this run, in the middle of the command ***\n", flush=True)
    code = _start(folder, "resume", "--last", "--merge").wait()
    print()
    tested = subprocess.run(
        [sys.executable, "-m", "unittest", "-q", "test_scores.py"], cwd=folder / "game", check=False
    )
    print(flush=True)
    return code or tested.returncode or _start(folder, "replay", "--last", "--verify").wait()


def _start(folder: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    env = {name: value for name, value in os.environ.items() if not name.startswith(("THALIA_", "OPENAI_"))}
    return subprocess.Popen(
        [sys.executable, "-I", "-m", "cli", *arguments],
        cwd=folder / "game",
        env={
            **env,
            "THALIA_HOME": str(folder / "state"),
            "THALIA_CONFIG": str(folder / "config.toml"),
            "THALIA_DAEMON": "off",
        },
        stdin=subprocess.DEVNULL,
    )


def _wait_for_command(folder: Path, run: "subprocess.Popen[bytes]") -> bool:
    """Until the command has done half of its work; False where the run ended or took too long."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and run.poll() is None:
        if list(folder.glob("state/worktrees/*/*/progress.log")):
            return True
        time.sleep(0.02)
    return False


def _kill(run: "subprocess.Popen[bytes]") -> int:
    """Every process of the run at once: the session, its helpers, the command and its children."""
    found = [run.pid, *descendants(run.pid)]
    send(found, 9)
    run.wait()
    end = time.monotonic() + PATIENCE_S
    while any(is_alive(pid) for pid in found) and time.monotonic() < end:
        time.sleep(0.01)
    return len(found)
