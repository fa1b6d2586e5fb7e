"""An incarnation on another node works for as long as the session's door confirms its lease, and its commands too."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from door_visits import SCOUT, House, append, open_house
from playing import wait_until

from actors.agent_lease import LeaseRanOut, lease_file
from actors.frames import encode, read_payload
from actors.remote_lease import RemoteLease
from eventlog.errors import LeaseSuperseded
from eventlog.ids import MAIN, AgentId
from processes import fence
from processes.commands import Command, CommandResult, Limits
from processes.environment import child_env
from processes.runner import Runner
from processes.tree import boot_us

BOUND_S = 20
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with open_house(tmp_path) as opened:
        await opened.grant()
        yield opened


def lease(folder: Path, door: Path, number: int = 1, seconds: float = 60) -> RemoteLease:
    """Its node has a folder of its own."""
    (folder / "node").mkdir(exist_ok=True)
    return RemoteLease(SCOUT, number, lease_file(folder / "node", SCOUT), seconds, door=door)


async def never() -> str:
    return await asyncio.get_running_loop().create_future()


def ends_us(held: RemoteLease) -> int:
    return fence.look(str(held.path))[1]


# At the door


async def test_only_the_present_lease_of_an_agent_is_confirmed(house: House) -> None:
    visitor = await house.visit()
    assert await visitor.ask(op="renew", agent=SCOUT, lease=1) == {"id": 1, "ok": True}
    await house.grant()
    for agent, number in ((SCOUT, 1), (SCOUT, 3), (AgentId("nobody"), 1), (MAIN, 1)):
        answer = await visitor.ask(op="renew", agent=agent, lease=number)
        assert answer["error"] == "LeaseSuperseded" and f"Lease {number} of agent {agent}" in answer["text"]
    assert (await visitor.ask(op="renew", agent=SCOUT, lease=2))["ok"]
    assert (await visitor.ask(**append(1, lease=2)))["events"]


async def test_a_replacement_knows_how_long_the_one_before_it_may_still_act(house: House) -> None:
    """Also where nothing was confirmed: an earlier door may have done so."""
    assert 0 < house.door.lease_left(SCOUT, 60) < 60 and house.door.lease_left(SCOUT, 0) == 0
    await (await house.visit()).ask(op="renew", agent=SCOUT, lease=1)
    earlier = house.door.lease_left(AgentId("other"), 60)
    assert 60 > house.door.lease_left(SCOUT, 60) > earlier > 0


# The lease itself


async def test_a_lease_goes_on_while_it_is_confirmed_and_never_ends_later_than_that_allows(
    house: House, tmp_path: Path
) -> None:
    held = lease(tmp_path, house.door.path, seconds=0.8)

    async def work() -> list[int]:
        ends = [ends_us(held)]
        while len(ends) < 8:
            await asyncio.to_thread(wait_until, lambda: ends_us(held) != ends[-1])
            ends.append(ends_us(held))
            assert ends[-1] <= boot_us() + 800_000
            with held.performing():
                pass
        return ends

    ends = await held.hold(work)
    assert ends == sorted(ends) and ends[-1] - ends[0] >= 0.7 * 800_000


async def test_a_lease_counts_from_before_the_door_was_asked(tmp_path: Path) -> None:
    asked: list[int] = []

    async def confirm_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_payload(reader)
        asked.append(boot_us())
        await asyncio.to_thread(wait_until, lambda: boot_us() > asked[-1] + 200_000)
        writer.write(encode({"id": 1, "ok": True}))
        writer.close()

    async with served(tmp_path / "late", confirm_late):
        held = lease(tmp_path, tmp_path / "late", seconds=8)
        await held.hold(nothing)
    assert len(asked) == 1 and ends_us(held) <= asked[0] + 8_000_000


async def test_one_that_was_replaced_in_the_log_stops_though_its_node_knows_nothing_of_it(
    house: House, tmp_path: Path
) -> None:
    held = lease(tmp_path, house.door.path, seconds=2)
    holding = asyncio.ensure_future(held.hold(never))
    await asyncio.to_thread(wait_until, held.path.exists)
    await house.grant()
    async with asyncio.timeout(BOUND_S):
        with pytest.raises(LeaseSuperseded, match="Lease 1 of agent scout"):
            await holding
    with pytest.raises(LeaseSuperseded):
        await held.hold(never)


@pytest.mark.parametrize("why", ["nobody is there", "nobody answers", "it is not understood"])
async def test_one_that_nobody_confirms_stops_when_its_lease_ends_and_performs_nothing_more(
    house: House, tmp_path: Path, why: str
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_payload(reader)
        if why == "it is not understood":
            writer.write(encode({"id": 1, "error": "BadRequest", "text": "What is that?"}))
        else:
            await reader.read()
        writer.close()

    async def work() -> str:
        with held.performing():
            began.append(boot_us())
        held.door.unlink()
        if why != "nobody is there":
            await servers.enter_async_context(served(held.door, answer))
        return await never()

    began: list[int] = []
    async with AsyncExitStack() as servers:
        held = lease(tmp_path, house.door.path, seconds=0.8)
        async with asyncio.timeout(BOUND_S):
            with pytest.raises(LeaseRanOut, match=r"could not renew its lease for 0.8 s"):
                await held.hold(work)
        assert boot_us() >= ends_us(held) and ends_us(held) <= began[0] + 800_000
        with pytest.raises(LeaseRanOut), held.performing():
            raise AssertionError("performed")


async def test_nothing_begins_that_nobody_confirmed(tmp_path: Path) -> None:
    held = lease(tmp_path, tmp_path / "nobody", seconds=0.2)
    with pytest.raises(LeaseRanOut):
        await held.hold(never)
    assert not held.path.exists()


async def test_its_commands_end_with_it_also_when_its_process_sleeps(house: House, tmp_path: Path) -> None:
    """`hold` is not even there: what ends the command is the file."""
    held = lease(tmp_path, house.door.path, seconds=1)
    await held.hold(nothing)
    runner = Runner()
    # A lease of its own would let it live for a minute.
    of_it = replace(held.of_commands, seconds=60)
    wanted = Command("sleep 300", tmp_path, child_env(os.environ, {}), Limits(timeout_s=60), lease=of_it)
    try:
        async with asyncio.timeout(BOUND_S):
            ended = await runner.run(tmp_path / "c1", wanted)
    finally:
        await runner.close()
    assert isinstance(ended, CommandResult) and ended.cancelled
    assert 0 <= boot_us() - ends_us(held) < 5_000_000


async def nothing() -> None:
    return


@asynccontextmanager
async def served(path: Path, answer: Answer) -> AsyncIterator[None]:
    server = await asyncio.start_unix_server(answer, path)
    try:
        yield
    finally:
        server.close()
