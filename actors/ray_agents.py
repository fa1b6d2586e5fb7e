"""The agents of a hosted session: each in a process of its own, a detached actor that outlives its session's process.

Who takes a session up finds its agents at work and waits for them. One that died, or that says nothing for too long,
goes on from the log in another process."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter

from actors import detached
from actors.agent_work import Round, Workshop, opening_of
from actors.agents import Append, Assignment, grant_lease
from actors.building import Rights
from actors.detached import Handle, WorkerHung, WorkerLost, ask
from actors.door import Door
from actors.heartbeat import wait_silent
from actors.orders import Order, encode_order, is_of, owner_of
from actors.placing import NoNode
from actors.sites import Sites
from actors.ways import NoWay
from agent.state import State
from configs.settings import Settings
from eventlog.effects import RetireAgents, WakeAgent
from eventlog.events import Event
from eventlog.ids import AgentId, SessionId
from eventlog.leases import NONE
from eventlog.lock import Holder
from eventlog.outcomes import AgentEnded, AttemptLost, Refused
from eventlog.store import DuckLog
from worktrees.git import GitError

_PREFIX = "agent-"
_ANSWER_S = 10.0
_MARGIN_S = 1.0
"""On top of a lease that nobody renews: clocks of two machines run a little apart."""
_OUTCOME: TypeAdapter[AgentEnded | Refused] = TypeAdapter(AgentEnded | Refused)


@dataclass(frozen=True, slots=True)
class Seat:
    """What a round needs besides what its session knows."""

    state_folder: Path
    config_file: Path
    variables: Mapping[str, str]
    """As the session got them; they cross to the agent's process and are kept nowhere."""
    door: Callable[[], Door]
    """The session's, once its agents are at work."""
    settings: Settings
    hung_s: float
    """How long an agent's process may not answer, and `quiet_s` how long it may log nothing, until it is replaced."""

    @property
    def quiet_s(self) -> float:
        return self.settings.agent_quiet_s


class RayAgents:
    """An Agents. Belongs to a process that has joined Ray."""

    def __init__(self, workshop: Workshop, rights: Rights, seat: Seat) -> None:
        self._shop, self._rights, self._seat = workshop, rights, seat
        self._log: DuckLog | None = None
        self._append: Append | None = None
        self._at_work: dict[AgentId, tuple[Handle, str]] = {}
        """With what each knows its round by."""
        self._interrupted: set[AgentId] = set()
        self._heard: dict[AgentId, asyncio.Event] = {}
        """Set by each event of an agent."""
        self._seating = asyncio.Lock()
        self._sites = Sites(workshop, seat.settings, seat.state_folder)

    def open(self, log: DuckLog, append: Append) -> None:
        self._log, self._append = log, append

    async def run(self, effect: Assignment, attempt: int, session: State) -> AgentEnded | Refused | AttemptLost:
        log, agent = self._log, effect.agent
        assert log is not None
        owner = owner_of(log.session, agent, effect.round, attempt)
        try:
            worker = await self._adopt(owner) if agent in log.leases else None
            if worker is None:
                worker = await self._begin(log, effect, attempt, session)
        except (NoNode, NoWay, GitError) as error:
            self._sites.release(agent)
            return Refused(text=str(error))
        except WorkerLost as error:
            self._sites.release(agent)
            return AttemptLost(evidence=f"agent {agent} could not begin: {error}")
        self._at_work[agent] = (worker, owner)
        if agent in self._interrupted:
            worker.interrupt.remote(owner)
        try:
            outcome = _read(agent, await self._wait(agent, worker, owner))
        except WorkerLost as error:
            # Where only the way to it broke it lives, and nobody would ask any more what its round came to.
            await detached.end(worker, None)
            how = str(error) if isinstance(error, WorkerHung) else f"ended ({error})"
            outcome = AttemptLost(evidence=f"the process of agent {agent} {how}; it goes on from the log")
        finally:
            self._at_work.pop(agent, None)
            self._sites.release(agent)
        # A word to stop holds for each attempt at a task; who is in the background looks again in another turn.
        if isinstance(effect, WakeAgent) or not isinstance(outcome, AttemptLost):
            self._interrupted.discard(agent)
        return outcome

    async def _wait(self, agent: AgentId, worker: Handle, owner: str) -> bytes:
        """Raises WorkerLost, and WorkerHung for one that hung; the process of that one was ended."""
        self._heard[agent] = asyncio.Event()
        process = await _process_of(worker)
        told = asyncio.ensure_future(ask(worker.outcome.remote(owner), None))
        hung = asyncio.ensure_future(wait_silent(lambda: _ping(worker), self._seat.hung_s))
        quiet = asyncio.ensure_future(self._wait_quiet(agent))
        try:
            await asyncio.wait({told, hung, quiet}, return_when=asyncio.FIRST_COMPLETED)
            if told.done():
                return told.result()
            await detached.end(worker, process if self._is_here(agent) else None)
            limit_s = self._seat.hung_s if hung.done() else self._seat.quiet_s
            what = "did not answer" if hung.done() else "logged nothing"
            raise WorkerHung(f"{what} for {limit_s:g} s and was ended")
        finally:
            for task in (told, hung, quiet):
                task.cancel()
            await asyncio.gather(told, hung, quiet, return_exceptions=True)

    def _is_here(self, agent: AgentId) -> bool:
        """Whether a process of its number is a process of this machine."""
        assert self._log is not None
        return not self._log.leases[agent].node

    async def _wait_quiet(self, agent: AgentId) -> None:
        heard = self._heard[agent]
        with contextlib.suppress(TimeoutError):
            while True:
                async with asyncio.timeout(self._seat.quiet_s):
                    await heard.wait()
                heard.clear()

    def note(self, event: Event) -> None:
        if (heard := self._heard.get(event.actor)) is not None:
            heard.set()

    def interrupt(self, agent: AgentId) -> None:
        self._interrupted.add(agent)
        if (found := self._at_work.get(agent)) is not None:
            worker, owner = found
            worker.interrupt.remote(owner)

    async def _begin(self, log: DuckLog, effect: Assignment, attempt: int, session: State) -> Handle:
        """Raises NoNode, NoWay, GitError, WorkerLost, LogError."""
        assert self._append is not None
        before, door = log.leases.get(effect.agent, NONE), self._seat.door()
        site = await self._sites.choose(effect, before, lambda: _count_others(log.session))
        async with door.taking:
            lease = await grant_lease(log, self._append, effect.agent, site.node, site.host)
            # What comes from an incarnation before is refused from here on.
            refs = await asyncio.to_thread(self._sites.own_refs, effect) if site.node else {}
        if before.node not in ("", site.node):
            await asyncio.sleep(door.lease_left(effect.agent, self._shop.lease_s) + _MARGIN_S)
        given = await asyncio.to_thread(self._sites.describe, site, effect, refs) if site.node else None
        root = self._shop.files.repository.root
        order = Order(
            session=SessionId(log.session),
            repository=root,
            config_file=self._seat.config_file,
            lease=lease,
            attempt=attempt,
            mode=session.mode,
            rights=self._rights,
            round=Round(effect, opening_of(effect, session, str(root))),
            elsewhere=given,
        )
        if given is not None:
            await self._sites.reach(log.session, site)
        return await self._seat_at(order)

    async def _seat_at(self, order: Order) -> Handle:
        """An idle worker where the agent is to be that has taken the order, first one that knows it, or a new one."""
        async with self._seating:
            workers = await _describe_all()
            for worker, found in sorted(workers, key=lambda item: not is_of(item[1]["owner"], order.mine)):
                if found["free"] and found["node"] == _node_of(order):
                    with contextlib.suppress(WorkerLost):
                        if await self._hand(worker, order, _ANSWER_S):
                            return worker
        while True:
            worker = await self._create("" if order.elsewhere is None else order.elsewhere.node)
            if await self._hand(worker, order, None):
                return worker

    async def _create(self, node: str) -> Handle:
        """`node`: empty for the own one."""
        from actors.agent_worker import AgentWorkerActor

        name, folder = detached.new_name(_PREFIX), None if node else self._seat.state_folder
        return await asyncio.to_thread(
            detached.create, AgentWorkerActor, name, folder, max_restarts=0, node=node or None
        )

    async def _hand(self, worker: Handle, order: Order, limit_s: float | None) -> bool:
        """Raises GitError, WorkerLost."""
        bundle = b"" if order.elsewhere is None else await self._sites.pack(worker, order.elsewhere)
        variables = orjson.dumps(dict(self._seat.variables))
        return await ask(worker.begin.remote(encode_order(order), variables, bundle), limit_s)

    async def retire(self, effect: RetireAgents) -> tuple[str, ...]:
        assert self._log is not None
        far = sorted({(node, agent) for agent in effect.agents if (node := self._log.leases.get(agent, NONE).node)})
        kept: list[str] = []
        for node, agents in groupby(far, key=lambda one: one[0]):
            theirs = effect.model_copy(update={"agents": tuple(agent for _, agent in agents)})
            try:
                worker = await self._find_any(node)
                kept += await self._sites.retire(worker, self._log.session, theirs)
            except WorkerLost:
                kept += [f"the worktree of {agent}, on a node that is not there" for agent in theirs.agents]
        return tuple(kept)

    async def _find_any(self, node: str) -> Handle:
        """A worker on a node, whatever it does."""
        found = [worker for worker, about in await _describe_all() if about["node"] == node]
        return found[0] if found else await self._create(node)

    async def close(self) -> None:
        """The session is over. What its agents were doing goes on when it is opened again."""
        assert self._log is not None
        await self._sites.leave(self._log.session)

    async def _adopt(self, owner: str) -> Handle | None:
        """The worker that has the agent, if one lives."""
        return next((worker for worker, found in await _describe_all() if found["owner"] == owner), None)


def _read(agent: AgentId, told: bytes) -> AgentEnded | Refused | AttemptLost:
    if not told:
        return AttemptLost(evidence=f"what agent {agent} came to was told to somebody else; it goes on from the log")
    answer = orjson.loads(told)
    if "outcome" in answer:
        return _OUTCOME.validate_python(answer["outcome"])
    if "LogError" in answer["kinds"]:
        return AttemptLost(evidence=f"agent {agent} had to stop: {answer['text']}")
    return Refused(text=answer["text"] or f"Agent {agent} met a mistake of ours; the daemon's log says where.")


def _node_of(order: Order) -> str:
    import ray

    return ray.get_runtime_context().get_node_id() if order.elsewhere is None else order.elsewhere.node


async def _count_others(session: str) -> Counter[str]:
    """Agents of other sessions that are at work, by node."""
    found = [about for _, about in await _describe_all()]
    return Counter(one["node"] for one in found if not one["free"] and not is_of(one["owner"], f"{session} "))


async def _describe_all() -> Sequence[tuple[Handle, Mapping[str, Any]]]:
    """The agents' workers that answer."""

    async def look(name: str) -> tuple[Handle, Mapping[str, Any]] | None:
        # ValueError: it ended meanwhile.
        with contextlib.suppress(WorkerLost, ValueError):
            worker = await detached.find(name)
            return worker, orjson.loads(await ask(worker.describe.remote(), _ANSWER_S))
        return None

    names = await detached.list_names(_PREFIX)
    return [found for found in await asyncio.gather(*map(look, names)) if found is not None]


async def _ping(worker: Handle) -> None:
    """One that is dead is told of by who waits for its outcome."""
    with contextlib.suppress(WorkerLost):
        await ask(worker.describe.remote(), None)


async def _process_of(worker: Handle) -> Holder:
    """Raises WorkerLost."""
    found = orjson.loads(await ask(worker.describe.remote(), _ANSWER_S))
    return Holder(found["pid"], found["started"])
