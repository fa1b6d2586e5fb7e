"""A session of the daemon on a terminal: what its stream says is shown, what a person does is sent."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from agent.models.client import Delta, ReasoningDelta, TextDelta, ToolCallStarted
from agent.standing import Standing
from configs.places import from_letters
from eventlog.events import Command, Event, Interrupted
from eventlog.ids import CommandId
from frontends.client import Daemon, DaemonRefused, DaemonUnreachable
from frontends.terminal.driver import Abandoned, Answer, drive
from frontends.terminal.screen import Screen

_INTERRUPT_S = 3.0


class Detached(Exception):
    """The session goes on without this terminal."""


class SessionGone(Exception):
    """It is hosted no more, and its end was not seen; attaching anew shows it."""


@dataclass(slots=True)
class RemoteSession:
    """What drive() needs of a session, over a stream that some thread reads."""

    daemon: Daemon
    session: str
    screen: Screen
    standing: Standing = field(default_factory=lambda: Standing(active=True))
    exit_code: int | None = None
    """Once the session has said how it ended."""
    _rested: asyncio.Event = field(default_factory=asyncio.Event)
    _moved: asyncio.Event = field(default_factory=asyncio.Event)
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _error: Exception | None = None
    _finish: Callable[[], None] = lambda: None

    async def rest(self) -> None:
        """Until nothing moves without a person. Raises DaemonRefused, SessionGone."""
        await self._rested.wait()
        if self._error is not None:
            raise self._error

    async def moved(self) -> None:
        """Until it goes on after a rest, or is over: somebody else has answered."""
        await self._moved.wait()

    async def end(self) -> None:
        """Until the session's log is closed; then its last words are shown."""
        await self._over.wait()
        if self._error is not None:
            raise self._error
        self._finish()

    def interrupt(self, command_id: CommandId) -> None:
        """Told or not, it is not waited for: whoever wants to leave has to be able to."""
        command = Interrupted(id=command_id).model_dump(mode="json")
        path, loop = f"/sessions/{self.session}/commands", asyncio.get_running_loop()

        def send() -> None:
            try:
                self.daemon.ask("POST", path, command, limit_s=_INTERRUPT_S)
            except (DaemonRefused, DaemonUnreachable) as error:
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(self.screen.say, f"The interruption was not heard: {error}")

        threading.Thread(target=send, daemon=True).start()

    async def say(self, *commands: Command) -> None:
        self._rested.clear()
        path = f"/sessions/{self.session}/commands"
        for command in commands:
            with suppress(SessionGone):
                await asyncio.to_thread(self._insist, path, command.model_dump(mode="json"))
        await self.rest()

    def _insist(self, path: str, command: Mapping[str, Any]) -> None:
        """Raises SessionGone, DaemonRefused, DaemonUnreachable."""
        try:
            self.daemon.insist("POST", path, command)
        except DaemonRefused as error:
            if error.status == 404:
                # It is over: the stream says how.
                raise SessionGone(self.session) from error
            raise

    def take(self, kind: str, value: Mapping[str, Any]) -> None:
        """One message of the stream, in the loop's thread."""
        try:
            self._take(kind, value)
        except (ValidationError, KeyError, TypeError):
            self._fail(
                DaemonRefused(500, ("OtherVersion",), "The daemon speaks another version; `thalia down` ends it.")
            )

    def _take(self, kind: str, value: Mapping[str, Any]) -> None:
        match kind:
            case "event":
                self.screen.on_event(Event.model_validate(value["event"]))
            case "past":
                self.screen.take_past([Event.model_validate(value["event"])])
            case "deltas":
                for delta in value["deltas"]:
                    self.screen.on_delta(_delta(delta))
            case "opened":
                if value["standing"] is not None:
                    self.screen.take_up(Standing.model_validate(value["standing"]))
            case "standing":
                # Of when it was opened: what was shown since knows better, but perhaps not how much the model can hold.
                window = Standing.model_validate(value["standing"]).window
                self.screen.seen.window = self.screen.seen.window or window
            case "rested":
                self._take_rest(value["rested"])
            case "said":
                self.screen.say(value["said"])
            case "finished":
                self._take_end(value["finished"])
            case "failed":
                self._fail(DaemonRefused(500, tuple(value["failed"]["kinds"]), value["failed"]["text"]))
            case "over":
                if value:
                    self._fail(DaemonRefused(500, tuple(value["kinds"]), value["text"]))
                elif self.exit_code is None:
                    self._fail(SessionGone(self.session))
                self._rested.set()
                self._moved.set()
                self._over.set()
            case "error":
                self._fail(DaemonRefused(500, (value["error"],), value["text"]))
            case "refused" if value["status"] == 404:
                self._fail(SessionGone(self.session))
            case "refused":
                self._fail(DaemonRefused(value["status"], tuple(value["kinds"]), value["text"]))
            case "lost":
                self._fail(DaemonRefused(503, ("DaemonUnreachable",), value["text"]))
            case _:
                # From a newer daemon.
                pass

    def _take_rest(self, value: Mapping[str, Any] | None) -> None:
        if value is None:
            self._rested.clear()
            self._moved.set()
        else:
            self.standing = Standing.model_validate(value)
            self._moved.clear()
            self._rested.set()

    def _take_end(self, value: Mapping[str, Any]) -> None:
        self.standing, code = Standing.model_validate(value["standing"]), value["exit_code"]
        self.exit_code = code
        files = tuple(from_letters(name) for name in value["files"])
        self._finish = lambda: self.screen.finish(self.standing, code, files)

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._rested.set()
        self._moved.set()
        self._over.set()


async def show(session: RemoteSession, answer: Answer | None) -> int:
    """Until the session has ended, or waits for somebody who is not here. The exit code. Raises Detached, SessionGone,
    DaemonRefused."""
    try:
        await drive(session, session.rest, session.screen, answer)
        if session.standing.asks and session.standing.attended:
            # It waits there for whoever comes to answer.
            session.screen.finish(session.standing, session.standing.exit_code, ())
            return session.standing.exit_code
        await session.end()
    except Abandoned:
        raise Detached from None
    assert session.exit_code is not None
    return session.exit_code


def _delta(value: Mapping[str, Any]) -> Delta:
    match value["kind"]:
        case "text":
            return TextDelta(value["text"])
        case "reasoning":
            return ReasoningDelta(value["text"])
        case _:
            return ToolCallStarted(value["index"], value["name"])
