"""A pool of detached worktrees under the state folder: the same key gives the same worktree, crash or not.

Each worktree has a record file, written before the folder is made and after each change of owner. Nothing that is
in no reference is ever deleted: it is saved under refs/thalia/lost/ first, or the folder is kept and named.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from eventlog.blobs import sync_folder
from worktrees.durable import make_folders, sync_below, sync_plain
from worktrees.git import Git, GitError, GitFailed
from worktrees.objects import read_ref
from worktrees.records import Record, hold_record, is_at_work, read_records, wait_released, write_record
from worktrees.repository import Repository, Worktree, record_worktree
from worktrees.snapshot import PrivateIndex, Reached, commit_of, ignore_point, snapshot, tree_of

WARM = 10
"""Free worktrees that wait for an owner: for eight agents, their session, and the check of what they make. With 20,000
files a new one takes 1.2 s and a warm one 0.1 s."""


class WorktreeUnknown(GitError):
    pass


@dataclass(frozen=True, slots=True)
class Released:
    """`state`: "pooled" (warm, for the next one), "retired" (gone) or "kept" (untouched, `reason` says why).
    `saved` is the reference under which work that was nowhere else now is."""

    key: str
    state: Literal["pooled", "retired", "kept"]
    saved: tuple[str, ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True)
class GcReport:
    """Keys, sorted; of a warm worktree its name. `phantoms` are administrative folders whose worktree is gone."""

    reclaimed: tuple[str, ...]
    kept: tuple[Released, ...]
    saved: tuple[str, ...]
    phantoms: tuple[str, ...]
    live: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pool:
    """Worktrees of one repository. `bound` names folders that others bind into worktrees: cleaning leaves them."""

    state_dir: Path
    repo: Repository
    bound: tuple[str, ...] = (".venv", "node_modules")

    @property
    def folder(self) -> Path:
        digest = hashlib.sha256(os.fsencode(self.repo.common_dir)).hexdigest()[:12]
        return self.state_dir / "worktrees" / digest

    def acquire(self, key: str, base: str, *, now_s: int = 0, reached: Reached = ignore_point) -> Worktree:
        """The worktree of `key`, as it was left; a new one is detached at commit `base` and clean.

        `now_s` dates what has to be saved when something stands in the way.
        """
        while True:
            with self._locked():
                record = self._find(key)
                if record is not None and record.state in {"ready", "kept"}:
                    worktree = record.worktree()
                    if worktree is not None and worktree.path.is_dir():
                        write_record(self.folder, replace(record, state="ready", reason=""))
                        return worktree
                record, handle = self._claim(record, key, base, now_s)
            if handle is None:
                wait_released(self.folder, record)
            elif worktree := self._make(record, handle, reached):
                return worktree

    def adopt(self, key: str) -> Worktree | None:
        """The worktree that `key` has, None when it has none."""
        record = self._find(key)
        return record.worktree() if record is not None and record.state in {"ready", "kept"} else None

    def index_path(self, worktree: Worktree) -> Path:
        """Where the private index of a worktree is."""
        return self.folder / f"{worktree.path.name}.index"

    def release(self, worktree: Worktree, *, now_s: int, retire: bool = False) -> Released:
        """Give a worktree back. What is in no reference is saved first; a second call says "retired"."""
        with self._locked():
            record = self._find(worktree.key)
            if record is None or record.path != str(worktree.path) or is_at_work(self.folder, record):
                return Released(worktree.key, "retired")
            return self._release(record, now_s, retire or self._count_free() >= WARM)

    def gc(self, live: frozenset[str] | set[str], *, now_s: int) -> GcReport:
        """Reclaim all that no living key owns. One warm worktree stays for the next."""
        with self._locked():
            results, alive = [], []
            for record in self.records():
                if record.state == "free":
                    if self._count_free() > 1:
                        results.append(replace(self._release(record, now_s, retire=True), key=record.name))
                elif record.key in live or is_at_work(self.folder, record):
                    alive.append(record.key)
                else:
                    results.append(self._release(record, now_s, self._count_free() > 0))
            phantoms, saved = self._clear_phantoms(now_s)
            self.empty_trash()
        return GcReport(
            reclaimed=tuple(sorted(one.key for one in results if one.state != "kept")),
            kept=tuple(one for one in results if one.state == "kept"),
            saved=(*(ref for one in results for ref in one.saved), *saved),
            phantoms=phantoms,
            live=tuple(sorted(alive)),
        )

    def records(self) -> list[Record]:
        """All worktrees that were ever begun and not retired, by name."""
        return read_records(self.folder)

    def empty_trash(self) -> None:
        """Delete retired folders; may run beside all else."""
        shutil.rmtree(self.folder / "trash", ignore_errors=True)

    def _claim(self, record: Record | None, key: str, base: str, now_s: int) -> tuple[Record, int | None]:
        """A record, of a warm worktree or of a new one, that nobody else touches until the handle is closed. `record`
        is the one that the key has; it comes back without a handle where another is just making its worktree."""
        if record is not None and is_at_work(self.folder, record):
            return record, None
        if record is not None and record.state != "resetting":
            self._retire(record, now_s)
            record = None
        warm = record or next((one for one in self.records() if one.state == "free"), None)
        if warm is not None and warm.pointers is not None:
            claimed = replace(warm, key=key, base=base, state="resetting", reason="")
        else:
            name = self._new_name(key)
            path, git_dir = self.folder / name, self.repo.common_dir / "worktrees" / name
            claimed = Record(name, key, "adding", base, str(path), str(git_dir))
        write_record(self.folder, claimed)
        return claimed, hold_record(self.folder, claimed)

    def _make(self, record: Record, handle: int, reached: Reached) -> Worktree | None:
        """None where a warm worktree was not whole; it is thrown away then. Closes the handle."""
        try:
            worktree = record.worktree()
            if worktree is None:
                return self._add(record, reached)
            if self._reset(record, worktree, reached):
                return self._own(record)
            with self._locked():
                self._discard(record)
            return None
        finally:
            os.close(handle)

    def _add(self, record: Record, reached: Reached) -> Worktree:
        reached("before_add")
        commit, path = commit_of(self.repo.git, record.base), Path(record.path)
        # git fails where it comes upon another worktree whose wiring is half written, so that is done one at a time.
        # Detached, so no branch is made and no tracking written.
        with self._locked():
            self.repo.git.run("worktree", "add", "--quiet", "--detach", "--no-checkout", "--", record.path, commit)
        path.chmod(0o700)
        self.repo.at(self._wired(record)).run("reset", "--quiet", "--hard")
        reached("after_add")
        return self._own(record)

    def _reset(self, record: Record, worktree: Worktree, reached: Reached) -> bool:
        """A warm worktree moved to its new base; False where it is not whole."""
        reached("before_reset")
        git = self.repo.at(worktree)
        try:
            (worktree.git_dir / "index.lock").unlink(missing_ok=True)
            git.run("checkout", "--quiet", "--detach", "--force", commit_of(git, record.base), "--")
            git.run("clean", "-ffdxq", *(f"--exclude=/{name}" for name in self.bound))
        except (GitError, OSError):
            return False
        self.index_path(worktree).unlink(missing_ok=True)
        reached("after_reset")
        return True

    def _own(self, record: Record) -> Worktree:
        worktree = self._wired(record)
        # Its wiring is not made again after a loss of power, as its files are.
        sync_below(worktree.git_dir)
        sync_plain(worktree.path / ".git")
        for folder in (worktree.git_dir.parent, self.repo.common_dir, worktree.path):
            sync_folder(folder)
        assert worktree.record is not None
        parts = (worktree.record.git_file, worktree.record.commondir, worktree.record.gitdir)
        first, second, third = (part.decode("utf-8", "surrogateescape") for part in parts)
        with self._locked():
            write_record(self.folder, replace(record, state="ready", pointers=(first, second, third)))
        return worktree

    def _wired(self, record: Record) -> Worktree:
        worktree = record_worktree(Path(record.path), Path(record.git_dir), record.key)
        if worktree is None:
            raise WorktreeUnknown(f"git made no whole worktree at {record.path}; run: thalia gc")
        return worktree

    def _release(self, record: Record, now_s: int, retire: bool) -> Released:
        worktree = record.worktree()
        if record.state in {"adding", "resetting"} or worktree is None:
            self._discard(record)
            return Released(record.key, "retired")
        if not worktree.path.is_dir():
            return self._retire(record, now_s)
        try:
            saved, left = self._save(worktree, record.base, now_s)
        except GitError as failure:
            left, saved = str(failure), ()
        if left:
            write_record(self.folder, replace(record, state="kept", reason=left))
            return Released(record.key, "kept", saved, left)
        if retire:
            self._discard(record)
            return Released(record.key, "retired", saved)
        write_record(self.folder, replace(record, key="", state="free"))
        return Released(record.key, "pooled", saved)

    def _save(self, worktree: Worktree, base: str, now_s: int) -> tuple[tuple[str, ...], str]:
        """(references that now hold what nothing held, what cannot be saved)."""
        git = self.repo.at(worktree)
        head = git.run("rev-parse", "--verify", "HEAD^{commit}").decode().strip()
        saved = keep_commit(git, head, f"refs/thalia/lost/{worktree.path.name}-head")
        index = PrivateIndex(git, self.index_path(worktree))
        names, skipped = index.scan()
        index.update(names)
        tree = index.run("write-tree").decode().strip()
        if tree not in {tree_of(git, base), tree_of(git, head)} and not self._is_held(git, tree):
            ref = free_ref(git, f"refs/thalia/lost/{worktree.path.name}-work")
            snapshot(
                self.repo,
                worktree,
                index.path,
                ref,
                head,
                message=f"Left in the worktree of {worktree.key}",
                now_s=now_s,
            )
            saved = (*saved, ref)
        left = [f"{item.path} ({item.reason})" for item in skipped]
        return saved, f"not in any snapshot: {', '.join(left[:10])}" if left else ""

    def _is_held(self, git: Git, tree: str) -> bool:
        """Whether a reference of ours or a branch holds exactly this tree at its tip."""
        trees = git.run("for-each-ref", "--format=%(tree)", "refs/thalia/", "refs/heads/")
        return tree.encode() in trees.split()

    def _retire(self, record: Record, now_s: int) -> Released:
        """For a worktree whose folder is gone, or that was never whole: its HEAD is kept, its traces go."""
        if Path(record.path).is_dir() and record.state not in {"adding", "resetting"}:
            return self._release(record, now_s, retire=True)
        saved = self._keep_head(Path(record.git_dir), record.name)
        self._discard(record)
        return Released(record.key, "retired", saved)

    def _keep_head(self, git_dir: Path, name: str) -> tuple[str, ...]:
        head = ""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            head = (git_dir / "HEAD").read_text().strip()
        # A name of a branch, no commit yet, or what a loss of power left of a file that git does not sync: zeros.
        if re.fullmatch("[0-9a-f]{40,64}", head) is None or set(head) <= {"0"}:
            return ()
        with contextlib.suppress(GitFailed):
            return keep_commit(self.repo.git, head, f"refs/thalia/lost/{name}-head")
        return ()

    def _discard(self, record: Record) -> None:
        """Move the folder out of the way and forget it: rename first, so that a crash leaves no half worktree."""
        trash = self.folder / "trash"
        trash.mkdir(mode=0o700, exist_ok=True)
        spot = next(trash / f"{record.name}-{i}" for i in range(10_000) if not (trash / f"{record.name}-{i}").exists())
        with contextlib.suppress(FileNotFoundError):
            Path(record.path).rename(spot)
        self._forget_admin(Path(record.git_dir))
        for suffix in (".index", ".index.note", ".json"):
            (self.folder / f"{record.name}{suffix}").unlink(missing_ok=True)

    def _forget_admin(self, git_dir: Path) -> None:
        """Remove an administrative folder of ours; `git worktree prune` would take those of the user too."""
        if git_dir.parent == self.repo.common_dir / "worktrees" and git_dir.is_dir():
            (git_dir / "locked").unlink(missing_ok=True)
            shutil.rmtree(git_dir)

    def _clear_phantoms(self, now_s: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
        known = {record.git_dir for record in self.records()}
        gone, saved = [], []
        for git_dir in sorted((self.repo.common_dir / "worktrees").glob("*")):
            with contextlib.suppress(OSError):
                pointer = Path((git_dir / "gitdir").read_text("utf-8", "surrogateescape").strip())
                if self.folder in pointer.parents and str(git_dir) not in known and not pointer.exists():
                    saved += self._keep_head(git_dir, git_dir.name)
                    self._forget_admin(git_dir)
                    gone.append(git_dir.name)
        return tuple(gone), tuple(saved)

    def _count_free(self) -> int:
        return sum(record.state == "free" for record in self.records())

    def _find(self, key: str) -> Record | None:
        return next((one for one in self.records() if one.key == key and one.state != "free"), None)

    def _new_name(self, key: str) -> str:
        stem = f"thalia-{hashlib.sha256(key.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}"
        admin = self.repo.common_dir / "worktrees"
        names = (stem if i == 0 else f"{stem}-{i}" for i in range(10_000))
        # Nor one in the trash: a git that outlived its caller may still be writing there.
        for name in names:
            spots = (self.folder / f"{name}.json", admin / name, self.folder / "trash" / f"{name}-0")
            if not any(spot.exists() for spot in spots):
                return name
        raise WorktreeUnknown(f"Too many worktrees in {self.folder}; run: thalia gc")

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        for folder in (self.state_dir, self.state_dir / "worktrees", self.folder):
            make_folders(folder, 0o700)
        if self.repo.root in self.folder.resolve().parents:
            raise GitError(
                f"The state folder {self.state_dir} is inside the checkout; set THALIA_HOME to another place."
            )
        handle = os.open(self.folder / "pool.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def keep_commit(git: Git, commit: str, ref: str) -> tuple[str, ...]:
    """() when a reference reaches `commit`; else the new reference that holds it."""
    if git.run("for-each-ref", "--count=1", "--format=%(refname)", f"--contains={commit}").strip():
        return ()
    name = free_ref(git, ref)
    git.run("update-ref", "--no-deref", name, commit, "0" * len(commit))
    return (name,)


def free_ref(git: Git, ref: str) -> str:
    names = (ref if i == 0 else f"{ref}-{i}" for i in range(10_000))
    return next(name for name in names if read_ref(git, name) is None)
