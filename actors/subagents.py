"""The agents of a fan-out, in the process of their session: the same loop and the same world as the main agent's, over
the same log, each in a worktree of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from actors.agent_lease import AgentLease, lease_file
from actors.commands import CommandRoom, Commands
from actors.fan_files import calls_of, work_of
from actors.files import SessionFiles
from actors.models import Models
from actors.world import LocalWorld
from agent.apply import fold_events
from agent.loop import Loop
from agent.models.client import Delta, ModelClient
from agent.models.requests import RequestCache
from agent.permissions.rules import Rules
from agent.planning import Surroundings, ToolPlanner
from agent.prompt import as_subagent
from agent.state import State
from eventlog.effects import MakeWorktree, RestoreTree, SpawnAgent
from eventlog.errors import LogError
from eventlog.events import Body, ContextSet, Draft, EffectStarted, Event, Interrupted, LimitsSet, UserSaid
from eventlog.ids import AgentId, CallId, CommandId
from eventlog.leases import next_lease
from eventlog.outcomes import AgentEnded, Refused
from eventlog.redact import Redactor
from eventlog.seams import Clock, Prepared
from eventlog.store import DuckLog
from processes.runner import Runner

Append = Callable[[Sequence[Prepared]], Awaitable[tuple[Event, ...]]]


class AgentLog:
    """The session's log in the name of one incarnation of an agent, in the writer's own process."""

    def __init__(self, log: DuckLog, append: Append, agent: AgentId, lease: int) -> None:
        self._log, self._append, self._agent, self._lease = log, append, agent, lease
        self._next = 1

    def prepare(self, draft: Draft) -> Prepared:
        return self._log.prepare(draft.model_copy(update={"actor": self._agent, "lease": self._lease}))

    async def append(self, prepared: Sequence[Prepared]) -> tuple[Event, ...]:
        numbered = [
            replace(item, draft=item.draft.model_copy(update={"actor_seq": number}))
            for number, item in enumerate(prepared, self._next)
        ]
        self._next += len(numbered)
        return await self._append(numbered)

    def read(self, after_seq: int = 0) -> Iterator[Event]:
        return self._log.read(after_seq)

    def checkpoint_when_large(self) -> None:
        """The session sees to it."""


@dataclass(frozen=True, slots=True)
class Workshop:
    """What the agents of a session share."""

    files: SessionFiles
    """The main agent's."""
    room: CommandRoom
    around: Surroundings
    rules: Rules
    models: Models
    runner: Runner
    redactor: Redactor
    clock: Clock
    on_delta: Callable[[Delta], None]
    readable: tuple[Path, ...] = ()


class Borrowed:
    """The session's models: an agent that ends leaves them open."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def client(self, context: ContextSet) -> ModelClient:
        return self._models.client(context)

    async def close(self) -> None:
        pass


class LocalAgents:
    """The shipped Agents. `open` gives it the log, before the first of them runs."""

    def __init__(self, workshop: Workshop) -> None:
        self._shop = workshop
        self._log: DuckLog | None = None
        self._append: Append | None = None
        self._loops: dict[AgentId, Loop] = {}
        self._interrupted: set[AgentId] = set()
        self._known: dict[AgentId, State] = {}
        """Of those whose round ended in this process."""

    def open(self, log: DuckLog, append: Append) -> None:
        self._log, self._append = log, append

    async def run(self, effect: SpawnAgent, session: State) -> AgentEnded | Refused:
        assert self._log is not None and self._append is not None
        log, agent = self._log, effect.agent
        granted = next_lease(log.leases, agent)
        await self._append([log.prepare(Draft(body=granted))])
        state = self._known.get(agent) or await asyncio.to_thread(_fold, log, agent, granted.lease)
        lease = AgentLease(agent, granted.lease, lease_file(log.folder, agent))
        files = self._shop.files.of_agent(agent)
        requests = RequestCache()
        around = replace(self._shop.around, agent=agent, session=files.key)
        planner = ToolPlanner(self._shop.rules, around, requests, self._shop.clock)
        world = self._make_world(files, lease, requests, planner)
        own = AgentLog(log, self._append, agent, granted.lease)
        loop = Loop(own, planner, world, state, lambda event: None)
        self._loops[agent] = loop
        if agent in self._interrupted:
            self.interrupt(agent)
        try:
            root = str(files.repository.root)
            state = await lease.hold(lambda: take_turn(loop, effect, session, root))
        except LogError as error:
            return Refused(text=str(error))
        finally:
            del self._loops[agent]
            await world.close()
        self._known[agent] = state
        return await asyncio.to_thread(conclude, files, state, effect)

    def interrupt(self, agent: AgentId) -> None:
        loop = self._loops.get(agent)
        if loop is None:
            self._interrupted.add(agent)
            return
        said = CommandId(f"{agent}-interrupted-{loop.state.epoch}-{len(loop.state.commands)}")
        loop.inbox.put_nowait(Interrupted(id=said))

    async def close(self) -> None:
        pass

    def _make_world(
        self, files: SessionFiles, lease: AgentLease, requests: RequestCache, planner: ToolPlanner
    ) -> LocalWorld:
        shop = self._shop
        calls = calls_of(lease.path.parent.parent, lease.agent)
        calls.mkdir(mode=0o700, parents=True, exist_ok=True)
        room = replace(shop.room, calls=calls, lease=lease.of_commands)
        commands = Commands(shop.runner, room, shop.redactor)
        return LocalWorld(
            files,
            commands,
            Borrowed(shop.models),
            requests,
            planner.may_read,
            shop.on_delta,
            shop.readable,
            performing=lease.performing,
            tools=shop.around.tools,
        )


def _fold(log: DuckLog, agent: AgentId, lease: int) -> State:
    """What is known of an agent that an earlier process ran; nothing of one that is new."""
    if lease == 1:
        return State()
    return fold_events([event for event in log.read() if event.actor == agent], actor=agent)


async def take_turn(loop: Loop, effect: SpawnAgent, session: State, repository: str) -> State:
    """One round of an agent, from wherever it is in it. Raises LogError."""
    said = CommandId(f"{effect.agent}.{effect.round}")
    if loop.state.context is None:
        await loop.record(*opening(effect, session, repository), UserSaid(id=said, text=effect.text))
        return await loop.wait()
    state = await loop.run()
    if said in state.commands:
        return state
    if state.snapshot != effect.base:
        restore = RestoreTree(commit=effect.base)
        await loop.record(EffectStarted(call_id=CallId(f"t{effect.round}"), attempt=1, effect=restore))
        state = await loop.wait()
        if state.snapshot != effect.base:
            return state
    await loop.record(UserSaid(id=said, text=effect.text))
    return await loop.wait()


def opening(effect: SpawnAgent, session: State, repository: str) -> list[Body]:
    """The first events of an agent: the rights and the model of its session, its own task and share."""
    context, mode = session.context, session.mode
    assert context is not None
    limits = LimitsSet(
        id=CommandId(f"{effect.agent}-limits"),
        max_turns=session.limits.max_turns,
        max_budget_usd=effect.budget_usd,
        max_attempts=session.limits.max_attempts,
    )
    worktree = MakeWorktree(repository=repository, head=effect.base, carry_dirty=False, at_s=effect.at_s)
    return [
        as_subagent(context),
        mode.model_copy(update={"id": CommandId(f"{effect.agent}-mode"), "attended": False}),
        limits,
        EffectStarted(call_id=CallId("w1"), attempt=1, effect=worktree),
    ]


def conclude(files: SessionFiles, state: State, effect: SpawnAgent) -> AgentEnded | Refused:
    """What its session gets to know of a round that is over. Blocks. Raises GitError."""
    ended = state.ending
    if ended is None or state.active:
        return Refused(text=state.refused.text if state.refused else "The agent could not begin.")
    subject = (ended.text if ended.ending == "done" else effect.text).strip().partition("\n")[0][:72]
    return AgentEnded(
        ending=ended.ending,
        text=ended.text,
        work=work_of(files, state, effect, subject or f"Work of {effect.agent}"),
        usage=state.usage,
        spent_usd=state.spent_usd,
        unpriced=state.unpriced,
    )
