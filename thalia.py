"""The face that programs import.

from thalia import Session
session = Session.start("fix the failing test", folder="path/to/repo", model="openai/gpt-5")
print(session.result, session.changes)
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from actors import local
from actors.building import Parts
from actors.coordinator import Coordinator
from actors.sessions import Options
from agent.models.client import Delta, ignore_delta
from agent.standing import Standing
from configs.settings import load_settings, read_environment
from configs.version import VERSION, new_session_name
from eventlog.events import Event
from eventlog.ids import SessionId
from eventlog.outcomes import Ending, Merged, Refused

__all__ = ["VERSION", "Delta", "Event", "Options", "Session"]


@dataclass(slots=True)
class Session:
    """One session, run to where nothing moves without a person. All of it is in the log: `events`."""

    id: SessionId
    on_event: Callable[[Event], None] = lambda event: None
    on_delta: Callable[[Delta], None] = ignore_delta
    standing: Standing = field(default_factory=Standing)
    exit_code: int = 0
    changes: tuple[str, ...] = ()
    """`M path +1 -1`, as the command line shows them."""

    @classmethod
    def start(cls, prompt: str, folder: str | Path = ".", *, model: str | None = None, merge: bool = False) -> Self:
        """Unattended, in mode auto. Raises CannotStart, GitError, LogError: one sentence each."""
        session = cls(SessionId(new_session_name()))
        options = Options(folder=Path(folder), model=model)
        local.run_new(session._parts(), session.id, options, prompt, session._run(merge))
        return session

    @classmethod
    def resume(cls, id: str, prompt: str | None = None, *, merge: bool = False) -> Self:
        """Go on with a session that was killed, stopped at a limit, or gets another task."""
        session = cls(SessionId(id))
        local.run_resumed(session._parts(), session.id, Options(folder=Path()), prompt, session._run(merge))
        return session

    @property
    def ending(self) -> Ending | None:
        return self.standing.ending

    @property
    def result(self) -> str:
        return self.standing.result

    @property
    def events(self) -> tuple[Event, ...]:
        return local.read_session(self._parts(), self.id, False)[1]

    def merge(self) -> Merged | Refused:
        """Bring the result to the checkout, as uncommitted changes."""
        return local.merge_session(self._parts(), self.id, Options(folder=Path(), mode="ask", sandbox="off"))

    def say(self, line: str) -> None:
        """Nothing: a program reads events."""

    def finish(self, standing: Standing, exit_code: int, files: tuple[str, ...]) -> None:
        self.standing, self.exit_code, self.changes = standing, exit_code, files

    def _parts(self) -> Parts:
        from eventlog.seams import SystemClock

        environment = read_environment()
        return Parts(environment, load_settings(environment), SystemClock(), self.on_delta)

    def _run(self, merge: bool) -> local.Run:
        return local.Run(self, _drive, merge)


async def _drive(coordinator: Coordinator, go: local.Go) -> None:
    await go()
