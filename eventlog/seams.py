"""The seams that several rooms need: a log, a clock. Each has a shipped fake."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from eventlog.events import Draft, Event


@dataclass(frozen=True, slots=True)
class Prepared:
    """A draft after cleaning and redaction, with its bytes: what will be stored, and so what may be applied."""

    draft: Draft
    encoded: bytes
    """The body's JSON."""


class Log(Protocol):
    """An append-only sequence of events with one writer."""

    def prepare(self, draft: Draft) -> Prepared:
        """The draft as it would be stored. Pure."""
        ...

    async def append(self, prepared: Sequence[Prepared]) -> tuple[Event, ...]:
        """Store all or none; return once they are durable. Raises LogError, after which nothing more is taken."""
        ...

    def read(self, after_seq: int = 0) -> Iterator[Event]:
        """Stored events in order, from the one after `after_seq`."""
        ...

    def checkpoint_when_large(self) -> None:
        """To be called when nobody waits for an append, as while a model thinks."""
        ...


class Clock(Protocol):
    def now_us(self) -> int:
        """Microseconds since 1970, UTC."""
        ...


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1000


class FixedClock:
    """Advances by `step_us` with each reading. For tests and replays."""

    def __init__(self, start_us: int = 1_700_000_000_000_000, step_us: int = 1000) -> None:
        self._next = start_us
        self._step = step_us

    def now_us(self) -> int:
        now, self._next = self._next, self._next + self._step
        return now
