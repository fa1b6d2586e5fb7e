"""A user's repository and a machine without its disk, for tests of what crosses between the two."""

import os
from dataclasses import dataclass
from pathlib import Path

from repositories import make_repository, opened, plain_git, write

from worktrees.bundle import make_bundle, take_bundle
from worktrees.mirror import mirror_settings, open_mirror
from worktrees.pool import Pool
from worktrees.repository import Repository
from worktrees.snapshot import Reached, ignore_point

BASE, WORK = "refs/thalia/s/base", "refs/thalia/s/work"


@dataclass(frozen=True, slots=True)
class Node:
    """What a machine has; its user's home is its folder."""

    folder: Path
    user: Repository

    @property
    def variables(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder)}

    def mirror(self, reached: Reached = ignore_point) -> Repository:
        home = {"HOME": str(self.user.root.parent)}
        settings = mirror_settings(self.user, home)
        return open_mirror(self.folder / "mirrors", "one", settings, self.variables, reached=reached)

    def pool(self) -> Pool:
        return Pool(self.folder / "state", self.mirror())


def make_node(root: Path, tmp_path: Path) -> Node:
    (tmp_path / "node").mkdir()
    return Node(tmp_path / "node", opened(root))


def filled(tmp_path: Path, files: dict[str, str | bytes] | None = None) -> tuple[Node, Repository]:
    """A user's repository, and the mirror that has its commit as BASE."""
    node = make_node(make_repository(tmp_path / "user", files), tmp_path)
    mirror = node.mirror()
    take_bundle(mirror, make_bundle(node.user, {BASE: node.user.head}, ()), {BASE: None})
    return node, mirror


def commit(root: Path, files: dict[str, str | bytes], message: str = "more") -> str:
    """A commit of the user's, with the files changed."""
    write(root, files)
    plain_git(root, "add", "-A")
    plain_git(root, "commit", "-qm", message)
    return plain_git(root, "rev-parse", "HEAD")


def everything(folder: Path) -> dict[str, bytes]:
    """Every file below, by its path: of a repository all that it is."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def whole(repository: Repository) -> None:
    """By the judgement of git itself; nothing lies about that is no object."""
    plain_git(repository.git_dir, "--git-dir", ".", "fsck", "--full", "--strict", "--no-dangling")
    assert list((repository.common_dir / "objects").glob("thalia-*")) == []


def ref(repository: Repository, name: str) -> str:
    return plain_git(repository.common_dir, "--git-dir", ".", "rev-parse", "--verify", "-q", name, check=False)


def count_objects(bundle: bytes) -> int:
    start = bundle.index(b"\n\n") + 2
    assert bundle[start : start + 4] == b"PACK"
    return int.from_bytes(bundle[start + 8 : start + 12])
