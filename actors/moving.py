"""An agent goes on where it never was: a worktree like the one that was lost with another machine. See left_over.py."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from actors.files import Place, SessionFiles
from agent.apply import apply
from agent.left_over import LeftOver, is_move, move_id, settle_left
from agent.loop import Loop
from agent.state import State
from agent.tools.files import redo
from configs.crash import reached, reached_in
from eventlog.effects import MakeWorktree
from eventlog.events import Body, Draft, EffectFinished, EffectStarted
from eventlog.ids import CallId, Commit
from eventlog.outcomes import Refused, ToolSucceeded, WorktreeReady
from eventlog.seams import Log
from worktrees.objects import move_ref, read_ref
from worktrees.snapshot import capture, distrust

CAPTURED = "captured"
"""The reference that holds an agent's files as they were after its latest call that may have written anything."""


@dataclass(frozen=True, slots=True)
class Move:
    left: LeftOver
    lease: int
    at_s: int
    change: Callable[..., Awaitable[Any]]
    """Runs a function in a thread, under the agent's lease."""
    arrived: Callable[[], Awaitable[None]]
    """What was made here goes to the session."""


async def move_in(loop: Loop, log: Log, files: SessionFiles, move: Move) -> None:
    """Before the loop runs: its state has a worktree here afterwards, or says why it has none. Killed anywhere and
    begun anew, here or elsewhere, it comes to the same. Raises LogError, GitError."""
    left, state = move.left, loop.state
    begun = next((key for key, item in state.open.items() if is_move(key, item.effect)), None)
    call_id = begun or move_id(move.lease)
    if begun is None:
        effect = MakeWorktree(
            repository=str(files.repository.root),
            head=left.snapshot,
            base=left.ready.base,
            carry_dirty=False,
            at_s=move.at_s,
        )
        state = await _record(log, state, [EffectStarted(call_id=call_id, attempt=1, effect=effect)])
    reached("before_move")
    outcome = await move.change(bring_over, files, left, move.lease, move.at_s)
    await move.arrived()
    reached("after_move")
    ended = EffectFinished(call_id=call_id, attempt=state.open[call_id].attempt, outcome=outcome)
    loop.state = await _record(log, state, [*settle_left(state), ended])


def capture_after(files: SessionFiles, state: State, call: tuple[CallId, int]) -> Commit:
    """The files as they are after an attempt at a call. Blocks. Raises GitError."""
    assert state.worktree is not None and state.snapshot is not None
    return _capture(files, files.place(state.worktree), CAPTURED, state.snapshot, _name(call))


def bring_over(files: SessionFiles, left: LeftOver, lease: int, at_s: int) -> WorktreeReady | Refused:
    """Blocks. Raises GitError."""
    git, main = files.repository.git, files.ref("main")
    start = left.snapshot if left.captured is None else _captured(files, left.captured)
    if start is None:
        return Refused(text="The files that its last command left did not come from the machine that was lost.")
    worktree = files.pool.acquire(files.key, start, now_s=at_s, reached=reached_in("pool"))
    place = Place(worktree.path, worktree)
    # An earlier incarnation may have worked here, before it worked elsewhere, and the power may have failed since.
    distrust(files.repository.at(worktree), files.pool.index_path(worktree), start)
    files.restore(place, start)
    for edit in left.edits:
        done = redo(place.path, edit.tool, edit.arguments, edit.changes, reached)
        if not isinstance(done, ToolSucceeded):
            return Refused(text=f"An edit could not be made again on another machine: {done.text}")
    held = read_ref(git, main)
    if held not in (None, left.snapshot, start):
        # Taken and never logged.
        move_ref(git, files.ref(f"before-move/{lease}"), held, (None,))
    if left.edits:
        start = _capture(files, place, "main", start, "Snapshot on another machine")
    else:
        move_ref(git, main, start, (held,))
    return WorktreeReady(path=str(worktree.path), base=left.ready.base, start=start, branch=left.ready.branch)


def _capture(files: SessionFiles, place: Place, ref: str, parent: Commit, message: str) -> Commit:
    assert place.worktree is not None
    index = files.pool.index_path(place.worktree)
    return Commit(capture(files.repository, place.worktree, index, files.ref(ref), parent, message))


def _captured(files: SessionFiles, call: tuple[CallId, int]) -> Commit | None:
    held = read_ref(files.repository.git, files.ref(CAPTURED))
    if held is None:
        return None
    said = files.repository.git.run("show", "-s", "--format=%s", "--end-of-options", held).decode().strip()
    return Commit(held) if said == _name(call) else None


def _name(call: tuple[CallId, int]) -> str:
    return f"After {call[0]}.{call[1]}"


async def _record(log: Log, state: State, bodies: Sequence[Body]) -> State:
    events = await log.append([log.prepare(Draft(body=body)) for body in bodies])
    for event in events:
        state = apply(state, event.body)
    return state
