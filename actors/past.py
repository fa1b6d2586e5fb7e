"""What taking a session up needs of its log, gathered while that is read once: none of the events is kept."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from agent.folding import step_through
from agent.state import State
from eventlog.checking import Reader
from eventlog.effects import MakeWorktree
from eventlog.events import DamageAccepted, EffectStarted, Event
from eventlog.ids import MAIN
from eventlog.opening import look_through


@dataclass(slots=True)
class Past:
    """To be filled by `open_log(..., begin=past.begin)`."""

    state: State = field(default_factory=State)
    """Of the main agent."""
    made: MakeWorktree | None = None
    """The first intent of its kind: it says in which repository the session works."""
    made_last: MakeWorktree | None = None
    damage: DamageAccepted | None = None
    """The latest."""

    def begin(self, back_to: AbstractSet[int]) -> Reader:
        step = step_through(back_to)

        def show(event: Event) -> None:
            if event.actor != MAIN:
                return
            self.state = step(self.state, event)
            match event.body:
                case EffectStarted(effect=MakeWorktree() as effect):
                    self.made = self.made or effect
                    self.made_last = effect
                case DamageAccepted() as damage:
                    self.damage = damage
                case _:
                    pass

        return show

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Beside a live writer. Raises LogError."""
        past = cls()
        look_through(folder, past.begin)
        return past
