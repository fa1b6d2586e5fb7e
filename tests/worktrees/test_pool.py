"""The pool gives the same worktree for the same key, reuses warm ones, and loses nothing."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from repositories import NOW, content, kill_at, make_pool, plain_git, user_state, write

from worktrees.carry import carry_dirty
from worktrees.git import GitError
from worktrees.objects import read_ref
from worktrees.pool import WARM, Pool
from worktrees.snapshot import snapshot


def worktree_count(pool: Pool) -> int:
    return len(plain_git(pool.repo.root, "worktree", "list").splitlines())


def write_large(folder: Path) -> None:
    """A file that no snapshot takes."""
    with (folder / "large.bin").open("wb") as file:
        file.truncate(60_000_000)


def test_the_same_key_gives_the_same_worktree_with_its_work(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    first = pool.acquire("s/main", pool.repo.head)
    write(first.path, {"work.txt": "w"})
    again = Pool(pool.state_dir, pool.repo, pool.bound).acquire("s/main", pool.repo.head)
    assert again == first == pool.adopt("s/main")
    assert (again.path / "work.txt").read_text() == "w"
    assert pool.adopt("s/other") is None


def test_worktrees_are_private_detached_and_outside_of_the_checkout(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    before = user_state(pool.repo.root)
    tree = pool.acquire("one", pool.repo.head)
    assert pool.repo.root not in tree.path.parents
    assert [oct(path.stat().st_mode & 0o777) for path in (pool.state_dir, pool.folder, tree.path)] == ["0o700"] * 3
    assert plain_git(tree.path, "rev-parse", "--abbrev-ref", "HEAD") == "HEAD"
    assert user_state(pool.repo.root) == before


def test_a_released_worktree_is_reused_clean(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    one, two = pool.acquire("one", pool.repo.head), pool.acquire("two", pool.repo.head)
    write(one.path, {"x.o": "ignored", ".venv/bound": "b", "out/y": "i"})
    assert pool.release(one, now_s=NOW).state == "pooled"
    assert pool.release(two, now_s=NOW, retire=True).state == "retired"
    assert not two.path.exists()
    third = pool.acquire("three", pool.repo.head)
    assert third.path == one.path
    assert content(third.path, ".venv/bound") == content(pool.repo.root)
    assert (third.path / ".venv" / "bound").exists()
    assert pool.release(one, now_s=NOW).state == "retired"
    assert third.path.exists()


def test_as_many_as_a_fan_out_needs_stay_warm_and_the_rest_is_retired(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    trees = [pool.acquire(f"first {i}", pool.repo.head) for i in range(WARM + 2)]
    assert [pool.release(tree, now_s=NOW).state for tree in trees] == ["pooled"] * WARM + ["retired"] * 2
    assert worktree_count(pool) == 1 + WARM
    again = [pool.acquire(f"second {i}", pool.repo.head) for i in range(WARM)]
    assert {tree.path for tree in again} == {tree.path for tree in trees[:WARM]}
    assert [content(tree.path) for tree in again] == [content(pool.repo.root)] * WARM


def test_gc_leaves_one_warm_and_loses_nothing_that_came_into_the_others(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    for tree in [pool.acquire(key, pool.repo.head) for key in "abc"]:
        pool.release(tree, now_s=NOW)
    *others, last = pool.records()
    write(Path(others[0].path), {"late.txt": "by somebody who was not waited for\n"})
    report = pool.gc(set(), now_s=NOW)
    assert report.reclaimed == tuple(sorted(record.name for record in others))
    assert [record.name for record in pool.records()] == [last.name]
    [saved] = report.saved
    assert plain_git(pool.repo.root, "show", f"{saved}:late.txt") == "by somebody who was not waited for"


def test_gc_keeps_a_warm_one_into_which_something_came_that_cannot_be_saved(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    for tree in [pool.acquire(key, pool.repo.head) for key in "ab"]:
        pool.release(tree, now_s=NOW)
    first, second = pool.records()
    write_large(Path(first.path))
    [kept] = pool.gc(set(), now_s=NOW).kept
    assert (kept.key, kept.state) == (first.name, "kept") and "large.bin" in kept.reason
    assert [record.state for record in pool.records()] == ["kept", "free"]
    assert (Path(first.path) / "large.bin").exists()
    assert pool.acquire("c", pool.repo.head).path == Path(second.path)


def test_work_that_is_nowhere_else_is_saved_at_release(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    tree = pool.acquire("one", pool.repo.head)
    write(tree.path, {"committed.txt": "c"})
    plain_git(tree.path, "add", "-A")
    plain_git(tree.path, "commit", "-qm", "by hand")
    write(tree.path, {"untracked.txt": "u"})
    released = pool.release(tree, now_s=NOW)
    assert len(released.saved) == 2
    saved = [plain_git(pool.repo.root, "ls-tree", "-r", "--name-only", ref).splitlines() for ref in released.saved]
    assert "committed.txt" in saved[0]
    assert {"committed.txt", "untracked.txt"} <= set(saved[1])


def test_work_that_a_snapshot_holds_is_not_saved_twice(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    tree = pool.acquire("one", pool.repo.head)
    write(tree.path, {"new.txt": "n"})
    snapshot(pool.repo, tree, pool.index_path(tree), "refs/thalia/s/m", pool.repo.head, message="m", now_s=NOW)
    assert pool.release(tree, now_s=NOW).saved == ()


@pytest.mark.parametrize("point", ["before_add", "after_add"])
def test_killed_in_the_middle_of_add_the_key_gets_a_whole_worktree(tmp_path: Path, point: str) -> None:
    pool = make_pool(tmp_path)
    assert kill_at(point, lambda reached: pool.acquire("one", pool.repo.head, reached=reached))
    tree = pool.acquire("one", pool.repo.head)
    assert content(tree.path) == content(pool.repo.root)
    assert worktree_count(pool) == 2


def test_a_half_made_worktree_that_git_locked_is_repaired(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    assert kill_at("after_add", lambda reached: pool.acquire("one", pool.repo.head, reached=reached))
    (record,) = pool.records()
    (Path(record.git_dir) / "locked").write_text("initializing")
    (Path(record.path) / "a.txt").unlink()
    shutil.rmtree(Path(record.git_dir) / "refs", ignore_errors=True)
    tree = pool.acquire("one", pool.repo.head)
    assert content(tree.path) == content(pool.repo.root)
    assert "locked" not in plain_git(pool.repo.root, "worktree", "list", "--porcelain")


@pytest.mark.parametrize("point", ["before_reset", "after_reset"])
def test_killed_in_the_middle_of_a_reuse_the_key_gets_a_clean_worktree(tmp_path: Path, point: str) -> None:
    pool = make_pool(tmp_path)
    tree = pool.acquire("one", pool.repo.head)
    write(tree.path, {"x.o": "old"})
    pool.release(tree, now_s=NOW)
    assert kill_at(point, lambda reached: pool.acquire("two", pool.repo.head, reached=reached))
    again = pool.acquire("two", pool.repo.head)
    assert again.path == tree.path
    assert content(again.path) == content(pool.repo.root)


def test_gc_reclaims_clean_saves_work_unlocks_phantoms_and_leaves_living_ones(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    clean, dirty, ahead, phantom, live = (pool.acquire(key, pool.repo.head) for key in "abcde")
    write(dirty.path, {"dirty.txt": "d"})
    for tree in (ahead, phantom):
        write(tree.path, {f"{tree.key}.txt": "c"})
        plain_git(tree.path, "add", "-A")
        plain_git(tree.path, "commit", "-qm", "unmerged")
    plain_git(pool.repo.root, "worktree", "lock", str(phantom.path))
    shutil.rmtree(phantom.path)
    write(live.path, {"live.txt": "l"})
    plain_git(pool.repo.root, "worktree", "prune")
    assert "locked" in plain_git(pool.repo.root, "worktree", "list", "--porcelain")
    report = pool.gc({"e"}, now_s=NOW)
    assert (report.reclaimed, report.live, report.kept) == (("a", "b", "c", "d"), ("e",), ())
    held = {
        name for ref in report.saved for name in plain_git(pool.repo.root, "ls-tree", "-r", "--name-only", ref).split()
    }
    assert {"dirty.txt", "c.txt", "d.txt"} <= held
    assert (live.path / "live.txt").exists()
    assert worktree_count(pool) == 3
    assert not clean.git_dir.exists() or pool.records()
    assert "locked" not in plain_git(pool.repo.root, "worktree", "list", "--porcelain")


def test_a_phantom_without_a_record_is_unlocked_and_its_commit_kept(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    tree = pool.acquire("one", pool.repo.head)
    write(tree.path, {"p.txt": "p"})
    plain_git(tree.path, "add", "-A")
    plain_git(tree.path, "commit", "-qm", "unmerged")
    plain_git(pool.repo.root, "worktree", "lock", str(tree.path))
    (pool.folder / f"{tree.path.name}.json").unlink()
    shutil.rmtree(tree.path)
    report = pool.gc(set(), now_s=NOW)
    assert report.phantoms == (tree.path.name,)
    assert plain_git(pool.repo.root, "show", f"{report.saved[0]}:p.txt") == "p"
    assert worktree_count(pool) == 1


def test_gc_leaves_the_users_own_missing_worktrees_alone(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    plain_git(pool.repo.root, "worktree", "add", "-q", "--detach", str(tmp_path / "usb"))
    shutil.rmtree(tmp_path / "usb")
    pool.acquire("one", pool.repo.head)
    pool.gc(set(), now_s=NOW)
    assert "prunable" in plain_git(pool.repo.root, "worktree", "list", "--porcelain")


def test_the_count_is_stable_over_many_cycles(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    counts = set()
    for cycle in range(20):
        for key in ("x", "y"):
            pool.acquire(f"{key}{cycle}", pool.repo.head)
        pool.gc(set(), now_s=NOW + cycle)
        counts.add((worktree_count(pool), len(list(pool.folder.iterdir()))))
    assert len(counts) == 1


def test_a_kept_worktree_can_be_had_again_by_its_key(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    tree = pool.acquire("one", pool.repo.head)
    write_large(tree.path)
    report = pool.gc(set(), now_s=NOW)
    assert [(one.key, one.state) for one in report.kept] == [("one", "kept")]
    assert "large.bin" in report.kept[0].reason
    assert pool.acquire("one", pool.repo.head) == tree


def dirty_checkout(root: Path) -> None:
    write(root, {"a.txt": "unstaged\n", "staged.txt": "s\n", "untracked é": "u", "x.o": "ignored", "crlf": "a\r\nb\n"})
    plain_git(root, "add", "staged.txt")
    write(root, {"staged.txt": "staged, then edited\n"})
    (root / "src" / "b.py").unlink()
    (root / "prog").write_bytes(b"\x00\xff")
    (root / "prog").chmod(0o755)


def test_the_users_uncommitted_state_is_carried_byte_for_byte(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    root = pool.repo.root
    dirty_checkout(root)
    before = user_state(root)
    tree = pool.acquire("one", pool.repo.head)
    carried = carry_dirty(pool.repo, "s1", tree, pool.index_path(tree), now_s=NOW)
    assert content(tree.path) == {k: v for k, v in content(root).items() if k != "x.o"}
    assert user_state(root) == before
    assert read_ref(pool.repo.git, "refs/thalia/s1/base") == carried.base
    assert plain_git(root, "status", "--porcelain") != ""


def test_line_ending_conversion_changes_no_byte_that_is_carried(tmp_path: Path) -> None:
    pool = make_pool(tmp_path, {".gitattributes": "* text=auto eol=crlf\n", "a.txt": "1\n2\n"})
    write(pool.repo.root, {"a.txt": b"1\n2\r\n3\n", "b.txt": b"x\ny\r\n"})
    tree = pool.acquire("one", pool.repo.head)
    carry_dirty(pool.repo, "s1", tree, pool.index_path(tree), now_s=NOW)
    assert {name: (tree.path / name).read_bytes() for name in ("a.txt", "b.txt")} == {
        "a.txt": b"1\n2\r\n3\n",
        "b.txt": b"x\ny\r\n",
    }


def test_a_checkout_in_the_middle_of_a_conflict_is_carried(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    root = pool.repo.root
    plain_git(root, "checkout", "-qb", "other")
    write(root, {"a.txt": "theirs\n"})
    plain_git(root, "commit", "-qam", "theirs")
    plain_git(root, "checkout", "-q", "main")
    write(root, {"a.txt": "ours\n"})
    plain_git(root, "commit", "-qam", "ours")
    plain_git(root, "merge", "other", check=False)
    before = user_state(root)
    assert "<<<<<<<" in (root / "a.txt").read_text()
    tree = pool.acquire("one", pool.repo.head)
    carry_dirty(pool.repo, "s1", tree, pool.index_path(tree), now_s=NOW)
    assert content(tree.path) == content(root)
    assert user_state(root) == before


@pytest.mark.parametrize("point", ["after_base", "after_scan", "after_checkout"])
def test_a_carry_killed_half_way_carries_what_was_there_the_first_time(tmp_path: Path, point: str) -> None:
    pool = make_pool(tmp_path)
    dirty_checkout(pool.repo.root)
    wanted = {k: v for k, v in content(pool.repo.root).items() if k != "x.o"}
    tree = pool.acquire("one", pool.repo.head)
    index = pool.index_path(tree)
    assert kill_at(point, lambda reached: carry_dirty(pool.repo, "s1", tree, index, now_s=NOW, reached=reached))
    write(pool.repo.root, {"a.txt": "typed meanwhile\n"})
    carry_dirty(pool.repo, "s1", tree, index, now_s=NOW)
    assert content(tree.path) == wanted


def test_an_unmerged_entry_that_equals_the_file_is_carried(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    root = pool.repo.root
    blob = plain_git(root, "rev-parse", "HEAD:a.txt")
    plain_git(root, "update-index", "--force-remove", "a.txt")
    feed = f"100644 {blob} 2\ta.txt\n".encode()
    subprocess.run(["git", "update-index", "--index-info"], cwd=root, input=feed, check=True)
    tree = pool.acquire("one", pool.repo.head)
    carry_dirty(pool.repo, "s1", tree, pool.index_path(tree), now_s=NOW)
    assert content(tree.path) == content(root)


@pytest.mark.parametrize("names", [["k0", "k1", "k2", "k3", "k4", "k5"], ["same"] * 6])
def test_parallel_acquires_all_succeed(tmp_path: Path, names: list[str]) -> None:
    pool = make_pool(tmp_path)
    children = []
    for name in names:
        child = os.fork()
        if child == 0:
            try:
                Pool(pool.state_dir, pool.repo).acquire(name, pool.repo.head)
            except GitError:
                os._exit(1)
            os._exit(0)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 6
    assert worktree_count(pool) == 1 + len(set(names)) == 1 + len(pool.records())
