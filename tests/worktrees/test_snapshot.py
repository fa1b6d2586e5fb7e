"""Snapshots hold what they say, cost little when nothing changed, and survive a kill at every point."""

import os
import select
import shutil
import time
from pathlib import Path

import pytest
from repositories import NOW, ODD_NAMES, content, kill_at, make_pool, plain_git, write

from worktrees.objects import RefMoved, read_ref
from worktrees.pool import Pool
from worktrees.repository import Worktree, open_repository
from worktrees.restore import RestoreBlocked, changed_ignored, checkout_tree, restore
from worktrees.snapshot import MAX_FILE_BYTES, Reached, Snapshot, ignore_point, snapshot

REF = "refs/thalia/s/main"


class Bench:
    """One pool, one worktree."""

    def __init__(self, tmp_path: Path) -> None:
        self.pool: Pool = make_pool(tmp_path)
        self.repo = self.pool.repo
        self.tree: Worktree = self.pool.acquire("one", self.repo.head)
        self.root = self.tree.path
        self.index = self.pool.index_path(self.tree)

    def snap(self, parent: str | None = None, reached: Reached = ignore_point, now_s: int = NOW) -> Snapshot:
        start = parent or read_ref(self.repo.git, REF) or self.repo.head
        return snapshot(self.repo, self.tree, self.index, REF, start, message="m", now_s=now_s, reached=reached)

    def back(self, commit: str, reached: Reached = ignore_point):
        return restore(self.repo, self.tree, self.index, commit, reached)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_snapshot_holds_tracked_and_untracked_files_but_not_ignored_ones(bench: Bench) -> None:
    write(bench.root, {"a.txt": "two\n", "x.o": "ignored", "out/y": "ignored", **dict.fromkeys(ODD_NAMES, "odd\n")})
    (bench.root / "src" / "b.py").unlink()
    (bench.root / "link").symlink_to("a.txt")
    taken = bench.snap()
    names = bench.repo.git.run("ls-tree", "-r", "-z", "--name-only", taken.commit).split(b"\0")
    assert {os.fsdecode(name) for name in names if name} == {".gitignore", "a.txt", "link", *ODD_NAMES}
    assert taken.changed
    assert plain_git(bench.repo.root, "rev-parse", REF) == taken.commit
    assert plain_git(bench.repo.root, "show", "-s", "--format=%an %ae %cn %ct %P", taken.commit) == (
        f"Thalia thalia@localhost Thalia {NOW} {bench.repo.head}"
    )
    plain_git(bench.repo.root, "fsck", "--strict")


def test_an_unchanged_worktree_gives_the_parent_for_one_process(bench: Bench, tmp_path: Path) -> None:
    write(bench.root, {"a.txt": "two\n"})
    first = bench.snap()
    programs, count = tmp_path / "programs", tmp_path / "count"
    write(programs, {"git": f'#!/bin/sh\necho "$2" >> {count}\nexec {shutil.which("git")} "$@"\n'})
    (programs / "git").chmod(0o755)
    repo = open_repository(bench.repo.root, {"PATH": str(programs), "HOME": str(tmp_path)})
    repo.at(bench.tree).settings()
    count.unlink()
    second = snapshot(repo, bench.tree, bench.index, REF, first.commit, message="m", now_s=NOW + 9)
    assert second == Snapshot(first.commit, first.tree, changed=False)
    assert count.read_text().split() == ["ls-files"]


def test_a_change_of_the_same_size_in_the_same_second_is_seen(bench: Bench) -> None:
    write(bench.root, {"a.txt": "one\n"})
    seen = {bench.snap().tree}
    for i in range(20):
        write(bench.root, {"a.txt": f"{i:03}\n"})
        seen.add(bench.snap().tree)
    assert len(seen) == 21


def test_a_change_in_the_second_of_the_checkout_is_seen_in_a_later_one(tmp_path: Path) -> None:
    """git tells such a change only by the time of its index, which the private index has to keep."""
    bench = Bench(tmp_path)
    made = bench.tree.git_dir / "index"
    write(bench.root, {"a.txt": "two\n"})
    second = (bench.root / "a.txt").stat().st_mtime_ns // 10**9
    os.utime(made, ns=(second * 10**9, second * 10**9))
    deadline = time.monotonic() + 5
    while time.time() < second + 1 and time.monotonic() < deadline:
        select.select([], [], [], 0.01)
    assert bench.snap().changed


def test_killed_between_index_and_ref_a_later_snapshot_is_not_taken_for_unchanged(bench: Bench) -> None:
    write(bench.root, {"a.txt": "two\n"})
    first = bench.snap()
    write(bench.root, {"a.txt": "three\n"})
    assert kill_at("after_tree", lambda reached: bench.snap(first.commit, reached))
    second = bench.snap(first.commit)
    assert second.changed
    assert bench.repo.git.run("cat-file", "blob", f"{second.commit}:a.txt") == b"three\n"


def test_unchanged_files_on_another_parent_are_a_change(bench: Bench) -> None:
    write(bench.root, {"a.txt": "two\n"})
    first = bench.snap()
    other = "refs/thalia/s/other"
    again = snapshot(bench.repo, bench.tree, bench.index, other, bench.repo.head, message="m", now_s=NOW)
    assert again == first


def test_a_folder_that_became_an_ignored_link_goes_from_the_snapshot(bench: Bench) -> None:
    write(bench.root, {"folder/x": "x\n"})
    first = bench.snap()
    shutil.rmtree(bench.root / "folder")
    (bench.root / "folder").symlink_to("/etc")
    write(bench.root, {".gitignore": "/folder\n"})
    second = bench.snap(first.commit)
    assert b"folder/x" not in bench.repo.git.run("ls-tree", "-r", "--name-only", second.commit)
    with pytest.raises(RestoreBlocked) as blocked:
        bench.back(first.commit)
    assert blocked.value.paths == ("folder",)


def test_a_large_file_is_not_taken_back_to_an_older_version(bench: Bench) -> None:
    write(bench.root, {"a.txt": "two\n"})
    bench.snap()
    with (bench.root / "a.txt").open("r+b") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    assert [one.path for one in bench.back(bench.repo.head).skipped] == ["a.txt"]
    assert (bench.root / "a.txt").stat().st_size == MAX_FILE_BYTES + 1


def test_the_id_is_a_function_of_files_parent_message_and_time(bench: Bench, tmp_path: Path) -> None:
    write(bench.root, {"a.txt": "two\n"})
    first = bench.snap()
    other = bench.pool.acquire("other", bench.repo.head)
    write(other.path, {"a.txt": "two\n"})
    index = bench.pool.index_path(other)
    again = snapshot(bench.repo, other, index, "refs/thalia/s/other", bench.repo.head, message="m", now_s=NOW)
    assert again.commit == first.commit
    later = snapshot(
        bench.repo, other, tmp_path / "fresh", "refs/thalia/s/x", bench.repo.head, message="m", now_s=NOW + 1
    )
    assert (later.tree, later.commit == first.commit) == (first.tree, False)


@pytest.mark.parametrize("point", ["before_add", "after_tree", "before_ref", "after_ref"])
def test_killed_anywhere_the_ref_is_old_or_new_and_a_repeat_gives_the_same_commit(bench: Bench, point: str) -> None:
    write(bench.root, {"a.txt": "two\n", "new.txt": "n\n"})
    old = bench.repo.head
    assert kill_at(point, lambda reached: bench.snap(old, reached))
    between = read_ref(bench.repo.git, REF)
    taken = bench.snap(old)
    assert between in (None, taken.commit)
    assert taken.changed
    assert bench.snap(taken.commit) == Snapshot(taken.commit, taken.tree, changed=False)
    write(bench.repo.root.parent / "reference", {"a.txt": "two\n", "new.txt": "n\n"})
    assert bench.repo.git.run("cat-file", "blob", f"{taken.commit}:new.txt") == b"n\n"


def test_a_ref_that_moved_is_not_overwritten(bench: Bench) -> None:
    plain_git(bench.repo.root, "commit", "-q", "--allow-empty", "-m", "other")
    other = plain_git(bench.repo.root, "rev-parse", "HEAD")
    plain_git(bench.repo.root, "update-ref", REF, other)
    write(bench.root, {"a.txt": "two\n"})
    with pytest.raises(RefMoved):
        bench.snap(bench.repo.head)
    assert read_ref(bench.repo.git, REF) == other


def test_packed_refs_and_dead_locks_are_no_obstacle(bench: Bench) -> None:
    write(bench.root, {"a.txt": "two\n"})
    first = bench.snap()
    plain_git(bench.repo.root, "pack-refs", "--all", "--prune")
    assert read_ref(bench.repo.git, REF) == first.commit
    lock = bench.repo.common_dir / f"{REF}.lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    (bench.index.with_name(bench.index.name + ".lock")).touch()
    write(bench.root, {"a.txt": "three\n"})
    assert bench.snap(first.commit).changed


def test_large_unreadable_and_reserved_files_are_named_and_left_out(bench: Bench) -> None:
    write(bench.root, {"small.txt": "s", "git~1/config": "evil", ".GIT/hooks/x": "evil"})
    with (bench.root / "large.bin").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    (bench.root / ".gitmodules").symlink_to("a.txt")
    taken = bench.snap()
    assert {(one.path, one.reason) for one in taken.skipped} == {
        ("large.bin", "large"),
        ("git~1/config", "reserved name"),
        (".GIT/hooks/x", "reserved name"),
        (".gitmodules", "reserved name"),
    }
    assert bench.repo.git.run("cat-file", "blob", f"{taken.commit}:small.txt") == b"s"
    bench.back(bench.repo.head)
    assert (bench.root / "large.bin").stat().st_size == MAX_FILE_BYTES + 1
    assert not (bench.root / "small.txt").exists()


def test_a_tracked_file_grown_large_keeps_its_old_version_in_the_snapshot(bench: Bench) -> None:
    with (bench.root / "a.txt").open("r+b") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    taken = bench.snap()
    assert [one.path for one in taken.skipped] == ["a.txt"]
    assert bench.repo.git.run("cat-file", "blob", f"{taken.commit}:a.txt") == b"one\n"
    bench.back(taken.commit)
    assert (bench.root / "a.txt").stat().st_size == MAX_FILE_BYTES + 1


def test_a_damaged_private_index_is_made_again(bench: Bench) -> None:
    write(bench.root, {"a.txt": "two\n"})
    first = bench.snap()
    bench.index.write_bytes(b"DIRC garbage")
    assert bench.snap(first.commit).tree == first.tree


def upset(root: Path) -> None:
    """All kinds of change at once."""
    write(root, {"a.txt": "changed\n", "new/deep/file": "n", "was_file/now": "folder", "x.o": "keep me"})
    shutil.rmtree(root / "was_folder")
    (root / "was_folder").write_text("file")
    (root / "gone.txt").unlink()
    (root / "prog").chmod(0o755)
    (root / "link").unlink()
    (root / "link").symlink_to("elsewhere")
    shutil.rmtree(root / "to_link")
    (root / "to_link").symlink_to("/etc")
    (root / "Case.txt").rename(root / "case.txt")
    (root / "empty" / "nest").mkdir(parents=True)


def varied(bench: Bench) -> Snapshot:
    files = ("was_folder/x", "gone.txt", "prog", "to_link/hosts", "Case.txt", *ODD_NAMES)
    write(bench.root, dict.fromkeys(files, "content\n"))
    (bench.root / "link").symlink_to("a.txt")
    write(bench.root, {"was_file": ""})
    return bench.snap()


def replace_file_by_folder(root: Path) -> None:
    (root / "was_file").unlink()


def test_a_restore_makes_every_kind_of_change_undone(bench: Bench) -> None:
    taken = varied(bench)
    before = content(bench.root)
    replace_file_by_folder(bench.root)
    upset(bench.root)
    hosts = Path("/etc/hosts").read_bytes()
    done = bench.back(taken.commit)
    assert content(bench.root, "x.o") == before
    assert (bench.root / "x.o").read_text() == "keep me"
    assert not (bench.root / "empty").exists()
    assert "new/deep/file" in done.removed
    assert Path("/etc/hosts").read_bytes() == hosts
    assert bench.snap(taken.commit) == Snapshot(taken.commit, taken.tree, changed=False)


@pytest.mark.parametrize("point", ["after_scan", "after_remove", "after_read_tree", "after_checkout"])
def test_a_restore_killed_half_way_and_repeated_ends_the_same(bench: Bench, point: str) -> None:
    taken = varied(bench)
    before = content(bench.root)
    replace_file_by_folder(bench.root)
    upset(bench.root)
    assert kill_at(point, lambda reached: bench.back(taken.commit, reached))
    bench.back(taken.commit)
    assert content(bench.root, "x.o") == before
    assert (bench.root / "x.o").read_text() == "keep me"


def test_an_ignored_file_in_the_way_stops_a_restore_before_it_writes(bench: Bench) -> None:
    write(bench.root, {"thing": "a file\n"})
    taken = bench.snap()
    (bench.root / "thing").unlink()
    write(bench.root, {"thing/precious.o": "ignored", "a.txt": "changed\n"})
    with pytest.raises(RestoreBlocked) as blocked:
        bench.back(taken.commit)
    assert blocked.value.paths == ("thing/precious.o",)
    assert (bench.root / "thing" / "precious.o").read_text() == "ignored"
    assert (bench.root / "a.txt").read_text() == "changed\n"


def test_a_tree_is_written_into_an_empty_folder_that_is_no_worktree(bench: Bench, tmp_path: Path) -> None:
    write(bench.root, dict.fromkeys(ODD_NAMES, "x\n"))
    taken = bench.snap()
    worktrees = plain_git(bench.repo.root, "worktree", "list")
    checkout_tree(bench.repo, taken.commit, tmp_path / "replayed")
    assert content(tmp_path / "replayed") == content(bench.root)
    assert not (tmp_path / "replayed" / ".git").exists()
    assert plain_git(bench.repo.root, "worktree", "list") == worktrees
    with pytest.raises(Exception, match="not empty"):
        checkout_tree(bench.repo, taken.commit, tmp_path / "replayed")


def test_ignored_files_that_changed_since_are_named_and_bounded(bench: Bench) -> None:
    write(bench.root, {"old.o": "o", "out/deep/old": "o"})
    since_us = max((bench.root / name).stat().st_ctime_ns for name in ("old.o", "out/deep/old")) // 1000
    while (probe := bench.root / "probe.o").write_text("p") and probe.stat().st_ctime_ns // 1000 <= since_us + 10_000:
        pass
    write(bench.root, {"new.o": "n", "out/deep/new": "n"})
    assert changed_ignored(bench.repo, bench.tree, since_us + 1000).paths == ("new.o", "out/deep/new", "probe.o")
    write(bench.root, {f"out/{i}": "x" for i in range(60)})
    many = changed_ignored(bench.repo, bench.tree, since_us + 1000)
    assert (len(many.paths), many.complete) == (50, False)
