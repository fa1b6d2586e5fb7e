"""Until a machine without the user's disk can work, beside a clone: `python -m benchmarks.bundle [FILES]`.

A repository of 20,000 files and 50 MB that do not compress. `usable`: a worktree is there and `git status` in it says
clean. Both ways write to the same disk, which is synced before each measurement. Prints the medians of five rounds in
seconds, the ratio to the plain way, and the limit where there is one.
"""

import os
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from benchmarks.git import plain
from worktrees.bundle import held_commits, make_bundle, take_bundle
from worktrees.mirror import mirror_settings, open_mirror
from worktrees.pool import Pool
from worktrees.repository import Repository, Worktree, open_repository

BYTES = 2_500
"""Of a file."""
BASE, NEXT = "refs/thalia/bench/base", "refs/thalia/bench/next"
USABLE_S, INCREMENT_S = 4.0, 0.3
ROUNDS = 5

T = TypeVar("T")


def make(root: Path, files: int) -> None:
    numbers = random.Random(1)
    for i in range(files):
        path = root / f"d{i // 100}" / f"f{i}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(numbers.randbytes(BYTES))
    plain(root, "init", "-q")
    plain(root, "add", "-A")
    plain(root, "commit", "-qm", "start")
    plain(root, "repack", "-adq")


def timed(call: Callable[[], T]) -> tuple[float, T]:
    os.sync()
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def show(what: str, seconds: list[float], others: list[float] | None = None, limit: float | None = None) -> None:
    own, other = statistics.median(seconds), statistics.median(others) if others else 0.0
    beside = f"{other:8.3f} {own / other:6.2f}" if other else f"{'':8} {'':6}"
    print(f"{what:44} {own:8.3f} {beside} {'' if limit is None else f'{limit:6.1f}'}")


def check_clean(folder: Path) -> None:
    if status := plain(folder, "status", "--porcelain"):
        raise SystemExit(f"{folder} is not clean: {status[:200]}")


class Node:
    """A folder that shares nothing with the user's."""

    def __init__(self, folder: Path, user: Repository) -> None:
        variables = {"PATH": os.environ["PATH"], "HOME": str(folder)}
        self.mirror = open_mirror(folder / "mirrors", "bench", mirror_settings(user, variables), variables)
        self.pool = Pool(folder / "state", self.mirror)

    def make_worktree(self, commit: str) -> Worktree:
        worktree = self.pool.acquire("one", commit)
        check_clean(worktree.path)
        return worktree


def clone(root: Path, folder: Path) -> None:
    plain(root, "clone", "-q", "--bare", "--no-local", str(root), str(folder / "clone.git"))
    plain(folder / "clone.git", "worktree", "add", "-q", "--detach", str(folder / "tree"), "HEAD")
    check_clean(folder / "tree")


def edit(root: Path, number: int) -> str:
    (root / "d0" / "f1.bin").write_bytes(random.Random(number + 2).randbytes(BYTES))
    plain(root, "commit", "-qam", "edit")
    return plain(root, "rev-parse", "HEAD")


@dataclass(slots=True)
class Times:
    """Seconds, one a round."""

    cloned: list[float] = field(default_factory=list)
    made: list[float] = field(default_factory=list)
    opened: list[float] = field(default_factory=list)
    taken: list[float] = field(default_factory=list)
    added: list[float] = field(default_factory=list)
    usable: list[float] = field(default_factory=list)
    fetched: list[float] = field(default_factory=list)
    more_made: list[float] = field(default_factory=list)
    more_taken: list[float] = field(default_factory=list)
    increment: list[float] = field(default_factory=list)
    sizes: tuple[int, int] = (0, 0)


def round_of(root: Path, scratch: Path, number: int, times: Times) -> None:
    """Both ways from nothing, and an edit after it; who comes first takes turns."""
    user = open_repository(root, {"PATH": os.environ["PATH"], "HOME": str(scratch)})

    def plain_way() -> None:
        times.cloned.append(timed(lambda: clone(root, scratch))[0])

    def our_way() -> Node:
        made, bundle = timed(lambda: make_bundle(user, {BASE: user.head}, ()))
        opened, node = timed(lambda: Node(scratch / "node", user))
        taken, _ = timed(lambda: take_bundle(node.mirror, bundle, {BASE: None}))
        added, _ = timed(lambda: node.make_worktree(user.head))
        for own, one in ((times.made, made), (times.opened, opened), (times.taken, taken), (times.added, added)):
            own.append(one)
        times.usable.append(made + opened + taken + added)
        times.sizes = (len(bundle), 0)
        return node

    if number % 2:
        plain_way()
    node = our_way()
    if not number % 2:
        plain_way()
    commit = edit(root, number)
    times.fetched.append(timed(lambda: plain(scratch / "clone.git", "fetch", "-q", "origin", commit))[0])
    made, bundle = timed(lambda: make_bundle(user, {NEXT: commit}, held_commits(node.mirror)))
    taken, _ = timed(lambda: take_bundle(node.mirror, bundle, {NEXT: None}))
    times.more_made.append(made)
    times.more_taken.append(taken)
    times.increment.append(made + taken)
    times.sizes = (times.sizes[0], len(bundle))


def measure(files: int, scratch: Path) -> None:
    root, times = scratch / "user", Times()
    root.mkdir()
    make(root, files)
    for number in range(ROUNDS):
        with tempfile.TemporaryDirectory(dir=scratch) as own:
            round_of(root, Path(own), number, times)
    show(f"bundle of {times.sizes[0] / 1e6:.1f} MB: made", times.made)
    show("mirror made", times.opened)
    show("bundle taken", times.taken)
    show("worktree made, clean", times.added)
    show("usable (clone --no-local, worktree add)", times.usable, times.cloned, USABLE_S)
    show(f"increment of {times.sizes[1]} bytes: made", times.more_made)
    show("increment taken", times.more_taken)
    show("increment (fetch)", times.increment, times.fetched, INCREMENT_S)
    print(f"most memory of this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


def main() -> None:
    print(f"{'what (beside)':44} {'s':>8} {'plain s':>8} {'ratio':>6} {'limit':>6}")
    for files in [int(text) for text in sys.argv[1:]] or [20_000]:
        with tempfile.TemporaryDirectory(prefix="thalia-bench-") as scratch:
            measure(files, Path(scratch))


if __name__ == "__main__":
    main()
