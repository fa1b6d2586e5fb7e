"""`resume --take-over`: a session whose process is stopped is taken from it, in the middle of a command that is counted
outside; and nothing else is ever ended."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_program import Place, objects, shell, wait_until

from actors.history import Verified, verify
from eventlog.events import EffectFinished, SessionOpened
from eventlog.lock import is_held, start_time
from eventlog.outcomes import OutcomeUnknown
from processes.tree import fields, is_alive

pytestmark = pytest.mark.alone("is about a session's own process")
BYPASS = "--dangerously-bypass-approvals-and-sandbox"


@pytest.fixture
def ledger(place: Place) -> Path:
    return place.folder / "ledger.txt"


def gate(place: Place) -> Path:
    return place.folder / "gate"


@pytest.fixture
def running(place: Place, ledger: Path) -> "Iterator[subprocess.Popen[str]]":
    """A session in the middle of a command whose effects nothing can take back; it goes on when `gate` is there."""
    waits = f"until [ -e {gate(place)} ]; do sleep 0.05; done"
    counted = shell(f"echo begun >> {ledger}; {waits}; echo ended >> {ledger}")
    model = place.script({"tool_calls": [counted]}, {"text": "Done."})
    run = place.start("exec", "count", "-m", model, BYPASS, "--output-format", "stream-json")
    wait_until(ledger.exists)
    yield run
    gate(place).touch()
    run.kill()
    run.communicate()


def stop(run: "subprocess.Popen[str]") -> None:
    run.send_signal(signal.SIGSTOP)
    wait_until(lambda: fields(run.pid)[:1] == [b"T"])


def test_a_stopped_session_is_refused_with_its_pid_and_the_way_to_take_it_over(
    place: Place, running: "subprocess.Popen[str]"
) -> None:
    stop(running)
    refused = place.run("resume", "--last")
    assert refused.code == 10
    assert f"process {running.pid}" in refused.err
    assert f"thalia resume {place.session()} --take-over" in refused.err
    assert fields(running.pid)[:1] == [b"T"]


@pytest.mark.parametrize("stopped", [True, False])
def test_a_session_is_taken_over_in_the_middle_of_a_command(
    place: Place, running: "subprocess.Popen[str]", ledger: Path, stopped: bool
) -> None:
    if stopped:
        stop(running)
    taking = place.start("resume", "--last", "--take-over", BYPASS, "--output-format", "json")
    shown, _ = running.communicate(timeout=60)
    assert running.returncode == -signal.SIGKILL
    gate(place).touch()
    out, err = taking.communicate(timeout=60)
    assert (taking.returncode, objects(out)[-1]["result"]) == (0, "Done."), err
    assert ledger.read_text() == "begun\nended\n"
    check_log(place, objects(shown))
    assert not is_held(place.session_folder() / "writer.lock")
    assert place.survivors() == []


def check_log(place: Place, shown: list[dict[str, object]]) -> None:
    """Whole, begins as it was shown, was opened twice, and its command was adopted: it has a known outcome."""
    events = place.events()
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.model_dump(mode="json") for event in events[: len(shown)]] == shown
    assert isinstance(verify(events), Verified)
    assert [event.body.epoch for event in events if isinstance(event.body, SessionOpened)] == [1, 2]
    outcomes = [event.body.outcome for event in events if isinstance(event.body, EffectFinished)]
    assert not any(isinstance(outcome, OutcomeUnknown) for outcome in outcomes)


def test_a_session_that_nobody_writes_is_resumed_as_ever(place: Place) -> None:
    """Its lock names a process that lives, and began at another time than the one that wrote the session."""
    model = place.script({"text": "First."}, {"text": "Second."})
    assert place.run("exec", "one", "-m", model).code == 0
    with subprocess.Popen(["sleep", "300"], env=place.env) as other:
        try:
            named = {"pid": other.pid, "started": (start_time(other.pid) or 0) - 1}
            (place.session_folder() / "writer.lock").write_text(json.dumps(named))
            done = place.run("resume", "--last", "two", "--take-over", "--output-format", "json")
            assert (done.code, objects(done.out)[-1]["result"]) == (0, "Second."), done.err
            assert is_alive(other.pid)
        finally:
            other.kill()
