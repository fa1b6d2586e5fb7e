"""What happened outside: the one question that the other side may answer, and what its answer makes of a call whose end
nobody saw. Programs of the user's are asked this way; whatever else acts outside can be."""

from dataclasses import dataclass
from typing import Protocol, assert_never

from agent.recovery import MAX_ATTEMPTS
from eventlog.effects import RunTool
from eventlog.outcomes import AttemptLost, OutcomeUnknown, ToolFailed, ToolSucceeded


@dataclass(frozen=True, slots=True)
class Found:
    """It was done, once, and this is its result."""

    text: str


@dataclass(frozen=True, slots=True)
class NotDone:
    """It was not done, and nothing that is still under way will do it."""


@dataclass(frozen=True, slots=True)
class CannotTell:
    why: str
    """A clause."""


Answer = Found | NotDone | CannotTell


class Outside(Protocol):
    async def find(self, tool: str, key: str) -> Answer:
        """What became of the call with this key. Looks and never acts; a fault of its own is CannotTell."""
        ...


def settle_answer(
    effect: RunTool, attempt: int, seen: str, answer: Answer, *, lost: bool
) -> ToolSucceeded | ToolFailed | AttemptLost | OutcomeUnknown:
    """`seen`: what is known without the answer, a clause. `lost`: a crash took it, so that it is run again where it was
    not done; one that ran into its time limit or a signal would do so again."""
    match answer:
        case Found(text):
            return ToolSucceeded(text=text, wrote=True, recovered=True)
        case NotDone() if lost and attempt < MAX_ATTEMPTS:
            return AttemptLost(evidence=f"{seen}; asked by its key, it was not done, so it is run again")
        case NotDone():
            return ToolFailed(text=f"{seen}\nAsked by its key afterwards, it was not done.", wrote=True)
        case CannotTell(why):
            return OutcomeUnknown(evidence=f"{seen}; {why}; its key is {effect.key}")
        case _:
            assert_never(answer)
