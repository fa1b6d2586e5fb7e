"""A hostile repository runs nothing through our git: each canary is first seen to fire with plain git."""

import contextlib
from pathlib import Path

import pytest
from repositories import NOW, make_pool, make_repository, opened, plain_git, write

from worktrees.git import GitFailed, WorktreeTampered
from worktrees.merge import Merged, changed_files, diff, merge_commit
from worktrees.pool import Pool
from worktrees.repository import open_repository
from worktrees.snapshot import snapshot


def plant(root: Path, canary: Path) -> str:
    """A program that leaves the canary and passes its input on."""
    script = root.parent / "evil.sh"
    script.write_text(f"#!/bin/sh\necho x >> '{canary}'\ncat\n")
    script.chmod(0o755)
    return str(script)


def work_through(root: Path, tmp_path: Path) -> None:
    """All that we ever do to a repository, once."""
    repo = opened(root)
    pool = Pool(tmp_path / "state", repo)
    tree = pool.acquire("one", repo.head)
    write(tree.path, {"a.txt": "changed\n", "new.txt": "n\n", "picture.bin": "b"})
    taken = snapshot(repo, tree, pool.index_path(tree), "refs/thalia/s/main", repo.head, message="m", now_s=NOW)
    assert diff(repo, repo.head, taken.commit)
    assert changed_files(repo, repo.head, taken.commit)
    pool.release(tree, now_s=NOW)
    pool.acquire("two", taken.commit)
    pool.gc(set(), now_s=NOW)


def test_a_planted_fsmonitor_never_runs(tmp_path: Path) -> None:
    root, canary = make_repository(tmp_path / "user"), tmp_path / "canary"
    plain_git(root, "config", "core.fsmonitor", plant(root, canary))
    plain_git(root, "status")
    assert canary.exists()
    canary.unlink()
    work_through(root, tmp_path)
    assert not canary.exists()


@pytest.mark.parametrize("hook", ["post-checkout", "post-index-change", "reference-transaction"])
def test_a_planted_hook_never_runs(tmp_path: Path, hook: str) -> None:
    root, canary = make_repository(tmp_path / "user"), tmp_path / "canary"
    file = root / ".git" / "hooks" / hook
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"#!/bin/sh\ntouch '{canary}'\n")
    file.chmod(0o755)
    plain_git(root, "worktree", "add", "--detach", str(tmp_path / "probe"))
    assert canary.exists()
    canary.unlink()
    work_through(root, tmp_path)
    assert not canary.exists()


@pytest.mark.parametrize("kind", ["clean", "smudge", "process"])
@pytest.mark.parametrize("name", ["evil", "e=vil", "e.v il"])
def test_planted_filters_never_run(tmp_path: Path, kind: str, name: str) -> None:
    attribute = "evil"
    root, canary = make_repository(tmp_path / "user", {"a.txt": "one\n"}), tmp_path / "canary"
    plain_git(root, "config", f"filter.{name}.{kind}", plant(root, canary))
    plain_git(root, "config", f"filter.{name}.required", "true")
    write(root, {".gitattributes": f"* filter={attribute}\n"})
    if name == attribute:
        write(root, {"a.txt": "two\n"})
        plain_git(root, "add", "-A", check=False)
        (root / "a.txt").unlink()
        plain_git(root, "checkout", "--", "a.txt", check=False)
        assert canary.exists()
        canary.unlink()
    else:
        # git takes no such name in .gitattributes; the overrides must be able to say it all the same.
        assert (f"filter.{name}.{kind}", "") in opened(root).git.settings().overrides
    work_through(root, tmp_path)
    assert not canary.exists()


def test_a_filter_from_an_included_file_or_added_later_never_runs(tmp_path: Path) -> None:
    root, canary = make_repository(tmp_path / "user"), tmp_path / "canary"
    script = plant(root, canary)
    repo = opened(root)
    pool = Pool(tmp_path / "state", repo)
    tree = pool.acquire("one", repo.head)
    index = pool.index_path(tree)
    first = snapshot(repo, tree, index, "refs/thalia/s/main", repo.head, message="m", now_s=NOW)
    (tmp_path / "more.cfg").write_text(f'[filter "late"]\n\tclean = {script}\n')
    plain_git(root, "config", "include.path", str(tmp_path / "more.cfg"))
    write(tree.path, {".gitattributes": "* filter=late\n", "a.txt": "x\n"})
    second = snapshot(repo, tree, index, "refs/thalia/s/main", first.commit, message="m", now_s=NOW)
    assert not canary.exists()
    (tmp_path / "more.cfg").write_text(f'[filter "later"]\n\tclean = {script}\n')
    write(tree.path, {".gitattributes": "* filter=later\n", "a.txt": "y\n"})
    snapshot(repo, tree, index, "refs/thalia/s/main", second.commit, message="m", now_s=NOW)
    assert not canary.exists()
    plain_git(tree.path, "add", "a.txt")
    assert canary.exists()


def test_planted_diff_programs_never_run(tmp_path: Path) -> None:
    root, canary = make_repository(tmp_path / "user"), tmp_path / "canary"
    script = plant(root, canary)
    plain_git(root, "config", "diff.evil.textconv", script)
    plain_git(root, "config", "diff.external", script)
    write(root, {".gitattributes": "* diff=evil\n", "a.txt": "two\n"})
    plain_git(root, "diff")
    assert canary.exists()
    canary.unlink()
    plain_git(root, "commit", "-qam", "attributes")
    work_through(root, tmp_path)
    assert not canary.exists()


def test_a_planted_merge_driver_never_runs_and_text_is_merged_all_the_same(tmp_path: Path) -> None:
    lines = "".join(f"{i}\n" for i in range(20))
    root, canary = (
        make_repository(tmp_path / "user", {"a.txt": lines, ".gitattributes": "* merge=evil\n"}),
        tmp_path / "c",
    )
    plain_git(root, "config", "merge.evil.driver", f"touch '{canary}'")
    plain_git(root, "checkout", "-qb", "other")
    write(root, {"a.txt": lines.replace("2\n", "two\n", 1)})
    plain_git(root, "commit", "-qam", "other")
    plain_git(root, "checkout", "-q", "main")
    write(root, {"a.txt": lines + "end\n"})
    plain_git(root, "commit", "-qam", "mine")
    plain_git(root, "merge-tree", "--write-tree", "main", "other")
    assert canary.exists()
    canary.unlink()
    repo = opened(root)
    merged = merge_commit(repo, repo.head, plain_git(root, "rev-parse", "other"), now_s=NOW, call_id="c1")
    assert isinstance(merged, Merged)
    assert plain_git(root, "show", f"{merged.commit}:a.txt") == (lines.replace("2\n", "two\n", 1) + "end").strip()
    assert not canary.exists()


def test_a_nested_repository_runs_nothing_and_is_named(tmp_path: Path) -> None:
    pool, canary = make_pool(tmp_path), tmp_path / "canary"
    tree = pool.acquire("one", pool.repo.head)
    nested = make_repository(tree.path / "nested", {"x.txt": "x\n", ".gitattributes": "* filter=evil\n"})
    plain_git(nested, "config", "filter.evil.clean", plant(nested, canary))
    plain_git(nested, "config", "core.fsmonitor", plant(nested, canary))
    plain_git(nested, "status")
    assert canary.exists()
    canary.unlink()
    taken = snapshot(pool.repo, tree, pool.index_path(tree), "refs/thalia/s/m", pool.repo.head, message="m", now_s=NOW)
    assert [(one.path, one.reason) for one in taken.skipped] == [("nested/", "nested repository")]
    released = pool.release(tree, now_s=NOW)
    assert released.state == "kept"
    assert "nested/" in released.reason
    assert (nested / "x.txt").exists()
    assert not canary.exists()


@pytest.mark.parametrize("part", [".git", "commondir", "gitdir", "link"])
def test_a_changed_pointer_stops_the_call_before_git_runs(tmp_path: Path, part: str) -> None:
    pool, canary = make_pool(tmp_path), tmp_path / "canary"
    tree = pool.acquire("one", pool.repo.head)
    evil = make_repository(tmp_path / "evil")
    plain_git(evil, "config", "core.fsmonitor", plant(evil, canary))
    pointer = tree.path / ".git"
    if part == ".git":
        pointer.write_text(f"gitdir: {evil}/.git\n")
        plain_git(tree.path, "status")
        assert canary.exists()
        canary.unlink()
    elif part == "link":
        (tmp_path / "same").write_bytes(pointer.read_bytes())
        pointer.unlink()
        pointer.symlink_to(tmp_path / "same")
    else:
        (tree.git_dir / part).write_text(f"{evil}/.git\n")
    with pytest.raises(WorktreeTampered, match="was changed"):
        snapshot(pool.repo, tree, pool.index_path(tree), "refs/thalia/s/m", None, message="m", now_s=NOW)
    assert pool.release(tree, now_s=NOW).state == "kept"
    assert not canary.exists()


def test_names_that_look_like_options_or_commands_are_data(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "user")
    for ref in ("refs/heads/-evil", "refs/heads/a;touch${IFS}CAN", "refs/tags/t\u3000t"):
        plain_git(root, "update-ref", ref, "HEAD")
    plain_git(root, "symbolic-ref", "HEAD", "refs/heads/a;touch${IFS}CAN")
    plain_git(root, "config", "user.email", 'x"$(touch CAN)"')
    plain_git(root, "config", "user.name", "Eve\nparent 0000")
    repo = opened(root)
    assert repo.branch == "refs/heads/a;touch${IFS}CAN"
    work_through(root, tmp_path)
    assert not list(tmp_path.rglob("CAN"))


def test_outside_git_variables_reach_nothing(tmp_path: Path) -> None:
    root, canary = make_repository(tmp_path / "user"), tmp_path / "canary"
    script = plant(root, canary)
    environment = {
        "GIT_EXTERNAL_DIFF": script,
        "GIT_DIR": "/nowhere",
        "GIT_CONFIG_PARAMETERS": f"'core.fsmonitor={script}'",
    }

    repo = open_repository(root, {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), **environment})
    repo.git.run("status", "--porcelain")
    assert not canary.exists()


def test_the_users_own_ignore_file_and_line_endings_count(tmp_path: Path) -> None:
    home = tmp_path / "home"
    write(home, {".gitconfig": "[core]\n\texcludesFile = ~/ignored\n\tautocrlf = input\n", "ignored": "*.mine\n"})
    repo = opened(make_repository(tmp_path / "user"), home)
    pool = Pool(tmp_path / "state", repo)
    tree = pool.acquire("one", repo.head)
    write(tree.path, {"x.mine": "m", "crlf.txt": "a\r\nb\r\n"})
    taken = snapshot(repo, tree, pool.index_path(tree), "refs/thalia/s/m", repo.head, message="m", now_s=NOW)
    assert [(c.path, c.status) for c in changed_files(repo, repo.head, taken.commit)] == [("crlf.txt", "A")]
    assert repo.git.run("cat-file", "blob", f"{taken.commit}:crlf.txt") == b"a\nb\n"


def test_a_failure_tells_the_code_and_hides_credentials(tmp_path: Path) -> None:
    repo = opened(make_repository(tmp_path / "user"))
    with pytest.raises(GitFailed) as failure:
        repo.git.run("ls-remote", "https://me:hunter2@127.0.0.1:1/x.git")
    assert failure.value.code == 128
    assert "hunter2" not in str(failure.value)
    with contextlib.suppress(GitFailed):
        repo.git.run("fetch", "https://127.0.0.1:1/x.git")
    assert b"not allowed" in repo.git.attempt("ls-remote", "https://127.0.0.1:1/x.git").stderr


def test_a_protocol_that_the_repository_allows_stays_off(tmp_path: Path) -> None:
    root, canary = make_repository(tmp_path / "user"), tmp_path / "canary"
    plain_git(root, "config", "protocol.ext.allow", "always")
    address = f"ext::touch {canary}"
    plain_git(root, "ls-remote", address, check=False)
    assert canary.exists()
    canary.unlink()
    assert opened(root).git.attempt("ls-remote", address).code != 0
    assert not canary.exists()
