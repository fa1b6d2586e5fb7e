"""The agents of a hosted session: each in a process of its own, a detached actor that outlives its session's process.

Who takes a session up finds its agents at work and waits for them. One that died, or that says nothing for too long,
goes on from the log in another process."""

import asyncio
import contextlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter

from actors.agent_work import Round, Workshop, opening_of
from actors.agents import Append
from actors.building import Rights
from actors.heartbeat import wait_silent
from actors.orders import Order, encode_order, owner_of
from agent.state import State
from configs.crash import reached
from eventlog.effects import SpawnAgent
from eventlog.errors import CannotTakeOver
from eventlog.events import Draft, Event
from eventlog.ids import AgentId, SessionId
from eventlog.leases import next_lease
from eventlog.lock import Holder
from eventlog.outcomes import AgentEnded, AttemptLost, Refused
from eventlog.store import DuckLog
from eventlog.taking_over import end_process

_PREFIX = "agent-"
_ANSWER_S = 10.0
_OUTCOME: TypeAdapter[AgentEnded | Refused] = TypeAdapter(AgentEnded | Refused)


@dataclass(frozen=True, slots=True)
class Seat:
    """What a round needs besides what its session knows."""

    state_folder: Path
    config_file: Path
    variables: Mapping[str, str]
    """As the session got them; they cross to the agent's process and are kept nowhere."""
    hung_s: float
    """How long an agent's process may not answer, and `quiet_s` how long it may log nothing, until it is replaced."""
    quiet_s: float


class RayAgents:
    """An Agents. Belongs to a process that has joined Ray."""

    def __init__(self, workshop: Workshop, rights: Rights, seat: Seat) -> None:
        self._shop, self._rights, self._seat = workshop, rights, seat
        self._log: DuckLog | None = None
        self._append: Append | None = None
        self._at_work: dict[AgentId, tuple[Any, str]] = {}
        """Handles of actors, whose methods no type checker knows, and what each knows its round by."""
        self._interrupted: set[AgentId] = set()
        self._heard: dict[AgentId, asyncio.Event] = {}
        """Set by each event of an agent."""
        self._seating = asyncio.Lock()

    def open(self, log: DuckLog, append: Append) -> None:
        self._log, self._append = log, append

    async def run(self, effect: SpawnAgent, attempt: int, session: State) -> AgentEnded | Refused | AttemptLost:
        log, agent = self._log, effect.agent
        assert log is not None
        owner = owner_of(log.session, agent, effect.round, attempt)
        worker = await self._adopt(owner) if agent in log.leases else None
        if worker is None:
            worker = await self._begin(log, effect, attempt, session)
        self._at_work[agent] = (worker, owner)
        if agent in self._interrupted:
            worker.interrupt.remote(owner)
        try:
            told = await self._wait(agent, worker, owner)
        except ActorLost as error:
            return AttemptLost(evidence=f"the process of agent {agent} {error}; it goes on from the log")
        finally:
            self._at_work.pop(agent, None)
        return _read(agent, told)

    async def _wait(self, agent: AgentId, worker: Any, owner: str) -> bytes:
        """Raises ActorLost; its process is gone then, also one that hung."""
        self._heard[agent] = asyncio.Event()
        process = await _process_of(worker)
        told = asyncio.ensure_future(_answer(worker.outcome.remote(owner), None))
        hung = asyncio.ensure_future(wait_silent(lambda: _ping(worker), self._seat.hung_s))
        quiet = asyncio.ensure_future(self._wait_quiet(agent))
        try:
            await asyncio.wait({told, hung, quiet}, return_when=asyncio.FIRST_COMPLETED)
            if told.done():
                return told.result()
            await _end(worker, process)
            limit_s = self._seat.hung_s if hung.done() else self._seat.quiet_s
            what = "did not answer" if hung.done() else "logged nothing"
            raise ActorLost(f"{what} for {limit_s:g} s and was ended")
        finally:
            for task in (told, hung, quiet):
                task.cancel()
            await asyncio.gather(told, hung, quiet, return_exceptions=True)

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

    async def close(self) -> None:
        """They outlive this process; who opens the session again finds them."""

    async def _begin(self, log: DuckLog, effect: SpawnAgent, attempt: int, session: State) -> Any:
        assert self._append is not None
        granted = next_lease(log.leases, effect.agent)
        reached("before_lease")
        await self._append([log.prepare(Draft(body=granted))])
        reached("after_lease")
        root = self._shop.files.repository.root
        order = Order(
            session=SessionId(log.session),
            repository=root,
            config_file=self._seat.config_file,
            lease=granted.lease,
            attempt=attempt,
            mode=session.mode,
            rights=self._rights,
            round=Round(effect, opening_of(effect, session, str(root))),
        )
        return await self._seat_at(encode_order(order), orjson.dumps(dict(self._seat.variables)))

    async def _seat_at(self, order: bytes, variables: bytes) -> Any:
        """An idle worker that has taken the order, or a new one."""
        async with self._seating:
            for worker, found in await _describe_all():
                if found["free"]:
                    with contextlib.suppress(ActorLost):
                        if await _answer(worker.begin.remote(order, variables)):
                            return worker
        while True:
            worker = await asyncio.to_thread(_create, self._seat.state_folder)
            if await _answer(worker.begin.remote(order, variables), None):
                return worker

    async def _adopt(self, owner: str) -> Any | None:
        """The worker that has the agent, if one lives."""
        return next((worker for worker, found in await _describe_all() if found["owner"] == owner), None)


class ActorLost(Exception):
    """Its process died, or does not answer."""


def _read(agent: AgentId, told: bytes) -> AgentEnded | Refused | AttemptLost:
    if not told:
        return AttemptLost(evidence=f"what agent {agent} came to was told to somebody else; it goes on from the log")
    answer = orjson.loads(told)
    if "outcome" in answer:
        return _OUTCOME.validate_python(answer["outcome"])
    if "LogError" in answer["kinds"]:
        return AttemptLost(evidence=f"agent {agent} had to stop: {answer['text']}")
    return Refused(text=answer["text"] or f"Agent {agent} met a mistake of ours; the daemon's log says where.")


async def _describe_all() -> Sequence[tuple[Any, Mapping[str, Any]]]:
    """The agents' workers that answer."""
    import ray

    names = [name for name in await asyncio.to_thread(ray.util.list_named_actors) if name.startswith(_PREFIX)]

    async def look(name: str) -> tuple[Any, Mapping[str, Any]] | None:
        # ValueError: it ended meanwhile.
        with contextlib.suppress(ActorLost, ValueError):
            worker = await asyncio.to_thread(ray.get_actor, name)
            return worker, orjson.loads(await _answer(worker.describe.remote()))
        return None

    return [found for found in await asyncio.gather(*map(look, names)) if found is not None]


def _create(state_folder: Path) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from actors.agent_worker import AgentWorkerActor

    here = ray.get_runtime_context().get_node_id()
    options: Any = AgentWorkerActor.options(
        name=_PREFIX + secrets.token_hex(4),
        lifetime="detached",
        num_cpus=0,
        max_restarts=0,
        max_task_retries=0,
        # Its worktree and its session's folder are on this node.
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
    )
    return options.remote(str(state_folder))


async def _answer(reference: Any, limit_s: float | None = _ANSWER_S) -> Any:
    from ray.exceptions import RayError

    try:
        async with asyncio.timeout(limit_s):
            return await reference
    except TimeoutError as error:
        raise ActorLost(f"did not answer for {limit_s:g} s") from error
    except RayError as error:
        raise ActorLost(f"ended ({type(error).__name__})") from error


async def _ping(worker: Any) -> None:
    """One that is dead is told of by who waits for its outcome."""
    with contextlib.suppress(ActorLost):
        await _answer(worker.describe.remote(), None)


async def _process_of(worker: Any) -> Holder:
    """Raises ActorLost."""
    found = orjson.loads(await _answer(worker.describe.remote()))
    return Holder(found["pid"], found["started"])


async def _end(worker: Any, process: Holder) -> None:
    """By its pid first: Ray would ask it, and it does not listen."""
    import ray

    with contextlib.suppress(CannotTakeOver):
        await asyncio.to_thread(end_process, process)
    await asyncio.to_thread(ray.kill, worker, no_restart=True)
