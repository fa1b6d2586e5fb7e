"""Worktrees are made at the same time as others, but the one of a key by one at a time, whoever dies meanwhile."""

import fcntl
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event

import pytest
from repositories import NOW, content, make_pool

from worktrees.pool import Pool
from worktrees.repository import Worktree

PATIENCE_S = 60.0
POINTS = ("before_add", "after_add", "before_reset", "after_reset")


@dataclass(slots=True)
class Stop:
    """A `reached` that stops at a point until it is let go."""

    point: str
    there: Event = field(default_factory=Event)
    go: Event = field(default_factory=Event)

    def __call__(self, name: str) -> None:
        if name == self.point:
            self.there.set()
            assert self.go.wait(PATIENCE_S)


@contextmanager
def stopped(pool: Pool, point: str) -> Iterator["tuple[Stop, Future[Worktree]]"]:
    """Somebody makes the worktree of `one`, and is at this point."""
    stop = Stop(point)
    with ThreadPoolExecutor() as threads:
        making = threads.submit(pool.acquire, "one", pool.repo.head, reached=stop)
        assert stop.there.wait(PATIENCE_S)
        try:
            yield stop, making
        finally:
            stop.go.set()


def pool_for(tmp_path: Path, point: str) -> Pool:
    """Where one worktree is warm if the point is one of a reset."""
    pool = make_pool(tmp_path)
    if point.endswith("reset"):
        pool.release(pool.acquire("before", pool.repo.head), now_s=NOW)
    return pool


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def is_waited_for(pool: Pool) -> bool:
    """Whether somebody waits for the one worktree that is being made."""
    [record] = [one for one in pool.records() if one.key == "one"]
    return is_locked_out(pool.folder / f"{record.name}.json")


def is_locked_out(file: Path) -> bool:
    """Whether somebody waits for a lock of this file."""
    number = f":{file.stat().st_ino} "
    return any("->" in line and number in line for line in Path("/proc/locks").read_text().splitlines())


@pytest.mark.parametrize("point", POINTS)
def test_others_are_made_while_one_is_being_made(tmp_path: Path, point: str) -> None:
    pool = pool_for(tmp_path, point)
    with stopped(pool, point) as (stop, making):
        other = pool.acquire("other", pool.repo.head)
        assert not making.done()
        assert content(other.path) == content(pool.repo.root)
        assert pool.release(other, now_s=NOW).state == "pooled"
        stop.go.set()
        assert content(making.result().path) == content(pool.repo.root)


def test_git_does_not_come_upon_another_worktree_whose_wiring_is_half_written(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    half = pool.repo.common_dir / "worktrees" / "half"
    with stopped(pool, "before_add") as (stop, making), (pool.folder / "pool.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        half.mkdir(parents=True)
        for name, text in (("gitdir", f"{tmp_path}/half/.git\n"), ("HEAD", pool.repo.head), ("commondir", "")):
            (half / name).write_text(text)
        stop.go.set()
        wait_until(lambda: is_locked_out(Path(lock.name)) or making.done())
        shutil.rmtree(half)
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert content(making.result().path) == content(pool.repo.root)


@pytest.mark.parametrize("point", POINTS)
def test_who_wants_the_same_one_waits_until_it_is_made(tmp_path: Path, point: str) -> None:
    pool = pool_for(tmp_path, point)
    with stopped(pool, point) as (stop, making), ThreadPoolExecutor() as threads:
        second = threads.submit(pool.acquire, "one", pool.repo.head)
        wait_until(lambda: is_waited_for(pool))
        stop.go.set()
        assert second.result() == making.result() == pool.adopt("one")
    assert [record.state for record in pool.records()] == ["ready"]


@pytest.mark.parametrize("point", POINTS)
def test_gc_leaves_one_alone_that_is_being_made(tmp_path: Path, point: str) -> None:
    pool = pool_for(tmp_path, point)
    with stopped(pool, point) as (stop, making):
        report = pool.gc(set(), now_s=NOW)
        assert (report.live, report.reclaimed, report.phantoms) == (("one",), (), ())
        stop.go.set()
        assert content(making.result().path) == content(pool.repo.root)


@pytest.mark.parametrize("point", POINTS)
def test_who_waits_for_one_that_dies_makes_it(tmp_path: Path, point: str) -> None:
    pool = pool_for(tmp_path, point)
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            pool.acquire("one", pool.repo.head, reached=lambda name: wait_for_death(tell) if name == point else None)
        os._exit(1)
    try:
        assert os.read(told, 1) == b"x"
        with ThreadPoolExecutor() as threads:
            second = threads.submit(pool.acquire, "one", pool.repo.head)
            wait_until(lambda: is_waited_for(pool))
            os.kill(child, signal.SIGKILL)
            assert content(second.result().path) == content(pool.repo.root)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert [record.state for record in pool.records()] == ["ready"]
    os.close(told)
    os.close(tell)


def wait_for_death(tell: int) -> None:
    os.write(tell, b"x")
    while True:
        signal.pause()


def test_a_record_that_was_half_written_by_one_who_died_goes_with_the_next(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    pool.acquire("one", pool.repo.head)
    (pool.folder / ".record.draft").write_text('{"name": "tha')
    pool.acquire("two", pool.repo.head)
    assert sorted(record.key for record in pool.records()) == ["one", "two"]
    assert list(pool.folder.glob(".*")) == []


def test_a_worktree_is_found_while_others_come_and_go(tmp_path: Path) -> None:
    pool = make_pool(tmp_path)
    own = pool.acquire("one", pool.repo.head)
    going = [pool.acquire(f"other {number}", pool.repo.head) for number in range(12)]

    def come_and_go() -> None:
        for worktree in going:
            pool.release(worktree, now_s=NOW, retire=True)

    with ThreadPoolExecutor() as threads:
        others = threads.submit(come_and_go)
        while not others.done():
            assert pool.adopt("one") == own
        others.result()
