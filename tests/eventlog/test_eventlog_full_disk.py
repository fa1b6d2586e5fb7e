"""A full disk: one clear refusal, nothing acknowledged is lost, and freed space lets the session go on. G43."""

import asyncio
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from eventlog_folders import append, make, reopen, said

from eventlog.errors import LogWriteFailed
from eventlog.opening import Opened


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """3 MB. Needs root; the limit on file sizes below stands in for it elsewhere."""
    target = tmp_path / "disk"
    target.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m,mode=700", "tmpfs", str(target)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    try:
        yield target
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)


def fill_up(opened: Opened, text: str) -> int:
    """Append one by one until it fails. Returns how many were acknowledged."""

    async def run() -> int:
        count = 0
        while True:
            try:
                await append(opened.log, [said(text, count)])
            except LogWriteFailed as error:
                assert "cannot be written" in str(error)
                assert "nothing was started" in str(error)
                with pytest.raises(LogWriteFailed):
                    await append(opened.log, [said("later")])
                return count
            count += 1

    return asyncio.run(run())


@pytest.mark.parametrize("length", [700, 12_000], ids=["events", "large events"])
def test_on_a_full_disk_every_acknowledged_event_is_kept(small_disk: Path, length: int) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * 700_000)
    opened = make(small_disk / "s")
    acknowledged = fill_up(opened, "x" * length)
    assert acknowledged > 10
    opened.close()
    ballast.unlink()
    again = reopen(small_disk / "s")
    assert [event.body for event in again.events][:acknowledged] == [said("x" * length, n) for n in range(acknowledged)]
    assert len(again.events) <= acknowledged + 1
    assert asyncio.run(append(again.log, [said("after")]))[0].seq == len(again.events) + 1
    again.close()


def test_a_blob_that_does_not_fit_stops_the_log_and_leaves_nothing_half_written(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"\0" * 700_000)
    opened = make(small_disk / "s")

    async def run() -> int:
        count = 0
        while True:
            try:
                await append(opened.log, [said(f"{count}" + "x" * 100_000, count)])
            except LogWriteFailed:
                return count
            count += 1

    acknowledged = asyncio.run(run())
    assert acknowledged > 2
    opened.close()
    assert not list((small_disk / "s" / "blobs").rglob(".*"))
    ballast.unlink()
    again = reopen(small_disk / "s")
    assert len(again.events) == acknowledged
    again.close()


def test_a_session_that_cannot_be_made_says_so(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"\0" * (3 * 1024 * 1024 - 64 * 1024))
    with pytest.raises(LogWriteFailed, match="cannot be written"):
        make(small_disk / "s")


def test_a_limit_on_file_sizes_is_a_full_disk_too(tmp_path) -> None:
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read_end)
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            opened = make(tmp_path / "s")
            resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
            os.write(write_end, b"%d" % fill_up(opened, "x" * 700))
            status = 0
        finally:
            os._exit(status)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        acknowledged = int(pipe.read())
    assert os.waitpid(child, 0)[1] == 0
    assert acknowledged > 10
    opened = reopen(tmp_path / "s")
    assert acknowledged <= len(opened.events) <= acknowledged + 1
    opened.close()
