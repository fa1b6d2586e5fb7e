"""The loop. Everything that happens in a session passes through `record`: stored first, then known, then done."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from agent.apply import apply
from agent.decide import Planner, decide
from agent.state import State
from eventlog.effects import CallModel, Effect, SpawnAgent, WakeAgent
from eventlog.events import Body, Draft, EffectStarted, Event, Interrupted
from eventlog.ids import AgentId, CallId
from eventlog.seams import Log, Prepared


class World(Protocol):
    """Where effects happen. Each gets exactly one EffectFinished put into the inbox, some time later.

    A defect is put there as the exception it is: it ends the run, and the effect is settled by the next one."""

    def start(self, intent: EffectStarted, state: State, put: Callable[[Body | Exception], None]) -> None: ...

    def interrupt(self, call_id: CallId) -> None:
        """End an effect early; its outcome says how far it came."""
        ...

    def settle(self, state: State) -> tuple[Sequence[Body], Sequence[EffectStarted]]:
        """For each effect that an earlier process left open: its outcome, or the intent to carry on with."""
        ...


class Loop:
    def __init__(
        self, log: Log, planner: Planner, world: World, state: State, publish: Callable[[Event], None]
    ) -> None:
        self.state = state
        self.inbox: asyncio.Queue[Body | Exception] = asyncio.Queue()
        self._log, self._planner, self._world, self._publish = log, planner, world, publish

    async def run(self, *opening: Body) -> State:
        """Settle what was started and never finished, then go on until nothing moves without a person.

        `opening` stands before what is settled, in the same transaction."""
        bodies, unfinished = self._world.settle(self.state)
        await self.record(*opening, *bodies)
        for intent in unfinished:
            self._world.start(intent, self.state, self.inbox.put_nowait)
        return await self.wait()

    async def wait(self) -> State:
        while not (self.state.resting and self.inbox.empty()):
            items = [await self.inbox.get()]
            # What came in meanwhile goes into the same transaction.
            while not self.inbox.empty():
                items.append(self.inbox.get_nowait())
            for item in items:
                if isinstance(item, Exception):
                    raise item
            await self.record(*[item for item in items if not isinstance(item, Exception)])
        return self.state

    async def record(self, *bodies: Body) -> None:
        """One transaction: these bodies and the intents that follow. Then, and only then, the effects begin."""
        before = self.state.commands
        state, batch = advance(self.state, bodies, self._log.prepare, self._planner)
        events = await self._log.append(batch) if batch else ()
        self.state = state
        for event in events:
            self._publish(event)
            match event.body:
                case EffectStarted() as intent:
                    self._world.start(intent, state, self.inbox.put_nowait)
                case Interrupted(id=id, agent=agent) if id not in before:
                    for call_id, item in state.open.items():
                        if agent is None or agent == _agent_of(item.effect):
                            self._world.interrupt(call_id)
                case _:
                    pass
        if state.is_open(CallModel):
            # The next append is a model's reply away; while a tool runs, its outcome would have to wait.
            self._log.checkpoint_when_large()


def _agent_of(effect: Effect) -> AgentId | None:
    return effect.agent if isinstance(effect, SpawnAgent | WakeAgent) else None


def advance(
    state: State, bodies: Sequence[Body], prepare: Callable[[Draft], Prepared], planner: Planner
) -> tuple[State, list[Prepared]]:
    """Apply the bodies, and what is decided on them, in the form in which they will be stored. Without bodies: what is
    decided on the state as it is, which somebody else may have made."""
    batch: list[Prepared] = []
    waiting = list(bodies or decide(state, planner))
    while waiting:
        for body in waiting:
            prepared = prepare(Draft(body=body))
            batch.append(prepared)
            state = apply(state, prepared.draft.body)
        waiting = list(decide(state, planner))
    return state, batch
