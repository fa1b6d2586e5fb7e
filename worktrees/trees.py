"""Commits of files that stand in a plain folder: a tree that no worktree has now."""

import os
from collections.abc import Sequence
from pathlib import Path

from configs.scratch import scratch
from worktrees.objects import encode_commit, write_commit
from worktrees.repository import Repository
from worktrees.snapshot import THALIA, PrivateIndex


def commit_files(
    repo: Repository, base: str, folder: Path, paths: Sequence[str], *, message: str, now_s: int = 0
) -> str:
    """A commit on `base` in which each of `paths` is as in `folder`, byte for byte; one that is not there is deleted.

    No reference holds it: the caller's next ref does.
    """
    with scratch("index") as own:
        index = PrivateIndex(repo.git, own / "index")
        index.run("read-tree", base)
        entries: list[bytes] = []
        for path in paths:
            file = folder / path
            name = os.fsencode(path)
            if not file.is_symlink() and not file.is_file():
                entries.append(b"0 " + b"0" * 40 + b"\t" + name)
                continue
            mode = "100755" if os.access(file, os.X_OK) else "100644"
            blob = index.run("hash-object", "-w", "--no-filters", "--stdin", input=file.read_bytes()).strip()
            entries.append(mode.encode() + b" " + blob + b"\t" + name)
        index.run("update-index", "-z", "--index-info", input=b"".join(entry + b"\0" for entry in entries))
        tree = index.run("write-tree").decode().strip()
    return write_commit(repo.git, encode_commit(tree, (base,), message, THALIA, now_s))
