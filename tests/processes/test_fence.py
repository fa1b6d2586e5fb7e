"""Whoever was replaced performs nothing, and is ended where he sleeps in the middle of it."""

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from running import command, finished, text_of, until

from processes import fence
from processes.commands import Lease, Superseded
from processes.runner import Runner, inspect
from processes.tree import boot_us, is_alive, is_stopped

ROOT = Path(__file__).resolve().parents[2]
PERFORM = """
import os, signal, subprocess, sys
from processes import fence
path, signal_name, child = sys.argv[1:]
with fence.performing(path, 1):
    own = child and subprocess.Popen(
        ["sleep", "300"], stdout=subprocess.DEVNULL, start_new_session=child == "command"
    )
    print(own.pid if own else 0, flush=True)
    os.kill(os.getpid(), getattr(signal, signal_name)) if signal_name else sys.stdin.readline()
print("done", flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    found = str(tmp_path / "scout.lease")
    fence.take(found, 1)
    return found


@contextlib.contextmanager
def performer(path: str, stops_by: str = "", child: str = "") -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """A process in the middle of an effect, and the child that does it for him."""
    process = subprocess.Popen(
        [sys.executable, "-c", PERFORM, path, stops_by, child],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    child_pid = int(process.stdout.readline())
    try:
        yield process, child_pid
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
        if child_pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child_pid, signal.SIGKILL)


def test_only_the_number_in_the_file_performs(path: str) -> None:
    with fence.performing(path, 1), fence.performing(path, 1):
        pass
    fence.take(path, 2)
    with fence.performing(path, 2):
        pass
    for late in (1, 3):
        with pytest.raises(fence.Superseded), fence.performing(path, late):
            raise AssertionError("performed")
    with pytest.raises(fence.Superseded):
        fence.renew(path, 1)


@pytest.mark.parametrize("number", [1, 2])
def test_a_number_that_was_used_is_not_taken_again(number: int, path: str) -> None:
    fence.take(path, 2)
    with pytest.raises(fence.Superseded):
        fence.take(path, number)
    fence.take(path, 3)


def test_without_its_file_nobody_performs(path: str) -> None:
    Path(path).unlink()
    with pytest.raises(fence.Superseded), fence.performing(path, 1):
        raise AssertionError("performed")


def test_renewing_moves_the_time_of_the_file(path: str) -> None:
    os.utime(path, (1, 1))
    fence.renew(path, 1)
    assert Path(path).stat().st_mtime > 1


def test_whoever_is_performing_is_waited_for(path: str) -> None:
    with performer(path) as (process, _):
        fence_taken = subprocess.Popen(
            [sys.executable, "-c", f"from processes import fence; fence.take({path!r}, 2, 60)"], cwd=ROOT
        )
        until(lambda: Path(f"/proc/{fence_taken.pid}/fd").exists() and opens(fence_taken.pid, path))
        assert process.stdin is not None and process.stdout is not None and fence_taken.poll() is None
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
        assert (process.wait(20), fence_taken.wait(20)) == (0, 0)


def opens(pid: int, path: str) -> bool:
    with contextlib.suppress(OSError):
        return any(str(entry.readlink()) == path for entry in Path(f"/proc/{pid}/fd").iterdir())
    return False


def test_whoever_sleeps_in_the_middle_of_it_is_ended_at_once(path: str) -> None:
    with performer(path, stops_by="SIGSTOP") as (process, _):
        until(lambda: is_stopped(process.pid))
        began = time.monotonic()
        fence.take(path, 2, patience_s=60)
        assert time.monotonic() - began < 10
        assert process.wait(20) == -signal.SIGKILL


def test_whoever_does_not_come_to_an_end_is_ended_after_a_while(path: str) -> None:
    with performer(path) as (process, _):
        fence.take(path, 2, patience_s=0.1)
        assert process.wait(20) == -signal.SIGKILL


@pytest.mark.parametrize(("child", "lives"), [("git", False), ("command", True)])
def test_what_performs_for_him_ends_with_him_and_his_commands_live(child: str, lives: bool, path: str) -> None:
    """git would go on writing; a command is in a session of its own and is waited for by the replacement."""
    with performer(path, stops_by="SIGSTOP", child=child) as (process, child_pid):
        until(lambda: is_stopped(process.pid))
        fence.take(path, 2)
        process.wait(20)
        if not lives:
            until(lambda: not is_alive(child_pid))
        assert is_alive(child_pid) == lives


async def test_a_command_of_a_superseded_lease_is_not_started(
    runner: Runner, work: Path, call_dir: Path, path: str
) -> None:
    wanted = replace(command("echo on", work), lease=Lease(Path(path), 60, 1))
    assert finished(await runner.run(call_dir, wanted)).exit_code == 0
    fence.take(path, 2)
    late = call_dir.with_name("late")
    with pytest.raises(Superseded, match="was replaced"):
        await runner.run(late, wanted)
    assert not (late / "start").exists()
    again = replace(wanted, lease=Lease(Path(path), 60, 2))
    assert finished(await runner.run(late, again)).exit_code == 0
    assert text_of(late) == "on\n"


async def test_a_lease_counts_from_the_looks_and_not_from_the_clock(
    runner: Runner, work: Path, call_dir: Path, path: str
) -> None:
    """As after the clock was set: the file seems to be a year old, or of next year."""
    for number, years in enumerate((-1, 1)):
        when = time.time() + years * 365 * 86400
        os.utime(path, (when, when))
        folder = call_dir.with_name(f"c{number}")
        soon = replace(command("sleep 0.3; echo on", work), lease=Lease(Path(path), 60))
        assert finished(await runner.run(folder, soon)).exit_code == 0
        never = replace(command("sleep 300", work), lease=Lease(Path(path), 0.3))
        assert finished(await runner.run(folder.with_name(f"n{number}"), never)).cancelled
        assert str(inspect(folder)).startswith("Done")


# Leases that end by themselves


def soon(seconds: float) -> int:
    return boot_us() + int(seconds * 1e6)


def test_nobody_performs_once_the_lease_has_ended_until_it_is_extended(path: str) -> None:
    fence.take(path, 2, end_us=soon(-1))
    with pytest.raises(fence.RanOut), fence.performing(path, 2):
        raise AssertionError("performed")
    fence.extend(path, 2, soon(60))
    with fence.performing(path, 2):
        pass
    fence.take(path, 3, end_us=soon(-1))
    fence.take(path, 4)
    with fence.performing(path, 4):
        pass
    assert Path(path).read_bytes() == b"%020d" % 4


def test_only_the_present_incarnation_extends_its_lease(path: str) -> None:
    fence.take(path, 2, end_us=soon(60))
    before = fence.look(path)
    with pytest.raises(fence.Superseded):
        fence.extend(path, 1, soon(600))
    assert fence.look(path) == before


def test_who_extends_a_lease_while_it_is_taken_does_not_write_into_another_s(path: str) -> None:
    end_us = soon(60)
    with ThreadPoolExecutor() as other:
        with open(path, "rb+", buffering=0) as taker:
            fcntl.flock(taker, fcntl.LOCK_EX)
            late = other.submit(fence.extend, path, 1, soon(600))
            until(lambda: waits_for(path))
            taker.write(b"%020d%020d" % (2, end_us))
        with pytest.raises(fence.Superseded):
            late.result(20)
    assert fence.look(path)[1] == end_us


def waits_for(path: str) -> bool:
    """Whether somebody waits for a lock of the file."""
    inode = f":{Path(path).stat().st_ino} "
    return any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


async def test_a_command_ends_with_the_lease_that_the_file_names_and_goes_on_with_one_that_is_extended(
    runner: Runner, work: Path, call_dir: Path, path: str
) -> None:
    end_us = soon(0.5)
    fence.take(path, 2, end_us=end_us)
    wanted = replace(command("sleep 300", work), lease=Lease(Path(path), 60, 2))
    ended = finished(await runner.run(call_dir, wanted))
    assert ended.cancelled and end_us <= boot_us() < end_us + 5_000_000
    first, other = soon(2), call_dir.with_name("c2")
    fence.extend(path, 2, first)
    os.mkfifo(work / "go")
    running = asyncio.ensure_future(runner.run(other, replace(wanted, text="read line < go; echo $line")))
    await asyncio.to_thread(until, (other / "start").exists)
    fence.extend(path, 2, soon(60))
    await asyncio.to_thread(until, lambda: boot_us() > first + 300_000)
    (work / "go").write_text("on\n")
    assert finished(await running).exit_code == 0 and text_of(other) == "on\n"


async def test_no_command_is_started_under_a_lease_that_has_ended(
    runner: Runner, work: Path, call_dir: Path, path: str
) -> None:
    """As by one that slept between its last look and its command."""
    fence.take(path, 2, end_us=soon(-1))
    with pytest.raises(Superseded):
        await runner.run(call_dir, replace(command("echo on", work), lease=Lease(Path(path), 60, 2)))
    assert not (call_dir / "start").exists()
