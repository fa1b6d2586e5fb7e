"""An incarnation works for as long as its lease is its own and renewed."""

import asyncio
import os
import time
from pathlib import Path

import pytest
from playing import wait_until

from actors.agent_lease import AgentLease, LeaseRanOut, lease_file
from eventlog.errors import LeaseSuperseded
from eventlog.ids import AgentId

SCOUT = AgentId("scout")


def lease(folder: Path, number: int, seconds: float = 60) -> AgentLease:
    return AgentLease(SCOUT, number, lease_file(folder, SCOUT), seconds)


async def nothing() -> str:
    return "done"


async def never() -> str:
    await asyncio.get_running_loop().create_future()
    return "done"


async def test_the_work_s_end_and_its_mistakes_are_the_holder_s(tmp_path: Path) -> None:
    assert await lease(tmp_path, 1).hold(nothing) == "done"

    async def wrong() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await lease(tmp_path, 2).hold(wrong)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_no_work_begins_under_a_lease_that_another_one_followed(tmp_path: Path) -> None:
    await lease(tmp_path, 2).hold(nothing)
    for late in (1, 2):
        with pytest.raises(LeaseSuperseded, match=f"Lease {late} of agent scout was superseded"):
            await lease(tmp_path, late).hold(nothing)


async def test_work_is_given_up_once_the_lease_is_another_s(tmp_path: Path) -> None:
    old = lease(tmp_path, 1, seconds=0.2)
    working = asyncio.Event()
    given_up = asyncio.Event()

    async def work() -> None:
        working.set()
        try:
            await never()
        finally:
            given_up.set()

    holding = asyncio.ensure_future(old.hold(work))
    await working.wait()
    with old.performing():
        pass
    await lease(tmp_path, 2).hold(nothing)
    with pytest.raises(LeaseSuperseded), old.performing():
        raise AssertionError("performed")
    async with asyncio.timeout(20):
        with pytest.raises(LeaseSuperseded):
            await holding
    assert given_up.is_set()


async def test_a_lease_is_renewed_while_the_work_goes_on(tmp_path: Path) -> None:
    held = lease(tmp_path, 1, seconds=0.4)

    async def work() -> None:
        os.utime(held.path, (1, 1))
        await asyncio.to_thread(wait_until, lambda: held.path.stat().st_mtime > 1)

    await held.hold(work)


async def test_who_could_not_renew_in_time_stops(tmp_path: Path) -> None:
    """The whole process slept, as under SIGSTOP."""

    async def work() -> str:
        time.sleep(0.3)  # noqa: ASYNC251
        return await never()

    with pytest.raises(LeaseRanOut, match=r"could not renew its lease for 0.2 s"):
        await lease(tmp_path, 1, seconds=0.2).hold(work)


def test_each_agent_has_a_file_of_its_own_in_one_folder(tmp_path: Path) -> None:
    names = [AgentId(name) for name in ("scout", "a/b", "..", "a b")]
    files = {lease_file(tmp_path, name) for name in names}
    assert len(files) == 4
    assert {file.parent for file in files} == {tmp_path / "leases"}
