"""The seam between a session and the agents of its fan-outs."""

from typing import Protocol

from agent.state import State
from eventlog.effects import SpawnAgent
from eventlog.ids import AgentId
from eventlog.outcomes import AgentEnded, Refused


class Agents(Protocol):
    """Where the agents of a fan-out live."""

    async def run(self, effect: SpawnAgent, session: State) -> AgentEnded | Refused:
        """Until the agent's round is over. One that began it already, also in an earlier process, goes on with it."""
        ...

    def interrupt(self, agent: AgentId) -> None: ...

    async def close(self) -> None:
        """Nothing of them runs in this process afterwards; what they began is found again."""
        ...
