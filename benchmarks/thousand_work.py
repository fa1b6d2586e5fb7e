"""What a simulated agent appends, and the processes in which such agents live (benchmarks/thousand_agents.py).

An agent of a session stores an outcome and the intents that follow from it in one append. So a step is two appends of
two events: the model's reply with the command, the command's outcome with the next call of the model; every other
command may have written, then the intent of a snapshot goes with its outcome, and what the snapshot came to is a third
append. 2.5 appends and 5 events a step. Events are about 1.1 KB, as in benchmarks/eventlog.py."""

import asyncio
import random
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Literal, NamedTuple

from actors.local import run_fast
from actors.remote_log import RemoteLog
from benchmarks.eventlog import step_bodies
from eventlog.effects import TakeSnapshot
from eventlog.events import Body, Draft, EffectFinished, EffectStarted, UserSaid
from eventlog.ids import AgentId, CommandId, Commit, snapshot_id
from eventlog.outcomes import SnapshotTaken
from eventlog.redact import Redactor

Wait = Literal["model", "tool", "snapshot"]
MEAN_S: dict[Wait, float] = {"model": 5.0, "tool": 1.0, "snapshot": 0.05}
EVENTS_A_STEP = 5
"""In the mean."""
SHAPE = 4.0
"""Of the gamma distribution of waits: half as wide as its mean."""
TOGETHER = 32
"""Agents of a process that come to the door at the same time."""


class Piece(NamedTuple):
    """One append, and what the agent waits for before it."""

    wait: Wait | None
    bodies: tuple[Body, ...]


@cache
def intent(number: int) -> Body:
    """To call the model for step `number`, from 1."""
    return step_bodies(number, random.Random(number))[0]


@cache
def step(number: int) -> tuple[Piece, ...]:
    _, reply, run, ended = step_bodies(number, random.Random(number))[:4]
    pieces = [Piece("model", (reply, run)), Piece("tool", (ended, intent(number + 1)))]
    if number % 2 == 0:
        call, commit = snapshot_id(number), Commit("c" * 40)
        take = EffectStarted(call_id=call, attempt=1, effect=TakeSnapshot(parent=commit, at_s=1, reason="a command"))
        taken = EffectFinished(call_id=call, attempt=1, outcome=SnapshotTaken(commit=commit, changed=True))
        pieces = [pieces[0], Piece("tool", (*pieces[1].bodies, take)), Piece("snapshot", (taken,))]
    return tuple(pieces)


def pieces_of_steps(*, apart: bool) -> Iterator[tuple[Piece, bool]]:
    """All that an agent appends after its opening; with the last piece of a step it is over. `apart`: each event in an
    append of its own."""
    for number in count(1):
        pieces = step(number)
        if apart:
            pieces = tuple(
                Piece(piece.wait if index == 0 else None, (body,))
                for piece in pieces
                for index, body in enumerate(piece.bodies)
            )
        for index, piece in enumerate(pieces):
            yield piece, index == len(pieces) - 1


@dataclass(frozen=True, slots=True)
class Order:
    """Agents a`first` to a`first + number - 1` under lease 1, at work for so long."""

    path: Path
    first: int
    number: int
    seconds: float
    thinking: bool
    apart: bool


@dataclass(slots=True)
class Done:
    times: list[float] = field(default_factory=list)
    """Milliseconds of each append."""
    appends: int = 0
    """Acknowledged in time."""
    steps: int = 0
    """As many were over in time."""
    cpu: float = 0.0
    """Seconds that the processes of these agents used."""

    def add(self, other: "Done") -> None:
        self.times += other.times
        self.appends += other.appends
        self.steps += other.steps
        self.cpu += other.cpu


class Worker:
    def __init__(self, order: Order, number: int) -> None:
        self._order, self._draw = order, random.Random(number)
        agent = AgentId(f"a{number}")
        self._log = RemoteLog(order.path, agent, 1, Redactor())
        self._pieces = pieces_of_steps(apart=order.apart)
        self._said = UserSaid(id=CommandId(f"{agent}.1"), text="Build the part of the game that keeps the score.")
        self._first: tuple[float, tuple[Piece, bool]] | None = None

    async def come(self) -> None:
        """Its opening; then it is anywhere in a step, as if it had been there for long."""
        opening: list[Body] = [self._said, intent(1)]
        piece, last = next(self._pieces)
        if self._order.thinking and self._draw.random() * (MEAN_S["model"] + MEAN_S["tool"]) > MEAN_S["model"]:
            opening += piece.bodies
            piece, last = next(self._pieces)
        self._first = (self._draw.random(), (piece, last))
        await self._append(opening)

    async def work(self, end: float, done: Done) -> None:
        assert self._first is not None
        part, (piece, last) = self._first
        while True:
            pause = self._pause(piece.wait) * part if self._order.thinking else 0.0
            if time.perf_counter() + pause >= end:
                return
            if pause:
                await asyncio.sleep(pause)
            begun = time.perf_counter()
            await self._append(piece.bodies)
            now = time.perf_counter()
            done.times.append((now - begun) * 1000)
            done.appends += now < end
            done.steps += last and now < end
            part, (piece, last) = 1.0, next(self._pieces)

    def _pause(self, wait: Wait | None) -> float:
        return self._draw.gammavariate(SHAPE, MEAN_S[wait] / SHAPE) if wait is not None else 0.0

    async def _append(self, bodies: tuple[Body, ...] | list[Body]) -> None:
        await self._log.append([self._log.prepare(Draft(body=body)) for body in bodies])

    async def close(self) -> None:
        await self._log.close()


def raise_file_limit() -> None:
    """As far as the system lets this process: a connection is an open file."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def crowd(pipe: Connection) -> None:
    """A process of agents: of each order it says that they came, begins when told, and sends what was done; ends at
    None."""
    raise_file_limit()
    run_fast(_obey(pipe))


async def _obey(pipe: Connection) -> None:
    while (order := await asyncio.to_thread(pipe.recv)) is not None:
        workers = [Worker(order, order.first + number) for number in range(order.number)]
        door = asyncio.Semaphore(TOGETHER)

        async def come(worker: Worker, door: asyncio.Semaphore = door) -> None:
            async with door:
                await worker.come()

        await asyncio.gather(*map(come, workers))
        pipe.send(None)
        await asyncio.to_thread(pipe.recv)
        end, done = time.perf_counter() + order.seconds, Done(cpu=-time.process_time())
        await asyncio.gather(*(worker.work(end, done) for worker in workers))
        done.cpu += time.process_time()
        for worker in workers:
            await worker.close()
        pipe.send(done)
