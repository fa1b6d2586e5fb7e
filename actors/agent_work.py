"""One round of one agent of a fan-out, in whatever process: the same loop and the same world as the main agent's, in a
worktree of its own, over a log that is somebody else's."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from actors.agent_lease import AgentLease
from actors.agents import Agents
from actors.commands import CommandRoom, Commands
from actors.fan_files import calls_of, work_of
from actors.files import SessionFiles
from actors.models import Models
from actors.world import LocalWorld
from agent.apply import fold_events
from agent.loop import Loop
from agent.models.client import Delta, ModelClient, OnDelta
from agent.models.requests import RequestCache
from agent.permissions.rules import Rules
from agent.planning import Surroundings, ToolPlanner
from agent.prompt import as_subagent
from agent.state import State
from eventlog.effects import MakeWorktree, RestoreTree, SpawnAgent
from eventlog.events import Body, ContextSet, EffectStarted, Interrupted, LimitsSet, ModeChosen, UserSaid
from eventlog.ids import AgentId, CallId, CommandId
from eventlog.outcomes import AgentEnded, Refused
from eventlog.redact import Redactor
from eventlog.seams import Clock, Log
from processes.runner import Runner


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


def equip(
    shop: Workshop,
    on_delta: OnDelta,
    *,
    performing: Callable[[], AbstractContextManager[object]] = nullcontext,
    agents: Agents | None = None,
) -> tuple[ToolPlanner, LocalWorld]:
    """What an agent's loop needs; both know its requests. `performing`, `agents`: as for LocalWorld."""
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
    """`opening`: the agent's first events, for one that has none yet; of one that has, its mode is as they say."""

    effect: SpawnAgent
    opening: tuple[Body, ...]


class Agent:
    """One incarnation. `state` is all that the log holds of it."""

    def __init__(self, shop: Workshop, log: Log, lease: AgentLease, state: State) -> None:
        self._lease, self._files = lease, shop.files.of_agent(lease.agent)
        calls = calls_of(lease.path.parent.parent, lease.agent)
        calls.mkdir(mode=0o700, parents=True, exist_ok=True)
        own = replace(
            shop,
            files=self._files,
            around=replace(shop.around, agent=lease.agent, session=self._files.key),
            room=replace(shop.room, calls=calls, lease=lease.of_commands),
            models=Borrowed(shop.models),
        )
        planner, self._world = equip(own, _tell_nobody, performing=lease.performing)
        self._loop = Loop(log, planner, self._world, state, lambda event: None)
        self._interrupted = False

    @property
    def state(self) -> State:
        return self._loop.state

    async def work(self, round: Round) -> State:
        """To the end of the round. Raises LogError, fence.CannotTake."""
        return await self._lease.hold(lambda: take_turn(self._loop, round, lambda: self._interrupted))

    def interrupt(self) -> None:
        self._interrupted = True
        said = f"{self._lease.agent}-interrupted-{self._lease.number}-{len(self.state.commands)}"
        self._loop.inbox.put_nowait(Interrupted(id=CommandId(said)))

    def conclude(self, effect: SpawnAgent) -> AgentEnded | Refused:
        """What the session gets to know of a round that is over. Blocks. Raises GitError."""
        state, ended = self.state, self.state.ending
        # A round whose tree could not be set has not begun: what had ended is the round before.
        if ended is None or state.active or state.refused is not None:
            return Refused(text=state.refused.text if state.refused else "The agent could not begin.")
        subject = (ended.text if ended.ending == "done" else effect.text).strip().partition("\n")[0][:72]
        return AgentEnded(
            ending=ended.ending,
            text=ended.text,
            work=work_of(self._files, state, effect, subject or f"Work of {effect.agent}"),
            usage=state.usage,
            spent_usd=state.spent_usd,
            unpriced=state.unpriced,
        )

    async def close(self) -> None:
        """What it began outlives this process and is found again."""
        await self._world.close()


def fold_agent(log: Log, agent: AgentId, lease: int) -> State:
    """What is known of an agent that an earlier incarnation was; nothing of one that is new. Blocks. Raises
    LogError."""
    if lease == 1:
        return State()
    return fold_events([event for event in log.read() if event.actor == agent], actor=agent)


async def take_turn(loop: Loop, round: Round, interrupted: Callable[[], bool]) -> State:
    """From wherever the agent is in its round. Raises LogError."""
    effect = round.effect
    said = CommandId(f"{effect.agent}.{effect.round}")
    if loop.state.context is None:
        await loop.record(*round.opening, UserSaid(id=said, text=effect.text))
        return await loop.wait()
    # Its session may have other rights by now than those with which this agent began.
    modes = [body for body in round.opening if isinstance(body, ModeChosen) and body.id not in loop.state.commands]
    state = await loop.run(*modes)
    if said in state.commands or state.refused is not None:
        return state
    if state.snapshot != effect.base:
        restore = RestoreTree(commit=effect.base)
        await loop.record(EffectStarted(call_id=CallId(f"t{effect.round}"), attempt=1, effect=restore))
        state = await loop.wait()
        if state.snapshot != effect.base:
            return state
    # A word to stop that came before this round began has stopped nothing yet.
    stop = [Interrupted(id=CommandId(f"{said}-interrupted"))] if interrupted() else []
    await loop.record(UserSaid(id=said, text=effect.text), *stop)
    return await loop.wait()


def opening_of(effect: SpawnAgent, session: State, repository: str) -> tuple[Body, ...]:
    """The first events of an agent: the rights and the model of its session, its own task and share."""
    context, agent = session.context, effect.agent
    assert context is not None
    limits = LimitsSet(
        id=CommandId(f"{agent}-limits"),
        max_turns=session.limits.max_turns,
        max_budget_usd=effect.budget_usd,
        max_attempts=session.limits.max_attempts,
    )
    worktree = MakeWorktree(repository=repository, head=effect.base, carry_dirty=False, at_s=effect.at_s)
    return (
        as_subagent(context),
        session.mode.model_copy(update={"id": CommandId(f"{agent}-{session.mode.id}"), "attended": False}),
        limits,
        EffectStarted(call_id=CallId("w1"), attempt=1, effect=worktree),
    )
