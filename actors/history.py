"""The past of a session: replay, the tree at an event, fork, rewind. All of it from the log; no model, no network."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.files import SessionFiles
from agent.folding import fold_events, rewound_to, step_through
from agent.models.requests import BUILDERS, RequestCache
from agent.state import State
from agent.tools.files import redo
from configs.scratch import scratch
from eventlog.effects import AskUser, CallModel, RunTool, TakeSnapshot
from eventlog.events import EffectFinished, EffectStarted, Event, Forked, Rewound
from eventlog.ids import MAIN, AgentId, CallId, Commit
from eventlog.outcomes import SnapshotTaken, ToolSucceeded, WorktreeReady
from worktrees.restore import checkout_tree
from worktrees.trees import commit_files


class ReplayError(Exception):
    """One sentence."""


@dataclass(frozen=True, slots=True)
class Verified:
    events: int
    requests: int


@dataclass(frozen=True, slots=True)
class Difference:
    """The first request that is not what was logged."""

    seq: int
    call_id: CallId
    logged: str
    rebuilt: str
    logged_bytes: int
    rebuilt_bytes: int
    suspects: tuple[str, ...]
    """What entered the conversation since the last request that agreed: the change is in there."""


def verify(events: Sequence[Event]) -> Verified | Difference:
    """Build each request again from the log and compare its hash with the logged one."""
    requests, by_agent = 0, defaultdict[AgentId, list[Event]](list)
    for event in events:
        by_agent[event.actor].append(event)
        if isinstance(event.body, Forked):
            for other in by_agent.keys() - {event.actor}:
                by_agent[other].append(event)
    for own in by_agent.values():
        found = _verify_agent(own)
        if isinstance(found, Difference):
            return found
        requests += found
    return Verified(len(events), requests)


def _verify_agent(events: Sequence[Event]) -> int | Difference:
    """Number of requests."""
    state, cache, step = State(), RequestCache(), step_through(rewound_to(events))
    requests, agreed = 0, 0
    for event in events:
        body = event.body
        if isinstance(body, EffectStarted) and isinstance(body.effect, CallModel):
            difference = _compare(event.seq, body.call_id, body.effect, state, cache, agreed)
            if difference is not None:
                return difference
            requests, agreed = requests + 1, len(state.messages)
        state = step(state, event)
    return requests


def _compare(
    seq: int, call_id: CallId, effect: CallModel, state: State, cache: RequestCache, agreed: int
) -> Difference | None:
    context = state.context
    if context is None or effect.builder not in BUILDERS:
        raise ReplayError(
            f"Event {seq} names the request builder {effect.builder!r}, which this version does not have."
        )
    cache.update(context, state.messages)
    rebuilt = cache.digest(effect.max_output_tokens)
    if rebuilt == effect.request_hash:
        return None
    fresh = state.messages[min(agreed, len(state.messages)) :]
    return Difference(
        seq=seq,
        call_id=call_id,
        logged=effect.request_hash,
        rebuilt=rebuilt,
        logged_bytes=effect.request_bytes,
        rebuilt_bytes=cache.size(effect.max_output_tokens),
        suspects=tuple(message.model_dump_json() for message in fresh) or ("the context: prompt, tools, parameters",),
    )


def up_to(events: Sequence[Event], seq: int) -> list[Event]:
    """Raises ReplayError where there is no such event."""
    if not events or not 1 <= seq <= events[-1].seq:
        last = events[-1].seq if events else 0
        raise ReplayError(f"There is no event {seq}; the session ends at event {last}.")
    return [event for event in events if event.seq <= seq]


def commit_at(files: SessionFiles, events: Sequence[Event], seq: int) -> Commit:
    """The tree at an event: the last snapshot and the edits after it. What a command wrote stands in the snapshot that
    was taken before anything else was written. Raises ReplayError, GitError."""
    past = up_to(events, seq)
    state = fold_events(past)
    if state.snapshot is None:
        raise ReplayError(f"At event {seq} the session had no worktree yet.")
    if state.written == "more" and not _is_writing(state) and (later := _snapshot_of_now(events, seq)) is not None:
        return later
    edits = _edits_since_snapshot(past, state)
    if not edits:
        return state.snapshot
    with scratch("tree") as folder:
        tree = folder / "tree"
        checkout_tree(files.repository, state.snapshot, tree)
        for effect in edits:
            if not isinstance(redo(tree, effect.tool, effect.arguments, effect.changes), ToolSucceeded):
                raise ReplayError(f"An edit before event {seq} cannot be made again on the snapshot before it.")
        changed = tuple(dict.fromkeys(change.path for effect in edits for change in effect.changes))
        return Commit(commit_files(files.repository, state.snapshot, tree, changed, message=f"Tree at event {seq}"))


def _snapshot_of_now(events: Sequence[Event], seq: int) -> Commit | None:
    """The first snapshot after `seq`, where nothing was written in between."""
    for event in events:
        if event.seq <= seq or event.actor != MAIN:
            continue
        match event.body:
            case EffectFinished(outcome=SnapshotTaken(commit=commit)):
                return commit
            case EffectStarted(effect=TakeSnapshot() | CallModel() | AskUser()):
                continue
            case EffectStarted(effect=RunTool(effect_class="read" | "commit")):
                continue
            case EffectStarted() | Rewound() | Forked():
                return None
            case _:
                continue
    return None


def _is_writing(state: State) -> bool:
    running = [item.effect for item in state.open.values() if isinstance(item.effect, RunTool)]
    return any(effect.effect_class == "edit" or effect.may_write for effect in running)


def checkout_at(files: SessionFiles, events: Sequence[Event], seq: int, target: Path) -> None:
    checkout_tree(files.repository, commit_at(files, events, seq), target)


def _edits_since_snapshot(events: Sequence[Event], state: State) -> list[RunTool]:
    edits: list[RunTool] = []
    started: dict[CallId, RunTool] = {}
    for event in events:
        if event.actor != MAIN:
            continue
        match event.body:
            case EffectStarted(call_id=call_id, effect=RunTool(effect_class="edit") as effect):
                started[call_id] = effect
            case EffectFinished(outcome=SnapshotTaken() | WorktreeReady()):
                edits.clear()
            case EffectFinished(call_id=call_id, outcome=ToolSucceeded()) if call_id in started:
                edits.append(started.pop(call_id))
            case _:
                pass
    return edits
