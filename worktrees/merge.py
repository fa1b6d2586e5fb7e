"""Commits and merges made by the harness: pure functions of their arguments, adopted when they exist already."""

import os
from dataclasses import dataclass

from worktrees.git import Git, GitFailed
from worktrees.objects import THALIA, Identity, RefMoved, encode_commit, move_ref, read_ref, write_commit
from worktrees.repository import Repository
from worktrees.snapshot import Reached, ignore_point


@dataclass(frozen=True, slots=True)
class Merged:
    commit: str


@dataclass(frozen=True, slots=True)
class Conflict:
    """`files` sorted, `text` as git tells it (not to be parsed). `commit` has both sides as parents, and in the files
    both with markers, where they have lines."""

    files: tuple[str, ...]
    text: str
    commit: str


@dataclass(frozen=True, slots=True)
class ChangedFile:
    """`status` A, M, D, T, R or C; line counts are None for binary files; `old_path` where it was moved from."""

    path: str
    status: str
    added: int | None
    deleted: int | None
    old_path: str | None = None


def commit_work(
    repo: Repository,
    ref: str,
    tree: str,
    parent: str,
    *,
    message: str,
    author: Identity,
    now_s: int,
    call_id: str,
    reached: Reached = ignore_point,
) -> str:
    """Put a commit of `tree` on `parent` into `ref` and return its id.

    `ref` held `parent` or nothing, or has this very commit in its history already (then nothing changes).
    RefMoved otherwise.
    """
    git = repo.git
    commit = write_commit(git, encode_commit(tree, (parent,), with_trailer(message, call_id), author, now_s))
    reached("before_ref")
    try:
        move_ref(git, ref, commit, (parent, None))
    except RefMoved as moved:
        if moved.found is None or not is_ancestor(git, commit, moved.found):
            raise
    reached("after_ref")
    return commit


def merge_commit(repo: Repository, base: str, branch: str, *, now_s: int, call_id: str) -> Merged | Conflict:
    """The merge of commit `branch` into commit `base`, without a checkout and without moving a reference.

    Equal arguments give an equal commit id. `branch` already in `base`: `base` is the answer.
    """
    git = repo.git
    if is_ancestor(git, branch, base):
        return Merged(base)
    args = ("merge-tree", "--write-tree", "-z", "--name-only", "--messages", base, branch)
    done = git.attempt(*args)
    if done.code not in (0, 1):
        raise GitFailed(args, done.code, done.stderr.decode("utf-8", "replace"))
    head, _, rest = done.stdout.partition(b"\0")
    message = with_trailer(f"Merge {branch[:12]} into {base[:12]}", call_id)
    commit = write_commit(git, encode_commit(head.decode(), (base, branch), message, THALIA, now_s))
    if done.code == 0:
        return Merged(commit)
    names, _, messages = rest.partition(b"\0\0")
    files = tuple(sorted({os.fsdecode(name) for name in names.split(b"\0") if name}))
    return Conflict(files, read_messages(messages), commit)


def read_messages(fields: bytes) -> str:
    """The sentences of `merge-tree -z`: each record is a count, that many paths, a kind and the sentence."""
    parts = fields.split(b"\0")
    sentences, at = [], 0
    while at < len(parts) and parts[at].isdigit():
        end = at + int(parts[at]) + 2
        sentences += [part.decode("utf-8", "replace").strip() for part in parts[end : end + 1]]
        at = end + 1
    return "\n".join(sentences)


def advance(repo: Repository, ref: str, merged: str, base: str, reached: Reached = ignore_point) -> bool:
    """Move an integration reference from `base` to `merged`; True also when it has it already, False: queue again."""
    reached("before_ref")
    try:
        move_ref(repo.git, ref, merged, (base,))
    except RefMoved as moved:
        return moved.found is not None and is_ancestor(repo.git, merged, moved.found)
    reached("after_ref")
    return True


def with_markers(repo: Repository, commit: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `paths` in which lines of a conflict still stand."""
    if not paths:
        return ()
    args = (
        "grep",
        "-l",
        "-z",
        "-E",
        "-e",
        "^(<<<<<<<|>>>>>>>) ",
        commit,
        "--",
        *(f":(top,literal){one}" for one in paths),
    )
    done = repo.git.attempt(*args)
    if done.code not in (0, 1):
        raise GitFailed(args, done.code, done.stderr.decode("utf-8", "replace"))
    names = [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
    return tuple(sorted(name.partition(":")[2] for name in names))


def is_ancestor(git: Git, commit: str, of: str) -> bool:
    args = ("merge-base", "--is-ancestor", commit, of)
    done = git.attempt(*args)
    if done.code not in (0, 1):
        raise GitFailed(args, done.code, done.stderr.decode("utf-8", "replace"))
    return done.code == 0


def with_trailer(message: str, call_id: str) -> str:
    return f"{message.strip()}\n\nThalia-Call: {call_id}\n"


def diff(repo: Repository, a: str, b: str, paths: tuple[str, ...] = ()) -> str:
    """The patch from `a` to `b` (commits or trees) as text; bytes that are no UTF-8 are shown as replacement marks."""
    args = ("diff-tree", "-p", "-r", "-M", "--no-ext-diff", "--no-textconv", "--no-color", "--full-index", a, b)
    return repo.git.run(*args, "--", *(f":(top,literal){path}" for path in paths)).decode("utf-8", "replace")


def changed_files(repo: Repository, a: str, b: str) -> tuple[ChangedFile, ...]:
    """What `b` changes of `a`, sorted by path, moves found."""
    output = repo.git.run("diff-tree", "-r", "-z", "-M", "--raw", "--numstat", "--no-ext-diff", a, b, "--")
    fields = [os.fsdecode(field) for field in output.split(b"\0")]
    status: dict[str, tuple[str, str | None]] = {}
    at = 0
    while at < len(fields) and fields[at].startswith(":"):
        kind = fields[at].rsplit(" ", 1)[1][0]
        moved = kind in "RC"
        status[fields[at + 1 + moved]] = (kind, fields[at + 1] if moved else None)
        at += 2 + moved
    found = []
    while at < len(fields) and fields[at]:
        added, deleted, path = fields[at].split("\t", 2)
        at += 1
        if not path:
            path, at = fields[at + 1], at + 2
        kind, old_path = status[path]
        found.append(ChangedFile(path, kind, count(added), count(deleted), old_path))
    return tuple(sorted(found, key=lambda one: one.path))


def count(text: str) -> int | None:
    return None if text == "-" else int(text)


def held_commit(repo: Repository, ref: str) -> str | None:
    """What a reference holds now, by its full name."""
    return read_ref(repo.git, ref)
