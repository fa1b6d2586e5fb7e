"""What snapshots, restores and the pool cost, beside plain git in the same run: `python -m benchmarks.git [FILES ...]`.

Prints medians in milliseconds, and the ratio to the plain way where there is one.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from worktrees.pool import Pool
from worktrees.repository import Worktree, open_repository
from worktrees.restore import restore
from worktrees.snapshot import snapshot

REF = "refs/thalia/bench/main"
WHO = ("-c", "user.name=Bench", "-c", "user.email=bench@localhost")
NOW = 1_800_000_000


def plain(folder: Path, *args: str, index: Path | None = None) -> str:
    env = {"PATH": os.defpath, "HOME": str(folder), "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    env |= {"GIT_INDEX_FILE": str(index)} if index else {}
    return (
        subprocess.run(["git", *WHO, *args], cwd=folder, env=env, capture_output=True, check=True)
        .stdout.decode()
        .strip()
    )


def make(root: Path, files: int) -> None:
    for i in range(files):
        path = root / f"d{i // 100}" / f"f{i}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{i}\n" * 50)
    plain(root, "init", "-q")
    plain(root, "add", "-A")
    plain(root, "commit", "-qm", "start")


def settle(root: Path) -> None:
    """Wait until the clock is past the second of the last write: git looks twice at files as young as its index."""
    newest = int((root / ".git").stat().st_mtime_ns // 10**9) + 2
    while time.time() < newest:
        time.sleep(0.05)


def median(times: int, call: Callable[[int], object]) -> float:
    taken = []
    for i in range(times):
        start = time.perf_counter()
        call(i)
        taken.append((time.perf_counter() - start) * 1000)
    return statistics.median(taken)


def four_processes(root: Path, index: Path) -> None:
    plain(root, "add", "-A", index=index)
    tree = plain(root, "write-tree", index=index)
    commit = plain(root, "commit-tree", "-m", "m", tree)
    plain(root, "update-ref", "refs/thalia/bench/plain", commit)


def show(files: int, what: str, ours: float, other: float | None = None) -> None:
    ratio = f"{other:9.1f} {ours / other:6.2f}" if other else f"{'':9} {'':6}"
    print(f"{files:6} {what:34} {ours:9.1f} {ratio}")


def measure(files: int, scratch: Path) -> None:
    root = scratch / "user"
    root.mkdir()
    make(root, files)
    repo = open_repository(root, {"PATH": os.environ["PATH"], "HOME": str(scratch)})
    pool = Pool(scratch / "state", repo)
    added = median(1, lambda _: plain(root, "worktree", "add", "--detach", str(scratch / "added")))
    trees: list[Worktree] = []
    show(files, "acquire, new (worktree add)", median(1, lambda _: trees.append(pool.acquire("one", repo.head))), added)
    tree = trees[0]
    settle(tree.path)
    index, parent = pool.index_path(tree), [repo.head]

    def take(_: int) -> None:
        parent[0] = snapshot(repo, tree, index, REF, parent[0], message="m", now_s=NOW).commit

    def change(i: int) -> None:
        (tree.path / "d0" / "f1.txt").write_text(f"change {i}\n")
        take(i)

    def change_plain(i: int) -> None:
        (scratch / "added" / "d0" / "f1.txt").write_text(f"change {i}\n")
        four_processes(scratch / "added", scratch / "plain.index")

    show(files, "first snapshot (four processes)", median(1, change), median(1, change_plain))
    for _ in range(2):
        change(99)
        change_plain(99)
    show(files, "snapshot, warm (four processes)", median(9, change), median(9, change_plain))
    show(files, "snapshot, nothing changed", median(9, take))
    ends = (repo.head, parent[0])
    show(files, "restore of one file", median(6, lambda i: restore(repo, tree, index, ends[i % 2])))
    pool.release(tree, now_s=NOW)

    def reuse(i: int) -> None:
        pool.acquire(f"again {i}", repo.head)

    show(files, "acquire, warm (worktree add)", median(1, reuse), added)


def main() -> None:
    print(f"{'files':>6} {'what (beside)':34} {'ms':>9} {'plain ms':>9} {'ratio':>6}")
    for files in [int(text) for text in sys.argv[1:]] or [20, 2_000, 20_000]:
        with tempfile.TemporaryDirectory(prefix="thalia-bench-") as scratch:
            measure(files, Path(scratch))


if __name__ == "__main__":
    main()
