"""What a loss of power may leave of a worktree: files of the size and times that an index knows with other content."""

import hashlib
import os
import struct
from pathlib import Path

import pytest
from repositories import NOW, content, kill_at, make_pool

from worktrees.pool import Pool
from worktrees.repository import Worktree
from worktrees.snapshot import PrivateIndex, distrust, snapshot

REF, LONG_AGO_NS = "refs/thalia/s/main", 1_700_000_000_000_000_000
FIRST_ENTRY, TRAILER = 12, 20


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    return make_pool(tmp_path, {"a.txt": "whole\n", "b.txt": "b\n"})


def torn_in_secret(pool: Pool) -> tuple[Worktree, str]:
    """The worktree and the commit that it was. Its first file is torn, and the index has that file's times."""
    tree = pool.acquire("one", pool.repo.head)
    path, index = tree.path / "a.txt", pool.index_path(tree)
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    taken = snapshot(pool.repo, tree, index, REF, pool.repo.head, message="m", now_s=NOW)
    PrivateIndex(pool.repo.at(tree), index).run("update-index", "-q", "--refresh")
    path.write_text("\0\0\0\0\0\0")
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    changed = path.stat().st_ctime_ns
    data = bytearray(index.read_bytes()[:-TRAILER])
    data[FIRST_ENTRY : FIRST_ENTRY + 8] = struct.pack(">II", *divmod(changed, 10**9))
    index.write_bytes(data + hashlib.sha1(data, usedforsecurity=False).digest())
    return tree, taken.commit


def test_a_look_that_trusts_the_index_does_not_see_it(pool: Pool) -> None:
    tree, _ = torn_in_secret(pool)
    assert PrivateIndex(pool.repo.at(tree), pool.index_path(tree)).scan() == ([], ())


def test_a_look_that_reads_every_file_does(pool: Pool) -> None:
    tree, commit = torn_in_secret(pool)
    (tree.path / "new.txt").write_text("new\n")
    (tree.path / "b.txt").unlink()
    assert distrust(pool.repo.at(tree), pool.index_path(tree), commit) == ["a.txt", "b.txt", "new.txt"]


def test_once_read_the_files_need_not_be_read_again(pool: Pool) -> None:
    tree, commit = torn_in_secret(pool)
    (tree.path / "a.txt").write_text("whole\n")
    os.utime(tree.path / "a.txt", ns=(LONG_AGO_NS, LONG_AGO_NS))
    git, index = pool.repo.at(tree), pool.index_path(tree)
    assert distrust(git, index, commit) == []
    stamps = PrivateIndex(git, index).run("ls-files", "--debug", "a.txt").decode()
    assert f"mtime: {LONG_AGO_NS // 10**9}:0" in stamps


@pytest.mark.parametrize("left", [b"", bytes(400), b"DIRC\0\0\0\2"])
def test_an_index_that_was_torn_itself_is_no_obstacle(left: bytes, pool: Pool) -> None:
    tree, commit = torn_in_secret(pool)
    index = pool.index_path(tree)
    index.write_bytes(left)
    index.with_name(index.name + ".lock").write_bytes(left)
    assert distrust(pool.repo.at(tree), index, commit) == ["a.txt"]


@pytest.mark.parametrize(
    "head", [bytes(41), b"", b"\xff" * 41, b"f" * 40], ids=["zeros", "empty", "no text", "unknown"]
)
def test_a_worktree_that_was_being_made_and_has_no_head_left_is_made_anew(head: bytes, tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    assert kill_at("after_add", lambda reached: pool.acquire("one", pool.repo.head, reached=reached))
    [record] = pool.records()
    (Path(record.git_dir) / "HEAD").write_bytes(head)
    tree = pool.acquire("one", pool.repo.head)
    assert content(tree.path) == content(pool.repo.root)
