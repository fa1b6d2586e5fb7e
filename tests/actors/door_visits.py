"""A session with its door, and visitors who speak in frames."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from playing import DONE, SESSION, Stage

from actors.coordinator import Coordinator
from actors.door import Door
from actors.frames import decode, encode, read_payload
from actors.sessions import Ready, prepare_new, prepare_resumed
from eventlog.events import Body, Draft, Event, UserSaid
from eventlog.ids import AgentId, CommandId
from eventlog.leases import next_lease

SCOUT = AgentId("scout")
DEADLINE_S = 20


@dataclass(slots=True)
class Visitor:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    last_id: int = 0
    early: list[dict[str, Any]] = field(default_factory=list)
    """Messages that came while another was waited for."""

    @classmethod
    async def come(cls, path: Path) -> Self:
        return cls(*await asyncio.open_unix_connection(str(path)))

    def say(self, **request: object) -> int:
        """Send a request without waiting; its id."""
        self.last_id += 1
        self.writer.write(encode({"id": self.last_id, **request}))
        return self.last_id

    async def hear(self) -> dict[str, Any] | None:
        """The next message; None at the end."""
        async with asyncio.timeout(DEADLINE_S):
            payload = await read_payload(self.reader)
        return None if payload is None else decode(payload)

    async def answer(self, id: int) -> dict[str, Any]:
        """The first message with this id."""
        for message in self.early:
            if message["id"] == id:
                self.early.remove(message)
                return message
        while True:
            message = await self.hear()
            assert message is not None, "the door closed the connection"
            if message["id"] == id:
                return message
            self.early.append(message)

    async def ask(self, **request: object) -> dict[str, Any]:
        return await self.answer(self.say(**request))

    async def events(self, id: int, upto: int) -> list[dict[str, Any]]:
        """Of an attachment, the events up to that seq; what else it says is left out."""
        found: list[dict[str, Any]] = []
        while not found or found[-1]["seq"] < upto:
            message = await self.answer(id)
            if "event" in message:
                found.append(message["event"])
        return found

    def cut(self) -> None:
        self.writer.transport.abort()

    async def leave(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@dataclass(slots=True)
class House:
    """A session that has not begun, unless its `ready.go` is called."""

    stage: Stage
    ready: Ready
    door: Door
    visitors: list[Visitor] = field(default_factory=list)

    @property
    def coordinator(self) -> Coordinator:
        return self.ready.coordinator

    async def visit(self) -> Visitor:
        visitor = await Visitor.come(self.door.path)
        self.visitors.append(visitor)
        return visitor

    async def grant(self, agent: AgentId = SCOUT) -> int:
        """A new lease for an agent."""
        log = self.coordinator.opened.log
        granted = next_lease(log.leases, agent)
        await self.coordinator.append([log.prepare(Draft(body=granted))])
        return granted.lease

    @property
    def head(self) -> int:
        return self.coordinator.opened.log.head.seq

    def stored(self, after: int = 0) -> list[dict[str, Any]]:
        return [as_json(event) for event in self.coordinator.opened.log.read(after)]

    async def leave(self) -> None:
        for visitor in self.visitors:
            visitor.cut()
        await self.door.close()
        await self.coordinator.close()


@asynccontextmanager
async def open_house(
    folder: Path, *turns: Mapping[str, object], variables: Mapping[str, str] | None = None, again: bool = False
) -> AsyncIterator[House]:
    """`again` takes up the session that an earlier house in this folder left."""
    stage = Stage(folder, variables=variables or {})
    options = stage.options(model=stage.script(*turns or (DONE,)))
    parts = stage.parts
    ready = prepare_resumed(parts, SESSION, options, None) if again else prepare_new(parts, SESSION, options, "Do it.")
    house = House(stage, ready, Door(ready.coordinator, folder / "d" / "s"))
    await house.door.open()
    try:
        yield house
    finally:
        await house.leave()


def said(number: int, text: str = "x") -> UserSaid:
    return UserSaid(id=CommandId(f"u{number}"), text=text)


def as_json(value: Body | Event) -> dict[str, Any]:
    return value.model_dump(mode="json")


def append(number: int, *bodies: Body, agent: AgentId = SCOUT, lease: int = 1) -> dict[str, object]:
    """A request: the first body has this number."""
    values = [as_json(body) for body in bodies or (said(number),)]
    return {"op": "append", "agent": agent, "lease": lease, "actor_seq": number, "bodies": values}
