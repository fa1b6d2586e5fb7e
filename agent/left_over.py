"""What an agent's files are made of where the machine is lost on which they were. Pure.

In the log stand commits that its session has, edits as such, and that a command had ended; the tree after that command
is with the session too (actors/courier.py)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent.recovery import Finish, Vanished, settle
from agent.results import wrote
from agent.state import State
from eventlog.effects import Effect, MakeWorktree, RunTool
from eventlog.events import Body, EffectFinished, EffectStarted, Event, Forked, LeaseGranted
from eventlog.ids import AgentId, CallId, Commit
from eventlog.outcomes import Outcome, SnapshotTaken, WorktreeReady

LOST = "it ran on another machine, of which nothing is heard any more"


@dataclass(frozen=True, slots=True)
class LeftOver:
    """Files are those of `captured`'s tree where there is one, else of `snapshot`; on top of them come `edits`."""

    ready: WorktreeReady
    node: str
    """Where that worktree is; empty: on the session's own node."""
    snapshot: Commit
    captured: tuple[CallId, int] | None = None
    """The last call that wrote after `snapshot`, and its attempt."""
    edits: tuple[RunTool, ...] = ()


def left_behind(events: Sequence[Event], agent: AgentId) -> LeftOver | None:
    """What has to be brought to where the agent's latest lease is; None where that is where its worktree is, or where
    it has none."""
    left: LeftOver | None = None
    node, open = "", dict[CallId, EffectStarted]()
    for event in events:
        match event.body:
            case LeaseGranted(agent=found, node=where) if found == agent:
                node = where
            case Forked():
                left = None
                open.clear()
            case EffectStarted() as started if event.actor == agent:
                open[started.call_id] = started
                if isinstance(started.effect, MakeWorktree) and not is_move(started.call_id, started.effect):
                    left = None
            case EffectFinished() as finished if event.actor == agent:
                begun = open.get(finished.call_id)
                if begun is not None and begun.attempt == finished.attempt:
                    del open[finished.call_id]
                    left = _after(left, begun, finished.outcome, node)
            case _:
                pass
    # Where the lease came back after a move that did not end, the state has no worktree any more.
    moving = any(is_move(key, one.effect) for key, one in open.items())
    return left if left is not None and (left.node != node or moving) else None


def move_id(lease: int) -> CallId:
    """Of the worktree that an incarnation makes in place of one that was lost."""
    return CallId(f"m{lease}")


def is_move(call_id: CallId, effect: Effect) -> bool:
    """Calls of other kinds have whatever names they were given."""
    return isinstance(effect, MakeWorktree) and call_id.startswith("m")


def settle_left(state: State) -> list[Body]:
    """The outcomes of commands that were under way. Also of those that left a trace here: what they wrote went when the
    tree was set back."""
    bodies: list[Body] = []
    for call_id, item in state.open.items():
        if isinstance(item.effect, RunTool) and item.effect.may_write:
            settled = settle(item.effect, item.attempt, Vanished(LOST))
            assert isinstance(settled, Finish)
            bodies.append(EffectFinished(call_id=call_id, attempt=item.attempt, outcome=settled.outcome))
    return bodies


def _after(left: LeftOver | None, begun: EffectStarted, outcome: Outcome, node: str) -> LeftOver | None:
    match outcome:
        case WorktreeReady():
            return LeftOver(outcome, node, outcome.start or outcome.base)
        case SnapshotTaken(commit=commit) if left is not None:
            return LeftOver(left.ready, left.node, commit)
        case _ if left is not None and isinstance(begun.effect, RunTool):
            match wrote(begun.effect, outcome):
                case "edits":
                    return replace(left, edits=(*left.edits, begun.effect))
                case "more":
                    return replace(left, captured=(begun.call_id, begun.attempt), edits=())
                case "no":
                    return left
        case _:
            return left
