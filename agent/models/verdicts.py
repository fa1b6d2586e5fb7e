"""How a reply ended, the same for every protocol, and the shape of what reads one."""

from dataclasses import dataclass
from typing import Protocol

from agent.models.client import Delta
from agent.models.faults import Fault
from eventlog.messages import AssistantMessage, Usage
from eventlog.outcomes import StopReason


@dataclass(frozen=True, slots=True)
class Finished:
    message: AssistantMessage
    stop: StopReason
    usage: Usage | None
    """None where the server reported none."""
    model: str
    """As the server named it; may be empty."""
    output_bytes: int


@dataclass(frozen=True, slots=True)
class Faulty:
    fault: Fault
    usage: Usage | None
    output_bytes: int
    """What came before it, for an estimate of its cost."""


class Reader(Protocol):
    """One reply of a model: bytes cut anywhere in, deltas and one verdict out."""

    @property
    def output_bytes(self) -> int:
        """Of text, reasoning and calls so far, roughly."""
        ...

    @property
    def ended(self) -> bool:
        """Nothing that follows can change the verdict."""
        ...

    def feed(self, chunk: bytes) -> list[Delta]:
        """Deltas in the order of the reply."""
        ...

    def finish(self) -> Finished | Faulty:
        """The verdict, once the body has ended, however it did."""
        ...
