"""The zoo: every kind of repository works or is refused with one sentence that says what to do."""

import os
import shutil
from pathlib import Path

import pytest
from repositories import NOW, ODD_NAMES, content, make_repository, opened, plain_git, user_state, write

from worktrees.carry import carry_dirty
from worktrees.pool import Pool
from worktrees.repository import BareRepository, EmptyRepository, ForeignRepository, NoRepository, RepositoryRefused


def refusal(folder: Path) -> RepositoryRefused:
    with pytest.raises(RepositoryRefused) as refused:
        opened(folder)
    assert "\n" not in str(refused.value)
    return refused.value


def test_no_repository_says_how_to_make_one(tmp_path: Path) -> None:
    assert isinstance(refusal(tmp_path), NoRepository)
    assert "git init" in str(refusal(tmp_path))
    assert isinstance(refusal(tmp_path / "nothing"), NoRepository)


def test_an_empty_repository_says_how_to_make_the_first_commit(tmp_path: Path) -> None:
    plain_git(tmp_path, "init", "-q")
    assert isinstance(refusal(tmp_path), EmptyRepository)
    assert "git commit --allow-empty" in str(refusal(tmp_path))


def test_a_bare_repository_says_to_clone(tmp_path: Path) -> None:
    plain_git(tmp_path, "init", "-q", "--bare", "bare.git")
    assert isinstance(refusal(tmp_path / "bare.git"), BareRepository)
    assert isinstance(refusal(make_repository(tmp_path / "user") / ".git"), BareRepository)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_repository_of_another_user_is_refused_until_the_user_says_it_is_safe(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "user")
    os.chown(root / ".git", 12345, 12345)
    assert isinstance(refusal(root), ForeignRepository)
    write(tmp_path, {".gitconfig": f"[safe]\n\tdirectory = {root}\n"})
    assert opened(root).root == root


def works(root: Path, tmp_path: Path) -> None:
    """Start, carry, release: the user's side stays as it is and the worktree has the user's files."""
    before = user_state(root)
    repo = opened(root)
    pool = Pool(tmp_path / "state", repo)
    tree = pool.acquire("one", repo.head)
    carry_dirty(repo, "s", tree, pool.index_path(tree), now_s=NOW)
    assert content(tree.path) == content(root)
    pool.release(tree, now_s=NOW)
    assert user_state(root) == before


def test_detached_head(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "user")
    plain_git(root, "checkout", "-q", "--detach")
    assert opened(root).branch is None
    works(root, tmp_path)


def test_shallow_clone(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin")
    plain_git(origin, "commit", "-q", "--allow-empty", "-m", "two")
    plain_git(tmp_path, "clone", "-q", "--depth=1", f"file://{origin}", "user")
    assert opened(tmp_path / "user").shallow
    works(tmp_path / "user", tmp_path)


def test_no_user_name_and_a_stale_index_lock(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "user")
    (root / ".git" / "index.lock").touch()
    assert opened(root).identity is None
    write(root, {"a.txt": "dirty\n"})
    works(root, tmp_path)
    assert (root / ".git" / "index.lock").exists()


def test_odd_names_in_files_and_in_the_path_of_the_repository(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "-user é\n'\"x", dict.fromkeys(ODD_NAMES, "x\n"))
    write(root, {"-rf": "changed\n", "-new": "n\n"})
    works(root, tmp_path)


def test_a_folder_below_the_root_and_a_linked_worktree_of_the_user(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "user")
    assert opened(root / "src").root == root
    plain_git(root, "worktree", "add", "-q", "-b", "side", str(tmp_path / "linked"))
    repo = opened(tmp_path / "linked")
    assert (repo.root, repo.common_dir, repo.branch) == (tmp_path / "linked", root / ".git", "refs/heads/side")
    write(tmp_path / "linked", {"a.txt": "dirty\n"})
    pool = Pool(tmp_path / "state", repo)
    tree = pool.acquire("one", repo.head)
    carry_dirty(repo, "s", tree, pool.index_path(tree), now_s=NOW)
    assert content(tree.path) == content(tmp_path / "linked")


def test_a_branch_named_agent_is_no_obstacle(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "user")
    plain_git(root, "branch", "agent")
    plain_git(root, "branch", "thalia")
    works(root, tmp_path)


def test_submodules_are_allowed_and_named(tmp_path: Path) -> None:
    inner, root = make_repository(tmp_path / "inner"), make_repository(tmp_path / "user")
    plain_git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "sub mod")
    plain_git(root, "commit", "-qam", "sub")
    repo = opened(root)
    assert repo.submodules == ("sub mod",)
    tree = Pool(tmp_path / "state", repo).acquire("one", repo.head)
    assert list((tree.path / "sub mod").iterdir()) == []


def test_a_repository_with_sha256_ids(tmp_path: Path) -> None:
    plain_git(tmp_path, "init", "-q", "--object-format=sha256", "user")
    root = make_repository(tmp_path / "user")
    write(root, {"a.txt": "dirty\n"})
    works(root, tmp_path)
    assert len(opened(root).head) == 64
    plain_git(root, "fsck", "--strict")


def test_a_state_folder_inside_the_checkout_is_refused(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "user")
    repo = opened(root)
    with pytest.raises(Exception, match="inside the checkout"):
        Pool(root / "state", repo).acquire("one", repo.head)
    shutil.rmtree(root / "state")
