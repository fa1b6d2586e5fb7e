"""The demonstration, and the face that programs import."""

import os
import re
import subprocess
import sys
from pathlib import Path

from cli_program import WORK, Place

PROGRAM = """import sys
from thalia import Session
model = sys.argv[1]
seen = []
session = Session.start("Change it.", folder="project", model=model)
print(session.ending, session.exit_code, session.result, session.changes)
again = Session.resume(session.id, "And now?")
print(again.ending, again.result)
print(session.merge().files, len(session.events) > 10)
print(Session.resume(session.id).ending)
"""
WRONG = """from thalia import Session
for start in (lambda: Session.start("x", folder="."), lambda: Session.resume("nobody")):
    try:
        start()
    except Exception as error:
        print(type(error).__name__)
"""


def test_the_demonstration_is_killed_resumes_and_verifies_its_log(place: Place) -> None:
    temp = place.folder / "tmp"
    temp.mkdir()
    result = place.run("demo", env={"TMPDIR": str(temp)})
    assert result.code == 0, result
    assert re.fullmatch(r"replay verified: \d+ events, \d+ requests", result.out.splitlines()[-1])
    assert "*** SIGKILL: " in result.out
    assert list(temp.iterdir()) == []
    assert place.sessions() == []
    mark = os.fsencode(temp)
    living = [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark in read(path)]
    assert living == []


def test_the_demonstration_can_leave_its_files(place: Place) -> None:
    temp = place.folder / "tmp"
    temp.mkdir()
    result = place.run("demo", "--keep", env={"TMPDIR": str(temp)})
    assert result.code == 0, result
    [folder] = temp.iterdir()
    assert str(folder) in result.out
    assert (folder / "game" / "scores.py").is_file()


def test_a_program_starts_resumes_and_merges(place: Place) -> None:
    model = place.script(*WORK, {"text": "Nothing."})
    done = run(place, PROGRAM, model)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.splitlines() == [
        "done 0 It is changed. ('M a.py +1 -1',)",
        "done Nothing.",
        "('a.py',) True",
        "done",
    ]
    assert (place.repository / "a.py").read_text() == "two\n"


def test_a_program_gets_exceptions_of_its_own(place: Place) -> None:
    done = run(place, WRONG)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert done.stdout.splitlines() == ["CannotStart", "LogNotFound"]


def run(place: Place, program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-I", "-c", program, *arguments]
    return subprocess.run(
        command, cwd=place.folder, env=place.env, capture_output=True, text=True, check=False, timeout=60
    )


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
