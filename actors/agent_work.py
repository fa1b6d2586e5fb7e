"""One round of one agent of a session, in whatever process: the same loop and the same world as the main agent's, in a
worktree of its own, over a log that is somebody else's."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ParamSpec, TypeVar, assert_never

from actors.agent_lease import LEASE_S, AgentLease, fenced
from actors.agents import Agents, Assignment
from actors.carrier import Carrier, carry_nothing
from actors.commands import CommandRoom, Commands
from actors.courier import Courier
from actors.distance import Distance
from actors.fan_files import calls_of, work_of
from actors.files import SessionFiles
from actors.models import Models
from actors.moving import Move, move_in
from actors.world import LocalWorld
from agent.folding import concerns, fold_events
from agent.left_over import LeftOver, left_behind
from agent.loop import Loop
from agent.models.client import Delta, ModelClient, OnDelta
from agent.models.requests import RequestCache
from agent.permissions.rules import Rules
from agent.planning import Surroundings, ToolPlanner
from agent.prompt import as_subagent
from agent.state import State
from agent.waking import FULL, SAY_ONE, notes_of
from eventlog.effects import MakeWorktree, RestoreTree, SpawnAgent, WakeAgent
from eventlog.events import (
    Body,
    ContextSet,
    ConversationCut,
    EffectStarted,
    Event,
    Interrupted,
    LeaseGranted,
    LimitsSet,
    ModeChosen,
    UserSaid,
)
from eventlog.ids import AgentId, CallId, CommandId
from eventlog.outcomes import AgentEnded, Refused, WorktreeReady
from eventlog.redact import Redactor
from eventlog.seams import Clock, Log
from processes.runner import Runner

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Workshop:
    """What an agent works with: as it stands here the main agent; another one with files, calls and a name of its own
    (Agent)."""

    files: SessionFiles
    room: CommandRoom
    around: Surroundings
    rules: Rules
    models: Models
    runner: Runner
    redactor: Redactor
    clock: Clock
    readable: tuple[Path, ...] = ()
    lease_s: float = LEASE_S
    """For how long an agent on another node may act without hearing of its session."""


def equip(
    shop: Workshop,
    on_delta: OnDelta,
    *,
    performing: Callable[[], AbstractContextManager[object]] = nullcontext,
    agents: Agents | None = None,
    carrier: Carrier = carry_nothing,
) -> tuple[ToolPlanner, LocalWorld]:
    """What an agent's loop needs; both know its requests. `performing`, `agents`, `carrier`: as for LocalWorld."""
    requests = RequestCache()
    planner = ToolPlanner(shop.rules, shop.around, requests, shop.clock)
    world = LocalWorld(
        shop.files,
        Commands(shop.runner, shop.room, shop.redactor),
        shop.models,
        requests,
        planner.may_read,
        on_delta,
        shop.readable,
        performing=performing,
        tools=shop.around.tools,
        agents=agents,
        carrier=carrier,
    )
    return planner, world


def _tell_nobody(delta: Delta) -> None:
    """Several write at the same time: what is read of an agent is its last words."""


class Borrowed:
    """The session's models: an agent that ends leaves them open."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def client(self, context: ContextSet) -> ModelClient:
        return self._models.client(context)

    async def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Round:
    """`opening`: the agent's first events, for one that has none yet; of one that has, rights and limits are as they
    say, and the context of one in the background."""

    effect: Assignment
    opening: tuple[Body, ...]


@dataclass(frozen=True, slots=True)
class Known:
    """Of an agent, in its log. `left`: what it has on a machine where its latest lease is not."""

    state: State
    left: LeftOver | None = None


class Agent:
    """One incarnation. `known` is all that the log holds of it."""

    def __init__(
        self, shop: Workshop, log: Log, lease: AgentLease, known: Known, distance: Distance | None = None
    ) -> None:
        """`distance`: where it works on another node than its session."""
        self._lease, self._files = lease, shop.files.of_agent(lease.agent)
        self._log, self._left, self._distance = log, known.left, distance
        self._courier = None if distance is None else Courier(self._files, distance.to(lease), self._change)
        calls = calls_of(lease.path.parent.parent, lease.agent)
        calls.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = replace(
            shop,
            files=self._files,
            around=replace(shop.around, agent=lease.agent, session=self._files.key),
            room=replace(shop.room, calls=calls, lease=lease.of_commands),
            models=Borrowed(shop.models),
        )
        planner, self._world = equip(
            own, _tell_nobody, performing=lease.performing, carrier=self._courier or carry_nothing
        )
        self._loop = Loop(log, planner, self._world, known.state, lambda event: None)
        self._interrupted = False

    @property
    def state(self) -> State:
        return self._loop.state

    async def work(self, round: Round) -> AgentEnded | Refused:
        """To the end of the round: what its session gets to know, once it has what was made. Raises LogError, GitError,
        fence.CannotTake."""
        return await self._lease.hold(lambda: self._work(round))

    async def _work(self, round: Round) -> AgentEnded | Refused:
        if self._distance is not None:
            await self._change(self._distance.take_in, self._files)
        if self._left is not None:
            move = Move(
                left=self._left,
                lease=self._lease.number,
                at_s=round.effect.at_s,
                change=self._change,
                arrived=self._deliver,
            )
            await move_in(self._loop, self._log, self._files, move)
        await take_turn(self._loop, round, lambda: self._interrupted, self._files.holds)
        outcome = await asyncio.to_thread(self._conclude, round.effect)
        await self._deliver()
        return outcome

    async def _change(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """In a thread, and only while the lease is this incarnation's."""

        return await asyncio.to_thread(fenced(self._lease.performing, call), *args, **kwargs)

    async def _deliver(self) -> None:
        if self._courier is not None:
            await self._courier.deliver()

    def interrupt(self) -> None:
        self._interrupted = True
        said = f"{self._lease.agent}-interrupted-{self._lease.number}-{len(self.state.commands)}"
        self._loop.inbox.put_nowait(Interrupted(id=CommandId(said)))

    def _conclude(self, effect: Assignment) -> AgentEnded | Refused:
        state, ended = self.state, self.state.ending
        # A round whose tree could not be set has not begun: what had ended is the round before.
        if ended is None or state.active or state.refused is not None:
            return Refused(text=state.refused.text if state.refused else "The agent could not begin.")
        subject = (ended.text if ended.ending == "done" else effect.text).strip().partition("\n")[0][:72]
        return AgentEnded(
            ending=ended.ending,
            text=ended.text,
            work=work_of(self._files, state, effect, subject or f"Work of {effect.agent}"),
            said=state.said,
            usage=state.usage,
            spent_usd=state.spent_usd,
            unpriced=state.unpriced,
        )

    async def close(self) -> None:
        """What it began outlives this process and is found again."""
        await self._world.close()


def fold_agent(log: Log, agent: AgentId, lease: int) -> Known:
    """What is known of an agent that an earlier incarnation was; nothing of one that is new. Blocks. Raises
    LogError."""
    if lease == 1:
        return Known(State())
    events = [event for event in log.read() if concerns(event, agent) or is_lease_of(event, agent)]
    return Known(fold_events(events, actor=agent), left_behind(events, agent))


def is_lease_of(event: Event, agent: AgentId) -> bool:
    return isinstance(event.body, LeaseGranted) and event.body.agent == agent


async def take_turn(
    loop: Loop, round: Round, interrupted: Callable[[], bool], holds: Callable[[WorktreeReady], bool]
) -> State:
    """From wherever the agent is in its round. `holds`: whether a worktree is there and its own. Raises LogError."""
    effect = round.effect
    said = CommandId(f"{effect.agent}.{effect.round}")
    if loop.state.context is None:
        await loop.record(*round.opening, UserSaid(id=said, text=effect.text))
        return await _come_to_a_word(loop, effect, await loop.wait())
    state = await loop.run(*_renewed(loop.state, round))
    if said not in state.commands and state.refused is None:
        for intent in _placing(round, state, holds):
            await loop.record(intent)
            state = await loop.wait()
        if state.snapshot != effect.base:
            return state
        # A word to stop that came before this round began has stopped nothing yet.
        stop = [Interrupted(id=CommandId(f"{said}-interrupted"))] if interrupted() else []
        await loop.record(*_shorten(state, effect), UserSaid(id=said, text=effect.text), *stop)
        state = await loop.wait()
    return await _come_to_a_word(loop, effect, state)


def _renewed(state: State, round: Round) -> list[Body]:
    """Its session may have other rights by now than those with which this agent began, and its definition may have
    changed."""
    known = state.chosen or state.context
    bodies: list[Body] = []
    for body in round.opening:
        match body:
            case ModeChosen() | LimitsSet() if body.id not in state.commands:
                bodies.append(body)
            case ContextSet() if isinstance(round.effect, WakeAgent) and body != known:
                bodies.append(body)
            case _:
                pass
    return bodies


def _placing(round: Round, state: State, holds: Callable[[WorktreeReady], bool]) -> list[EffectStarted]:
    """What sets its worktree to what the round begins with. One of a fork has none yet, and somebody may have deleted
    it."""
    effect = round.effect
    if state.worktree is None or not holds(state.worktree):
        made = [body for body in round.opening if isinstance(body, EffectStarted)]
        return [body.model_copy(update={"call_id": CallId(f"w{effect.round}")}) for body in made]
    if state.snapshot == effect.base:
        return []
    return [EffectStarted(call_id=CallId(f"t{effect.round}"), attempt=1, effect=RestoreTree(commit=effect.base))]


def _shorten(state: State, effect: Assignment) -> list[Body]:
    """Before its conversation fills the window: what it noted itself goes on, the rest is left out."""
    too_long = state.context is not None and state.context_tokens > state.context.window * FULL
    return [ConversationCut(text=notes_of(state))] if isinstance(effect, WakeAgent) and too_long else []


async def _come_to_a_word(loop: Loop, effect: Assignment, state: State) -> State:
    """A background agent that ended without a word is asked for one, once."""
    again = CommandId(f"{effect.agent}.{effect.round}-again")
    done = state.ending is not None and state.ending.ending == "done" and not state.active
    if not isinstance(effect, WakeAgent) or not done or state.said is not None or again in state.commands:
        return state
    await loop.record(UserSaid(id=again, text=SAY_ONE))
    return await loop.wait()


def opening_of(effect: Assignment, session: State, repository: str) -> tuple[Body, ...]:
    """The first events of an agent: the rights of its session, its own context, task and share."""
    agent = effect.agent
    match effect:
        case SpawnAgent(budget_usd=budget):
            assert session.context is not None
            context, name = as_subagent(session.context), f"{agent}-limits"
        case WakeAgent():
            one = next(one for one in session.agents if one.agent == agent)
            context, name = one.chosen.context, f"{agent}.{effect.round}-limits"
            # Its limit counts over all its rounds.
            budget = None if effect.budget_usd is None else one.spent_usd + effect.budget_usd
        case _:
            assert_never(effect)
    limits = LimitsSet(
        id=CommandId(name),
        max_turns=session.limits.max_turns,
        max_budget_usd=budget,
        max_attempts=session.limits.max_attempts,
    )
    worktree = MakeWorktree(repository=repository, head=effect.base, carry_dirty=False, at_s=effect.at_s)
    return (
        context,
        session.mode.model_copy(update={"id": CommandId(f"{agent}-{session.mode.id}"), "attended": False}),
        limits,
        EffectStarted(call_id=CallId("w1"), attempt=1, effect=worktree),
    )
