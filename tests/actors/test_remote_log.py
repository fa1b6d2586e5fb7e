"""An agent in another process appends through the door, and neither loses nor doubles an event when the way is cut.

It does not know where it is: on the door's own node it comes to its socket, on another one through Ray."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from door_visits import SCOUT, House, open_house, said
from far_ways import FarWays, far_ways

from actors.frames import enclose, read_payload
from actors.remote_log import RemoteLog, StoredOtherwise
from agent.fakes import ScriptedWorld
from agent.folding import fold_events
from agent.loop import Loop
from agent.state import State
from eventlog.errors import LeaseSuperseded, LogError, LogWriteFailed
from eventlog.events import Body, Draft, Event, ModeChosen
from eventlog.ids import CommandId
from eventlog.redact import Redactor
from eventlog.seams import Log

pytestmark = pytest.mark.xdist_group("remote-log")
SECRET = "hunter2-hunter2"
Way = Callable[[Path], Path]
"""From a door to where an agent reaches it."""


@pytest.fixture(scope="module")
def ways() -> Iterator[FarWays]:
    with far_ways() as opened:
        yield opened


@pytest.fixture(params=["same-node", "other-node"])
def way(request: pytest.FixtureRequest) -> Way:
    return (lambda door: door) if request.param == "same-node" else request.getfixturevalue("ways").to


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with open_house(tmp_path, variables={"MY_API_KEY": SECRET}) as opened:
        await opened.grant()
        yield opened


def remote(path: Path, lease: int = 1, patience_s: float = 20, secrets: tuple[str, ...] = (SECRET,)) -> RemoteLog:
    return RemoteLog(path, SCOUT, lease, Redactor(secrets), patience_s=patience_s)


async def store(log: Log, *bodies: Body) -> tuple[Event, ...]:
    return await log.append([log.prepare(Draft(body=body)) for body in bodies])


@dataclass(slots=True)
class Relay:
    """Stands before a door and loses answers: the connection is cut when the next one comes."""

    lose: int
    """So many answers, one after the other."""
    writers: list[asyncio.StreamWriter] = field(default_factory=list)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def before(self, door: Path) -> AsyncIterator[Path]:
        path = door.parent.with_name("r")

        async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.writers.append(writer)
            try:
                inner_reader, inner_writer = await asyncio.open_unix_connection(str(door))
            except OSError:
                writer.transport.abort()
                return
            self.writers.append(inner_writer)
            asking = asyncio.ensure_future(self.carry(reader, inner_writer))
            self.tasks.add(asking)
            while (payload := await read_payload(inner_reader)) is not None:
                if self.lose:
                    self.lose -= 1
                    break
                writer.write(enclose(payload))
            for one in (writer, inner_writer):
                one.transport.abort()

        server = await asyncio.start_unix_server(welcome, path)
        try:
            yield path
        finally:
            server.close()
            for writer in self.writers:
                writer.transport.abort()
            await asyncio.gather(*self.tasks)

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
        except OSError:
            pass


async def test_what_is_appended_comes_back_as_it_stands_in_the_log(house: House, way: Way) -> None:
    async with remote(way(house.door.path)) as log:
        prepared = log.prepare(Draft(body=said(0))).draft
        assert (prepared.actor, prepared.lease) == (SCOUT, 1)
        one = await store(log, said(1, f"key {SECRET}"))
        more = await store(log, said(2), said(3, "y" * 40_000))
        read = await asyncio.to_thread(lambda: (list(log.read()), list(log.read(3)), list(log.read(4))))
    stored = list(house.coordinator.opened.log.read())
    assert [*one, *more] == stored[1:]
    assert read == (stored, stored[3:], [])
    assert [(event.actor, event.lease, event.actor_seq) for event in stored[1:]] == [(SCOUT, 1, n) for n in (1, 2, 3)]


async def test_appends_that_overlap_keep_the_order_of_the_calls(house: House, way: Way) -> None:
    async with remote(way(house.door.path)) as log:
        found = await asyncio.gather(*(store(log, said(number)) for number in range(1, 101)))
    assert [event.body for (event,) in found] == [said(number) for number in range(1, 101)]
    assert [event.seq for (event,) in found] == list(range(2, 102))


@pytest.mark.parametrize("lost", [1, 3])
async def test_an_append_whose_acknowledgement_was_lost_is_stored_once(house: House, lost: int, way: Way) -> None:
    relay = Relay(lose=lost)
    async with relay.before(house.door.path) as path, remote(way(path)) as log:
        found = [*await store(log, said(1), said(2)), *await store(log, said(3))]
    assert relay.lose == 0
    assert found == list(house.coordinator.opened.log.read(1))
    assert [event.actor_seq for event in found] == [1, 2, 3]


async def test_what_was_under_way_when_the_coordinator_went_is_stored_once_when_it_is_back(
    tmp_path: Path, way: Way
) -> None:
    relay = Relay(lose=1_000_000)
    async with relay.before(tmp_path / "d" / "s") as path, remote(way(path)) as log:
        async with open_house(tmp_path) as house:
            await house.ready.go()
            await house.grant()
            arrived = asyncio.Event()
            house.coordinator.listeners.append(lambda event: arrived.set())
            waiting = asyncio.ensure_future(store(log, said(1), said(2)))
            async with asyncio.timeout(20):
                await arrived.wait()
        late = asyncio.ensure_future(store(log, said(3)))
        relay.lose = 0
        async with open_house(tmp_path, again=True) as house:
            found = [*await waiting, *await late]
            assert found == list(house.coordinator.opened.log.read(found[0].seq - 1))
            assert [event.actor_seq for event in found] == [1, 2, 3]


async def test_an_idle_agent_outlasts_any_absence_of_the_coordinator(tmp_path: Path, way: Way) -> None:
    async with remote(way(tmp_path / "d" / "s"), patience_s=0.01) as log:
        async with open_house(tmp_path) as house:
            await house.ready.go()
            await house.grant()
            await store(log, said(1))
        async with open_house(tmp_path, again=True):
            assert [event.actor_seq for event in await store(log, said(2))] == [2]


async def test_a_coordinator_that_stays_away_ends_the_agents_log(tmp_path: Path, way: Way) -> None:
    async with remote(way(tmp_path / "nobody"), patience_s=0.1) as log:
        with pytest.raises(LogWriteFailed, match=r"away for more than 0.1 s; whether the last append"):
            await store(log, said(1))
        with pytest.raises(LogWriteFailed):
            await store(log, said(2))
        with pytest.raises(LogError, match="cannot be read"):
            await asyncio.to_thread(lambda: list(log.read()))


async def test_a_superseded_incarnation_writes_nothing_more(house: House, way: Way) -> None:
    async with remote(way(house.door.path)) as old, remote(way(house.door.path), lease=2) as new:
        await store(old, said(1))
        await house.grant()
        (event,) = await store(new, said(2))
        for _ in range(2):
            with pytest.raises(LeaseSuperseded, match="Lease 1 of agent scout"):
                await store(old, said(3))
    assert [event.body for event in house.coordinator.opened.log.read(event.seq - 1)] == [said(2)]


async def test_what_the_writer_alone_cuts_out_is_no_ones_state(house: House, way: Way) -> None:
    async with remote(way(house.door.path), secrets=()) as log:
        with pytest.raises(StoredOtherwise) as caught:
            await store(log, said(1, f"key {SECRET}"))
        assert list(caught.value.events) == list(house.coordinator.opened.log.read(1))
        with pytest.raises(StoredOtherwise):
            await store(log, said(2))


async def test_a_closed_log_takes_nothing_and_leaves_nobody_waiting(house: House, way: Way) -> None:
    relay = Relay(lose=1_000_000)
    async with relay.before(house.door.path) as path:
        log = remote(way(path))
        waiting = asyncio.ensure_future(store(log, said(1)))
        await asyncio.sleep(0)
        await log.close()
        await log.close()
        for append in (waiting, store(log, said(2))):
            with pytest.raises(LogWriteFailed, match="closed"):
                await append


async def test_the_loop_of_an_agent_runs_over_it(house: House, way: Way) -> None:
    async with remote(way(house.door.path)) as log:
        published: list[Event] = []
        world = ScriptedWorld(lambda intent: None)
        loop = Loop(log, house.coordinator.planner, world, State(), published.append)
        await loop.record(ModeChosen(id=CommandId("m"), mode="plan", sandbox="read-only", attended=True))
    assert published == list(house.coordinator.opened.log.read(1))
    assert loop.state == fold_events(published, actor=SCOUT)
