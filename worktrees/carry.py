"""Bring the uncommitted state of the user's checkout into an agent's worktree, without touching the user's index."""

import contextlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from worktrees.git import GitFailed
from worktrees.objects import read_ref
from worktrees.repository import Repository, Worktree
from worktrees.restore import restore
from worktrees.snapshot import Reached, Skipped, Snapshot, ignore_point, snapshot, tree_of


@dataclass(frozen=True, slots=True)
class Carried:
    """`base`: commit of the user's files as they were. `skipped`: what is not carried, with the reason."""

    base: str
    tree: str
    skipped: tuple[Skipped, ...]


def snapshot_checkout(repo: Repository, scratch: Path, ref: str, *, message: str, now_s: int) -> Snapshot:
    """A snapshot of the user's checkout on top of its HEAD, kept under `ref`. Index, HEAD and files stay as they are.

    An index made for this alone is used (`scratch` is a path for it) and removed.
    """
    checkout = repo.checkout
    head = repo.git.run("rev-parse", "--verify", "HEAD^{commit}").decode().strip()
    try:
        return snapshot(repo, checkout, scratch, ref, head, message=message, now_s=now_s)
    finally:
        for path in (scratch, scratch.with_name(scratch.name + ".note")):
            path.unlink(missing_ok=True)


def carry_dirty(
    repo: Repository,
    session: str,
    worktree: Worktree,
    index_path: Path,
    *,
    now_s: int,
    reached: Reached = ignore_point,
) -> Carried:
    """Make `worktree` byte for byte what the user's checkout is, but for ignored files and those over 50 MB.

    The state is kept as refs/thalia/<session>/base; when that exists it is used again, so a repeated call after a
    crash carries what was there the first time.
    """
    ref = f"refs/thalia/{session}/base"
    base, skipped = read_ref(repo.git, ref), ()
    if base is None:
        scratch = index_path.with_name(index_path.name + ".checkout")
        taken = snapshot_checkout(repo, scratch, ref, message="Files of the checkout at the start", now_s=now_s)
        base, skipped = taken.commit, taken.skipped
    reached("after_base")
    restore(repo, worktree, index_path, base, reached)
    copy_raw(repo, worktree, base)
    return Carried(base, tree_of(repo.git, base) or "", skipped)


def copy_raw(repo: Repository, worktree: Worktree, base: str) -> None:
    """Where line ending conversion made other bytes of a changed file, take the user's, if git sees no difference."""
    if repo.bare:
        return
    with contextlib.suppress(GitFailed):
        names = repo.git.run("diff-tree", "-r", "-z", "--name-only", "--no-renames", f"{base}^", base, "--")
        for name in [os.fsdecode(part) for part in names.split(b"\0") if part]:
            source, target = repo.root / name, worktree.path / name
            plain = all(path.is_file() and not path.is_symlink() for path in (source, target))
            if plain and source.read_bytes() != target.read_bytes() and same_text(source, target):
                shutil.copyfile(source, target)


def same_text(one: Path, other: Path) -> bool:
    return one.read_bytes().replace(b"\r\n", b"\n") == other.read_bytes().replace(b"\r\n", b"\n")
