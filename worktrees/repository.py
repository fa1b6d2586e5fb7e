"""Open the user's repository: found in-process, refused with one sentence where it cannot be worked on.

Nothing here writes in the user's checkout, index or HEAD.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from worktrees.git import Git, GitError, Place, PointerRecord, neutralise, read_pointers
from worktrees.objects import Identity


class RepositoryRefused(GitError):
    """Base of: NoRepository, BareRepository, EmptyRepository, ForeignRepository."""


class NoRepository(RepositoryRefused):
    pass


class BareRepository(RepositoryRefused):
    pass


class EmptyRepository(RepositoryRefused):
    pass


class ForeignRepository(RepositoryRefused):
    pass


PROGRAMS = frozenset(
    {
        "core.fsmonitor",
        "core.pager",
        "core.editor",
        "core.sshcommand",
        "core.askpass",
        "core.hookspath",
        "core.gitproxy",
        "core.alternaterefscommand",
        "diff.external",
        "credential.helper",
        "interactive.difffilter",
        "gpg.program",
        "sequence.editor",
    }
)
"""Settings whose value git runs, or looks for programs in."""


@dataclass(frozen=True, slots=True)
class Worktree:
    """A folder with files of a repository. `record` is None for the user's own checkout alone."""

    path: Path
    git_dir: Path
    key: str = ""
    record: PointerRecord | None = None


@dataclass(frozen=True, slots=True)
class Repository:
    """`root`: the user's checkout. `git_dir` is its own, `common_dir` the one that all worktrees share.
    `branch` is a full reference name, None when HEAD is detached. `submodules` are paths. `bare`: a mirror (mirror.py),
    which has no checkout and no HEAD; `root` is its own folder then."""

    root: Path
    git_dir: Path
    common_dir: Path
    head: str
    branch: str | None
    shallow: bool
    submodules: tuple[str, ...]
    identity: Identity | None
    git: Git
    bare: bool = False

    @property
    def checkout(self) -> Worktree:
        """The user's own checkout: read it, never write in it except by a merge. BareRepository where there is none."""
        if self.bare:
            raise BareRepository(f"{self.root} holds no files of yours; do this where your checkout is.")
        return Worktree(self.root, self.git_dir)

    @property
    def runs_programs(self) -> bool:
        """Whether its own configuration names programs that git would run: monitors, drivers, pagers, hooks."""
        settings = self.git.settings()
        named = {key for key in settings.local if key in PROGRAMS and settings.local[key] not in ("", "false")}
        return bool(named or neutralise(list(settings.local)))

    def at(self, worktree: Worktree) -> Git:
        """git in a worktree of this repository, bound to our record of its wiring."""
        return self.git.at(Place(worktree.git_dir, self.common_dir, worktree.path, worktree.record))


def open_repository(path: Path, environment: Mapping[str, str] | None = None) -> Repository:
    """The repository whose checkout holds `path`. RepositoryRefused with what to do where there is none to work on.

    `environment`: PATH, HOME and XDG_CONFIG_HOME of the user (default: their home and the system's PATH).
    """
    root, git_dir = find_checkout(path.resolve())
    common_dir = find_common(git_dir)
    home = {"PATH": f"{os.defpath}:/usr/local/bin", "HOME": str(Path.home())}
    git = Git(Place(git_dir, common_dir, root), home if environment is None else environment)
    check_owner(root, git_dir, git.settings().safe)
    if git.settings().local.get("core.bare", "").lower() in {"true", "yes", "on", "1"} and git_dir == common_dir:
        raise BareRepository(f"{root} is a bare repository; clone it and start in the clone.")
    head = git.attempt("rev-parse", "--verify", "--quiet", "--end-of-options", "HEAD^{commit}")
    if head.code != 0:
        raise EmptyRepository(
            f"The repository at {root} has no commit yet; make the first one with: git commit --allow-empty -m start"
        )
    branch = git.attempt("symbolic-ref", "--quiet", "HEAD").stdout.decode("utf-8", "surrogateescape").strip()
    values = {**git.settings().user, **git.settings().local}
    named = "user.name" in values and "user.email" in values
    return Repository(
        root=root,
        git_dir=git_dir,
        common_dir=common_dir,
        head=head.stdout.decode().strip(),
        branch=branch or None,
        shallow=(common_dir / "shallow").exists(),
        submodules=list_submodules(git),
        identity=Identity(values["user.name"], values["user.email"]) if named else None,
        git=git,
    )


def find_checkout(path: Path) -> tuple[Path, Path]:
    """(root, git folder) of the nearest checkout at or above `path`."""
    if not path.exists():
        raise NoRepository(f"{path} does not exist; name a folder inside a git repository.")
    for folder in (path, *path.parents):
        if is_git_dir(folder / ".git"):
            return folder, (folder / ".git").resolve()
        if (folder / ".git").is_file():
            return folder, follow_pointer(folder / ".git")
        if is_git_dir(folder):
            raise BareRepository(
                f"{folder} is a bare repository or the inside of one; start in a checkout (git clone makes one)."
            )
    raise NoRepository(
        f"{path} is not in a git repository; make one with: git init && git commit --allow-empty -m start"
    )


def is_git_dir(folder: Path) -> bool:
    linked = (folder / "commondir").is_file()
    whole = (folder / "objects").is_dir() and (folder / "refs").is_dir()
    return ((folder / "HEAD").is_file() or (folder / "HEAD").is_symlink()) and (linked or whole)


def follow_pointer(pointer: Path) -> Path:
    """The git folder that a `.git` file names. NoRepository where it names none, or one that names another checkout."""
    text = pointer.read_text("utf-8", "surrogateescape")
    target = (pointer.parent / text.removeprefix("gitdir:").strip()).resolve()
    if not text.startswith("gitdir:") or not is_git_dir(target):
        raise NoRepository(f"{pointer} points to no repository; repair it with: git worktree repair")
    back = target / "gitdir"
    if back.is_file() and (target / back.read_text("utf-8", "surrogateescape").strip()).resolve() != pointer.resolve():
        raise NoRepository(
            f"{pointer} points to the git folder of another worktree; repair it with: git worktree repair"
        )
    return target


def find_common(git_dir: Path) -> Path:
    commondir = git_dir / "commondir"
    return (git_dir / commondir.read_text().strip()).resolve() if commondir.is_file() else git_dir


def check_owner(root: Path, git_dir: Path, safe: tuple[str, ...]) -> None:
    """git's own rule: a repository of another user is not worked on unless the user's settings say it is safe."""
    owner = git_dir.stat().st_uid
    if owner == os.geteuid() or {"*", str(root)} & set(safe):
        return
    raise ForeignRepository(
        f"The repository at {root} belongs to another user (id {owner}); if you trust it, run: "
        f"git config --global --add safe.directory {root}"
    )


def list_submodules(git: Git) -> tuple[str, ...]:
    """Paths of the submodules that HEAD holds. Their files are not carried into worktrees."""
    root = git.place.work_tree
    if root is None or not (root / ".gitmodules").is_file():
        return ()
    rows = git.run("ls-tree", "-r", "-z", "HEAD").split(b"\0")
    return tuple(os.fsdecode(row.split(b"\t", 1)[1]) for row in rows if row.startswith(b"160000 "))


def record_worktree(path: Path, git_dir: Path, key: str) -> Worktree | None:
    """A linked worktree with its wiring as it is now; None where the wiring is not whole."""
    record = read_pointers(path, git_dir)
    return None if record is None else Worktree(path, git_dir, key, record)
