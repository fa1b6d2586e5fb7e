"""Agents on one node append to a session on another one, and none of it is lost or doubled when the way is cut.

That a RemoteLog is the same there as beside its door stands in test_remote_log.py."""

import asyncio
import os
import signal
import socket
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from door_visits import SCOUT, House, Visitor, open_house, said
from far_ways import FarWays, far_ways
from playing import wait_until

from actors.agent_lease import LeaseRanOut, lease_file
from actors.channels import Kind
from actors.remote_lease import RemoteLease
from actors.remote_log import RemoteLog
from eventlog.errors import LeaseSuperseded
from eventlog.events import Draft, Event
from eventlog.ids import AgentId
from eventlog.redact import Redactor
from processes import tree
from processes.commands import Command, CommandResult, Limits, Lost
from processes.environment import child_env
from processes.runner import Runner
from tests.actors.ray_arena import drive

pytestmark = [pytest.mark.xdist_group("far-door"), pytest.mark.timeout(120)]
AGENTS = [AgentId(f"a{number}") for number in range(8)]
BOUND_S = 60


@pytest.fixture(scope="module")
def ways() -> Iterator[FarWays]:
    with far_ways(16) as opened:
        yield opened


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with open_house(tmp_path) as opened:
        for agent in (SCOUT, *AGENTS):
            await opened.grant(agent)
        yield opened


def remote(path: Path, agent: AgentId = SCOUT) -> RemoteLog:
    return RemoteLog(path, agent, 1, Redactor())


async def store(log: RemoteLog, number: int, text: str = "x") -> Event:
    (event,) = await log.append([log.prepare(Draft(body=said(number, text)))])
    return event


@dataclass(slots=True)
class Crowd:
    """Agents that append side by side, each one after the other."""

    path: Path
    each: int
    stored: int = 0

    async def work(self) -> list[list[Event]]:
        return await asyncio.gather(*map(self.one, AGENTS))

    async def one(self, agent: AgentId) -> list[Event]:
        events: list[Event] = []
        async with remote(self.path, agent) as log:
            for number in range(1, self.each + 1):
                events.append(await store(log, number))
                self.stored += 1
        return events


def check_each_once(house: House, found: Sequence[Sequence[Event]], each: int) -> None:
    stored = list(house.coordinator.opened.log.read())
    for agent, events in zip(AGENTS, found, strict=True):
        assert [event for event in stored if event.actor == agent] == list(events)
        assert [event.actor_seq for event in events] == list(range(1, each + 1))
        assert [event.body for event in events] == [said(number) for number in range(1, each + 1)]


async def test_a_thousand_appends_of_eight_agents_keep_each_agents_order(house: House, ways: FarWays) -> None:
    async with asyncio.timeout(BOUND_S):
        found = await Crowd(ways.to(house.door.path), 125).work()
    check_each_once(house, found, 125)


@pytest.mark.parametrize("side", ["far", "near"])
async def test_a_side_that_is_killed_comes_back_and_nothing_is_lost_or_doubled(
    house: House, ways: FarWays, side: str
) -> None:
    crowd = Crowd(ways.to(house.door.path), 60)
    killed = ways.far_pid if side == "far" else ways.near_pid
    async with asyncio.timeout(BOUND_S):
        working = asyncio.ensure_future(crowd.work())
        await asyncio.to_thread(wait_until, lambda: crowd.stored > 100)
        os.kill(killed, signal.SIGKILL)
        found = await working
    check_each_once(house, found, 60)
    assert killed not in (ways.far_pid, ways.near_pid)


async def test_a_long_log_is_read_and_followed_across_nodes(house: House, ways: FarWays) -> None:
    coordinator, path = house.coordinator, ways.to(house.door.path)
    for start in range(0, 10_000, 1000):
        drafts = [Draft(body=said(start + number, "y" * 300)) for number in range(1000)]
        await coordinator.append([coordinator.opened.log.prepare(draft) for draft in drafts])
    async with remote(path) as log:
        read = await asyncio.to_thread(lambda: list(log.read()))
        assert read == list(coordinator.opened.log.read()) and len(read) > 10_000
        follower = await Visitor.come(path)
        watching = follower.say(op="attach", after=len(read) - 1)
        assert [event["seq"] for event in await follower.events(watching, len(read))] == [len(read)]
        event = await store(log, 1)
        assert [one["seq"] for one in await follower.events(watching, event.seq)] == [event.seq]
        await follower.leave()


@pytest.mark.parametrize("side", ["far", "near"])
async def test_a_log_is_read_to_its_end_though_a_side_is_killed_meanwhile(
    house: House, ways: FarWays, side: str
) -> None:
    coordinator, path = house.coordinator, ways.to(house.door.path)
    for start in range(0, 4000, 1000):
        drafts = [Draft(body=said(start + number, "y" * 3000)) for number in range(1000)]
        await coordinator.append([coordinator.opened.log.prepare(draft) for draft in drafts])
    async with remote(path) as log:

        def read() -> list[Event]:
            found: list[Event] = []
            for event in log.read():
                found.append(event)
                if len(found) == 100:
                    os.kill(ways.far_pid if side == "far" else ways.near_pid, signal.SIGKILL)
            return found

        async with asyncio.timeout(BOUND_S):
            assert await asyncio.to_thread(read) == list(coordinator.opened.log.read())


async def test_a_way_that_is_silent_for_longer_than_the_lease_ends_the_agents_command_and_its_late_append_is_refused(
    house: House, ways: FarWays, tmp_path: Path
) -> None:
    path = ways.to(house.door.path)
    (tmp_path / "node").mkdir()
    lease = RemoteLease(SCOUT, 1, lease_file(tmp_path / "node", SCOUT), 2.0, door=path)
    runner = Runner()
    command = Command("sleep 300", tmp_path, child_env(os.environ, {}), Limits(timeout_s=90), lease=lease.of_commands)
    running: list[asyncio.Task[CommandResult | Lost]] = []

    async def work() -> None:
        running.append(asyncio.create_task(runner.run(tmp_path / "c1", command)))
        await asyncio.to_thread(wait_until, (tmp_path / "c1" / "start").exists)
        with stopped(ways.far_pid):
            await asyncio.get_running_loop().create_future()

    async with remote(path) as log, asyncio.timeout(BOUND_S):
        await store(log, 1)
        with pytest.raises(LeaseRanOut):
            await lease.hold(work)
        ended = await running[0]
        assert isinstance(ended, CommandResult) and ended.cancelled
        assert tree.boot_us() >= int((tmp_path / "node/leases/scout.lease").read_bytes()[20:])
        assert await house.grant() == 2
        with pytest.raises(LeaseSuperseded):
            await store(log, 2)
    await runner.close()
    assert [event.actor_seq for event in house.coordinator.opened.log.read() if event.actor == SCOUT] == [1]


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def test_a_far_side_that_says_nothing_for_too_long_is_given_up_and_found_again(
    house: House, ways: FarWays
) -> None:
    path = ways.to(house.door.path)
    visitor = await Visitor.come(path)
    assert (await visitor.ask(op="ping"))["ok"]
    with stopped(ways.far_pid):
        visitor.say(op="ping")
        async with asyncio.timeout(BOUND_S):
            assert await visitor.reader.read() == b""
    await visitor.leave()
    # Its file is there from its first line on, which is written after the connections were cut.
    await asyncio.to_thread(wait_until, lambda: b"nothing was heard of it for 3 s" in tree.read(str(ways.near.log)))
    async with asyncio.timeout(BOUND_S), remote(path) as log:
        assert (await store(log, 1)).actor_seq == 1


async def test_the_sockets_of_a_way_are_private_and_gone_when_it_is_closed(house: House, ways: FarWays) -> None:
    path = ways.to(house.door.path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    visitor = await Visitor.come(path)
    assert (await visitor.ask(op="ping"))["ok"]
    await asyncio.to_thread(drive, ways.head, "close_way", path.name)
    assert not path.exists()
    assert (await visitor.ask(op="ping"))["ok"], "who is connected stays so"
    await visitor.leave()


# What else is asked, all of it by one driver


@pytest.fixture(scope="module")
def told(ways: FarWays) -> Iterator[dict[str, Any]]:
    places = [str(place.state_folder) for place in (ways.near, ways.far)]
    (ways.near.doors / "taken").write_text("mine")
    with socket.socket(socket.AF_UNIX) as outside:
        outside.bind(str(ways.far.folder / "outside"))
        outside.listen()
        yield drive(ways.head, "ask_ways", *places)


def test_a_way_that_cannot_be_opened_is_told_in_a_sentence(ways: FarWays, told: dict[str, Any]) -> None:
    assert told["taken"] == f"{ways.near.doors}/taken is in the way of a socket; move it away."
    assert told["open"] is None, "it was opened before"


def test_no_word_leads_out_of_the_folder_of_doors(told: dict[str, Any]) -> None:
    assert bytes.fromhex(told["outside"]) == pack(">IBI", 1, Kind.CUT, 0)


def test_what_is_asked_of_the_far_side_twice_ends_the_link(told: dict[str, Any]) -> None:
    assert told["sent"] == [True, False, False]
    assert told["received"] == ["", ""]


def test_a_new_link_of_a_node_ends_the_one_before(told: dict[str, Any]) -> None:
    assert told["replaced"] == [False, True]
