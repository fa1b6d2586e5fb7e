"""One writer a session: the second is refused with the first one's pid; death gives the lock back."""

import os
import signal
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from eventlog_folders import append, fill, make, reopen, said

from eventlog.errors import LogBusy, LogNotFound, LogUnsafe
from eventlog.lock import WriterLock, is_held, read_holder, start_time
from eventlog.opening import read_log


@contextmanager
def writer_process(folder: Path) -> Iterator[int]:
    """A process that holds the log open until it is killed."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            opened = make(folder)
            fill(opened.log, [[said("a")], [said("b")]])
            os.write(write_end, b"ready")
            signal.pause()
        finally:
            os._exit(1)
    os.close(write_end)
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        assert pipe.read(5) == b"ready"
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_second_writer_is_refused_with_the_pid_of_the_first(tmp_path) -> None:
    with writer_process(tmp_path / "s") as pid:
        begin = time.monotonic()
        with pytest.raises(LogBusy, match=f"process {pid}") as caught:
            reopen(tmp_path / "s")
        assert time.monotonic() - begin < 2
        assert caught.value.pid == pid
        holder = read_holder(tmp_path / "s" / "writer.lock")
        assert holder is not None
        assert (holder.pid, holder.started) == (pid, start_time(pid))


def test_a_copy_is_readable_while_another_process_writes(tmp_path) -> None:
    with writer_process(tmp_path / "s"):
        assert [event.body for event in read_log(tmp_path / "s")] == [said("a"), said("b")]


def test_the_death_of_a_writer_gives_the_lock_back(tmp_path) -> None:
    with writer_process(tmp_path / "s"):
        assert is_held(tmp_path / "s" / "writer.lock")
    assert not is_held(tmp_path / "s" / "writer.lock")
    opened = reopen(tmp_path / "s")
    assert len(opened.events) == 2
    opened.close()


def test_looking_whether_it_is_held_never_makes_a_writer_fail(tmp_path) -> None:
    path = tmp_path / "writer.lock"
    WriterLock(path).release()
    looking = os.fork()
    if looking == 0:
        while True:
            is_held(path)
    try:
        for _ in range(500):
            WriterLock(path).release()
    finally:
        os.kill(looking, signal.SIGKILL)
        os.waitpid(looking, 0)


def test_a_child_that_inherits_the_lock_does_not_keep_it(tmp_path) -> None:
    lock = WriterLock(tmp_path / "writer.lock")
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        lock.release()
        WriterLock(tmp_path / "writer.lock").release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_folder_that_is_not_there_or_not_private_is_refused(tmp_path) -> None:
    with pytest.raises(LogNotFound, match="no session nothing"):
        reopen(tmp_path / "nothing")
    make(tmp_path / "s").close()
    (tmp_path / "s").chmod(0o750)
    for read in (reopen, read_log):
        with pytest.raises(LogUnsafe, match="chmod 700"):
            read(tmp_path / "s")


async def test_all_is_private_under_an_open_umask(tmp_path) -> None:
    """G21. The WAL too, at any moment."""
    before = os.umask(0)
    try:
        opened = make(tmp_path / "state" / "sessions" / "s")
        assert_private(tmp_path / "state")
        for _ in range(3):
            await append(opened.log, [said("x" * 40_000), said("a")])
            assert_private(tmp_path / "state")
            opened.log.checkpoint()
        opened.close()
        reopen(tmp_path / "state" / "sessions" / "s").close()
        (tmp_path / "state" / "sessions" / "s" / "head").unlink()
        damaged = reopen(tmp_path / "state" / "sessions" / "s", accept_damage=True)
        await append(damaged.log, [said("b")])
        assert_private(tmp_path / "state")
        damaged.close()
        assert_private(tmp_path / "state")
    finally:
        os.umask(before)


def assert_private(folder: Path) -> None:
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.rglob("*"))}
    assert {path: mode for path, mode in modes.items() if mode != (0o700 if path.is_dir() else 0o600)} == {}


def test_a_log_that_is_just_being_made_has_nothing_to_read_yet(tmp_path) -> None:
    make(tmp_path / "new").close()
    (tmp_path / "new" / "log.duckdb").write_bytes(b"half")
    with pytest.raises(LogNotFound, match=r"^Session new has no event yet; ask again in a moment\.$"):
        read_log(tmp_path / "new")
