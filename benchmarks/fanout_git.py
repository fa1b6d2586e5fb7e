"""The parts of benchmarks/fanout.py that need no daemon: worktrees made at once, and merges."""

import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from multiprocessing.synchronize import Barrier
from pathlib import Path

from actors.fan_files import prepare_merge
from actors.files import SessionFiles, open_files
from benchmarks.fanout_work import Options, many_files, pack, plain_git, run_git, show_count
from benchmarks.quiet import Figure, show, wait_quiet
from configs.settings import read_environment
from eventlog.effects import PrepareMerge
from eventlog.ids import AgentId, CallId, Commit, SessionId
from eventlog.outcomes import MergePrepared
from worktrees.git import GitError
from worktrees.pool import Pool
from worktrees.repository import open_repository
from worktrees.sample import make_repository

Way = Callable[[Path, int], tuple[int, float]]
"""Makes so many worktrees of the repository in a folder. (How many failed, ms)."""
PROCESSES = 8
SMALLER = 100
"""A repository of so many times fewer files where dozens of worktrees are made: of 20,000 each they would fill a
disk."""


def many(chosen: Options) -> None:
    """Worktrees that are all wanted at the same moment, from a pool that has none. The peer: as many plain `git
    worktree add -b` at once, each begun with origin/main, as it is and with --no-track. All in clones, as most are."""
    count, files = chosen.at_once, max(chosen.files // SMALLER, 1)
    print(f"{count} worktrees at once, {files} files each")
    ways: dict[str, Way] = {
        "git worktree add -b NAME PATH origin/main": add_plainly,
        "the same with --no-track": partial(add_plainly, more=("--no-track",)),
        f"the pool, {count} threads": in_threads,
        f"the pool, {PROCESSES} processes": in_processes,
    }
    figures, failed = {name: Figure(name) for name in ways}, Counter[str]()
    with tempfile.TemporaryDirectory(prefix="thalia-bench-") as temporary:
        origin = Path(temporary, "origin")
        make_repository(origin, many_files(files))
        for number in range(max(chosen.rounds // 2, 1)):
            for index, (name, make) in enumerate(ways.items()):
                folder = Path(temporary, f"{number}-{index}")
                run_git(origin, "clone", "--quiet", str(origin), str(folder / "repo"))
                load = wait_quiet()
                broken, ms = make(folder, count)
                figures[name].add(ms, load)
                failed[name] += broken
    plain, without, *ours = figures.values()
    show((plain, without, *ours), without)
    for figure in (plain, without):
        print(f"{figure.name + ': failed':<50} {failed[figure.name]:8d}     of {count * len(figure.values):6d}")
    for figure in ours:
        show_count(f"{figure.name}: failed", failed[figure.name], count * len(figure.values))


def add_plainly(folder: Path, count: int, more: Sequence[str] = ()) -> tuple[int, float]:
    def add(number: int) -> bool:
        path = folder / f"plain-{number}"
        options = ("--quiet", *more, "-b", f"b{number}")
        done = plain_git(folder / "repo", "worktree", "add", *options, str(path), "origin/main")
        return done.returncode == 0 and is_whole(path)

    begin = time.perf_counter()
    with ThreadPoolExecutor(count) as threads:
        made = list(threads.map(add, range(count)))
    return made.count(False), (time.perf_counter() - begin) * 1000


def in_threads(folder: Path, count: int) -> tuple[int, float]:
    begin = time.perf_counter()
    failed = acquire_all(folder, [f"k{number}" for number in range(count)])
    return failed, (time.perf_counter() - begin) * 1000


def in_processes(folder: Path, count: int) -> tuple[int, float]:
    """A share of them each, in threads; from when all have imported what they need."""
    spawn, share = multiprocessing.get_context("spawn"), count // PROCESSES
    start, results = spawn.Barrier(PROCESSES + 1), spawn.SimpleQueue()
    shares = [[f"k{number}-{item}" for item in range(share)] for number in range(PROCESSES)]
    children = [spawn.Process(target=acquire_share, args=(start, results, folder, keys)) for keys in shares]
    for child in children:
        child.start()
    start.wait()
    begin = time.perf_counter()
    for child in children:
        child.join()
    ms = (time.perf_counter() - begin) * 1000
    # One that died has told nothing.
    told = [results.get() for child in children if child.exitcode == 0]
    return sum(told) + share * (PROCESSES - len(told)), ms


def acquire_share(
    start: Barrier, results: "multiprocessing.SimpleQueue[int]", folder: Path, keys: Sequence[str]
) -> None:
    start.wait()
    results.put(acquire_all(folder, keys))


def acquire_all(folder: Path, keys: Sequence[str]) -> int:
    """A thread each. How many failed."""
    repository = open_repository(folder / "repo")
    pool = Pool(folder / "state", repository)

    def acquire(key: str) -> bool:
        with suppress(GitError, OSError):
            return is_whole(pool.acquire(key, repository.head).path)
        return False

    with ThreadPoolExecutor(len(keys)) as threads:
        return list(threads.map(acquire, keys)).count(False)


def is_whole(path: Path) -> bool:
    return (path / ".git").is_file() and plain_git(path, "status", "--porcelain").stdout == ""


def merge(chosen: Options) -> None:
    """PrepareMerge of a branch that changes one file, onto one that changes another. The peer: git merge-tree alone."""
    with tempfile.TemporaryDirectory(prefix="thalia-bench-") as name:
        folder = Path(name)
        root = folder / "repo"
        make_repository(root, many_files(chosen.files))
        pack(root)
        onto, work = (
            commit_change(root, "d0/f0.py"),
            commit_change(root, "d0/f1.py"),
        )
        files = open_files(SessionId("s1"), root, folder / "state", folder, read_environment().variables)
        peer = Figure("git merge-tree --write-tree, alone")
        ours = Figure("PrepareMerge", 15)
        for number in range(chosen.merges):
            load = wait_quiet(0.5)
            peer.add(timed(lambda: run_git(root, "merge-tree", "--write-tree", onto, work)), load)
            ours.add(timed(lambda number=number: prepare(files, onto, work, number)), load)
    show((peer, ours), peer)


def prepare(files: SessionFiles, onto: Commit, work: Commit, at_s: int) -> None:
    """Each has its time, so none finds the commit of the one before."""
    effect = PrepareMerge(agent=AgentId("f1-1"), work=work, onto=onto, at_s=at_s)
    made = prepare_merge(files, CallId("f1-1_m1"), effect)
    assert isinstance(made, MergePrepared)


def commit_change(root: Path, path: str) -> Commit:
    """A commit on the first one, in which this file is another."""
    run_git(root, "checkout", "--quiet", "--detach", "main")
    (root / path).write_text("changed\n")
    run_git(root, "add", path)
    run_git(root, "commit", "--quiet", "-m", f"Change {path}")
    return Commit(run_git(root, "rev-parse", "HEAD"))


def timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1000
