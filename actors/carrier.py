"""The seam between an agent's effects and what keeps them where its machine may be lost."""

from typing import Protocol

from agent.state import State
from eventlog.events import EffectStarted
from eventlog.outcomes import Outcome


class Carrier(Protocol):
    """After an effect, before its outcome is recorded."""

    async def __call__(self, intent: EffectStarted, state: State, outcome: Outcome) -> None:
        """Raises LogError."""
        ...


async def carry_nothing(intent: EffectStarted, state: State, outcome: Outcome) -> None:
    """For an agent on its session's node."""
