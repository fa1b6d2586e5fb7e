"""Bring a session's result to the user's checkout as uncommitted changes: plan first, then write, always forward.

HEAD, branch and index of the user stay as they are. No write goes through a symbolic link.
"""

import contextlib
import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from worktrees.carry import snapshot_checkout
from worktrees.git import GitError
from worktrees.objects import read_ref
from worktrees.repository import Repository, Worktree
from worktrees.restore import files_below
from worktrees.snapshot import PrivateIndex, Reached, ignore_point, is_reserved

LINK, PROGRAM, GITLINK = "120000", "100755", "160000"
PROTECTED_NAMES = frozenset({".envrc", ".mcp.json"})


class MergeOverlap(GitError):
    """A file changed between plan and apply; `paths` names it. What was written before stays; plan again."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self.paths = paths
        super().__init__(f"{', '.join(paths)} changed while the merge was applied; look at it and merge again.")


@dataclass(frozen=True, slots=True)
class FileChange:
    """From blob `pre` to blob `post` (None: no such file); `mode` is that of `post`, "" for a deletion."""

    path: str
    pre: str | None
    post: str | None
    mode: str
    pre_mode: str = ""


@dataclass(frozen=True, slots=True)
class MergePlan:
    """`changes` sorted, those that are there already included; `left_out`: protected names and submodules."""

    changes: tuple[FileChange, ...]
    old_head: str
    base: str
    result: str
    left_out: tuple[str, ...]
    overlaps: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refused:
    reason: str
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Applied:
    """Paths written or removed now, paths that were there already, and the commit of the files before."""

    written: tuple[str, ...]
    already: tuple[str, ...]
    saved: str


@dataclass(frozen=True, slots=True)
class Found:
    """What is at a path now: `kind` "none", "file", "link", "folder" or "blocked" (a parent is no folder)."""

    kind: str
    blob: str | None = None
    program: bool = False
    digest: str = ""


def plan_merge(repo: Repository, session_base: str, result: str) -> MergePlan | Refused:
    """What takes the user's checkout from `session_base` (their files at the start) to `result`.

    Refused with the names where a file is now neither what it was nor what it becomes.
    """
    root = repo.checkout.path
    changes, left_out = list_changes(repo, session_base, result)
    going = {change.path for change in changes if change.post is None}
    found = look(repo, changes)
    overlaps = [c.path for c in changes if not is_post(c, found[c.path]) and not is_pre(root, c, found, going)]
    if overlaps:
        return Refused(
            "These files changed in your checkout since the session started; save or undo them first.", tuple(overlaps)
        )
    head = repo.git.run("rev-parse", "--verify", "HEAD^{commit}").decode().strip()
    return MergePlan(changes, head, session_base, result, left_out)


def apply_merge(
    repo: Repository,
    plan: MergePlan,
    session: str,
    scratch: Path,
    *,
    call_id: str,
    now_s: int,
    reached: Reached = ignore_point,
) -> Applied:
    """Write the plan. Killed anywhere and called again with the same `call_id` it goes on where it was.

    First the user's files are saved as refs/thalia/<session>/pre-merge/<call_id>. `scratch`: a folder of ours (0700)
    for drafts. MergeOverlap where a file is neither old nor new any more.
    """
    ref = f"refs/thalia/{session}/pre-merge/{call_id}"
    saved = read_ref(repo.git, ref)
    if saved is None:
        taken = snapshot_checkout(
            repo, scratch / "pre-merge.index", ref, message=f"Before merge {call_id}", now_s=now_s
        )
        saved = taken.commit
    reached("after_save")
    found = look(repo, plan.changes)
    going = {change.path for change in plan.changes if change.post is None}
    pending = [change for change in plan.changes if not is_post(change, found[change.path])]
    if overlaps := tuple(c.path for c in pending if not is_pre(repo.root, c, found, going)):
        raise MergeOverlap(overlaps)
    ordered = sorted(pending, key=lambda c: (c.post is not None, c.path))
    with drafts(scratch / f"merge-{call_id}") as staging:
        materialise(repo, pending, staging)
        for change in ordered:
            write_change(repo.root, change, found[change.path], staging, reached)
    written = tuple(sorted(change.path for change in ordered))
    return Applied(written, tuple(c.path for c in plan.changes if c.path not in set(written)), saved)


@contextlib.contextmanager
def drafts(folder: Path) -> Iterator[Path]:
    """A new folder, gone afterwards; so is what a killed attempt of the same merge left there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def list_changes(repo: Repository, a: str, b: str) -> tuple[tuple[FileChange, ...], tuple[str, ...]]:
    """(changes that may be brought over, names left out), both sorted by path."""
    fields = repo.git.run("diff-tree", "-r", "-z", "--raw", "--no-renames", "--full-index", a, b, "--").split(b"\0")
    changes, left_out = [], []
    for meta, name in zip(fields[0::2], fields[1::2], strict=False):
        pre_mode, mode, pre, post, _ = meta.decode().lstrip(":").split(" ")
        path = os.fsdecode(name)
        if GITLINK in (pre_mode, mode) or is_protected(path):
            left_out.append(path)
            continue
        gone, new = set(mode) == {"0"}, set(pre_mode) == {"0"}
        changes.append(
            FileChange(
                path, None if new else pre, None if gone else post, "" if gone else mode, "" if new else pre_mode
            )
        )
    return tuple(sorted(changes, key=lambda c: c.path)), tuple(sorted(left_out))


def is_protected(path: str) -> bool:
    """Names that programs load and run by themselves, in any case and any folder, and paths that leave the tree."""
    parts = [part.casefold() for part in path.split("/")]
    loaded = parts[-1] in PROTECTED_NAMES or parts[-2:] == [".vscode", "tasks.json"] or ".thalia" in parts
    return loaded or is_reserved(path) or bool({"", ".", ".."} & set(parts))


def look(repo: Repository, changes: tuple[FileChange, ...]) -> dict[str, Found]:
    """What is at each path of the checkout now; blobs as `git add` would make them, so line endings do not matter."""
    found: dict[str, Found] = {}
    plain: list[str] = []
    for change in changes:
        found[change.path] = look_at(repo.root, change.path)
        if found[change.path].kind == "file":
            plain.append(change.path)
    simple = [name for name in plain if not {"\n", "\r"} & set(name) and name[0] != '"']
    lines = b"".join(os.fsencode(name) + b"\n" for name in simple)
    blobs = repo.git.run("hash-object", "--stdin-paths", input=lines).split() if simple else []
    for name, blob in zip(simple, blobs, strict=True):
        found[name] = with_blob(found[name], blob)
    for name in set(plain) - set(simple):
        found[name] = with_blob(found[name], repo.git.run("hash-object", "--", f"./{name}").strip())
    links = [change.path for change in changes if found[change.path].kind == "link"]
    for name in links:
        text = os.fsencode((repo.root / name).readlink())
        found[name] = with_blob(found[name], repo.git.run("hash-object", "--stdin", input=text).strip())
    return found


def with_blob(found: Found, blob: bytes) -> Found:
    return Found(found.kind, blob.decode(), found.program, found.digest)


def look_at(root: Path, name: str) -> Found:
    path = root / name
    for parent in list(path.relative_to(root).parents)[:-1]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if not stat.S_ISDIR((root / parent).lstat().st_mode):
                return Found("blocked", str(parent))
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return Found("none")
    if stat.S_ISLNK(mode):
        return Found("link", digest=digest_of(path))
    if stat.S_ISREG(mode):
        return Found("file", None, bool(mode & stat.S_IXUSR), digest_of(path))
    return Found("folder" if stat.S_ISDIR(mode) else "blocked")


def digest_of(path: Path) -> str:
    """Of the raw bytes: what is compared again right before a rename."""
    if path.is_symlink():
        return hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def is_post(change: FileChange, found: Found) -> bool:
    if change.post is None:
        return found.kind in {"none", "blocked", "folder"}
    kind = "link" if change.mode == LINK else "file"
    return found.kind == kind and found.blob == change.post and found.program == (change.mode == PROGRAM)


def is_pre(root: Path, change: FileChange, found: dict[str, Found], going: set[str]) -> bool:
    """Whether the old content is there, or the new one with another mode, or only what this plan takes away."""
    now = found[change.path]
    if now.kind == "folder":
        return change.post is not None and all(name in going for name in files_below(root, root / change.path))
    if now.kind == "blocked":
        return change.pre is None and now.blob in going
    if now.kind == "none":
        return change.pre is None
    was_link = LINK in (change.pre_mode, change.mode if now.blob == change.post else "")
    return now.blob in {change.pre, change.post} and (now.kind == "link") == was_link


def materialise(repo: Repository, changes: list[FileChange], staging: Path) -> None:
    """The new files as a checkout would write them (line endings), by their place in the list."""
    rows = [
        f"{change.mode} {change.post}\t".encode() + os.fsencode(change.path) + b"\0"
        for change in changes
        if change.post
    ]
    if not rows:
        return
    index = PrivateIndex(repo.at(Worktree(repo.root, repo.git_dir)), staging / ".git-index")
    index.run("update-index", "-z", "--index-info", input=b"".join(rows))
    index.run("checkout-index", "--all", "--force", f"--prefix={staging / 'files'}/")


def write_change(root: Path, change: FileChange, before: Found, staging: Path, reached: Reached) -> None:
    """One file: draft beside it, fsync, compare once more, rename, fsync the folder. Never through a link."""
    folder, base = open_folder(root, change.path)
    try:
        draft = f".thalia-{hashlib.sha256(os.fsencode(base)).hexdigest()[:16]}.draft"
        if change.post is not None:
            write_draft(folder, draft, staging / "files" / change.path, change.mode)
            keep_permissions(folder, draft, base, change)
        reached("before_rename")
        if not still_is(root / change.path, before):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=folder)
            raise MergeOverlap((change.path,))
        if change.post is None:
            os.unlink(base, dir_fd=folder)
        else:
            remove_hollow(root / change.path)
            os.rename(draft, base, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)
        reached("after_rename")
    finally:
        os.close(folder)
    if change.post is None:
        remove_empty_parents(root, change.path)


def still_is(path: Path, before: Found) -> bool:
    if before.kind in {"file", "link"}:
        with contextlib.suppress(OSError):
            return path.is_symlink() == (before.kind == "link") and digest_of(path) == before.digest
        return False
    return not path.is_symlink() and not path.is_file()


def open_folder(root: Path, name: str) -> tuple[int, str]:
    """(descriptor of the folder that holds `name`, its last part); folders are made where they are missing."""
    *parents, base = name.split("/")
    at = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for part in parents:
        with contextlib.suppress(FileExistsError):
            os.mkdir(part, dir_fd=at)
            os.fsync(at)
        try:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        except OSError as failure:
            raise MergeOverlap((name,)) from failure
        finally:
            os.close(at)
        at = below
    return at, base


def write_draft(folder: int, draft: str, source: Path, mode: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft, dir_fd=folder)
    if mode == LINK:
        os.symlink(source.readlink(), draft, dir_fd=folder)
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    handle = os.open(draft, flags, 0o777 if mode == PROGRAM else 0o666, dir_fd=folder)
    with open(handle, "wb") as out:
        out.write(source.read_bytes())
        out.flush()
        os.fsync(out.fileno())


def keep_permissions(folder: int, draft: str, base: str, change: FileChange) -> None:
    """A file that only changes content keeps the permissions that the user gave it."""
    if change.mode != change.pre_mode or change.mode == LINK:
        return
    with contextlib.suppress(FileNotFoundError):
        at = os.stat(base, dir_fd=folder, follow_symlinks=False)
        os.chmod(draft, stat.S_IMODE(at.st_mode), dir_fd=folder)


def remove_hollow(path: Path) -> None:
    """A folder without files that stands where a file goes."""
    if path.is_dir() and not path.is_symlink():
        for at, folders, _ in os.walk(path, topdown=False):
            for folder in (*folders, "."):
                with contextlib.suppress(OSError):
                    Path(at, folder).rmdir()


def remove_empty_parents(root: Path, name: str) -> None:
    for parent in list((root / name).relative_to(root).parents)[:-1]:
        try:
            (root / parent).rmdir()
        except OSError:
            return
