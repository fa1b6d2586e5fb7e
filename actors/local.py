"""Run sessions in this process, for a frontend that shows them. Every function returns an exit code or a value."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from actors import finishing, history
from actors.building import CannotStart, Parts, find_files
from actors.coordinator import Coordinator
from actors.files import SessionFiles
from actors.sessions import Options, Ready, made_worktree, new_command_id, prepare_new, prepare_resumed, resolve_session
from agent.folding import fold_events
from agent.models.client import Delta, ModelClient, ModelRequest, OnDelta
from agent.standing import BLOCKED, CHECK_FAILED, Standing, standing_of
from agent.state import State, ended
from eventlog.events import Continued, Event
from eventlog.ids import SessionId
from eventlog.opening import read_log
from eventlog.outcomes import Merged, ModelFailed, Refused
from worktrees.merge import diff

T = TypeVar("T")


class Shown(Protocol):
    """What a session needs of a frontend."""

    def on_event(self, event: Event, /) -> None: ...
    def on_delta(self, delta: Delta, /) -> None: ...
    def say(self, line: str) -> None: ...
    def finish(self, standing: Standing, exit_code: int, files: tuple[str, ...]) -> None: ...


Go = Callable[[], Awaitable[State]]
Drive = Callable[[Coordinator, Go], Awaitable[object]]
"""Runs a session to where nothing moves without a person, with the frontend's way to interrupt and to answer."""


@dataclass(frozen=True, slots=True)
class Run:
    """How a frontend wants a session run."""

    screen: Shown
    drive: Drive
    merge: bool = False


class Unreachable:
    """The model of a session that is opened for something else than to go on."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> ModelFailed:
        return ModelFailed(fault="network", text="no model is used here", retry=False)


def run_new(parts: Parts, session: SessionId, options: Options, prompt: str, run: Run) -> int:
    """Raises CannotStart, LogError, GitError."""
    return _run(parts, prepare_new(parts, session, options, prompt), options, run)


def run_resumed(parts: Parts, session: SessionId, options: Options, prompt: str | None, run: Run) -> int:
    """Raises LogBusy where it runs already and is not taken over; CannotStart, LogError, GitError."""
    return _run(parts, prepare_resumed(parts, session, options, prompt), options, run)


def _run(parts: Parts, ready: Ready, options: Options, run: Run) -> int:
    return run_fast(_drive_and_close(parts, ready, options, run))


async def _drive_and_close(parts: Parts, ready: Ready, options: Options, run: Run) -> int:
    ready.coordinator.listeners.append(run.screen.on_event)
    try:
        return await drive_session(parts, ready, options, run)
    finally:
        await ready.coordinator.close()


async def drive_session(parts: Parts, ready: Ready, options: Options, run: Run) -> int:
    """To where nothing moves without a person, and what follows: the reply's shape, the merge, the last word."""
    coordinator = ready.coordinator
    await run.drive(coordinator, ready.go)
    state = coordinator.state
    wrong: str | None = None
    if options.schema is not None:
        state, wrong = await finishing.shape_reply(
            coordinator, state, options.schema, options.command_id or new_command_id()
        )
    code = standing_of(state).exit_code
    if code == 0 and wrong is not None:
        run.screen.say(f"The reply does not fit the schema: {wrong}.")
        code = CHECK_FAILED
    files = finishing.list_changes(coordinator)
    if run.merge and code == 0 and ended(state) == "done":
        done = await finishing.merge_once(coordinator, parts.clock.now_us() // 1_000_000)
        code = code if isinstance(done, Merged) else BLOCKED
    run.screen.finish(standing_of(coordinator.state), code, files)
    return code


def merge_session(parts: Parts, session: SessionId, options: Options) -> Merged | Refused:
    """Raises CannotStart where the session is not finished; LogBusy, LogError, GitError."""

    async def merge() -> Merged | Refused:
        client: ModelClient = Unreachable()
        ready = prepare_resumed(parts, session, options, None, client)
        try:
            if ready.coordinator.state.active:
                raise CannotStart(
                    f"Session {session} is not finished; `thalia resume {session} --merge` goes on, then merges."
                )
            # Nothing of a turn that ended early goes on here.
            ready.bodies = tuple(body for body in ready.bodies if not isinstance(body, Continued))
            await ready.go()
            return await finishing.merge_work(ready.coordinator, parts.clock.now_us() // 1_000_000)
        finally:
            await ready.coordinator.close()

    return run_fast(merge())


def run_fast(main: Coroutine[Any, Any, T]) -> T:
    """asyncio.run on uvloop: a step of the loop takes about half the time."""
    import gc

    import uvloop

    # What is imported stays, and most of what a step makes is gone after it: looking at it all so often costs 4 %.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


def read_session(parts: Parts, name: str | None, last: bool) -> tuple[SessionId, tuple[Event, ...]]:
    """Works beside a live writer. Raises LogError."""
    session = resolve_session(parts, name, last)
    return session, read_log(parts.environment.sessions / session)


def files_of(parts: Parts, session: SessionId, events: Sequence[Event]) -> SessionFiles:
    """Raises CannotStart, GitError."""
    made = made_worktree(events)
    if made is None:
        raise CannotStart(f"Session {session} had no worktree by then; choose a later event or another session.")
    return find_files(parts, session, Path(made.repository))


def diff_session(parts: Parts, session: SessionId, events: Sequence[Event]) -> str:
    files, state = files_of(parts, session, events), fold_events(events)
    if state.worktree is None:
        raise CannotStart(f"Session {session} has no worktree, so it changed nothing.")
    return diff(files.repository, state.worktree.base, history.commit_at(files, events, events[-1].seq))
