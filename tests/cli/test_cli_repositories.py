"""Repositories as people have them, and as an attacker makes them. Nothing of theirs runs in our process. G14, G16."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from cli_program import EDIT, PROGRAM, WORK, Place, serving, shell
from installing import install

ODD = (
    "with space.txt",
    "quo'te\".txt",
    "é.txt",
    "new\nline.txt",
    "-rf",
    "--help",
    "tab\t.txt",
    "$(touch x)",
    "*",
    "日本",
)

PROGRAMS = [
    "core.fsmonitor",
    "core.pager",
    "core.editor",
    "core.sshCommand",
    "diff.external",
    "diff.x.textconv",
    "filter.x.clean",
    "filter.x.smudge",
    "merge.x.driver",
    "credential.helper",
]


def works(place: Place, folder: Path | None = None) -> None:
    """A session from here changes a file, and the merge brings it."""
    result = place.run("exec", "Do it.", "-m", place.script(*WORK), "--merge", cwd=folder)
    assert (result.code, result.err) == (0, ""), result
    assert (place.repository / "a.py").read_text() == "two\n"


def test_a_detached_head(place: Place) -> None:
    place.git("checkout", "-q", "--detach")
    head = place.git("rev-parse", "HEAD")
    works(place)
    assert place.git("rev-parse", "HEAD") == head
    assert place.git("status", "--short") == " M a.py\n"


def test_uncommitted_work_is_seen_and_kept(place: Place) -> None:
    (place.repository / "README.md").write_text("mine\n")
    (place.repository / "new.txt").write_text("new\n")
    place.git("add", "new.txt")
    with serving({"tool_calls": [shell("cat README.md new.txt")]}, *WORK) as server:
        place.use(server)
        assert place.run("exec", "Do it.", "-m", "openai/test", "--merge").code == 0
        assert rb"mine\nnew" in server.requests[1]
    assert place.git("status", "--short") == " M README.md\n M a.py\nA  new.txt\n"
    assert (place.repository / "README.md").read_text() == "mine\n"


def test_a_clean_start_does_not_see_uncommitted_work(place: Place) -> None:
    (place.repository / "README.md").write_text("mine\n")
    with serving({"tool_calls": [shell("cat README.md")]}, {"text": "Ok."}) as server:
        place.use(server)
        assert place.run("exec", "Do it.", "-m", "openai/test", "--clean").code == 0
        assert b"A small project." in server.requests[1]
    assert (place.repository / "README.md").read_text() == "mine\n"


def test_a_submodule(place: Place) -> None:
    place.git("clone", "-q", str(place.repository), str(place.folder / "other"), cwd=place.folder)
    place.git("submodule", "--quiet", "add", str(place.folder / "other"), "part")
    place.git("commit", "-qm", "A part")
    works(place)
    assert place.git("status", "--short") == " M a.py\n"
    assert (place.repository / "part" / "a.py").read_text() == "one\n"


def test_odd_names(place: Place) -> None:
    for name in ODD:
        (place.repository / name).write_text(f"{name}\n")
    place.git("add", "-A")
    place.git("commit", "-qm", "Odd names")
    edits = [{"name": "write", "arguments": {"path": name, "content": "changed\n"}} for name in ODD]
    reads = [{"name": "read", "arguments": {"path": name}} for name in ODD]
    model = place.script({"tool_calls": reads}, {"tool_calls": edits}, {"text": "Done."})
    result = place.run("exec", "Do it.", "-m", model, "--merge")
    assert (result.code, result.err) == (0, ""), result
    assert [name for name in ODD if (place.repository / name).read_text() != "changed\n"] == []
    assert (place.repository / "a.py").read_text() == "one\n"


@pytest.mark.parametrize("name", ["with space", "quo'te\"", "é", "new\nline", "-rf"], ids=repr)
def test_a_repository_of_an_odd_name(place: Place, name: str) -> None:
    target = place.folder / "around" / name
    target.parent.mkdir()
    place.repository.rename(target)
    with_shell = [EDIT, shell("cat a.py; git status --short")]
    model = place.script({"tool_calls": with_shell}, {"text": "Done."})
    result = place.run("exec", "Do it.", "-m", model, "--merge", cwd=target)
    assert (result.code, result.err) == (0, ""), result
    assert (target / "a.py").read_text() == "two\n"
    assert place.run("diff", "--last", cwd=target).code == 0


def test_a_subfolder_of_the_repository(place: Place) -> None:
    works(place, place.repository / "folder")
    assert place.git("status", "--short") == " M a.py\n"


@pytest.mark.both_ways
def test_c_names_the_repository_from_anywhere(place: Place) -> None:
    result = place.run("exec", "Do it.", "-m", place.script(*WORK), "-C", "project", "--merge", cwd=place.folder)
    assert (result.code, (place.repository / "a.py").read_text()) == (0, "two\n"), result


def test_a_worktree_of_the_users_own(place: Place) -> None:
    place.git("worktree", "add", "-q", "-b", "side", str(place.folder / "side"))
    result = place.run("exec", "Do it.", "-m", place.script(*WORK), "--merge", cwd=place.folder / "side")
    assert (result.code, result.err) == (0, ""), result
    assert (place.folder / "side" / "a.py").read_text() == "two\n"
    assert (place.repository / "a.py").read_text() == "one\n"


def test_a_stale_lock_of_the_index_stays_and_stops_nothing(place: Place) -> None:
    (place.repository / ".git" / "index.lock").touch()
    result = place.run("exec", "Do it.", "-m", place.script(*WORK))
    assert (result.code, result.err) == (0, ""), result
    assert (place.repository / ".git" / "index.lock").exists()


def test_in_place_works_in_the_checkout_itself(place: Place) -> None:
    result = place.run("exec", "Do it.", "-m", place.script(*WORK), "--in-place")
    assert (result.code, result.err) == (0, ""), result
    assert (place.repository / "a.py").read_text() == "two\n"
    assert place.worktrees() == []


def test_programs_in_the_git_configuration_never_run(place: Place) -> None:
    canary = place.folder / "canary"
    trap = place.folder / "trap.sh"
    trap.write_text(f"#!/bin/sh\ntouch '{canary}'\ncat\n")
    trap.chmod(0o755)
    for name in PROGRAMS:
        place.git("config", name, str(trap))
    for hook in ("post-checkout", "pre-commit", "post-commit", "reference-transaction", "post-index-change"):
        (place.repository / ".git" / "hooks").mkdir(exist_ok=True)
        (place.repository / ".git" / "hooks" / hook).symlink_to(trap)
    (place.repository / ".git" / "info").mkdir(exist_ok=True)
    (place.repository / ".git" / "info" / "attributes").write_text("*.py filter=x diff=x merge=x\n")
    turns = ({"tool_calls": [EDIT]}, {"tool_calls": [{"name": "commit", "arguments": {"message": "m"}}]}, *WORK[1:])
    result = place.run("exec", "Do it.", "-m", place.script(*turns))
    assert (result.code, result.err) == (0, ""), result
    for command in (("log",), ("diff",), ("merge",), ("gc",), ("doctor",)):
        place.run(*command)
    assert not canary.exists()
    plain = ["git", "status"]
    subprocess.run(plain, cwd=place.repository, env={"PATH": os.environ["PATH"]}, capture_output=True, check=False)
    assert canary.exists(), "the trap is none"


def test_an_env_file_of_the_repository_is_not_read(place: Place) -> None:
    """G14."""
    with serving({"text": "Elsewhere."}) as other, serving({"text": "Here."}) as server:
        lines = f"OPENAI_BASE_URL={other.base_url}\nTHALIA_HOME={place.folder / 'stolen'}\nTHALIA_MODEL=openai/x\n"
        (place.repository / ".env").write_text(lines)
        (place.repository / ".thalia").mkdir()
        (place.repository / ".thalia" / "config.toml").write_text('permission_mode = "bypass"\nmodel = "openai/x"\n')
        place.use(server)
        assert place.run("exec", "Do it.", "-m", "openai/test").code == 0
        assert (other.connections, len(server.requests)) == (0, 1)
    assert not (place.folder / "stolen").exists()


@pytest.mark.parametrize("folder", [".", "folder"], ids=["at the root", "below"])
def test_modules_of_the_repository_are_not_imported(place: Place, folder: str) -> None:
    canary = place.folder / "canary"
    trap = f"open({str(canary)!r}, 'w').write(__name__)\n"
    names = ("httpx", "duckdb", "cli", "sitecustomize", "usercustomize", "typer", "json", "actors", "pydantic", "git")
    for name in names:
        (place.repository / folder / f"{name}.py").write_text(trap)
    place.git("add", "-A")
    place.git("commit", "-qm", "Traps")
    # Also where the environment leads there: `.` and nothing are the folder in which the command is typed.
    steered = {**place.env, "PYTHONPATH": f".::{place.repository / folder}", "PYTHONSTARTUP": "cli.py"}
    with serving(*WORK) as server:
        place.use(server)
        for program in ((str(install(place.folder / "environment")),), PROGRAM):
            words = ("exec", "Do it.", "-m", "openai/test", "--output-format", "json")
            done = place.run(*words, program=program, cwd=place.repository / folder, env=steered)
            assert done.code == 0, done
            assert json.loads(done.out)["state"] == "done"
    assert not canary.exists()
