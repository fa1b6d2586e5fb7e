"""Two incarnations of one agent: the log takes what the living one sends, once."""

from collections.abc import Callable
from pathlib import Path

import pytest

from eventlog.errors import LeaseSuperseded
from eventlog.events import Draft, LeaseGranted, UserSaid
from eventlog.ids import AgentId, CommandId, SessionId
from eventlog.leases import Lease, next_lease
from eventlog.memory import MemoryLog
from eventlog.opening import create_log, open_log
from eventlog.redact import Redactor
from eventlog.seams import SystemClock
from eventlog.store import DuckLog

SCOUT = AgentId("scout")
ID = SessionId("s")


def said(number: int, lease: int) -> Draft:
    return Draft(body=UserSaid(id=CommandId(f"{lease}-{number}"), text="x"), actor=SCOUT, lease=lease, actor_seq=number)


def granted(log: DuckLog | MemoryLog) -> Draft:
    return Draft(body=next_lease(log.leases, SCOUT))


@pytest.fixture(params=["disk", "memory"])
def open_one(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], DuckLog | MemoryLog]:
    if request.param == "memory":
        return MemoryLog

    def create() -> DuckLog:
        opened = create_log(tmp_path / "s", ID, SystemClock(), Redactor())
        request.addfinalizer(opened.close)
        return opened.log

    return create


async def test_a_repeated_append_is_stored_once(open_one: Callable[[], DuckLog | MemoryLog]) -> None:
    log = open_one()
    await log.append([log.prepare(granted(log))])
    first = await log.append([log.prepare(said(1, 1))])
    again = await log.append([log.prepare(said(1, 1)), log.prepare(said(2, 1))])
    assert [event.seq for event in (*first, *again)] == [2, 3]


async def test_a_superseded_lease_writes_nothing_more(open_one: Callable[[], DuckLog | MemoryLog]) -> None:
    log = open_one()
    await log.append([log.prepare(granted(log))])
    await log.append([log.prepare(granted(log))])
    with pytest.raises(LeaseSuperseded):
        await log.append([log.prepare(said(1, 1))])
    (event,) = await log.append([log.prepare(said(1, 2))])
    assert event.lease == 2
    assert [e.body for e in log.read()] == [
        LeaseGranted(agent=SCOUT, lease=1),
        LeaseGranted(agent=SCOUT, lease=2),
        event.body,
    ]


async def test_an_agent_without_a_lease_is_refused(open_one: Callable[[], DuckLog | MemoryLog]) -> None:
    log = open_one()
    with pytest.raises(LeaseSuperseded):
        await log.append([log.prepare(said(1, 1))])


async def test_leases_are_known_again_after_a_restart(tmp_path: Path) -> None:
    opened = create_log(tmp_path / "s", ID, SystemClock(), Redactor())
    await opened.log.append([opened.log.prepare(granted(opened.log)), opened.log.prepare(said(4, 1))])
    opened.close()
    again = open_log(tmp_path / "s", ID, SystemClock(), Redactor())
    assert again.log.leases == {SCOUT: Lease(1, 4)}
    assert await again.log.append([again.log.prepare(said(4, 1))]) == ()
    again.close()
