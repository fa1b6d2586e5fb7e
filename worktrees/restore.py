"""Bring a worktree back to a snapshot, write a snapshot into an empty folder, name ignored files that changed."""

import contextlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from configs.scratch import scratch
from worktrees.git import GitError, join_names, split_names
from worktrees.repository import Repository, Worktree
from worktrees.snapshot import PrivateIndex, Reached, Skipped, ignore_point, tree_of

MAX_NAMES = 50
MAX_LOOKED_AT = 20_000


class RestoreBlocked(GitError):
    """Files that a restore never touches stand where the snapshot has others; `paths` names them."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.paths = paths
        super().__init__(
            f"Ignored or large files stand where the snapshot has others: {', '.join(paths[:10])}; move them away and "
            "restore again."
        )


class TargetInUse(GitError):
    pass


@dataclass(frozen=True, slots=True)
class Restored:
    """`written` and `removed` are paths below the worktree, sorted; `skipped` was left as it is."""

    written: tuple[str, ...]
    removed: tuple[str, ...]
    skipped: tuple[Skipped, ...]


@dataclass(frozen=True, slots=True)
class ChangedIgnored:
    """At most 50 names, sorted; `complete` is False where there may be more."""

    paths: tuple[str, ...]
    complete: bool


def restore(
    repo: Repository, worktree: Worktree, index_path: Path, commit: str, reached: Reached = ignore_point
) -> Restored:
    """Make the tracked and untracked files exactly those of `commit`. Killed anywhere and repeated, it ends the same.

    Ignored files, files over 50 MB and nested repositories stay; RestoreBlocked before anything is written where they
    are in the way. Folders without any file go.
    """
    git = repo.at(worktree)
    index = PrivateIndex(git, index_path)
    names, skipped = index.scan()
    index.update(names)
    reached("after_scan")
    left = {item.path for item in skipped}
    removed, written = plan(index, commit, left)
    check_obstacles(worktree.path, removed, written)
    for name in removed:
        remove_file(worktree.path, name)
        reached("after_remove")
    index.run("read-tree", "--reset", commit)
    reached("after_read_tree")
    index.run("checkout-index", "--force", "--quiet", "-u", "-z", "--stdin", input=join_names(written))
    reached("after_checkout")
    remove_empty_folders(index, worktree.path)
    index.write_note(tree_of(git, commit) or "", commit)
    return Restored(tuple(written), tuple(removed), skipped)


def plan(index: PrivateIndex, commit: str, left: set[str]) -> tuple[list[str], list[str]]:
    """(names to remove, names to write) that take the files from the index to `commit`."""
    fields = index.run("diff-index", "--cached", "--name-status", "--no-renames", "-z", commit, "--").split(b"\0")
    pairs = [(status, os.fsdecode(name)) for status, name in zip(fields[0::2], fields[1::2], strict=False)]
    pairs = [(status, name) for status, name in pairs if name not in left]
    removed = sorted(name for status, name in pairs if status == b"A")
    return removed, sorted(name for status, name in pairs if status != b"A")


def check_obstacles(root: Path, removed: list[str], written: list[str]) -> None:
    going = set(removed)
    obstacles: list[str] = []
    for name in written:
        path = root / name
        if path.is_dir() and not path.is_symlink():
            obstacles += [found for found in files_below(root, path) if found not in going]
        for parent in list(path.relative_to(root).parents)[:-1]:
            at = root / parent
            if (at.is_symlink() or at.is_file()) and str(parent) not in going:
                obstacles.append(str(parent))
    if obstacles:
        raise RestoreBlocked(tuple(sorted(set(obstacles))))


def files_below(root: Path, folder: Path) -> Iterator[str]:
    """Names, from `root`, of all that is no folder below `folder`."""
    for at, folders, files in os.walk(folder):
        links = [name for name in folders if (Path(at) / name).is_symlink()]
        for name in (*files, *links):
            yield os.fspath((Path(at) / name).relative_to(root))


def remove_file(root: Path, name: str) -> None:
    """Unlink one file and the folders that it leaves empty."""
    path = root / name
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        path.unlink()
    for parent in path.parents:
        if parent == root:
            return
        try:
            parent.rmdir()
        except OSError:
            return


def remove_empty_folders(index: PrivateIndex, root: Path) -> None:
    listing = index.run("ls-files", "-z", "--others", "--directory", "--exclude-standard")
    for name in split_names(listing):
        if not name.endswith("/"):
            continue
        for at, folders, _ in os.walk(root / name, topdown=False):
            for folder in (*folders, "."):
                with contextlib.suppress(OSError):
                    Path(at, folder).rmdir()


def checkout_tree(repo: Repository, commit: str, target: Path) -> None:
    """Write the files of `commit` into a folder that is empty or does not exist; it does not become a worktree."""
    target.mkdir(parents=True, exist_ok=True, mode=0o700)
    if any(target.iterdir()):
        raise TargetInUse(f"{target} is not empty; name an empty folder.")
    git = repo.at(Worktree(target.resolve(), repo.git_dir))
    with scratch("index") as own:
        index = PrivateIndex(git, own / "index")
        index.run("read-tree", commit)
        index.run("checkout-index", "--all", "--force", "--quiet")


def changed_ignored(repo: Repository, worktree: Worktree, since_us: int) -> ChangedIgnored:
    """Names of ignored files whose content, mode or links changed after `since_us` (microseconds since 1970)."""
    git = repo.at(worktree)
    listing = git.run("ls-files", "-z", "--others", "--ignored", "--exclude-standard", "--directory")
    found: list[str] = []
    for looked_at, name in enumerate(walk_names(worktree.path, split_names(listing)), 1):
        if looked_at > MAX_LOOKED_AT or len(found) >= MAX_NAMES:
            return ChangedIgnored(tuple(sorted(found)), complete=False)
        with contextlib.suppress(OSError):
            at = (worktree.path / name).lstat()
            if at.st_ctime_ns // 1000 > since_us and not stat.S_ISDIR(at.st_mode):
                found.append(name)
    return ChangedIgnored(tuple(sorted(found)), complete=True)


def walk_names(root: Path, names: list[str]) -> Iterator[str]:
    for name in names:
        if name.endswith("/"):
            yield from files_below(root, root / name)
        else:
            yield name
