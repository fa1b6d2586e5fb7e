"""The clock is set a day forth and a day back: between a kill and what comes after it, while a command runs, while a
model is waited for, while a lease is held. No decision of a session looks at the time of day; durations come from a
clock that nobody sets."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from actors.history import Verified, verify
from agent.folding import fold_events
from agent.models.faults import told_s
from eventlog.catalogue import list_sessions
from eventlog.events import EffectFinished, Event
from eventlog.outcomes import ModelFailed, ToolSucceeded
from processes.calls import FILE_CLOCK_US, began_us, inspect, overdue, read_start
from processes.commands import Command, CommandResult, Lease, Limits, Lost, Running
from processes.environment import child_env
from processes.runner import Runner, end_tree
from tests.chaos.arena import FINAL, PROGRAM, TURNS, Arena, check_acknowledged, check_log, kill, wait_until
from tests.chaos.shifted import DAY, SetClock, make_clock

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def clock(tmp_path: Path) -> SetClock:
    folder = tmp_path / "clock"
    folder.mkdir()
    return make_clock(folder)


def days(events: tuple[Event, ...]) -> set[int]:
    """How far apart neighbours are, in days."""
    return {round((later.ts_us - earlier.ts_us) / 1e6 / DAY) for earlier, later in pairwise(events)}


def check(arena: Arena, code: int) -> tuple[Event, ...]:
    assert code == 0, arena.errors()
    events = arena.events()
    check_log(events)
    check_acknowledged(arena, events)
    assert isinstance(verify(events), Verified)
    assert arena.survivors() == []
    return events


# Whole sessions.


@pytest.mark.parametrize("shift", [DAY, -DAY], ids=["forth", "back"])
def test_a_session_that_is_resumed_a_day_off_ends_as_if_nothing_had_happened(
    shift: int, clock: SetClock, tmp_path: Path
) -> None:
    """Killed when its command had begun, and once more a day the other way."""
    with Arena(tmp_path, TURNS, program=clock.program(PROGRAM)) as arena:
        for now, point in ((0, "wrapper:after_spawn"), (shift, "before_take_snapshot:2")):
            clock.to(now)
            run = arena.go_on(crash_at=point)
            if point.startswith("wrapper:"):
                wait_until(lambda: any(path.exists() for path in arena.home.glob("sessions/*/calls/*/start")), 30)
            else:
                run.wait(60)
            kill(run, "everything")
            run.wait()
        clock.to(-shift)
        events = check(arena, arena.finish())
        assert arena.files() == FINAL
        assert {abs(day) for day in days(events)} >= {1, 2}, "the clock was not set where it should have been"
        (listed,) = list_sessions(arena.home / "sessions")
        assert listed.summary is not None and listed.summary.events == len(events)


@pytest.mark.parametrize("shift", [DAY, -DAY], ids=["forth", "back"])
def test_a_clock_that_is_set_while_a_command_runs_ends_no_command(shift: int, clock: SetClock, tmp_path: Path) -> None:
    waits = f"touch {tmp_path}/begun; until test -e {tmp_path}/go; do sleep 0.02; done; echo over"
    script = [{"tool_calls": [{"name": "shell", "arguments": {"command": waits}}]}, {"text": "Done."}]
    unconfined = ("--dangerously-bypass-approvals-and-sandbox",)
    with Arena(tmp_path, script, unconfined, program=clock.program(PROGRAM)) as arena:
        run = arena.go_on()
        wait_until((tmp_path / "begun").exists, 30)
        clock.to(shift)
        (tmp_path / "go").touch()
        events = check(arena, run.wait(60))
        outcomes = [event.body.outcome for event in events if isinstance(event.body, EffectFinished)]
        assert [one.text for one in outcomes if isinstance(one, ToolSucceeded)] == ["over"]


@pytest.mark.parametrize("shift", [DAY, -DAY], ids=["forth", "back"])
def test_a_clock_that_is_set_while_a_model_is_waited_for_changes_no_wait(
    shift: int, clock: SetClock, tmp_path: Path
) -> None:
    script = [{"text": "Done.", "faults": [{"fail": "429", "times": 2, "retry_after": 0.5}]}]
    with Arena(tmp_path, script, program=clock.program(PROGRAM)) as arena:
        run = arena.go_on()
        wait_until(lambda: any(failed(line) for line in arena.printed()), 30)
        clock.to(shift)
        begin = time.monotonic()
        events = check(arena, run.wait(60))
        assert time.monotonic() - begin < 20
        outcomes = [event.body.outcome for event in events if isinstance(event.body, EffectFinished)]
        assert all(500 <= one.wait_ms <= 625 for one in outcomes if isinstance(one, ModelFailed))


def failed(line: dict[str, object]) -> bool:
    return "model_failed" in json.dumps(line)


def test_no_state_depends_on_the_time_of_an_event(tmp_path: Path) -> None:
    """Nor does any request: a session whose every event was stamped a day apart folds to the same."""
    with Arena(tmp_path, TURNS) as arena:
        events = check(arena, arena.finish())
    stamps = (event.ts_us + DAY * 1_000_000 * (1 if event.seq % 2 else -1) for event in events)
    moved = tuple([event.model_copy(update={"ts_us": at}) for event, at in zip(events, stamps, strict=True)])
    assert moved != events
    assert fold_events(moved) == fold_events(events)
    assert verify(moved) == verify(events)


# One command.


@pytest.fixture
async def shifted_runner(clock: SetClock, tmp_path: Path) -> AsyncIterator[Runner]:
    """Its helper and its wrappers live by the clock that is set; the test does not."""
    interpreter = tmp_path / "python"
    interpreter.write_text(f'#!/bin/sh\nLD_PRELOAD={clock.library} exec {sys.executable} "$@"\n')
    interpreter.chmod(0o755)
    runner = Runner(interpreter=interpreter)
    yield runner
    await runner.close()


def shell(text: str, cwd: Path, **limits: float) -> Command:
    return Command(text, cwd, child_env(os.environ, {}), Limits(timeout_s=limits.get("timeout_s", 30.0)))


async def begun(path: Path) -> None:
    await asyncio.to_thread(wait_until, path.exists, 30)


def took_s(result: CommandResult | Lost) -> float:
    assert isinstance(result, CommandResult)
    return (result.finished_us - result.started_us) / 1e6


@pytest.mark.parametrize("shift", [DAY, -DAY], ids=["forth", "back"])
async def test_a_time_limit_and_a_duration_are_of_a_clock_that_nobody_sets(
    shift: int, clock: SetClock, shifted_runner: Runner, tmp_path: Path
) -> None:
    limited = shifted_runner.run(tmp_path / "c1", shell("touch begun; sleep 100", tmp_path, timeout_s=0.5))
    running = asyncio.create_task(limited)
    await begun(tmp_path / "begun")
    clock.to(shift)
    result = await running
    assert isinstance(result, CommandResult) and result.timed_out
    assert 0.4 < took_s(result) < 30


@pytest.mark.parametrize("shift", [DAY, -DAY], ids=["forth", "back"])
async def test_a_lease_that_is_renewed_outlives_a_set_clock(
    shift: int, clock: SetClock, shifted_runner: Runner, tmp_path: Path
) -> None:
    lease = tmp_path / "lease"
    lease.touch()
    wanted = replace(shell("touch begun; sleep 1.2; echo over", tmp_path), lease=Lease(lease, 0.8))
    running = asyncio.create_task(shifted_runner.run(tmp_path / "c1", wanted))
    await begun(tmp_path / "begun")
    clock.to(shift)
    while not running.done():
        lease.touch()
        await asyncio.sleep(0.02)
    result = await running
    assert isinstance(result, CommandResult)
    assert (result.cancelled, result.exit_code) == (False, 0)


@pytest.mark.parametrize("shift", [DAY, -DAY], ids=["forth", "back"])
async def test_a_lease_that_is_not_renewed_ends_under_a_set_clock(
    shift: int, clock: SetClock, shifted_runner: Runner, tmp_path: Path
) -> None:
    lease = tmp_path / "lease"
    lease.touch()
    wanted = replace(shell("touch begun; sleep 100", tmp_path), lease=Lease(lease, 0.4))
    running = asyncio.create_task(shifted_runner.run(tmp_path / "c1", wanted))
    await begun(tmp_path / "begun")
    clock.to(shift)
    result = await running
    assert isinstance(result, CommandResult) and result.cancelled
    assert took_s(result) < 30


async def lose(call_dir: Path, text: str, timeout_s: float) -> None:
    """An unconfined command whose wrapper is killed as soon as it runs."""
    runner = Runner()
    running = asyncio.create_task(
        runner.run(call_dir, shell(f"touch begun; {text}", call_dir.parent, timeout_s=timeout_s))
    )
    await begun(call_dir.parent / "begun")
    start = read_start(call_dir)
    assert start is not None
    os.kill(start["pid"], signal.SIGKILL)
    running.cancel()
    # It may have told of the loss already.
    with suppress(asyncio.CancelledError):
        await running
    await runner.close()


def set_recorded(call_dir: Path, seconds: int) -> None:
    """As if the clock had been set by -`seconds` since the command began."""
    start = read_start(call_dir)
    assert start is not None
    start["started_us"] += seconds * 1_000_000
    (call_dir / "start").write_text(json.dumps(start))


@pytest.mark.parametrize("shift", [DAY, -DAY], ids=["forth", "back"])
async def test_what_a_dead_wrapper_left_running_is_ended_in_its_time(shift: int, tmp_path: Path) -> None:
    call_dir = tmp_path / "c1"
    await lose(call_dir, "sleep 100", timeout_s=1.0)
    try:
        set_recorded(call_dir, shift)
        assert isinstance(inspect(call_dir), Running)
        start = read_start(call_dir)
        assert start is not None
        assert not overdue(call_dir, grace_s=DAY / 2)
        await asyncio.to_thread(wait_until, lambda: overdue(call_dir, grace_s=0), 30)
    finally:
        assert end_tree(call_dir)


async def test_files_that_a_lost_command_changed_are_found_by_a_clock_set_back(tmp_path: Path) -> None:
    """Their times are a day before what the clock said when it began."""
    call_dir = tmp_path / "c1"
    await lose(call_dir, "echo x > changed; sleep 100", timeout_s=30.0)
    assert end_tree(call_dir)
    wait_until((tmp_path / "begun").exists, 5)
    began = began_us(call_dir)
    start = read_start(call_dir)
    assert start is not None and 0 <= start["started_us"] - began < 60_000_000
    set_recorded(call_dir, DAY)
    changed_us = (tmp_path / "begun").stat().st_ctime_ns // 1000
    assert changed_us - 60_000_000 < began_us(call_dir) <= changed_us
    set_recorded(call_dir, -2 * DAY)
    assert began_us(call_dir) == start["started_us"] - DAY * 1_000_000 - FILE_CLOCK_US


# What others say about time.


def test_a_server_that_says_when_is_understood_by_its_own_clock() -> None:
    headers = {"retry-after": "Wed, 21 Oct 2026 07:28:05 GMT", "date": "Wed, 21 Oct 2026 07:28:00 GMT"}
    now = 1_792_567_680.0
    assert [told_s(headers, now + off) for off in (0, DAY, -DAY)] == [5.0, 5.0, 5.0]
    assert told_s({**headers, "date": "rubbish"}, now) is None
