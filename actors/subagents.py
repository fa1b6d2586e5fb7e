"""A session's other agents in its own process, which they share: an Agents that needs nothing else."""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import replace

from actors.agent_lease import AgentLease, lease_file
from actors.agent_work import Agent, Known, Round, Workshop, fold_agent, opening_of
from actors.agents import Append, Assignment, grant_lease
from agent.state import State
from eventlog.effects import RetireAgents, SpawnAgent
from eventlog.errors import LogError
from eventlog.events import Draft, Event
from eventlog.ids import AgentId
from eventlog.leases import NONE
from eventlog.outcomes import AgentEnded, Refused
from eventlog.seams import Prepared
from eventlog.store import DuckLog


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


class LocalAgents:
    """The shipped Agents."""

    def __init__(self, workshop: Workshop) -> None:
        self._shop = workshop
        self._log: DuckLog | None = None
        self._append: Append | None = None
        self._agents: dict[AgentId, Agent] = {}
        self._interrupted: set[AgentId] = set()
        self._known: dict[AgentId, State] = {}
        """Of those whose round ended in this process."""

    def open(self, log: DuckLog, append: Append) -> None:
        self._log, self._append = log, append

    async def run(self, effect: Assignment, attempt: int, session: State) -> AgentEnded | Refused:
        log, append, name = self._log, self._append, effect.agent
        assert log is not None and append is not None
        if isinstance(effect, SpawnAgent) and effect.labels:
            return Refused(text="Only the daemon has agents on other nodes; leave out --no-daemon, or --labels.")
        if log.leases.get(name, NONE).node:
            # Out there it may act for as long as that: nobody is here whom it asks.
            await asyncio.sleep(self._shop.lease_s)
        number = await grant_lease(log, append, name)
        before = self._known.get(name)
        known = Known(before) if before else await asyncio.to_thread(fold_agent, log, name, number)
        lease = AgentLease(name, number, lease_file(log.folder, name))
        agent = self._agents[name] = Agent(self._shop, AgentLog(log, append, name, number), lease, known)
        if name in self._interrupted:
            agent.interrupt()
        root = str(self._shop.files.repository.root)
        try:
            outcome = await agent.work(Round(effect, opening_of(effect, session, root)))
            self._known[name] = agent.state
            return outcome
        except LogError as error:
            return Refused(text=str(error))
        finally:
            del self._agents[name]
            self._interrupted.discard(name)
            await agent.close()

    async def retire(self, effect: RetireAgents) -> tuple[str, ...]:
        """A session that was in the daemon before may have had some elsewhere."""
        assert self._log is not None
        far = [agent for agent in effect.agents if self._log.leases.get(agent, NONE).node]
        return tuple(f"the worktree of {agent} on another node" for agent in far)

    def note(self, event: Event) -> None:
        """They share this process: what hangs hangs the session, and nobody here can tell."""

    def interrupt(self, agent: AgentId) -> None:
        found = self._agents.get(agent)
        if found is None:
            self._interrupted.add(agent)
        else:
            found.interrupt()
