"""A command runs once, is told as it was, and ends with all that it started (G35, G36, G38)."""

import asyncio
import os
import signal
import stat
import time
from dataclasses import replace
from pathlib import Path

import pytest

from processes.commands import (
    CommandResult,
    Done,
    Lease,
    Limits,
    Lost,
    NothingStarted,
    NotStarted,
    RunnerBroken,
    Running,
)
from processes.folder import MARK_VARIABLE, hold_exclusively, holding, mark
from processes.runner import Output, Runner, end_tree, inspect, read_output
from processes.tree import descendants, holders, is_alive, read
from tests.processes.running import command, finished, leave_nothing, open_runner, text_of, until, with_variable

BOTH = pytest.mark.parametrize("confined", [False, True])


def alive(call_dir: Path) -> list[int]:
    return with_variable(MARK_VARIABLE, mark(str(call_dir)))


@BOTH
async def test_a_command_is_told_with_output_exit_code_and_time(
    runner: Runner, work: Path, call_dir: Path, confined: bool
):
    assert inspect(call_dir) == NotStarted()
    before = time.time_ns() // 1000
    result = finished(await runner.run(call_dir, command("echo out; echo err >&2; exit 7", work, confined)))
    assert before <= result.started_us <= result.finished_us <= time.time_ns() // 1000
    assert result == CommandResult(7, None, False, False, 8, 0, result.started_us, result.finished_us, None)
    assert inspect(call_dir) == Done(result)
    assert read_output(call_dir, 100, 100) == Output(b"out\nerr\n", b"", 0, 8, call_dir / "output")


async def test_a_signal_is_no_exit_code(runner: Runner, work: Path, call_dir: Path):
    result = finished(await runner.run(call_dir, command("kill -9 $$", work)))
    assert (result.exit_code, result.signal) == (None, signal.SIGKILL)


async def test_a_signal_in_the_sandbox_is_told_as_a_shell_tells_it(runner: Runner, work: Path, call_dir: Path):
    result = finished(await runner.run(call_dir, command("kill -9 $$", work, confined=True)))
    assert (result.exit_code, result.signal, result.setup_error) == (137, None, None)


@BOTH
async def test_a_finished_command_is_not_run_again(runner: Runner, work: Path, call_dir: Path, confined: bool):
    first = await runner.run(call_dir, command("echo x >> counter", work, confined))
    async with open_runner() as later:
        assert await later.run(call_dir, command("echo x >> counter", work, confined)) == first
        assert await later.attach(call_dir) == first
    assert (work / "counter").read_text() == "x\n"


async def test_a_second_start_of_a_running_command_waits_for_the_first(runner: Runner, work: Path, call_dir: Path):
    (work / "gate").touch()
    text = "echo x >> counter; while test -e gate; do :; done"
    first = asyncio.create_task(runner.run(call_dir, command(text, work)))
    await asyncio.to_thread(until, (work / "counter").exists)
    with pytest.raises(RunnerBroken):
        await runner.run(call_dir, command(text, work))
    async with open_runner() as later:
        second = asyncio.create_task(later.run(call_dir, command(text, work)))
        attached = asyncio.create_task(later.attach(call_dir))
        await asyncio.sleep(0)
        assert isinstance(inspect(call_dir), Running)
        (work / "gate").unlink()
        assert await first == await second == await attached
    assert (work / "counter").read_text() == "x\n"


async def test_a_command_outlives_the_runner_and_is_adopted(work: Path, call_dir: Path):
    (work / "gate").touch()
    async with open_runner() as first:
        task = asyncio.create_task(first.run(call_dir, command("while test -e gate; do :; done; echo end", work)))
        await asyncio.to_thread(until, lambda: isinstance(inspect(call_dir), Running))
        task.cancel()
    async with open_runner() as later:
        attached = asyncio.create_task(later.attach(call_dir))
        (work / "gate").unlink()
        assert finished(await attached).exit_code == 0
    assert text_of(call_dir) == "end\n"


async def test_a_run_survives_the_death_of_its_helper(runner: Runner, work: Path, call_dir: Path):
    (work / "gate").touch()
    run = asyncio.create_task(runner.run(call_dir, command("while test -e gate; do :; done", work)))
    await asyncio.to_thread(until, lambda: isinstance(inspect(call_dir), Running))
    wrapper = inspect(call_dir)
    assert isinstance(wrapper, Running)
    os.kill(parent_of(wrapper.pid), signal.SIGKILL)
    (work / "gate").unlink()
    assert finished(await run).exit_code == 0
    assert finished(await runner.run(call_dir.with_name("c2"), command("exit 3", work))).exit_code == 3


async def test_a_request_that_a_dying_helper_never_read_is_given_to_the_next(
    runner: Runner, work: Path, call_dir: Path
):
    await runner.start()
    (helper,) = [pid for pid in descendants(os.getpid()) if parent_of(pid) == os.getpid()]
    os.kill(helper, signal.SIGSTOP)
    run = asyncio.create_task(runner.run(call_dir, command("echo x >> counter", work)))
    await asyncio.to_thread(until, lambda: runner.waits_for(call_dir))
    os.kill(helper, signal.SIGKILL)
    assert finished(await run).exit_code == 0
    assert (work / "counter").read_text() == "x\n"


async def test_of_two_wrappers_that_wait_for_one_lock_one_runs_the_command(runner: Runner, work: Path, call_dir: Path):
    call_dir.mkdir()
    lock = hold_exclusively(f"{call_dir}/lock")
    inode = f":{os.fstat(lock).st_ino} "
    async with open_runner() as other:
        runs = [asyncio.create_task(one.run(call_dir, command("echo x >> counter", work))) for one in (runner, other)]

        def both_wait() -> bool:
            return sum("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines()) == 2

        await asyncio.to_thread(until, both_wait)
        os.close(lock)
        first, second = await asyncio.gather(*runs)
    assert first == second
    assert (work / "counter").read_text() == "x\n"


async def test_the_lock_of_a_confined_command_is_held_inside_its_sandbox(runner: Runner, work: Path, call_dir: Path):
    run = asyncio.create_task(runner.run(call_dir, command("touch begun; sleep 300", work, confined=True)))
    await asyncio.to_thread(until, (work / "begun").exists)
    state = inspect(call_dir)
    assert isinstance(state, Running)
    inside = set(holders(f"{call_dir}/lock", "NO_SUCH_MARK", "x")) - {state.pid}
    assert inside
    assert inside <= set(descendants(state.pid))
    await runner.end(call_dir)
    await run


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@BOTH
async def test_a_background_child_does_not_delay_the_result_nor_outlive_it(
    runner: Runner, work: Path, call_dir: Path, confined: bool
):
    text = "sleep 300 & (trap '' TERM; exec sleep 300) & setsid sleep 300 & echo done"
    result = finished(await runner.run(call_dir, command(text, work, confined)))
    assert result.exit_code == 0
    assert result.finished_us - result.started_us < 2_000_000
    assert text_of(call_dir) == "done\n"
    assert not alive(call_dir)


TREES = [
    "sleep 300 & sleep 300",
    "python3 -c 'import os,time; os.fork(); time.sleep(300)'",
    "trap '' TERM; sleep 300 & while :; do :; done",
    "setsid bash -c 'exec 9>&-; cd /; trap \"\" TERM; while :; do sleep 1; done' & wait",
]


@BOTH
@pytest.mark.parametrize("text", TREES)
async def test_a_timeout_ends_the_whole_tree(runner: Runner, work: Path, call_dir: Path, text: str, confined: bool):
    limits = Limits(timeout_s=0.3)
    result = finished(await runner.run(call_dir, command(text, work, confined, limits)))
    assert (result.timed_out, result.cancelled) == (True, False)
    assert result.finished_us - result.started_us < 3_000_000
    assert not alive(call_dir)


@BOTH
@pytest.mark.parametrize("text", TREES)
async def test_an_end_leaves_no_process_and_is_recorded(
    runner: Runner, work: Path, call_dir: Path, text: str, confined: bool
):
    run = asyncio.create_task(runner.run(call_dir, command("touch begun; " + text, work, confined)))
    await asyncio.to_thread(until, (work / "begun").exists)
    await runner.end(call_dir)
    assert not alive(call_dir)
    result = finished(await run)
    assert (result.timed_out, result.cancelled) == (False, True)


async def test_another_runner_can_end_a_command_that_it_did_not_start(runner: Runner, work: Path, call_dir: Path):
    run = asyncio.create_task(runner.run(call_dir, command("sleep 300", work)))
    await asyncio.to_thread(until, lambda: isinstance(inspect(call_dir), Running))
    async with open_runner() as other:
        await other.end(call_dir)
    assert finished(await run).cancelled


async def test_a_command_cancelled_before_its_start_is_recorded_and_ends(runner: Runner, work: Path, call_dir: Path):
    run = asyncio.create_task(runner.run(call_dir, command("sleep 300", work)))
    await asyncio.to_thread(until, lambda: runner.waits_for(call_dir))
    runner.cancel(call_dir)
    assert finished(await run).cancelled


async def test_the_end_of_what_never_began_or_is_over_does_nothing(runner: Runner, work: Path, call_dir: Path):
    await runner.end(call_dir)
    assert inspect(call_dir) == NotStarted()
    result = finished(await runner.run(call_dir, command("true", work)))
    await runner.end(call_dir)
    assert inspect(call_dir) == Done(result)
    with pytest.raises(NothingStarted):
        await runner.attach(call_dir.with_name("other"))


async def test_without_its_wrapper_an_unconfined_tree_keeps_the_lock_until_it_is_ended(
    runner: Runner, work: Path, call_dir: Path
):
    run = asyncio.create_task(runner.run(call_dir, command("touch begun; sleep 300 & sleep 300", work)))
    await asyncio.to_thread(until, (work / "begun").exists)
    state = inspect(call_dir)
    assert isinstance(state, Running)
    os.kill(state.pid, signal.SIGKILL)
    await asyncio.to_thread(until, lambda: not Path(f"/proc/{state.pid}").exists())
    assert isinstance(inspect(call_dir), Running)
    with holding(str(call_dir)) as free:
        assert not free
    await runner.end(call_dir)
    assert not alive(call_dir)
    with holding(str(call_dir)) as free:
        assert free
    assert isinstance(await run, Lost)
    assert await run == inspect(call_dir)


async def test_without_its_wrapper_a_confined_tree_dies(runner: Runner, work: Path, call_dir: Path):
    run = asyncio.create_task(runner.run(call_dir, command("touch begun; sleep 300", work, confined=True)))
    await asyncio.to_thread(until, (work / "begun").exists)
    state = inspect(call_dir)
    assert isinstance(state, Running)
    os.kill(state.pid, signal.SIGKILL)
    assert isinstance(await run, Lost)
    assert not alive(call_dir)


async def test_a_tree_is_found_by_its_lock_or_by_its_mark(runner: Runner, work: Path, call_dir: Path):
    unmarked = "env -i sleep 300 &"
    unlocked = 'python3 -c \'import os; os.closerange(3, 99); os.execvp("sleep", ["sleep", "300"])\' &'
    text = f"{unmarked} {unlocked} while test $(pgrep -cx -g 0 sleep) -lt 2; do :; done; touch begun; wait"
    run = asyncio.create_task(runner.run(call_dir, command(text, work)))
    await asyncio.to_thread(until, (work / "begun").exists)
    state = inspect(call_dir)
    assert isinstance(state, Running)
    sleepers = [pid for pid in descendants(state.pid) if read(f"/proc/{pid}/comm") == b"sleep\n"]
    assert len(sleepers) == 2
    os.kill(state.pid, signal.SIGKILL)
    assert end_tree(call_dir)
    assert isinstance(await run, Lost)
    assert not [pid for pid in sleepers if is_alive(pid)]


async def test_a_command_that_cannot_start_says_so(runner: Runner, work: Path, call_dir: Path):
    gone = replace(command("true", work), cwd=work / "gone")
    result = finished(await runner.run(call_dir, gone))
    assert result.exit_code is None
    assert result.setup_error is not None
    assert "No such file" in result.setup_error


async def test_a_sandbox_that_cannot_be_made_is_not_the_command_s_failure(runner: Runner, work: Path, call_dir: Path):
    wanted = command("true", work, confined=True)
    assert wanted.confinement is not None
    wanted = replace(wanted, confinement=replace(wanted.confinement, git_dir=work / "gone"))
    result = finished(await runner.run(call_dir, wanted))
    assert result.exit_code is None
    assert result.setup_error is not None
    assert "gone" in result.setup_error


async def test_a_bubblewrap_that_cannot_run_is_not_the_command_s_failure(work: Path, call_dir: Path):
    broken = work / "bwrap"
    broken.write_text("#!/bin/sh\necho no library >&2\nexit 127\n")
    broken.chmod(0o755)
    runner = Runner(bwrap=broken)
    result = finished(await runner.run(call_dir, command("true", work, confined=True)))
    await runner.close()
    assert (result.exit_code, result.setup_error) == (None, "The sandbox could not be made: no library")


async def test_exit_code_one_in_the_sandbox_is_the_command_s_own(runner: Runner, work: Path, call_dir: Path):
    result = finished(await runner.run(call_dir, command("echo 'bwrap: no'; exit 1", work, confined=True)))
    assert (result.exit_code, result.setup_error) == (1, None)


async def test_kill_zero_in_a_script_does_not_reach_the_wrapper(runner: Runner, work: Path, call_dir: Path):
    result = finished(await runner.run(call_dir, command("trap '' TERM; kill 0; sleep 0.2; echo on", work)))
    assert (result.exit_code, result.cancelled) == (0, False)
    assert text_of(call_dir) == "on\n"


async def test_commands_run_side_by_side(runner: Runner, work: Path, call_dir: Path):
    names = [call_dir.with_name(f"c{number}") for number in range(20)]
    runs = [runner.run(name, command(f"echo {name.name}; exit {n}", work)) for n, name in enumerate(names)]
    assert [finished(outcome).exit_code for outcome in await asyncio.gather(*runs)] == list(range(20))
    assert [text_of(name) for name in names] == [f"{name.name}\n" for name in names]


async def test_a_lease_that_nobody_renews_ends_the_command(runner: Runner, work: Path, call_dir: Path):
    lease = work / "lease"
    lease.touch()
    wanted = replace(command("sleep 300", work), lease=Lease(lease, 0.4))
    assert finished(await runner.run(call_dir, wanted)).cancelled


async def test_limits_hold_confined_or_not(runner: Runner, work: Path, call_dir: Path):
    limits = Limits(timeout_s=30, file_bytes=1024, cpu_s=1)
    for confined in (False, True):
        name = call_dir.with_name(f"files-{confined}")
        finished(await runner.run(name, command("head -c 5000 /dev/zero > big", work, confined, limits)))
        assert (work / "big").stat().st_size == 1024
        name = call_dir.with_name(f"cpu-{confined}")
        assert finished(await runner.run(name, command("while :; do :; done", work, confined, limits))).exit_code != 0


async def test_the_call_folder_is_the_owner_s_alone(runner: Runner, work: Path, call_dir: Path):
    before = os.umask(0)
    try:
        async with open_runner() as careless:
            await careless.run(call_dir, command("seq 1 100000", work, limits=Limits(output_bytes=100)))
    finally:
        os.umask(before)
    assert stat.S_IMODE(call_dir.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in call_dir.iterdir()}
    assert modes == dict.fromkeys(["lock", "start", "output", "tail", "done"], 0o600)


async def test_a_closed_runner_refuses(work: Path, call_dir: Path):
    async with open_runner() as runner:
        pass
    with pytest.raises(RunnerBroken):
        await runner.run(call_dir, command("true", work))
    leave_nothing(call_dir)
