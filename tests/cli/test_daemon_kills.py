"""SIGKILL for each part of the daemon, one by one and all at once: the session goes on by itself, and nothing that was
shown to a terminal is missing or shown twice."""

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from cli_program import EDIT, objects, shell, terminal, wait_until
from daemon_machine import Machine, machine

from actors.history import Verified, verify
from eventlog.events import SessionOpened
from processes.tree import is_alive

pytestmark = pytest.mark.xdist_group("daemon-kills")
COUNT = shell("echo ran >> count.txt; sleep 1.5; echo ended >> count.txt")
TURNS = ({"tool_calls": [EDIT]}, {"tool_calls": [COUNT]}, {"text": "Done."})
PARTS = ("host", "gateway", "raylet", "gcs", "supervisor", "all")


@pytest.fixture(scope="module")
def computer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("machine")) as one:
        assert one.run("up").code == 0
        yield one


@pytest.fixture
def fresh(computer: Machine) -> Machine:
    for name in computer.sessions():
        (computer.home / "sessions" / name).rename(computer.folder / f"past-{name}")
    return computer


@pytest.mark.parametrize("part", PARTS)
def test_a_session_goes_on_when_this_dies_in_the_middle_of_a_command(fresh: Machine, part: str) -> None:
    run = fresh.start("exec", "count", "-m", fresh.script(*TURNS), "--output-format", "stream-json")
    fresh.wait_started("sleep 1.5")
    fresh.kill(part)
    out, err = run.communicate(timeout=90)
    *events, last = objects(out)
    assert (run.returncode, last["state"]) == (0, "done"), err
    fresh.wait_over()
    check_whole(fresh, [event["seq"] for event in events])


@pytest.mark.parametrize("part", ["host", "gateway", "raylet", "gcs"])
def test_a_session_that_nobody_watches_goes_on_by_itself(fresh: Machine, part: str) -> None:
    fresh.run("exec", "count", "-m", fresh.script(*TURNS), "--detach")
    fresh.wait_started("sleep 1.5")
    fresh.kill(part)
    fresh.wait_over()
    check_whole(fresh, [event.seq for event in fresh.events()])


@pytest.mark.parametrize("part", ["supervisor", "all"])
def test_the_next_daemon_takes_up_what_the_one_before_left(fresh: Machine, part: str) -> None:
    fresh.run("exec", "count", "-m", fresh.script(*TURNS), "--detach")
    fresh.wait_started("sleep 1.5")
    fresh.kill(part)
    assert fresh.run("up").code == 0
    fresh.wait_over()
    check_whole(fresh, [event.seq for event in fresh.events()])


def check_whole(fresh: Machine, shown: list[int]) -> None:
    events = fresh.events()
    assert shown == [event.seq for event in events] == list(range(1, len(events) + 1))
    assert isinstance(verify(events), Verified)
    state = fresh.state()
    assert state.worktree is not None
    worktree = Path(state.worktree.path)
    assert (worktree / "count.txt").read_text() == "ran\nended\n"
    assert (worktree / "a.py").read_text() == "two\n"


def test_a_session_goes_on_when_only_its_terminal_dies(fresh: Machine) -> None:
    run = fresh.start("exec", "count", "-m", fresh.script(*TURNS))
    fresh.wait_started("sleep 1.5")
    run.kill()
    run.communicate()
    fresh.wait_over()
    check_whole(fresh, [event.seq for event in fresh.events()])


def test_a_session_whose_process_died_is_back_soon(fresh: Machine) -> None:
    """Killed while the model thinks: what follows is a new attempt of that call. A benchmark measures how soon, on an
    idle machine; here others are at work."""
    model = fresh.script({"tool_calls": [EDIT]}, {"text": "Slow.", "delay_ms": 4000})
    run = fresh.start("exec", "edit", "-m", model, "--output-format", "stream-json")
    wait_until(lambda: fresh.run("log", "--last", "--output-format", "json").out.count('"call_model"') == 2)
    killed_us = time.time_ns() // 1000
    fresh.kill("host")
    out, _ = run.communicate(timeout=60)
    opened = [event for event in fresh.events() if isinstance(event.body, SessionOpened)]
    assert 0 < (opened[1].ts_us - killed_us) / 1e6 < 15
    assert objects(out)[-1]["state"] == "done"


def test_two_daemons_started_at_once_end_as_one(fresh: Machine) -> None:
    fresh.run("down")
    starts = [fresh.start("up") for _ in range(4)]
    for start in starts:
        start.communicate(timeout=60)
    assert [start.returncode for start in starts] == [0] * 4
    for role in ("supervisor", "gateway", "gcs", "raylet"):
        assert len(fresh.find(role)) == 1, role


def test_down_leaves_nothing_even_of_a_daemon_whose_supervisor_was_killed(fresh: Machine) -> None:
    fresh.run("exec", "wait", "-m", fresh.script({"tool_calls": [shell("sleep 300")]}), "--detach")
    fresh.wait_started("sleep 300")
    [supervisor] = fresh.find("supervisor")
    fresh.kill("supervisor")
    wait_until(lambda: not is_alive(supervisor))
    fresh.down()


def test_a_daemon_with_nothing_to_do_ends_by_itself(fresh: Machine) -> None:
    fresh.run("down")
    assert fresh.run("up", env={"THALIA_IDLE_S": "1"}).code == 0
    wait_until(lambda: not fresh.daemon_place.folder.exists() and fresh.pids() == [])


def test_a_daemon_stays_as_long_as_a_question_waits(fresh: Machine) -> None:
    fresh.run("down")
    fresh.env["THALIA_IDLE_S"] = "0.5"
    model = fresh.script({"tool_calls": [shell("echo x > x.txt")]}, {"text": "Done."})
    with terminal(fresh, "exec", "ask", "-m", model, "--permission-mode", "ask") as screen:
        screen.wait_for("run it?")
        os.killpg(screen.process.pid, signal.SIGKILL)
        screen.process.wait(10)
    begin = time.monotonic()
    while time.monotonic() < begin + 2:
        assert fresh.session() in fresh.status()["hosted"]
    assert fresh.run("stop", "--last").code == 0
    del fresh.env["THALIA_IDLE_S"]
    wait_until(lambda: not fresh.daemon_place.folder.exists() and fresh.pids() == [])


def test_down_ends_the_commands_of_running_sessions(fresh: Machine) -> None:
    fresh.run("exec", "wait", "-m", fresh.script({"tool_calls": [shell("sleep 300")]}), "--detach")
    fresh.wait_started("sleep 300")
    fresh.down()
    assert fresh.state().ending is not None


def is_opened(fresh: Machine, times: int) -> bool:
    return fresh.run("log", "--last", "--output-format", "json").out.count('"session_opened"') == times


def test_a_session_whose_process_dies_again_and_again_is_left_to_a_person(fresh: Machine) -> None:
    fresh.run("exec", "wait", "-m", fresh.script({"text": "Never.", "delay_ms": 60_000}), "--detach")
    watching = fresh.start("attach", "--last", "--output-format", "json")
    for epoch in range(1, 6):
        wait_until(partial(is_opened, fresh, epoch))
        fresh.kill("host")
    _, err = watching.communicate(timeout=60)
    assert watching.returncode == 10
    assert "died 5 times" in err
    assert fresh.run("down").code == 0
