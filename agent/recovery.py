"""What to do about an effect that was started and has no outcome. Pure: its class and the evidence decide."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from agent.state import OpenEffect, State
from eventlog.effects import (
    AdvanceBranch,
    AskAgent,
    AskUser,
    CallModel,
    CheckMerge,
    Effect,
    FanOut,
    MakeWorktree,
    MergeWork,
    PrepareMerge,
    RestoreTree,
    RetireAgents,
    RunTool,
    SpawnAgent,
    TakeSnapshot,
    WakeAgent,
)
from eventlog.events import Body, EffectFinished, EffectStarted
from eventlog.ids import CallId, Digest
from eventlog.outcomes import AttemptLost, Conflicted, Outcome, OutcomeUnknown, ToolSucceeded
from eventlog.redact import has_marker


@dataclass(frozen=True, slots=True)
class NeverBegan:
    """No trace of it: it may begin now, as the attempt that was announced."""


@dataclass(frozen=True, slots=True)
class StillRuns:
    """It outlived its session and can be waited for."""


@dataclass(frozen=True, slots=True)
class Ended:
    """It finished by itself and left its result."""

    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Vanished:
    """It began and nothing of it lives."""

    text: str


@dataclass(frozen=True, slots=True)
class FilesBefore:
    """Some or all files of an edit are as they were before it, the others as after."""


@dataclass(frozen=True, slots=True)
class FilesAfter:
    """All files of an edit are as after it."""


@dataclass(frozen=True, slots=True)
class FilesOther:
    """A file of an edit is neither."""

    path: str
    found: Digest | None


@dataclass(frozen=True, slots=True)
class Askable:
    """It began, nothing of it lives, and the other side can be asked by its key. `text`: what is known without that."""

    text: str


@dataclass(frozen=True, slots=True)
class Unseen:
    """Nobody here can see whether it began."""

    text: str = "nobody here can see whether it began"


Evidence = NeverBegan | StillRuns | Ended | Vanished | FilesBefore | FilesAfter | FilesOther | Askable | Unseen


@dataclass(frozen=True, slots=True)
class Finish:
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class CarryOn:
    """Do it, or wait for it, under the same intent."""


@dataclass(frozen=True, slots=True)
class LeaveOpen:
    """A question waits for a person, and a fan-out for its parts."""


Settlement = Finish | CarryOn | LeaveOpen

MAX_ATTEMPTS = 3
"""Of a command that vanishes each time: what kills it would kill the next one too."""


def settle(effect: Effect, attempt: int, evidence: Evidence) -> Settlement:
    match effect:
        case CallModel():
            lost = AttemptLost(evidence="the session ended during this model call", charged_usd=effect.reserved_usd)
            return Finish(lost)
        case AskUser():
            return LeaveOpen()
        case TakeSnapshot() if isinstance(evidence, Ended):
            return Finish(evidence.outcome)
        case MakeWorktree() | TakeSnapshot() | RestoreTree() | MergeWork():
            # Each is keyed by its call and finds what it had made.
            return CarryOn()
        case SpawnAgent() | PrepareMerge() | AdvanceBranch() | RetireAgents() | WakeAgent():
            # So are these. An agent is adopted, with what it knows.
            return CarryOn()
        case FanOut() | AskAgent():
            # The parts of the one are settled, each by itself; the other is answered by a wake-up.
            return LeaveOpen()
        case CheckMerge():
            return _settle_check(effect, attempt, evidence)
        case RunTool():
            return _settle_tool(effect, attempt, evidence)
        case _:
            assert_never(effect)


def settle_all(
    state: State, evidence_of: Callable[[CallId, OpenEffect], Evidence]
) -> tuple[Sequence[Body], Sequence[EffectStarted]]:
    """For each open effect its outcome, or the intent to carry on with. What waits for a person stays open."""
    bodies: list[Body] = []
    unfinished: list[EffectStarted] = []
    for call_id, item in state.open.items():
        match settle(item.effect, item.attempt, evidence_of(call_id, item)):
            case Finish(outcome):
                bodies.append(EffectFinished(call_id=call_id, attempt=item.attempt, outcome=outcome))
            case CarryOn():
                unfinished.append(EffectStarted(call_id=call_id, attempt=item.attempt, effect=item.effect))
            case LeaveOpen():
                pass
    return bodies, unfinished


def _settle_check(effect: CheckMerge, attempt: int, evidence: Evidence) -> Settlement:
    """Its worktree is made anew from a commit for each attempt; outside it, only a confined one changed nothing."""
    match evidence:
        case Ended(outcome):
            return Finish(outcome)
        case Vanished(text) if effect.confined and attempt < MAX_ATTEMPTS:
            return Finish(AttemptLost(evidence=f"{text}; its worktree is made anew and it is run again"))
        case Vanished(text) | Unseen(text):
            return Finish(OutcomeUnknown(evidence=text))
        case _:
            return CarryOn()


def _settle_tool(effect: RunTool, attempt: int, evidence: Evidence) -> Settlement:
    if effect.effect_class == "read":
        return Finish(AttemptLost(evidence="the session ended during this read"))
    if effect.effect_class == "commit":
        return CarryOn()
    if has_marker(effect.arguments):
        return Finish(OutcomeUnknown(evidence="its arguments held a secret, which the log does not keep"))
    if effect.effect_class == "external":
        return _settle_external(evidence)
    match evidence:
        case NeverBegan() | StillRuns() | FilesBefore():
            return CarryOn()
        case Ended(outcome):
            return Finish(outcome)
        case FilesAfter():
            return Finish(ToolSucceeded(text="Done.", wrote=True, recovered=True))
        case FilesOther(path, found):
            text = f"{path} is neither as it was before this edit nor as after it; read it again."
            return Finish(Conflicted(text=text, found=found))
        case Vanished(text):
            return Finish(vanish(effect, attempt, text))
        case Askable(text) | Unseen(text):
            return Finish(OutcomeUnknown(evidence=text))
        case _:
            assert_never(evidence)


def _settle_external(evidence: Evidence) -> Settlement:
    """Only evidence of its own lets it go on: who carries it on asks before it would begin again."""
    match evidence:
        case NeverBegan() | StillRuns() | Askable():
            return CarryOn()
        case Ended(outcome):
            return Finish(outcome)
        case Vanished(text) | Unseen(text):
            return Finish(OutcomeUnknown(evidence=text))
        case FilesBefore() | FilesAfter() | FilesOther():
            return Finish(OutcomeUnknown(evidence="files do not say what happened outside"))
        case _:
            assert_never(evidence)


def vanish(effect: RunTool, attempt: int, text: str) -> AttemptLost | OutcomeUnknown:
    """A command that began and left no result: run again only where the tree can be set back to before it."""
    if effect.confined and effect.read_only and attempt < MAX_ATTEMPTS:
        return AttemptLost(evidence=f"{text}; it could write nothing, so it is run again")
    if effect.confined and effect.snapshot is not None and attempt < MAX_ATTEMPTS:
        return AttemptLost(evidence=f"{text}; the worktree is set back and it is run again")
    return OutcomeUnknown(evidence=text)
