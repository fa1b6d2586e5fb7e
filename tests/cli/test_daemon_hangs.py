"""A process of the daemon that is stopped, and does not die: it is replaced, unless all of them were asleep."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_program import EDIT, objects, shell, wait_until
from daemon_machine import Machine, machine

from actors.history import Verified, verify
from eventlog.events import EffectFinished, Event, SessionOpened, TurnEnded
from processes.tree import fields, is_alive, send

pytestmark = pytest.mark.xdist_group("daemon-hangs")
LIMIT_S = 3.0
UNTIL_GATE = "until [ -e gate ]; do sleep 0.05; done"
ALONE = {"THALIA_DAEMON": "off"}


def counted(seconds: float) -> tuple[dict[str, object], ...]:
    return counting(f"sleep {seconds}")


def counting(waits: str) -> tuple[dict[str, object], ...]:
    command = shell(f"echo ran >> count.txt; {waits}; echo ended >> count.txt")
    return {"tool_calls": [EDIT]}, {"tool_calls": [command]}, {"text": "Done."}


@pytest.fixture(scope="module")
def computer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("machine"), {"THALIA_HUNG_S": str(LIMIT_S)}) as one:
        assert one.run("up").code == 0
        yield one


@pytest.fixture
def fresh(computer: Machine) -> Iterator[Machine]:
    yield computer
    computer.put_aside()


def open_gate(fresh: Machine) -> None:
    [worktree] = fresh.worktrees()
    (worktree / "gate").touch()


def stop(*pids: int) -> None:
    send(pids, signal.SIGSTOP)
    wait_until(lambda: all(fields(pid)[:1] == [b"T"] for pid in pids))


def check_whole(fresh: Machine, opened: int | None = None) -> tuple[Event, ...]:
    """`opened`: how often, where that is certain."""
    events = fresh.events()
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert isinstance(verify(events), Verified)
    assert opened in (None, sum(isinstance(event.body, SessionOpened) for event in events))
    state = fresh.state()
    assert state.worktree is not None
    assert (Path(state.worktree.path) / "count.txt").read_text() == "ran\nended\n"
    return events


def test_a_session_whose_process_is_stopped_goes_on_in_another(fresh: Machine) -> None:
    """After the limit, and what it takes after a death: how long that is, a benchmark measures."""
    run = fresh.start("exec", "count", "-m", fresh.script(*counted(3)), "--output-format", "stream-json")
    fresh.wait_started("sleep 3")
    host, stopped_us = fresh.host(), time.time_ns() // 1000
    stop(host)
    out, err = run.communicate(timeout=90)
    *shown, last = objects(out)
    assert (run.returncode, last["state"]) == (0, "done"), err
    assert not is_alive(host)
    fresh.wait_over()
    events = check_whole(fresh, opened=2)
    assert [event["seq"] for event in shown] == [event.seq for event in events]
    again_us = next(event.ts_us for event in events if event.ts_us > stopped_us)
    assert LIMIT_S / 2 < (again_us - stopped_us) / 1e6 < 30


def test_a_session_goes_on_when_its_process_is_stopped_and_the_gateway_dies(fresh: Machine) -> None:
    """So that nobody knows who hosts it."""
    run = fresh.start("exec", "count", "-m", fresh.script(*counted(1)), "--output-format", "json")
    fresh.wait_started("sleep 1")
    host = fresh.host()
    stop(host)
    fresh.kill("gateway")
    out, err = run.communicate(timeout=90)
    assert (run.returncode, objects(out)[-1]["state"]) == (0, "done"), err
    assert not is_alive(host)
    fresh.wait_over()
    check_whole(fresh, opened=2)


def test_a_gateway_that_is_stopped_is_replaced_and_the_sessions_stay_where_they_are(fresh: Machine) -> None:
    run = fresh.start("exec", "count", "-m", fresh.script(*counted(4)), "--output-format", "stream-json")
    fresh.wait_started("sleep 4")
    [gateway] = fresh.find("gateway")
    stop(gateway)
    out, err = run.communicate(timeout=90)
    *shown, last = objects(out)
    assert (run.returncode, last["state"]) == (0, "done"), err
    assert not is_alive(gateway)
    fresh.wait_over()
    events = check_whole(fresh)
    # Opened again, if at all, when it had ended, to tell how to whoever watched.
    assert {event.epoch for event in events if isinstance(event.body, EffectFinished | TurnEnded)} == {1}
    once = [event for event in events if event.epoch == 1]
    assert [event["seq"] for event in shown][: len(once)] == [event.seq for event in once]


def test_a_machine_that_was_asleep_replaces_nothing(fresh: Machine) -> None:
    """All of the daemon is stopped for longer than the limit, but for the command, which is not of it."""
    fresh.run("exec", "count", "-m", fresh.script(*counted(1.5 * LIMIT_S)), "--detach")
    fresh.wait_started(f"sleep {1.5 * LIMIT_S}")
    [supervisor], [gateway], host = fresh.find("supervisor"), fresh.find("gateway"), fresh.host()
    stop(host)
    # So that somebody waits for its answer while all fall asleep.
    begin = time.monotonic()
    wait_until(lambda: time.monotonic() > begin + LIMIT_S / 4)
    stop(gateway, supervisor)
    [worktree] = fresh.worktrees()
    wait_until(lambda: (worktree / "count.txt").read_text().endswith("ended\n"))
    for pid in (supervisor, gateway, host):
        os.kill(pid, signal.SIGCONT)
    fresh.wait_over()
    check_whole(fresh, opened=1)
    assert (fresh.find("supervisor"), fresh.find("gateway"), fresh.host()) == ([supervisor], [gateway], host)


def test_a_session_that_runs_is_taken_from_its_process_on_demand(fresh: Machine) -> None:
    """It lives and answers. Whoever watches sees each event once, and nothing is done twice. Only the daemon can do
    that: of another process it would take the session back."""
    run = fresh.start("exec", "count", "-m", fresh.script(*counting(UNTIL_GATE)), "--output-format", "stream-json")
    fresh.wait_started(UNTIL_GATE)
    host = fresh.host()
    refused = fresh.run("resume", "--last", "--take-over", "--no-daemon")
    assert (refused.code, "runs in the daemon" in refused.err) == (10, True)
    assert fresh.host() == host
    taking = fresh.start("resume", fresh.session(), "--take-over", "--output-format", "json")
    wait_until(lambda: not is_alive(host))
    open_gate(fresh)
    _, trouble = taking.communicate(timeout=90)
    out, err = run.communicate(timeout=90)
    *shown, last = objects(out)
    assert (taking.returncode, run.returncode, last["state"]) == (0, 0, "done"), trouble + err
    fresh.wait_over()
    events = check_whole(fresh, opened=2)
    assert [event["seq"] for event in shown] == [event.seq for event in events]


def test_the_daemon_takes_over_a_session_of_a_stopped_terminal(fresh: Machine) -> None:
    run = fresh.start("exec", "count", "-m", fresh.script(*counting(UNTIL_GATE)), env=ALONE)
    fresh.wait_started(UNTIL_GATE)
    stop(run.pid)
    refused = fresh.run("resume", "--last")
    assert refused.code == 10
    assert f"process {run.pid}" in refused.err
    assert "--take-over" in refused.err
    taken = fresh.run("resume", "--last", "--take-over", "--detach")
    assert taken.code == 0, taken.err
    run.communicate(timeout=10)
    assert run.returncode == -signal.SIGKILL
    # Once: whoever takes it up after another death ends nobody.
    kept = json.loads(fresh.daemon_place.request(fresh.session()).read_bytes())
    assert kept["options"]["take_over"] is False
    open_gate(fresh)
    fresh.wait_over()
    check_whole(fresh, opened=2)
