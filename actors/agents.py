"""The seam between a session and its other agents: those of a fan-out, and those in the background."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from agent.state import State
from configs.crash import reached
from eventlog.effects import RetireAgents, SpawnAgent, WakeAgent
from eventlog.events import Draft, Event
from eventlog.ids import AgentId
from eventlog.leases import next_lease
from eventlog.outcomes import AgentEnded, AttemptLost, Refused
from eventlog.seams import Prepared
from eventlog.store import DuckLog

Append = Callable[[Sequence[Prepared]], Awaitable[tuple[Event, ...]]]
"""Into the session's log, and published."""


Assignment = SpawnAgent | WakeAgent
"""A round of an agent's work."""


class Agents(Protocol):
    """Where the other agents of a session live."""

    def open(self, log: DuckLog, append: Append) -> None:
        """Before the first of them runs."""
        ...

    async def run(self, effect: Assignment, attempt: int, session: State) -> AgentEnded | Refused | AttemptLost:
        """Until the agent's round is over. One that began it already, also in an earlier process, goes on with it.
        AttemptLost: its process died, and the next attempt goes on from the log."""
        ...

    async def retire(self, effect: RetireAgents) -> tuple[str, ...]:
        """Give back what these have on other nodes than their session's. As AgentsRetired.kept."""
        ...

    def note(self, event: Event) -> None:
        """Each event of the session, as it is published."""
        ...

    def interrupt(self, agent: AgentId) -> None:
        """The round that it is in, or that is about to begin, ends early."""
        ...


async def grant_lease(log: DuckLog, append: Append, agent: AgentId, node: str = "", host: str = "") -> int:
    """The number of the agent's next incarnation, durable: what the one before it appends is refused from here on.
    Raises LogError."""
    granted = next_lease(log.leases, agent, node, host)
    reached("before_lease")
    await append([log.prepare(Draft(body=granted))])
    reached("after_lease")
    return granted.lease
