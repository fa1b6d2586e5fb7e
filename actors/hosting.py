"""A session in a process of the daemon: opened as a request says, driven to its end, told to whoever is at its door."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from actors.agent_work import Workshop
from actors.building import Parts, Rights
from actors.coordinator import Coordinator
from actors.door import Door
from actors.local import Go, Run, Unreachable, drive_session
from actors.past import Past
from actors.ray_agents import RayAgents, Seat
from actors.receiving import discard_bundles
from actors.refusals import refusal_of, valid_text
from actors.sessions import Options, Ready, prepare_new, prepare_resumed
from agent.models.client import Delta
from agent.standing import Standing
from configs.crash import reached
from configs.places import DaemonPlace, decode_variables, hung_limit_s, to_letters
from configs.settings import Environment, load_settings
from eventlog.events import Event, UserSaid
from eventlog.ids import CommandId, SessionId
from eventlog.opening import has_begun
from eventlog.seams import SystemClock
from eventlog.store import DuckLog
from processes.commands import ProcessError

_COMES_S = 5.0


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a frontend asks to be run. Its JSON crosses processes and stands in a file until the session has ended, so
    that whoever takes it up again does the same: it holds no secret."""

    session: SessionId
    kind: Literal["new", "resumed", "attached"]
    """`attached` goes on with a turn that was cut, and begins none."""
    command_id: CommandId
    """Of the prompt, or of the word to go on: whatever is asked twice happens once."""
    options: Options
    config_file: Path
    prompt: str | None = None
    merge: bool = False

    @property
    def said(self) -> dict[str, Any]:
        """The prompt as a command."""
        return UserSaid(id=self.command_id, text=self.prompt or "").model_dump(mode="json")

    @property
    def changes(self) -> str:
        """What of it cannot be said to a session that runs; empty where nothing is."""
        options = self.options
        chosen = {
            "the model": options.model or options.fallback,
            "the permission mode": options.mode or options.sandbox,
            "the limits": options.max_turns or options.max_budget_usd,
            "the merge": self.merge or None,
        }
        return " and ".join(name for name, value in chosen.items() if value is not None)


class Told:
    """What a session says, to those at its door. Events and deltas go there by themselves."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def on_event(self, event: Event, /) -> None:
        return

    def on_delta(self, delta: Delta, /) -> None:
        return

    def say(self, line: str) -> None:
        self._door.publish({"said": valid_text(line)})

    def finish(self, standing: Standing, exit_code: int, files: tuple[str, ...]) -> None:
        names = [to_letters(name) for name in files]
        told = {"standing": standing.model_dump(mode="json"), "exit_code": exit_code, "files": names}
        self._door.publish({"finished": told})


_REQUEST = TypeAdapter(RunRequest)


def decode_request(data: bytes) -> RunRequest:
    """Raises pydantic.ValidationError."""
    return _REQUEST.validate_json(data)


def encode_request(request: RunRequest) -> bytes:
    return _REQUEST.dump_json(request)


class Hosted:
    """One session. `start` returns when it is open and its door too; `over` is set when its log is closed."""

    head: int = 0
    """seq of the last event before it was opened."""
    standing: Standing | None = None
    """Where it stood then."""

    def __init__(self, place: DaemonPlace, request: RunRequest, variables: Mapping[str, str]) -> None:
        self.request = request
        self.over = asyncio.Event()
        self._place = place
        environment = Environment(decode_variables(variables), place.state_folder, request.config_file)
        settings, hung_s = load_settings(environment), hung_limit_s(environment.variables)
        self._seat = Seat(place.state_folder, request.config_file, variables, self._find_door, settings, hung_s)
        self._parts = Parts(environment, settings, SystemClock(), self._on_delta, self._make_agents)
        self._agents: RayAgents | None = None
        self._door: Door | None = None
        self._log: DuckLog | None = None
        self._idle = False
        """Whether there is nothing to go on with: who attached is only shown how it ended."""

    def _make_agents(self, shop: Workshop, rights: Rights) -> RayAgents:
        self._agents = RayAgents(shop, rights, self._seat)
        return self._agents

    def _find_door(self) -> Door:
        assert self._door is not None, "agents begin when the session is driven, and it is driven behind its door"
        return self._door

    async def start(self) -> None:
        """Raises CannotStart, LogError, GitError, SettingsError: one sentence each."""
        reached("before_host")
        ready = await asyncio.to_thread(self._prepare)
        coordinator = ready.coordinator
        lost = coordinator.opened.lost
        # What was lost is told again, as an event of this run.
        self.head = coordinator.opened.log.head.seq if lost is None else lost.last
        self.standing = coordinator.standing
        await asyncio.to_thread(discard_bundles, coordinator.opened.log.folder)
        door = Door(coordinator, self._place.door(self.request.session))
        reached("before_door")
        try:
            await door.open()
        except BaseException:
            await coordinator.close()
            raise
        reached("after_door")
        self._door, self._log = door, coordinator.opened.log
        # Kept, or the collector may take a running task.
        self._task = asyncio.create_task(self._run(ready, door))
        self._helper = asyncio.create_task(_start_helper(coordinator))

    async def export(self, file: Path) -> bool:
        """Its log as Parquet, for a query; False where it is over."""
        if self.over.is_set() or self._log is None:
            return False
        await asyncio.to_thread(self._log.export, file)
        return True

    def _prepare(self) -> Ready:
        request, parts = self.request, self._parts
        options = replace(request.options, command_id=request.command_id, goes_on=request.kind != "attached")
        folder = parts.environment.sessions / request.session
        if request.kind == "new" and not has_begun(folder):
            return prepare_new(parts, request.session, options, request.prompt or "")
        if request.kind == "attached":
            state = Past.of(folder).state
            self._idle = not state.active and not state.open
        return prepare_resumed(parts, request.session, options, request.prompt, Unreachable() if self._idle else None)

    async def _run(self, ready: Ready, door: Door) -> None:
        run = Run(Told(door), lambda coordinator, go: self._drive(coordinator, go, door), self.request.merge)
        try:
            await drive_session(self._parts, ready, self.request.options, run)
        except Exception as error:  # whatever it is, those who wait are told
            door.publish({"failed": refusal_of(error, self._place.log)})
        finally:
            try:
                await self._close(ready.coordinator, door)
            except Exception as error:  # nobody is left to be told, and the log says what is left to do
                refusal_of(error, self._place.log)
            finally:
                self.over.set()

    async def _close(self, coordinator: Coordinator, door: Door) -> None:
        reached("before_last_words")
        try:
            await door.close()
        finally:
            reached("after_last_words")
            if self._agents is not None:
                await self._agents.close()
            await coordinator.close()
            reached("after_log_closed")
            # Of no use any more: what is left to do stands in the log.
            self._place.request(self.request.session).unlink(missing_ok=True)
            reached("after_request_done")

    async def _drive(self, coordinator: Coordinator, go: Go, door: Door) -> None:
        """Until nothing moves and nobody is expected to answer."""
        door.publish({"standing": coordinator.standing.model_dump(mode="json")})
        if not self._idle:
            await go()
        else:
            # Over at once, nobody would see it; whoever asked is about to come.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_COMES_S):
                    await door.feed.watched.wait()
        while True:
            door.publish({"rested": coordinator.standing.model_dump(mode="json")})
            if not (coordinator.standing.asks and coordinator.standing.attended):
                # What is said from here on would be heard in the middle of the end.
                door.stop_listening()
                return
            await door.spoken_to()
            # Under the same name, so that whoever comes later does not take the old rest for the present one.
            door.publish({"rested": None})
            await coordinator.loop.wait()

    def _on_delta(self, delta: Delta) -> None:
        if self._door is not None:
            self._door.on_delta(delta)


async def _start_helper(coordinator: Coordinator) -> None:
    """Beside the worktree's making: the first command finds it there. One that cannot start is told of by a command."""
    with contextlib.suppress(OSError, ProcessError):
        await coordinator.runner.start()
