"""A session of the daemon on a terminal: what its stream says is shown, what a person does is sent."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agent.models.client import Delta, ReasoningDelta, TextDelta, ToolCallStarted
from agent.standing import Standing
from eventlog.events import Command, Event, Interrupted
from eventlog.ids import CommandId
from frontends.client import Daemon, DaemonRefused
from frontends.terminal.driver import Abandoned, Answer, drive
from frontends.terminal.screen import Screen


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
    _over: asyncio.Event = field(default_factory=asyncio.Event)
    _error: Exception | None = None
    _finish: Callable[[], None] = lambda: None
    _tasks: "set[asyncio.Task[object]]" = field(default_factory=set)

    async def rest(self) -> None:
        """Until nothing moves without a person. Raises DaemonRefused, SessionGone."""
        await self._rested.wait()
        if self._error is not None:
            raise self._error

    async def end(self) -> None:
        """Until the session's log is closed; then its last words are shown."""
        await self._over.wait()
        if self._error is not None:
            raise self._error
        self._finish()

    def interrupt(self, command_id: CommandId) -> None:
        self._start(self._send(Interrupted(id=command_id)))

    async def say(self, *commands: Command) -> None:
        self._rested.clear()
        for command in commands:
            await self._send(command)
        await self.rest()

    def take(self, kind: str, value: Mapping[str, Any]) -> None:
        """One message of the stream, in the loop's thread."""
        match kind:
            case "event":
                self.screen.on_event(Event.model_validate(value["event"]))
            case "deltas":
                for delta in value["deltas"]:
                    self.screen.on_delta(_delta(delta))
            case "rested":
                self.standing = Standing.model_validate(value["rested"])
                self._rested.set()
            case "moved":
                self._rested.clear()
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
                self._over.set()
            case "refused" if value["status"] == 404:
                self._fail(SessionGone(self.session))
            case "refused":
                self._fail(DaemonRefused(value["status"], tuple(value["kinds"]), value["text"]))
            case "lost":
                self._fail(DaemonRefused(503, ("DaemonUnreachable",), value["text"]))
            case _:
                # From a newer daemon.
                pass

    def _take_end(self, value: Mapping[str, Any]) -> None:
        self.standing, code = Standing.model_validate(value["standing"]), value["exit_code"]
        self.exit_code = code
        files = tuple(value["files"])
        self._finish = lambda: self.screen.finish(self.standing, code, files)

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._rested.set()
        self._over.set()

    async def _send(self, command: Command) -> None:
        path = f"/sessions/{self.session}/commands"
        await asyncio.to_thread(self.daemon.insist, "POST", path, command.model_dump(mode="json"))

    def _start(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


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
