"""Commit objects and references written in-process: a git process costs 2.9 ms, this a tenth of it.

Knows the loose object format and the files reference backend; where a repository uses another backend
(reftable) the git command does the work.
"""

import contextlib
import hashlib
import os
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from eventlog.blobs import sync_folder
from worktrees.durable import make_folders, sync_objects
from worktrees.git import Git, GitError

STALE_LOCK_S = 3.0


class RefMoved(GitError):
    """A reference holds something else than expected; `found` is what."""

    def __init__(self, ref: str, expected: str | None, found: str | None) -> None:
        self.ref, self.expected, self.found = ref, expected, found
        super().__init__(f"{ref} moved to {found} while {expected} was expected; look at it and try again.")


@dataclass(frozen=True, slots=True)
class Identity:
    name: str
    email: str

    def encode(self) -> bytes:
        """The form of a commit header; characters that git forbids there are dropped."""
        keep = [
            part.translate({ord(c): None for c in "<>\n\r\0"}).strip(" .,:;\"'") for part in (self.name, self.email)
        ]
        return f"{keep[0] or 'unknown'} <{keep[1]}>".encode("utf-8", "replace")


THALIA = Identity("Thalia", "thalia@localhost")


def encode_commit(tree: str, parents: tuple[str, ...], message: str, author: Identity, now_s: int) -> bytes:
    """The body of a commit object: a pure function of its arguments. Time in seconds, zone UTC."""
    lines = [f"tree {tree}".encode(), *(f"parent {parent}".encode() for parent in parents)]
    lines += [b"author " + author.encode() + f" {now_s} +0000".encode()]
    lines += [b"committer " + THALIA.encode() + f" {now_s} +0000".encode()]
    text = message.replace("\0", "").strip("\n").encode("utf-8", "replace")
    return b"\n".join(lines) + b"\n\n" + text + b"\n"


def write_object(common_dir: Path, kind: str, body: bytes, algorithm: str = "sha1") -> str:
    """Store a loose object, durable but for its name, and return its id; one that exists is left as it is."""
    raw = f"{kind} {len(body)}\0".encode() + body
    name = hashlib.new(algorithm, raw, usedforsecurity=False).hexdigest()
    target = common_dir / "objects" / name[:2] / name[2:]
    if target.exists():
        return name
    target.parent.mkdir(exist_ok=True)
    # Agents that do the same at the same time store the same object, each in a thread.
    draft = target.parent / f"tmp_obj_{os.getpid()}_{threading.get_native_id()}_{name[2:14]}"
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    with open(handle, "wb") as out:
        out.write(zlib.compress(raw, 1))
        out.flush()
        os.fsync(out.fileno())
    draft.rename(target)
    return name


def write_commit(git: Git, body: bytes) -> str:
    """Durable on return, with all that was written into the repository for it."""
    algorithm = git.settings().local.get("extensions.objectformat", "sha1")
    commit = write_object(git.place.common_dir, "commit", body, algorithm)
    sync_objects(git.place.common_dir, git.synced)
    return commit


def read_ref(git: Git, ref: str) -> str | None:
    """The id that a full reference name holds, None where it does not exist."""
    if uses_other_backend(git):
        done = git.attempt("rev-parse", "--verify", "--quiet", "--end-of-options", ref)
        return done.stdout.decode().strip() or None
    loose = git.place.common_dir / check_ref(ref)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return loose.read_text().strip() or None
    with contextlib.suppress(FileNotFoundError):
        wanted = b" " + os.fsencode(ref)
        for line in (git.place.common_dir / "packed-refs").read_bytes().splitlines():
            if line.endswith(wanted) and not line.startswith((b"#", b"^")):
                return line.split(b" ", 1)[0].decode()
    return None


def move_ref(git: Git, ref: str, new: str, old: tuple[str | None, ...]) -> None:
    """Set `ref` to `new` if it holds one of `old` (None: does not exist) or `new` already. RefMoved otherwise.

    Durable on return. Atomic against other writers by git's own lock file; a lock that nobody ended within 3 s is of a
    dead process.
    """
    if uses_other_backend(git):
        found = read_ref(git, ref)
        if found != new and found not in old:
            raise RefMoved(ref, old[0] if old else None, found)
        git.run("update-ref", "--no-deref", ref, new, found or "0" * len(new))
        return
    target = git.place.common_dir / check_ref(ref)
    lock = target.with_name(target.name + ".lock")
    handle = take_lock(lock)
    try:
        found = read_ref(git, ref)
        if found != new and found not in old:
            raise RefMoved(ref, old[0] if old else None, found)
        if found == new:
            # Whoever set it may have ended before this.
            sync_folder(target.parent)
            return
        os.write(handle, f"{new}\n".encode())
        os.fsync(handle)
        lock.rename(target)
        sync_folder(target.parent)
    finally:
        os.close(handle)
        with contextlib.suppress(FileNotFoundError):
            lock.unlink()


def delete_ref(git: Git, ref: str, old: str) -> None:
    """Remove a reference that holds `old`. GitFailed where it holds something else."""
    git.run("update-ref", "--no-deref", "-d", check_ref(ref), old)


def take_lock(lock: Path) -> int:
    deadline = time.monotonic() + STALE_LOCK_S
    seen: tuple[int, int] | None = None
    while True:
        make_folders(lock.parent)
        try:
            return os.open(lock, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            pass
        with contextlib.suppress(FileNotFoundError):
            at = lock.stat()
            if seen != (at.st_ino, at.st_mtime_ns):
                seen, deadline = (at.st_ino, at.st_mtime_ns), time.monotonic() + STALE_LOCK_S
            elif time.monotonic() > deadline:
                lock.unlink()
                continue
        time.sleep(0.005)


def check_ref(ref: str) -> str:
    """A full reference name that is safe as a path below the repository. ValueError otherwise."""
    parts = ref.split("/")
    bad = any(not part or part.startswith(".") or part.endswith((".lock", ".")) or ".." in part for part in parts)
    if parts[0] != "refs" or len(parts) < 3 or bad or any(c in " ~^:?*[\\" or ord(c) < 33 or c == "\x7f" for c in ref):
        raise ValueError(f"{ref!r} is no full reference name")
    return ref


def uses_other_backend(git: Git) -> bool:
    return git.settings().local.get("extensions.refstorage", "files") != "files"
