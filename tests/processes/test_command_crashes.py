"""Kill the wrapper, the harness or everything at any moment: no command runs twice, and nothing lost is called done."""

import asyncio
import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from processes.calls import end_tree, is_held
from processes.commands import Command, CommandResult, Done, Lost, NotStarted, RunnerBroken, Running
from processes.etc import prepare_etc
from processes.runner import Runner, inspect
from processes.tree import descendants, send
from tests.processes.running import command, finished, open_runner, until

SEEDS = 100
VICTIMS = ("wrapper", "harness", "everything")


def count(path: Path) -> int:
    return path.read_text().count("x") if path.exists() else 0


def start_harness(call_dir: Path, wanted: Command) -> int:
    """A process of its own, with a helper of its own, that runs one command; forked, since a start costs too much."""
    pid = os.fork()
    if pid == 0:
        code = 1
        with suppress(RunnerBroken):
            asyncio.run(run_once(call_dir, wanted))
            code = 0
        os._exit(code)
    return pid


async def run_once(call_dir: Path, wanted: Command) -> CommandResult | Lost:
    async with open_runner() as runner:
        return await runner.run(call_dir, wanted)


def kill(victim: str, harness: int) -> None:
    match victim:
        case "wrapper":
            family = descendants(harness)
            helper = family[0] if family else -1
            send([pid for pid in family if parent_of(pid) == helper], signal.SIGKILL)
        case "harness":
            send([harness], signal.SIGKILL)
        case _:
            send([harness, *descendants(harness)], signal.SIGKILL)


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


async def recover(call_dir: Path, wanted: Command) -> CommandResult | Lost:
    """What a resume does: adopt, attach, or start what never started."""
    async with open_runner() as runner:
        match inspect(call_dir):
            case NotStarted():
                return await runner.run(call_dir, wanted)
            case Done() | Running() | Lost():
                return await runner.attach(call_dir)


@pytest.mark.parametrize("seeds", [range(start, start + 25) for start in range(0, SEEDS, 25)], ids=str)
def test_a_kill_at_a_random_moment_loses_and_repeats_nothing(seeds: range, work: Path, call_dir: Path):
    prepare_etc(call_dir.parent)
    seen: set[str] = set()
    for seed in seeds:
        draw = random.Random(seed)
        victim, confined, delay = VICTIMS[seed % 3], draw.random() < 0.5, draw.uniform(0, 0.02)
        name, counter = call_dir.with_name(f"s{seed}"), work / f"counter{seed}"
        # A moment counts from a stage and not from the start: a busy machine must not move all kills into one stage.
        stage = draw.choice([work, name, name / "start", counter, name / "done"])
        wanted = command(f"echo x >> {counter.name}; sleep 0.02", work, confined)
        harness = start_harness(name, wanted)
        until(stage.exists)
        moment = time.monotonic() + delay
        while time.monotonic() < moment:
            pass
        kill(victim, harness)
        if victim != "wrapper":
            os.waitpid(harness, 0)
        before = count(counter)
        state = inspect(name)
        if isinstance(state, NotStarted):
            assert before == 0, seed
        if isinstance(state, Done):
            assert before == 1, seed
        outcome = asyncio.run(recover(name, wanted))
        if victim == "wrapper":
            os.waitpid(harness, 0)
        until(lambda name=name: not is_held(name))
        if isinstance(outcome, Lost):
            assert count(counter) <= 1, seed
            assert not isinstance(state, Done), seed
        else:
            assert (outcome.exit_code, count(counter)) == (0, 1), seed
        assert asyncio.run(recover(name, wanted)) == outcome, seed
        assert inspect(name) == (outcome if isinstance(outcome, Lost) else Done(outcome)), seed
        assert end_tree(name)
        seen.add(type(state).__name__)
    assert len(seen) >= 3, f"the moments are badly chosen: only {seen}"


@pytest.mark.parametrize("confined", [False, True])
@pytest.mark.parametrize("point", ["before_lock", "after_lock"])
async def test_killed_before_the_start_a_command_may_be_started(work: Path, call_dir: Path, point: str, confined: bool):
    wanted = command("echo x >> counter", work, confined)
    async with open_runner(crash_at=point) as crashing:
        with pytest.raises(RunnerBroken):
            await crashing.run(call_dir, wanted)
    assert inspect(call_dir) == NotStarted()
    async with open_runner() as runner:
        assert finished(await runner.run(call_dir, wanted)).exit_code == 0
    assert count(work / "counter") == 1


@pytest.mark.parametrize("confined", [False, True])
@pytest.mark.parametrize(
    ("point", "counts"), [("after_start", {0}), ("after_spawn", {0, 1}), ("before_done", {1}), ("after_done_tmp", {1})]
)
async def test_killed_between_start_and_done_a_command_is_lost_and_not_run_again(
    work: Path, call_dir: Path, point: str, counts: set[int], confined: bool
):
    wanted = command("echo x >> counter", work, confined)
    async with open_runner(crash_at=point) as crashing:
        lost = await crashing.run(call_dir, wanted)
    assert isinstance(lost, Lost)
    assert inspect(call_dir) == lost
    async with open_runner() as runner:
        assert await runner.run(call_dir, wanted) == lost
    assert count(work / "counter") in counts


@pytest.mark.parametrize("confined", [False, True])
async def test_killed_after_done_a_result_is_adopted(work: Path, call_dir: Path, confined: bool):
    wanted = command("echo x >> counter; exit 4", work, confined)
    async with open_runner(crash_at="after_done") as crashing:
        result = finished(await crashing.run(call_dir, wanted))
    assert result.exit_code == 4
    assert inspect(call_dir) == Done(result)
    assert count(work / "counter") == 1


async def test_a_start_that_cannot_be_read_is_a_start(runner: Runner, work: Path, call_dir: Path):
    call_dir.mkdir()
    (call_dir / "start").touch()
    state = inspect(call_dir)
    assert isinstance(state, Lost)
    assert state.started_us > 0
    assert await runner.run(call_dir, command("echo x >> counter", work)) == state
    assert count(work / "counter") == 0
