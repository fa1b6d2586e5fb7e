"""Edits on a real disk: nothing outside the worktree, nothing half written, a crash at any point is settled."""

import json
import os
import resource
import signal
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.tools.edits import EditRefused, PlannedEdit, digest
from agent.tools.files import POINTS, apply_edit, check_edit, plan_edit, redo
from eventlog.ids import Digest
from eventlog.outcomes import Conflicted, ToolFailed, ToolSucceeded

OLD, NEW = b"one\ntwo\n", b"one\n2\n"


@pytest.fixture
def worktree(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


def call(**arguments: Any) -> str:
    return json.dumps(arguments)


def planned(worktree: Path, tool: str, seen: dict[str, Digest] | None = None, **arguments: Any) -> PlannedEdit:
    result = plan_edit(worktree, tool, call(**arguments), seen or {})
    assert isinstance(result, PlannedEdit), result
    return result


def refused(worktree: Path, tool: str, main: Path | None = None, **arguments: Any) -> str:
    result = plan_edit(worktree, tool, call(**arguments), {}, main)
    assert isinstance(result, EditRefused), result
    return result.text


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_an_edit_lands_with_its_announced_hashes_and_leaves_nothing_else(worktree: Path):
    (worktree / "a.py").write_bytes(OLD)
    plan = planned(worktree, "edit", path="a.py", old_text="two", new_text="2")
    assert tree(worktree) == {"a.py": OLD}
    outcome = apply_edit(worktree, plan)
    assert tree(worktree) == {"a.py": NEW}
    assert digest(NEW) == plan.intent[0].after
    assert isinstance(outcome, ToolSucceeded)
    assert outcome.text == "Edited a.py. (+1 -1 lines)"
    assert outcome.wrote


@contextmanager
def ignored(number: signal.Signals) -> Iterator[None]:
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("bits", [0o755, 0o640, 0o600, 0o444])
def test_an_edit_keeps_the_mode(worktree: Path, bits: int):
    (worktree / "a").write_bytes(OLD)
    (worktree / "a").chmod(bits)
    apply_edit(worktree, planned(worktree, "edit", path="a", old_text="two", new_text="2"))
    assert (mode(worktree / "a"), (worktree / "a").read_bytes()) == (bits, NEW)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_an_edit_keeps_the_owner(worktree: Path):
    (worktree / "a").write_bytes(OLD)
    os.chown(worktree / "a", 1234, 2345)
    apply_edit(worktree, planned(worktree, "edit", path="a", old_text="two", new_text="2"))
    status = (worktree / "a").stat()
    assert (status.st_uid, status.st_gid) == (1234, 2345)


@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_names_keep_their_unicode_form(worktree: Path, form: Any):
    name = unicodedata.normalize(form, "é.txt")
    (worktree / name).write_bytes(OLD)
    apply_edit(worktree, planned(worktree, "edit", path=name, old_text="two", new_text="2"))
    assert [path.name for path in worktree.iterdir()] == [name]


def test_a_new_file_gets_its_folders(worktree: Path):
    apply_edit(worktree, planned(worktree, "write", path="x/y/z.txt", content="hi"))
    assert tree(worktree) == {"x/y/z.txt": b"hi"}
    assert mode(worktree / "x/y/z.txt") == 0o644


def test_a_patch_changes_several_files(worktree: Path):
    (worktree / "a").write_bytes(OLD)
    (worktree / "b").write_bytes(b"bye\n")
    patch = (
        "*** Begin Patch\n*** Update File: a\n one\n-two\n+2\n*** Delete File: b\n*** Add File: c\n+new\n*** End Patch"
    )
    outcome = apply_edit(worktree, planned(worktree, "apply_patch", patch=patch))
    assert tree(worktree) == {"a": NEW, "c": b"new\n"}
    assert outcome.text.startswith("Edited a, created c, deleted b.")


@pytest.mark.parametrize("path", ["../o", "/etc/thalia-x", "~/x", "a/../../o", "../ws-evil/x", "a\0b"])
def test_paths_outside_the_worktree_are_refused(worktree: Path, path: str):
    (worktree.parent / "ws-evil").mkdir()
    assert "outside the worktree" in refused(worktree, "write", path=path, content="x")
    patch = f"*** Begin Patch\n*** Add File: {path}\n+x\n*** End Patch"
    assert "outside the worktree" in refused(worktree, "apply_patch", patch=patch)
    assert tree(worktree.parent) == {}


def test_percent_escapes_are_plain_letters(worktree: Path):
    apply_edit(worktree, planned(worktree, "write", path="./a/%2e%2e/o", content="x"))
    assert tree(worktree) == {"a/%2e%2e/o": b"x"}


def test_nothing_is_written_through_a_link_that_leads_out(worktree: Path):
    outside = worktree.parent / "out"
    outside.mkdir()
    (outside / "secret").write_bytes(OLD)
    (worktree / "l").symlink_to(outside)
    (worktree / "s").symlink_to(outside / "secret")
    assert "symbolic link" in refused(worktree, "write", path="l/n", content="x")
    assert "symbolic link" in refused(worktree, "edit", path="l/secret", old_text="two", new_text="2")
    assert "symbolic link" in refused(worktree, "edit", path="s", old_text="two", new_text="2")
    assert tree(outside) == {"secret": OLD}


def test_a_folder_that_becomes_a_link_after_the_plan_is_not_followed(worktree: Path):
    outside = worktree.parent / "out"
    outside.mkdir()
    (outside / "a").write_bytes(OLD)
    (worktree / "d").mkdir()
    (worktree / "d/a").write_bytes(OLD)
    plan = planned(worktree, "edit", path="d/a", old_text="two", new_text="2")
    (worktree / "d").rename(worktree / "was")
    (worktree / "d").symlink_to(outside)
    assert isinstance(apply_edit(worktree, plan), Conflicted)
    assert tree(outside) == {"a": OLD}


def test_a_link_inside_the_worktree_is_kept_and_its_file_edited(worktree: Path):
    (worktree / "real").write_bytes(OLD)
    (worktree / "link").symlink_to("real")
    plan = planned(worktree, "edit", path="link", old_text="two", new_text="2")
    apply_edit(worktree, plan)
    assert plan.intent[0].path == "real"
    assert (worktree / "link").is_symlink()
    assert (worktree / "real").read_bytes() == NEW


def test_a_path_in_the_main_checkout_is_refused_with_the_path_to_use(worktree: Path):
    main = worktree.parent / "main"
    main.mkdir()
    (main / "a.py").write_bytes(OLD)
    told = refused(worktree, "edit", main, path=str(main / "a.py"), old_text="two", new_text="2")
    assert str(worktree / "a.py") in told
    assert tree(main) == {"a.py": OLD}


def test_protected_names_folders_and_pipes_are_refused(worktree: Path):
    (worktree / "d").mkdir()
    os.mkfifo(worktree / "pipe")
    (worktree / "file").write_bytes(OLD)
    assert "protected" in refused(worktree, "write", path=".git/hooks/x", content="x")
    assert "is a folder" in refused(worktree, "write", path="d", content="x")
    assert "not a regular file" in refused(worktree, "edit", path="pipe", old_text="a", new_text="b")
    assert "not a folder" in refused(worktree, "write", path="file/x", content="x")
    assert "does not edit" in refused(worktree, "read", path="file")
    assert "content is missing" in refused(worktree, "write", path="file")


def test_a_file_changed_since_it_was_read_is_not_overwritten_though_size_and_time_are_the_same(worktree: Path):
    file = worktree / "f"
    file.write_bytes(b"aaaa\n")
    before = file.stat()
    seen = {"f": digest(b"aaaa\n")}
    file.write_bytes(b"bbbb\n")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    result = plan_edit(worktree, "write", call(path="f", content="cccc\n"), seen)
    assert isinstance(result, EditRefused)
    assert "has changed since" in result.text
    assert "bbbb" in result.text
    assert file.read_bytes() == b"bbbb\n"


def test_a_file_changed_after_the_plan_is_a_conflict(worktree: Path):
    (worktree / "a").write_bytes(OLD)
    (worktree / "b").write_bytes(OLD)
    patch = "*** Begin Patch\n*** Update File: a\n-two\n+2\n*** Update File: b\n-two\n+2\n*** End Patch"
    plan = planned(worktree, "apply_patch", patch=patch)
    (worktree / "b").write_bytes(b"mine\n")
    outcome = apply_edit(worktree, plan)
    assert isinstance(outcome, Conflicted)
    assert outcome.found == digest(b"mine\n")
    assert tree(worktree) == {"a": OLD, "b": b"mine\n"}


def test_a_file_changed_just_before_the_rename_is_a_conflict(worktree: Path):
    (worktree / "a").write_bytes(OLD)
    plan = planned(worktree, "edit", path="a", old_text="two", new_text="2")

    def interfere(point: str) -> None:
        if point == "after_temp":
            (worktree / "a").write_bytes(b"mine\n")

    assert isinstance(apply_edit(worktree, plan, interfere), Conflicted)
    assert tree(worktree) == {"a": b"mine\n"}


def test_a_file_that_appears_after_the_plan_is_not_overwritten(worktree: Path):
    plan = planned(worktree, "write", path="a", content="x")
    (worktree / "a").write_bytes(b"mine\n")
    assert isinstance(apply_edit(worktree, plan), Conflicted)
    assert tree(worktree) == {"a": b"mine\n"}


def test_applying_twice_is_applying_once(worktree: Path):
    (worktree / "a").write_bytes(OLD)
    plan = planned(worktree, "edit", path="a", old_text="two", new_text="2")
    apply_edit(worktree, plan)
    inode = (worktree / "a").stat().st_ino
    points: list[str] = []
    assert isinstance(apply_edit(worktree, plan, points.append), ToolSucceeded)
    assert points == []
    assert (worktree / "a").stat().st_ino == inode


def test_a_write_that_the_file_system_refuses_is_a_failure(worktree: Path):
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    plan = planned(worktree, "write", path="d/a", content="x" * 100_000)
    with ignored(signal.SIGXFSZ):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
        try:
            outcome = apply_edit(worktree, plan)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert isinstance(outcome, ToolFailed)
    assert tree(worktree) == {}
    assert not outcome.wrote


def test_a_mode_alone_can_change_and_be_checked(worktree: Path):
    (worktree / "a").write_bytes(OLD)
    (worktree / "a").chmod(0o644)
    plan = planned(worktree, "apply_patch", patch="diff --git a/a b/a\nold mode 100644\nnew mode 100755\n")
    assert [file.at for file in check_edit(worktree, plan.intent)] == ["before"]
    apply_edit(worktree, plan)
    assert mode(worktree / "a") == 0o755
    assert [file.at for file in check_edit(worktree, plan.intent)] == ["after"]


PATCH = """*** Begin Patch
*** Update File: a
 one
-two
+2
*** Update File: m
*** Move to: sub/moved
-m
+M
*** Add File: n/new
+new
*** Delete File: gone
*** Update File: b
 one
-two
+2
*** End Patch
"""
BEFORE = {"a": OLD, "b": OLD, "m": b"m\n", "gone": b"gone\n"}
AFTER = {"a": NEW, "b": NEW, "sub/moved": b"M\n", "n/new": b"new\n"}
FILES_TOUCHED = 6
"""a, sub/moved, n/new and b are written, m and gone removed: four points each for the former, three for the latter."""
CRASHES = 4 * 4 + 2 * 3


def fill(worktree: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (worktree / name).parent.mkdir(parents=True, exist_ok=True)
        (worktree / name).write_bytes(content)


def killed_at(worktree: Path, plan: PlannedEdit, number: int) -> bool:
    """Apply in a process that kills itself at the given point, counted from 1. False if it ended before."""
    child = os.fork()
    if child == 0:
        count = 0

        def reached(point: str) -> None:
            nonlocal count
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            apply_edit(worktree, plan, reached)
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("number", range(1, CRASHES + 1))
def test_an_edit_killed_at_any_point_is_finished_by_redo(worktree: Path, number: int):
    fill(worktree, BEFORE)
    plan = planned(worktree, "apply_patch", patch=PATCH)
    assert killed_at(worktree, plan, number)
    assert {file.at for file in check_edit(worktree, plan.intent)} <= {"before", "after"}
    outcome = redo(worktree, "apply_patch", call(patch=PATCH), plan.intent)
    assert isinstance(outcome, ToolSucceeded), outcome
    assert outcome.recovered
    assert tree(worktree) == AFTER
    points: list[str] = []
    assert isinstance(redo(worktree, "apply_patch", call(patch=PATCH), plan.intent, points.append), ToolSucceeded)
    assert points == []


def test_every_point_was_tried(worktree: Path):
    fill(worktree, BEFORE)
    plan = planned(worktree, "apply_patch", patch=PATCH)
    assert len(plan.intent) == FILES_TOUCHED
    assert not killed_at(worktree, plan, CRASHES + 1)
    assert tree(worktree) == AFTER


def test_the_points_come_in_order(worktree: Path):
    points: list[str] = []
    apply_edit(worktree, planned(worktree, "write", path="a", content="x"), points.append)
    assert tuple(points) == POINTS


def test_redo_after_a_kill_that_somebody_followed_with_a_change_is_a_conflict(worktree: Path):
    (worktree / "a").write_bytes(OLD)
    arguments = call(path="a", old_text="two", new_text="2")
    plan = planned(worktree, "edit", path="a", old_text="two", new_text="2")
    assert killed_at(worktree, plan, 2)
    assert len(tree(worktree)) == 2
    (worktree / "a").write_bytes(b"mine\n")
    assert [(f.at, f.found) for f in check_edit(worktree, plan.intent)] == [("other", digest(b"mine\n"))]
    assert isinstance(redo(worktree, "edit", arguments, plan.intent), Conflicted)
    assert tree(worktree) == {"a": b"mine\n"}


def test_redo_does_not_write_what_was_not_announced(worktree: Path):
    (worktree / "a").write_bytes(OLD)
    plan = planned(worktree, "edit", path="a", old_text="two", new_text="sk-something")
    changed = call(path="a", old_text="two", new_text="something else")
    outcome = redo(worktree, "edit", changed, plan.intent)
    assert isinstance(outcome, ToolFailed)
    assert not outcome.wrote
    assert tree(worktree) == {"a": OLD}


def test_redo_writes_a_whole_file_again(worktree: Path):
    (worktree / "a").write_bytes(OLD)
    plan = planned(worktree, "write", {"a": digest(OLD)}, path="a", content="new")
    assert isinstance(redo(worktree, "write", call(path="a", content="new"), plan.intent), ToolSucceeded)
    assert tree(worktree) == {"a": b"new"}


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=100), new=st.text("ab\n", max_size=10), number=st.integers(1, 5))
def test_whatever_the_bytes_a_killed_edit_lands_where_its_hash_says(
    worktree: Path, content: bytes, new: str, number: int
):
    whole = content.replace(b"\0", b"").lstrip(b"\xff\xfe") + b"<word>\n"
    (worktree / "a").write_bytes(whole)
    result = plan_edit(worktree, "edit", call(path="a", old_text="<word>", new_text=new), {})
    if isinstance(result, EditRefused):
        return
    killed_at(worktree, result, number)
    assert isinstance(
        redo(worktree, "edit", call(path="a", old_text="<word>", new_text=new), result.intent), ToolSucceeded
    )
    found = tree(worktree)
    assert list(found) == ["a"]
    assert digest(found["a"]) == result.intent[0].after
