"""Fork a session at an event, or take it back to one. What was is kept: under refs, and in the log."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from actors.building import CannotStart, Parts, find_files
from actors.coordinator import this_process
from actors.files import SessionFiles
from actors.history import commit_at, up_to
from actors.sessions import made_worktree
from agent.apply import is_other_boot
from agent.folding import fold_events
from agent.state import State
from eventlog.effects import MakeWorktree, RestoreTree, RunTool, TakeSnapshot
from eventlog.events import (
    Draft,
    EffectFinished,
    EffectStarted,
    Event,
    Forked,
    Rewound,
)
from eventlog.ids import CallId, Commit, SessionId
from eventlog.opening import Opened, create_log, open_log, read_log
from eventlog.outcomes import Refused
from processes.calls import end_tree
from worktrees.objects import move_ref


def fork(parts: Parts, source: SessionId, seq: int | None, target: SessionId) -> int:
    """A new session with the events up to `seq` (default: all) and its own worktree, made when it is resumed.

    Returns the seq it forked at. Works beside a live writer: the source is read from a copy.
    Raises LogError, GitError, ReplayError, CannotStart."""
    events = read_log(parts.environment.sessions / source)
    at = seq if seq is not None else (events[-1].seq if events else 0)
    past = up_to(events, at)
    state, made = fold_events(past), made_worktree(past)
    if made is None or state.worktree is None:
        raise CannotStart(f"At event {at} session {source} had no worktree yet; choose a later event.")
    if made.in_place:
        raise CannotStart("A session that works in the checkout itself has no tree of its own, so it cannot be forked.")
    files = find_files(parts, target, Path(made.repository))
    commit = commit_at(files, events, at)
    _pin(files, {"main": commit, "base": state.worktree.base, "work": state.work})
    worktree = MakeWorktree(
        repository=made.repository,
        head=commit,
        base=state.worktree.base,
        carry_dirty=False,
        at_s=parts.clock.now_us() // 1_000_000,
    )
    intent = EffectStarted(call_id=CallId(f"w{target}"), attempt=1, effect=worktree)
    opened = create_log(parts.environment.sessions / target, target, _Recorded(past, parts), parts.redactor)
    copied = [Draft(body=event.body, actor=event.actor, lease=event.lease) for event in past]
    try:
        _append(opened, [*copied, Draft(body=Forked(session=source, seq=at)), Draft(body=intent)])
    finally:
        opened.close()
    return at


def rewind(parts: Parts, session: SessionId, seq: int) -> Commit | None:
    """Conversation and tree go back to event `seq`. Returns where the present tree is kept.

    Raises LogBusy where the session runs; LogError, GitError, ReplayError, CannotStart."""
    events: list[Event] = []
    folder = parts.environment.sessions / session
    opened = open_log(folder, session, parts.clock, parts.redactor, begin=lambda back_to: events.append)
    try:
        up_to(events, seq)
        state, made = fold_events(events), made_worktree(events)
        if made is None or made.in_place or state.worktree is None or state.snapshot is None:
            raise CannotStart("Only a session with a worktree of its own can be taken back; nothing was changed.")
        files = find_files(parts, session, Path(made.repository))
        _end_commands(opened.log.folder / "calls", state)
        opens = this_process().opens(opened)
        torn = state.torn or is_other_boot(state, opens.boot)
        saved = _save(files, state, parts, opened.log.head.seq, torn)
        restored = commit_at(files, events, seq)
        call = CallId(f"b{opened.log.epoch}")
        intent = EffectStarted(call_id=call, attempt=1, effect=RestoreTree(commit=restored))
        back = Rewound(to_seq=seq, saved=saved, restored=restored)
        _append(opened, [Draft(body=body) for body in (opens, back, intent)])
        outcome = files.restore_tree(files.place(state.worktree), RestoreTree(commit=restored), torn)
        _append(opened, [Draft(body=EffectFinished(call_id=call, attempt=1, outcome=outcome))])
    finally:
        opened.close()
    if isinstance(outcome, Refused):
        raise CannotStart(outcome.text)
    return saved


def _save(files: SessionFiles, state: State, parts: Parts, head: int, torn: bool) -> Commit:
    """The worktree as it is now, kept under a ref of its own."""
    assert state.worktree is not None and state.snapshot is not None
    now_s = parts.clock.now_us() // 1_000_000
    effect = TakeSnapshot(parent=state.snapshot, at_s=now_s, reason="before a rewind")
    taken = files.take_snapshot(files.place(state.worktree), effect, torn)
    if isinstance(taken, Refused):
        raise CannotStart(taken.text)
    _pin(files, {f"before-rewind/{head}": taken.commit})
    return taken.commit


def _end_commands(calls: Path, state: State) -> None:
    """What an interrupted run left running must not write into the tree that is being set back."""
    for call_id, item in state.open.items():
        if isinstance(item.effect, RunTool) and item.effect.may_write:
            folder = calls / f"{call_id}.{item.attempt}"
            if folder.exists():
                end_tree(folder)


def _pin(files: SessionFiles, refs: dict[str, Commit | None]) -> None:
    for name, commit in refs.items():
        if commit is not None:
            move_ref(files.repository.git, files.ref(name), commit, (None,))


def _append(opened: Opened, drafts: Sequence[Draft]) -> None:
    prepared = [opened.log.prepare(draft) for draft in drafts]

    async def write() -> None:
        await opened.log.append(prepared)

    asyncio.run(write())


class _Recorded:
    """The copied events keep their times; what comes after them has its own."""

    def __init__(self, events: Sequence[Event], parts: Parts) -> None:
        self._times = iter([event.ts_us for event in events])
        self._clock = parts.clock

    def now_us(self) -> int:
        return next(self._times, None) or self._clock.now_us()
