"""What a killed session leaves behind: files that somebody changed since, and commands that still run."""

import os
import signal
import time
from pathlib import Path

import pytest

from actors.history import Verified, verify
from eventlog.events import EffectFinished
from eventlog.outcomes import Conflicted, OutcomeUnknown
from processes.tree import descendants, is_alive, parent, send
from tests.chaos.arena import EDIT, Arena, wait_until
from tests.chaos.invariants import check_nothing_left, check_session
from tests.chaos.scenes import call

THEIRS = "Somebody else was here.\n"


@pytest.mark.parametrize("point", ["before_run_tool:1", "before_write:1", "after_temp:1", "before_rename:1"])
def test_an_edit_does_not_overwrite_what_somebody_wrote_meanwhile(point: str, tmp_path: Path) -> None:
    with Arena(tmp_path, [{"tool_calls": [EDIT]}, {"text": "Done."}]) as arena:
        assert arena.go_on(crash_at=point).wait(60) == -signal.SIGKILL
        [file] = arena.home.glob("worktrees/*/*/a.py")
        file.write_text(THEIRS)
        assert arena.finish() == 0, arena.errors()
        assert file.read_text() == THEIRS
        outcomes = [event.body.outcome for event in arena.events() if isinstance(event.body, EffectFinished)]
        assert [outcome for outcome in outcomes if isinstance(outcome, Conflicted)]
        check_session(arena.events())
        check_nothing_left(arena.home, arena.repository, arena.survivors())


def test_a_command_whose_wrapper_died_is_over_when_the_session_goes_on(tmp_path: Path) -> None:
    """Unconfined, its processes survive both. What comes after it in the conversation must come after it in the world:
    as long as it lives its lock is held, and the session waits or ends it. Nothing else betrays it, for it has emptied
    its environment."""
    ledger, gate = tmp_path / "ledger", tmp_path / "gate"
    os.mkfifo(gate)
    script = f"echo begun >> {ledger}; read line < {gate}; echo ended >> {ledger}"
    first = f"env -i /bin/sh -c '{script}'"
    turns = [
        {"tool_calls": [call("shell", command=first)]},
        {"tool_calls": [call("shell", command=f"echo after >> {ledger}")]},
        {"text": "Done."},
    ]
    with Arena(tmp_path, turns, ("--dangerously-bypass-approvals-and-sandbox",)) as arena:
        run = arena.go_on()
        wait_until(ledger.exists, 30)
        helpers = [pid for pid in descendants(run.pid) if parent(pid) == run.pid]
        wrappers = [pid for pid in descendants(run.pid) if parent(pid) in helpers]
        tree = [pid for wrapper in wrappers for pid in descendants(wrapper)]
        assert tree
        try:
            send([run.pid, *wrappers], signal.SIGKILL)
            run.wait()
            again = arena.go_on()
            wait_until(lambda: "after" in ledger.read_text() or waits(arena), 30)
            descriptor = os.open(gate, os.O_RDWR)
            os.write(descriptor, b"go\n")
            assert again.wait(60) == 0, arena.errors()
            os.close(descriptor)
            wait_until(lambda: not any(is_alive(pid) for pid in tree), 10)
            assert arena.survivors() == []
        finally:
            send(tree, signal.SIGKILL)
        assert ledger.read_text().split() in (["begun", "after"], ["begun", "ended", "after"])
        outcomes = [event.body.outcome for event in arena.events() if isinstance(event.body, EffectFinished)]
        assert [outcome for outcome in outcomes if isinstance(outcome, OutcomeUnknown)]
        assert isinstance(verify(arena.events()), Verified)


def waits(arena: Arena) -> bool:
    """Whether the session was taken up, and does nothing for a while."""
    last = arena.events()[-1]
    return last.epoch == 2 and time.time() - last.ts_us / 1e6 > 2
