"""The lock's file is removed or replaced beneath a writer: no second history, and no event that is acknowledged to be
lost."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from eventlog_folders import append, fill, make, reopen, said
from test_eventlog_lock import writer_process

from eventlog.errors import LogBusy, LogWriteFailed
from eventlog.opening import read_log
from processes.tree import is_stopped
from tests.actors.playing import wait_until

ROOT = Path(__file__).resolve().parents[2]


def remove(lock: Path) -> None:
    lock.unlink()


def replace(lock: Path) -> None:
    (lock.parent / "other").touch(mode=0o600)
    (lock.parent / "other").rename(lock)


@pytest.mark.parametrize("beneath", [remove, replace])
async def test_a_writer_whose_lock_is_gone_appends_nothing_more(
    beneath: Callable[[Path], None], tmp_path: Path
) -> None:
    opened = make(tmp_path / "s")
    await append(opened.log, [said("a")])
    beneath(tmp_path / "s" / "writer.lock")
    for _ in range(2):
        with pytest.raises(LogWriteFailed, match="was removed or replaced"):
            await append(opened.log, [said("b")])
    opened.close()
    assert [event.body for event in read_log(tmp_path / "s")] == [said("a")]


WRITES = """
import sys
from pathlib import Path
sys.path.insert(0, "tests/eventlog")
from eventlog_folders import fill, make, said
from eventlog.errors import LogWriteFailed
opened = make(Path(sys.argv[1]))
try:
    fill(opened.log, [[said("a")], [said("b")]])
except LogWriteFailed as error:
    print(error)
opened.close()
"""


def test_what_is_stored_while_the_lock_goes_is_not_acknowledged(tmp_path: Path) -> None:
    """It may be stored or not: whoever writes next has looked before or after it."""
    stops = {"THALIA_CRASH_AT": "before_commit:2", "THALIA_CRASH_SIGNAL": "STOP"}
    command = [sys.executable, "-c", WRITES, str(tmp_path / "s")]
    with subprocess.Popen(command, cwd=ROOT, env={**os.environ, **stops}, stdout=subprocess.PIPE, text=True) as writer:
        wait_until(lambda: is_stopped(writer.pid))
        remove(tmp_path / "s" / "writer.lock")
        writer.send_signal(signal.SIGCONT)
        said_then, _ = writer.communicate(timeout=30)
    assert "was removed or replaced" in said_then


@pytest.mark.parametrize("accept_damage", [False, True])
def test_a_second_writer_is_refused_all_the_same_and_changes_nothing(accept_damage: bool, tmp_path: Path) -> None:
    """The database has a lock of its own. Taken for damage and accepted, it would be replaced beneath its writer."""
    folder = tmp_path / "s"
    with writer_process(folder) as pid:
        before = [(path.name, path.stat().st_ino) for path in sorted(folder.iterdir()) if path.name != "writer.lock"]
        remove(folder / "writer.lock")
        with pytest.raises(LogBusy, match=f"process {pid}"):
            reopen(folder, accept_damage=accept_damage)
        after = [(path.name, path.stat().st_ino) for path in sorted(folder.iterdir()) if path.name != "writer.lock"]
        assert after == before
        assert [event.body for event in read_log(folder)] == [said("a"), said("b")]
        os.kill(pid, signal.SIGKILL)
    opened = reopen(folder)
    assert (len(opened.events), opened.log.epoch) == (2, 2)
    opened.close()


def test_the_next_writer_finds_all_that_was_acknowledged(tmp_path: Path) -> None:
    opened = make(tmp_path / "s")
    fill(opened.log, [[said(str(number))] for number in range(20)])
    remove(tmp_path / "s" / "writer.lock")
    with pytest.raises(LogWriteFailed):
        fill(opened.log, [[said("late")]])
    opened.close()
    again = reopen(tmp_path / "s")
    fill(again.log, [[said("next")]])
    again.close()
    assert [event.body for event in read_log(tmp_path / "s")] == [*(said(str(n)) for n in range(20)), said("next")]
