"""After another boot of the machine the log and what it names are whole; the worktree may not be, for nobody syncs what
commands write. It is set back to what the log says before anything that was left open is looked at."""

from dataclasses import dataclass
from pathlib import Path

from actors.files import SessionFiles
from actors.history import ReplayError, commit_at
from agent.apply import is_other_boot
from agent.loop import Loop, World
from agent.recovery import vanish
from agent.state import State
from eventlog.effects import RestoreTree, RunTool, TakeSnapshot
from eventlog.events import Body, EffectFinished, EffectStarted, SessionOpened
from eventlog.ids import CallId, Commit
from eventlog.opening import Opened
from eventlog.outcomes import AttemptLost
from worktrees.git import GitError


@dataclass(frozen=True, slots=True)
class Restart:
    """`restore` is None where the worktree stays as it is: nothing of it is ever set back, or `torn`, nobody knows what
    it was."""

    restore: EffectStarted | None
    torn: bool = False


def plan_restart(files: SessionFiles, opened: Opened, state: State, boot: str, now_s: int) -> Restart | None:
    """None on the boot on which the log was last open, and where no log says which that was. Blocks; changes nothing
    but objects of git. `state`: of all that the log holds. Raises LogError."""
    epoch, last = opened.log.epoch, opened.last
    other = is_other_boot(state, boot)
    if not (state.torn or other) or state.worktree is None or last is None:
        return None
    for call_id, item in state.open.items():
        if isinstance(item.effect, RestoreTree):
            return Restart(EffectStarted(call_id=call_id, attempt=item.attempt, effect=item.effect))
    if Path(state.worktree.path) == files.repository.root:
        return Restart(None, torn=other and _may_have_written(state))
    commit = _known_tree(files, opened, state)
    if commit is None:
        # Told once a boot.
        return Restart(None, torn=other)
    effect = RestoreTree(
        commit=commit,
        kept_as=f"before-restart/{epoch}",
        rested_us=last.ts_us if state.resting else 0,
        at_s=now_s,
    )
    return Restart(EffectStarted(call_id=CallId(f"r{epoch}"), attempt=1, effect=effect))


def _known_tree(files: SessionFiles, opened: Opened, state: State) -> Commit | None:
    """The files as the log has them: of the last snapshot, be its outcome in the log or not, and the edits after it."""
    if state.snapshot is None:
        return None
    try:
        for item in state.open.values():
            if isinstance(item.effect, TakeSnapshot) and (taken := files.unlogged(item.effect.parent)):
                return taken
        return None if _may_have_written(state) else commit_at(files, opened.read(), opened.log.head.seq)
    except (GitError, ReplayError):
        return None


def _may_have_written(state: State) -> bool:
    """Whether commands wrote since the last snapshot, and will not be run again from it."""
    return state.written == "more" or any(
        isinstance(effect := item.effect, RunTool)
        and effect.may_write
        and not effect.read_only
        and not isinstance(vanish(effect, item.attempt, ""), AttemptLost)
        for item in state.open.values()
    )


async def restore_first(loop: Loop, world: World, opened: SessionOpened, intent: EffectStarted) -> None:
    """Carried out, or carried on with, while nothing else moves. What comes in meanwhile waits, in its order."""
    begun = intent.call_id in loop.state.open
    await loop.record(opened, *(() if begun else (intent,)))
    if begun:
        world.start(intent, loop.state, loop.inbox.put_nowait)
    later: list[Body | Exception] = []
    while not isinstance(item := await loop.inbox.get(), EffectFinished) or item.call_id != intent.call_id:
        if isinstance(item, Exception):
            raise item
        later.append(item)
    while not loop.inbox.empty():
        later.append(loop.inbox.get_nowait())
    await loop.record(item)
    for one in later:
        loop.inbox.put_nowait(one)
