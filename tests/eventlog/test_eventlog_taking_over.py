"""The process that writes a session is ended on demand: only if it is the one that the lock names, has it, and ours."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest
from eventlog_folders import fill, make, reopen, said

from eventlog.errors import CannotTakeOver
from eventlog.lock import Holder, WriterLock, is_held, read_holder, start_time
from eventlog.taking_over import end_process, end_writer

HOLD = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Of a session that nobody writes."""
    opened = make(tmp_path / "s")
    fill(opened.log, [[said("a")], [said("b")]])
    opened.close()
    return tmp_path / "s"


@contextmanager
def living(stdin: int | None = None, user: int | None = None) -> "Iterator[subprocess.Popen[bytes]]":
    """Some process."""
    with subprocess.Popen(["sleep", "300"], stdin=stdin, user=user) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def holding(folder: Path, named: Holder | None = None) -> "Iterator[subprocess.Popen[bytes]]":
    """A process that has the lock, in which it stands itself, or who is `named`."""
    lock = folder / "writer.lock"
    command, pipe = [sys.executable, "-I", "-c", HOLD, str(lock)], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"held\n"
            write(lock, named or Holder(process.pid, started(process.pid)))
            yield process
        finally:
            process.kill()


def write(lock: Path, named: Holder) -> None:
    lock.write_bytes(orjson.dumps({"pid": named.pid, "started": named.started}))


def started(pid: int) -> int:
    found = start_time(pid)
    assert found is not None
    return found


@pytest.mark.parametrize("stopped", [True, False])
def test_the_writer_is_ended_and_the_log_can_be_opened(folder: Path, stopped: bool) -> None:
    with holding(folder) as writer:
        if stopped:
            writer.send_signal(signal.SIGSTOP)
        assert end_writer(folder) == Holder(writer.pid, started(writer.pid))
        assert not is_held(folder / "writer.lock")
        assert writer.wait(10) == -signal.SIGKILL
    opened = reopen(folder)
    assert [event.body for event in opened.events] == [said("a"), said("b")]
    opened.close()


def test_nobody_is_ended_where_the_lock_is_free(folder: Path) -> None:
    with living() as other:
        write(folder / "writer.lock", Holder(other.pid, started(other.pid)))
        assert end_writer(folder) is None
        assert other.poll() is None


def test_a_process_that_got_the_pid_of_another_is_left_alone(folder: Path) -> None:
    with living() as other, holding(folder, Holder(other.pid, started(other.pid) - 1)) as writer:
        with pytest.raises(CannotTakeOver, match=f"process {other.pid}, which its lock names, does not hold it"):
            end_writer(folder)
        assert (other.poll(), writer.poll()) == (None, None)


def test_a_process_that_wrote_the_session_before_is_left_alone(folder: Path) -> None:
    with living() as other, holding(folder, Holder(other.pid, started(other.pid))) as writer:
        with pytest.raises(CannotTakeOver, match=f"process {other.pid}, which its lock names, does not hold it"):
            end_writer(folder)
        assert (other.poll(), writer.poll()) == (None, None)


def test_who_only_looks_at_the_lock_does_not_hold_it(folder: Path) -> None:
    lock = folder / "writer.lock"
    with lock.open() as looked_at, living(stdin=looked_at.fileno()) as other:
        with holding(folder, Holder(other.pid, started(other.pid))), pytest.raises(CannotTakeOver):
            end_writer(folder)
        assert other.poll() is None


def test_a_lock_that_names_nobody_is_left_to_a_person(folder: Path) -> None:
    with holding(folder) as writer:
        (folder / "writer.lock").write_bytes(b"")
        with pytest.raises(CannotTakeOver, match="does not name it"):
            end_writer(folder)
        assert writer.poll() is None


def test_a_process_never_ends_itself(folder: Path) -> None:
    lock = WriterLock(folder / "writer.lock")
    with pytest.raises(CannotTakeOver, match="the one that asks"):
        end_writer(folder)
    lock.release()


def test_a_process_of_another_user_is_left_alone(tmp_path: Path) -> None:
    """Root could end it. Whoever is not root asks about the first process, which is root's."""
    if os.getuid() != 0:
        with pytest.raises(CannotTakeOver, match="another user's"):
            end_process(Holder(1, started(1)))
        return
    with living(user=65534) as other:
        with pytest.raises(CannotTakeOver, match="another user's"):
            end_process(Holder(other.pid, started(other.pid)))
        assert other.poll() is None


def test_a_process_that_is_gone_needs_no_end() -> None:
    with living() as other:
        one = Holder(other.pid, started(other.pid))
    assert not end_process(one)


def test_a_process_that_has_only_the_pid_is_not_ended() -> None:
    with living() as other:
        assert not end_process(Holder(other.pid, started(other.pid) - 1))
        assert other.poll() is None


def test_a_lock_that_a_child_of_the_writer_keeps_is_not_waited_for_for_ever(folder: Path) -> None:
    lock = folder / "writer.lock"
    descriptor = os.open(lock, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    # Both have it, as a writer and a child that it forked would.
    with living(stdin=descriptor) as writer, living(stdin=descriptor):
        os.close(descriptor)
        write(lock, Holder(writer.pid, started(writer.pid)))
        begin = time.monotonic()
        with pytest.raises(CannotTakeOver, match="a process that it began has its lock"):
            end_writer(folder, patience_s=0.2)
        assert time.monotonic() - begin < 10
        assert writer.wait(10) == -signal.SIGKILL
    assert read_holder(lock) is not None
