"""The time of one session of benchmarks/background.py: that which models and tests take, and no other.

A model waits for the clock itself. Tests run in a process of their own, which lays down a ticket in its worktree and
goes on when that is gone. By default the clock is turned: where all that is under way waits for it, it goes on to the
next moment at which something ends, so that neither this machine's speed nor its load is in a figure. With a scale it
is the machine's own, so many times faster."""

import asyncio
import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from agent.state import State
from agent.waking import can_wake
from eventlog.effects import (
    AskAgent,
    CallModel,
    Effect,
    FanOut,
    PartOfFan,
    RunTool,
    SpawnAgent,
    TakeSnapshot,
    WakeAgent,
)
from eventlog.events import EffectFinished, EffectStarted, Event
from eventlog.ids import MAIN, AgentId, CallId

TICKETS = ".wait"
LOOK_S = 0.003
LOOKS = 3
"""In a row at which nothing may move until the clock is turned."""
PATIENCE_S = 120.0
"""Without that anything moved."""


class Clock(Protocol):
    def now_s(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...

    def note(self, event: Event) -> None:
        """Each event of the session, as it is published."""
        ...

    async def run(self, worktrees: Path, state: Callable[[], State]) -> None:
        """Until it is cancelled. `worktrees`: the folder of them all; `state`: of the main agent."""
        ...


@dataclass(slots=True)
class RealClock:
    scale: float
    began_s: float = field(default_factory=time.monotonic)
    _known: set[Path] = field(default_factory=set)

    def now_s(self) -> float:
        return (time.monotonic() - self.began_s) * self.scale

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self.scale)

    def note(self, event: Event) -> None:
        """It goes by itself."""

    async def run(self, worktrees: Path, state: Callable[[], State]) -> None:
        async with asyncio.TaskGroup() as waiting:
            while True:
                for ticket in set(find_tickets(worktrees)) - self._known:
                    self._known.add(ticket)
                    waiting.create_task(self._let_go(ticket))
                await asyncio.sleep(LOOK_S)

    async def _let_go(self, ticket: Path) -> None:
        await self.sleep(float(ticket.read_text()))
        ticket.unlink()


@dataclass(slots=True)
class TurnedClock:
    _now_s: float = 0.0
    _waiting: list[tuple[float, int, asyncio.Future[None]]] = field(default_factory=list)
    _tickets: dict[Path, tuple[float, int]] = field(default_factory=dict)
    _open: dict[tuple[AgentId, CallId], Effect] = field(default_factory=dict)
    _count: int = 0
    """Of what has happened so far."""

    def now_s(self) -> float:
        return self._now_s

    async def sleep(self, seconds: float) -> None:
        self._count += 1
        waiter = self._now_s + seconds, self._count, asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, waiter)
        try:
            await waiter[2]
        except asyncio.CancelledError:
            self._waiting.remove(waiter)
            heapq.heapify(self._waiting)
            raise

    def note(self, event: Event) -> None:
        self._count += 1
        match event.body:
            case EffectStarted(call_id=call_id, effect=effect):
                self._open[event.actor, call_id] = effect
            case EffectFinished(call_id=call_id):
                del self._open[event.actor, call_id]
            case _:
                pass

    @property
    def is_idle(self) -> bool:
        """Nobody waits for it."""
        return not self._waiting and not self._tickets

    async def run(self, worktrees: Path, state: Callable[[], State]) -> None:
        """Raises TimeoutError where something is under way that never comes to an end."""
        count, looks, moved_s = -1, 0, time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            self._take_tickets(worktrees)
            if count != self._count:
                count, looks, moved_s = self._count, 0, time.monotonic()
            elif time.monotonic() - moved_s > PATIENCE_S:
                raise TimeoutError(f"nothing moves, and what is open is {self._open}")
            elif self._all_wait() and not is_due(state()):
                looks += 1
            if looks >= LOOKS:
                self._turn()

    def _take_tickets(self, worktrees: Path) -> None:
        for ticket in find_tickets(worktrees):
            if ticket not in self._tickets:
                self._count += 1
                self._tickets[ticket] = self._now_s + float(ticket.read_text()), self._count

    def _turn(self) -> None:
        """To the next end."""
        self._count += 1
        ticket = min(self._tickets, key=lambda path: self._tickets[path], default=None)
        if ticket is not None and (not self._waiting or self._tickets[ticket] < self._waiting[0][:2]):
            self._now_s = self._tickets.pop(ticket)[0]
            ticket.unlink()
            return
        self._now_s, _, waiter = heapq.heappop(self._waiting)
        waiter.set_result(None)

    def _all_wait(self) -> bool:
        """Whether each agent that is at work waits for the clock, or for one that does."""
        effects = self._open.values()
        calls = [effect for effect in effects if isinstance(effect, CallModel)]
        tests = [effect for effect in effects if _runs_tests(effect)]
        if len(calls) != len(self._waiting) or len(tests) != len(self._tickets):
            return False
        if any(not isinstance(effect, Composite | CallModel) and not _runs_tests(effect) for effect in effects):
            return False
        at_work = [effect.agent for effect in effects if isinstance(effect, SpawnAgent | WakeAgent)]
        return self._main_waits() and all(self._waits(agent) for agent in at_work)

    def _waits(self, agent: AgentId) -> bool:
        own = [effect for (actor, _), effect in self._open.items() if actor == agent]
        return any(isinstance(effect, CallModel) or _runs_tests(effect) for effect in own)

    def _main_waits(self) -> bool:
        effects = list(self._open.values())
        woken = [effect for effect in effects if isinstance(effect, WakeAgent)]
        asked = [effect.agent for effect in effects if isinstance(effect, AskAgent)]
        if asked:
            return all(any(wake.agent == agent for wake in woken) for agent in asked)
        if any(isinstance(effect, FanOut) for effect in effects):
            return any(isinstance(effect, PartOfFan) for effect in effects)
        return self._waits(MAIN) or any("turn_end" in wake.reasons for wake in woken)


Composite = AskAgent | FanOut | SpawnAgent | WakeAgent
"""What others do."""


def _runs_tests(effect: Effect) -> bool:
    return isinstance(effect, RunTool) and effect.effect_class == "command"


def is_due(state: State) -> bool:
    """Whether a snapshot or a wake-up is about to begin."""
    if state.written != "no" and not state.is_open(TakeSnapshot):
        return not state.is_open(RunTool)
    return can_wake(state) and any(one.at_work is None and one.due for one in state.crew)


def find_tickets(worktrees: Path) -> list[Path]:
    """Whole ones: a ticket is written beside its place and moved there."""
    return sorted(worktrees.glob(f"*/*/{TICKETS}/*.ticket"))
