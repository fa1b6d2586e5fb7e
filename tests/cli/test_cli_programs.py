"""The past of a session on the command line, the demonstration, and the face that programs import."""

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


def test_the_tree_and_the_session_go_back_to_an_event(place: Place) -> None:
    assert place.run("exec", "Do it.", "-m", place.script(*WORK)).code == 0
    name, whole = place.session(), place.events()
    start = next(e.seq for e in whole if e.body.kind == "effect_started" and e.body.effect.kind == "run_tool")
    then = place.folder / "then"
    assert place.run("replay", name, "--until", str(start), "--checkout", str(then)).code == 0
    assert (then / "a.py").read_text() == "one\n"
    assert place.run("rewind", f"{name}@{start - 1}").code == 0
    assert place.run("diff", name).out == ""
    result = place.run("resume", name)
    assert (result.code, "It is changed." in result.out) == (0, True), result
    assert place.run("replay", name, "--verify").out.startswith("replay verified: ")
    assert place.events()[: len(whole)] == whole


def test_a_log_is_exported_for_the_user_alone(place: Place) -> None:
    assert place.run("exec", "Do it.", "-m", place.script(*WORK)).code == 0
    for name in ("log.jsonl", "log.parquet"):
        file = place.folder / name
        result = place.run("log", "--export", str(file))
        assert (result.code, str(len(place.events())) in result.out) == (0, True), result
        assert file.stat().st_mode & 0o077 == 0


def test_the_demonstration_is_killed_resumes_and_verifies_its_log(place: Place) -> None:
    temp = place.folder / "tmp"
    temp.mkdir()
    result = place.run("demo", env={"TMPDIR": str(temp), "HOME": os.environ["HOME"]})
    assert result.code == 0, result
    assert re.fullmatch(r"replay verified: \d+ events, \d+ requests", result.out.splitlines()[-1])
    assert "*** SIGKILL: " in result.out
    assert result.out.count("✓ merged the work of f1-") == 6
    assert "it goes on from the log" in result.out, "the agent that was killed came back"
    assert list(temp.iterdir()) == []
    assert place.sessions() == []
    mark = os.fsencode(temp)
    living = [path for path in Path("/proc").glob("[0-9]*/cmdline") if mark in read(path)]
    assert living == []


def test_the_demonstration_can_leave_its_files(place: Place) -> None:
    temp = place.folder / "tmp"
    temp.mkdir()
    result = place.run("demo", "--keep", env={"TMPDIR": str(temp), "HOME": os.environ["HOME"]})
    assert result.code == 0, result
    [folder] = temp.iterdir()
    assert str(folder) in result.out
    assert (folder / "game" / "fighting.py").is_file(), "it is merged"


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
