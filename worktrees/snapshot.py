"""A commit of a whole worktree, made with a private index, and the way back to it.

In a snapshot: tracked and untracked files. Not in it, and never touched by a restore: ignored files, files over
50 MB, nested repositories, and what git cannot hold (unreadable files, reserved names). Empty folders are no content.
A changed worktree costs three git processes, an unchanged one costs one.
"""

import contextlib
import os
import re
import shutil
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from worktrees.git import Git, GitFailed, join_names, split_names
from worktrees.objects import THALIA, encode_commit, move_ref, read_ref, write_commit
from worktrees.repository import Repository, Worktree

MAX_FILE_BYTES = 50_000_000
Reached = Callable[[str], None]


def ignore_point(name: str) -> None:
    """The default of `reached`: tests pass one that kills the process at a named point."""


@dataclass(frozen=True, slots=True)
class Skipped:
    """A path that is not in a snapshot, and why: "large", "nested repository", "unreadable" or "reserved name"."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    commit: str
    tree: str
    changed: bool
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True, slots=True)
class PrivateIndex:
    """An index of our own beside the worktree, with a note of the tree and commit that it equals."""

    git: Git
    path: Path

    @property
    def env(self) -> dict[str, str]:
        return {"GIT_INDEX_FILE": str(self.path)}

    def run(self, *args: str, input: bytes | None = None) -> bytes:
        return self.git.run(*args, env=self.env, input=input)

    def prepare(self) -> list[str]:
        """Make the index exist, seeded from the worktree's own; the names to look at whatever their stat data say."""
        clear_dead_lock(self.path.with_name(self.path.name + ".lock"))
        if self.path.exists():
            return []
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self.path.with_name(self.path.name + ".seed")
        with contextlib.suppress(FileNotFoundError):
            # With its times: git finds changes within one second by comparing them with the index's own.
            shutil.copy2(self.git.place.git_dir / "index", draft)
            draft.chmod(0o600)
            draft.rename(self.path)
        unmerged = self.run("ls-files", "--unmerged", "-z") if self.path.exists() else b""
        return [os.fsdecode(row.split(b"\t", 1)[1]) for row in unmerged.split(b"\0") if row]

    def scan(self) -> tuple[list[str], tuple[Skipped, ...]]:
        """(names that differ from the index, what a snapshot leaves out), sorted. One process."""
        again = self.prepare()
        listing = ("ls-files", "-z", "--others", "--modified", "--exclude-standard")
        try:
            output = self.run(*listing)
        except GitFailed as failure:
            if "index" not in failure.stderr:
                raise
            self.path.unlink(missing_ok=True)
            again, output = self.prepare(), self.run(*listing)
        root = self.git.place.work_tree or Path("/")
        names = sorted({*split_names(output), *again})
        reasons = {name: reason for name in names if (reason := reason_to_skip(root, name))}
        return [name for name in names if name not in reasons], tuple(Skipped(n, r) for n, r in reasons.items())

    def update(self, names: list[str]) -> None:
        """Take the files of `names` as they are now into the index; those that are gone go from it."""
        if not names:
            return
        beyond = beyond_links(self.git.place.work_tree or Path("/"), names)
        taken = [name for name in names if name not in beyond]
        if beyond:  # a folder became a link: git refuses to look at what was below, it is gone
            self.run("update-index", "--force-remove", "-z", "--stdin", input=join_names(sorted(beyond)))
        self.run("update-index", "--add", "--remove", "--replace", "-z", "--stdin", input=join_names(taken))

    def note(self) -> tuple[str, str] | None:
        """(tree, commit) that this index was last known to equal; None when it changed since."""
        with contextlib.suppress(OSError, ValueError):
            checksum, tree, commit = self._note_path.read_text().split()
            if checksum == self._checksum():
                return tree, commit
        return None

    def write_note(self, tree: str, commit: str) -> None:
        draft = self._note_path.with_suffix(".draft")
        draft.write_text(f"{self._checksum()} {tree} {commit}\n")
        draft.rename(self._note_path)

    @property
    def _note_path(self) -> Path:
        return self.path.with_name(self.path.name + ".note")

    def _checksum(self) -> str:
        with self.path.open("rb") as file:
            file.seek(-20, os.SEEK_END)
            return file.read().hex()


def snapshot(
    repo: Repository,
    worktree: Worktree,
    index_path: Path,
    ref: str,
    parent: str | None,
    *,
    message: str,
    now_s: int,
    reached: Reached = ignore_point,
) -> Snapshot:
    """Commit the whole worktree and let `ref` hold the commit (it held `parent` or nothing, else RefMoved).

    The commit is a pure function of files, parent, message and time, so a repeated call after a crash gives the same.
    Nothing changed since `parent`: the parent is the answer, with `changed` False.
    """
    git = repo.at(worktree)
    index = PrivateIndex(git, index_path)
    names, skipped = index.scan()
    reached("before_add")
    known = index.note()  # before the update: it says what the index was, which spares a process
    index.update(names)
    tree = known[0] if known and not names else index.run("write-tree").decode().strip()
    reached("after_tree")
    before = known[0] if known and known[1] == parent else tree_of(git, parent)
    if parent is not None and tree == before:
        commit = parent
    else:
        commit = write_commit(git, encode_commit(tree, (parent,) if parent else (), message, THALIA, now_s))
    reached("before_ref")
    move_ref(git, ref, commit, (parent, None))
    reached("after_ref")
    if known != (tree, commit):
        index.write_note(tree, commit)
    return Snapshot(commit, tree, commit != parent, skipped)


def capture(repo: Repository, worktree: Worktree, index_path: Path, ref: str, parent: str, message: str) -> str:
    """Let `ref` hold a commit of the worktree as it is, whatever it held, also where nothing changed since `parent`.
    Its time is 0, so that the message alone tells it from others."""
    git = repo.at(worktree)
    index = PrivateIndex(git, index_path)
    index.update(index.scan()[0])
    tree = index.run("write-tree").decode().strip()
    commit = write_commit(git, encode_commit(tree, (parent,), message, THALIA, 0))
    move_ref(git, ref, commit, (read_ref(git, ref),))
    return commit


def distrust(git: Git, index_path: Path, commit: str) -> list[str]:
    """Read all files, whatever an index knows of their sizes and times: after a loss of power a file may have those and
    other content. Leaves a private index of `commit`. The names that differ from it, sorted."""
    index = PrivateIndex(git, index_path)
    # Nobody synced it either, and git reads it first.
    for path in (index_path, index_path.with_name(index_path.name + ".lock")):
        path.unlink(missing_ok=True)
    index_path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    index.run("read-tree", commit)
    index.run("update-index", "-q", "--refresh")
    return index.scan()[0]


def beyond_links(root: Path, names: list[str]) -> set[str]:
    """The names that have a symbolic link among their folders."""
    links: dict[str, bool] = {"": False}

    def crosses(folder: str) -> bool:
        if folder not in links:
            links[folder] = crosses(folder.rpartition("/")[0]) or (root / folder).is_symlink()
        return links[folder]

    return {name for name in names if crosses(name.rpartition("/")[0])}


def clear_dead_lock(lock: Path) -> None:
    """An index of ours has one user, so its lock is of a dead call; a git that outlived its caller gets 1 s to end."""
    deadline = time.monotonic() + 1.0
    while lock.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    lock.unlink(missing_ok=True)


def tree_of(git: Git, commit: str | None) -> str | None:
    if commit is None:
        return None
    return git.run("rev-parse", "--verify", "--end-of-options", f"{commit}^{{tree}}").decode().strip()


def commit_of(git: Git, name: str) -> str:
    """The commit that an id or a full reference name stands for."""
    return git.run("rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}").decode().strip()


def reason_to_skip(root: Path, name: str) -> str | None:
    """Why a path cannot be in a snapshot; None when it can (also when it is gone: that is a deletion)."""
    if name.endswith("/"):
        return "nested repository"
    if is_reserved(name):
        return "reserved name"
    path = root / name
    try:
        at = path.lstat()
    except OSError:
        return None
    if stat.S_ISLNK(at.st_mode):
        return "reserved name" if path.name.casefold() == ".gitmodules" else None
    if not stat.S_ISREG(at.st_mode):
        return None
    if at.st_size > MAX_FILE_BYTES:
        return "large"
    return None if os.access(path, os.R_OK) else "unreadable"


def is_reserved(name: str) -> bool:
    """Whether a component stands for `.git` on some file system; git refuses to hold those."""
    invisible = re.compile("[\u200c-\u200f\u202a-\u202e\u206a-\u206f\ufeff]")
    for part in re.split(r"[/\\]", name):
        plain = invisible.sub("", part).split(":")[0].rstrip(" .").casefold()
        if plain in {".git", "git~1"}:
            return True
    return False
