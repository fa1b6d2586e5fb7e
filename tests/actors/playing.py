"""A stage for sessions in this process: a repository, a state folder, a scripted model, and what a session did."""

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actors.branching import fork
from actors.building import Parts, find_files
from actors.coordinator import Coordinator
from actors.files import SessionFiles
from actors.history import Verified, verify
from actors.local import Go, Run, merge_session, run_new, run_resumed
from actors.sessions import Options
from agent.folding import fold_events
from agent.models.client import Delta
from agent.models.requests import build_request
from agent.models.script_player import DIALECTS
from agent.models.wires import WIRES
from agent.standing import Standing
from agent.state import State
from configs.settings import Environment, Settings
from eventlog.effects import CallModel, RunTool
from eventlog.events import Body, EffectFinished, EffectStarted, Event
from eventlog.ids import MAIN, SessionId
from eventlog.messages import AssistantMessage, ToolMessage, UserMessage
from eventlog.opening import read_log
from eventlog.outcomes import Merged, Outcome, Refused, WorktreeReady
from eventlog.seams import SystemClock
from worktrees.sample import make_repository

SESSION = SessionId("s1")


def call(name: str, **arguments: object) -> dict[str, object]:
    return {"name": name, "arguments": arguments}


def turn(*calls: dict[str, object], **values: object) -> dict[str, object]:
    return {"tool_calls": list(calls), **values}


def shell(command: str) -> dict[str, object]:
    return call("shell", command=command)


DONE: dict[str, object] = {"text": "Done."}

Watch = Callable[[Coordinator, Event], None]


@dataclass(slots=True)
class Recorder:
    """A frontend that only remembers. `watch` sees each event as it is published, before its effect begins."""

    watch: Watch | None = None
    until: Callable[[Body], bool] | None = None
    """The process leaves the session at this event, its effect begun or about to; nothing is told to anybody."""
    events: list[Event] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    files: tuple[str, ...] = ()
    state: State = field(default_factory=State)
    _coordinator: Coordinator | None = None
    _leave: asyncio.Event = field(default_factory=asyncio.Event)

    def on_event(self, event: Event, /) -> None:
        self.events.append(event)
        if self.watch is not None and self._coordinator is not None:
            self.watch(self._coordinator, event)
        if self.until is not None and self.until(event.body):
            self._leave.set()

    def leave(self) -> None:
        """The process leaves the session as it is."""
        self._leave.set()

    def on_delta(self, delta: Delta, /) -> None:
        return

    def say(self, line: str) -> None:
        self.said.append(line)

    def finish(self, standing: Standing, exit_code: int, files: tuple[str, ...]) -> None:
        self.files = files
        assert self._coordinator is not None
        self.state = self._coordinator.state

    async def drive(self, coordinator: Coordinator, go: Go) -> State:
        self._coordinator = coordinator
        running, leaving = asyncio.ensure_future(go()), asyncio.create_task(self._leave.wait())
        try:
            await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if self._leave.is_set():
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                return coordinator.state
            return await running
        finally:
            leaving.cancel()


@dataclass(slots=True)
class Played:
    """What one run of a session came to."""

    code: int
    screen: Recorder
    events: tuple[Event, ...]

    @property
    def state(self) -> State:
        return fold_events(self.events)

    @property
    def ending(self) -> str | None:
        return self.state.ending.ending if self.state.ending else None

    @property
    def worktree(self) -> Path:
        """Where the session worked first."""
        ready = next(outcome for outcome in outcomes(self.events).values() if isinstance(outcome, WorktreeReady))
        return Path(ready.path)

    @property
    def results(self) -> list[str]:
        """What the model was told of its calls, in order."""
        return [message.text for message in self.state.messages if isinstance(message, ToolMessage)]

    def outcome(self, call_id: str) -> Outcome:
        """The last one of a call."""
        return outcomes(self.events)[call_id]

    def kinds(self, call_id: str) -> list[str]:
        """The kind of outcome of each attempt at a call."""
        found = [e.body for e in self.events if isinstance(e.body, EffectFinished) and e.body.call_id == call_id]
        return [body.outcome.kind for body in found]


@dataclass(slots=True)
class Stage:
    """`variables`: more of the environment that sessions see. All sessions share the state folder."""

    folder: Path
    files: Mapping[str, str] = field(default_factory=lambda: {"a.txt": "one\n", "b.txt": "b\n"})
    variables: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    scripts: int = 0

    def __post_init__(self) -> None:
        if not self.repository.exists():
            make_repository(self.repository, self.files)
        (self.folder / "user").mkdir(exist_ok=True)

    @property
    def repository(self) -> Path:
        return self.folder / "repo"

    @property
    def environment(self) -> Environment:
        own = {"PATH": os.environ["PATH"], "HOME": str(self.folder / "user")}
        return Environment({**own, **self.variables}, self.folder / "state", self.folder / "config" / "config.toml")

    @property
    def parts(self) -> Parts:
        return Parts(self.environment, Settings.model_validate(dict(self.settings)), SystemClock(), lambda delta: None)

    def session_folder(self, session: SessionId = SESSION) -> Path:
        return self.environment.sessions / session

    def script(self, *turns: Mapping[str, object]) -> str:
        """The name of a model that says this."""
        self.scripts += 1
        path = self.folder / f"script-{self.scripts}.json"
        path.write_text(json.dumps({"turns": turns}))
        return f"scripted/{path}"

    def options(self, **values: Any) -> Options:
        return Options(folder=self.repository, **values)

    def start(
        self,
        *turns: Mapping[str, object],
        prompt: str = "Do it.",
        session: SessionId = SESSION,
        screen: Recorder | None = None,
        merge: bool = False,
        **options: Any,
    ) -> Played:
        screen = screen or Recorder()
        chosen = self.options(model=self.script(*turns), **options)
        code = run_new(self.parts, session, chosen, prompt, Run(screen, screen.drive, merge))
        return Played(code, screen, self.events(session))

    def resume(
        self,
        *turns: Mapping[str, object],
        prompt: str | None = None,
        session: SessionId = SESSION,
        screen: Recorder | None = None,
        merge: bool = False,
        **options: Any,
    ) -> Played:
        """With a script of its own where turns are given; they count from the first reply of the session."""
        screen = screen or Recorder()
        model = {"model": self.script(*turns)} if turns else {}
        chosen = self.options(**model, **options)
        code = run_resumed(self.parts, session, chosen, prompt, Run(screen, screen.drive, merge))
        return Played(code, screen, self.events(session))

    def merge(self, session: SessionId = SESSION) -> Merged | Refused:
        return merge_session(self.parts, session, self.options())

    def fork(self, target: str, seq: int | None = None, source: SessionId = SESSION) -> SessionId:
        fork(self.parts, source, seq, SessionId(target))
        return SessionId(target)

    def events(self, session: SessionId = SESSION) -> tuple[Event, ...]:
        return read_log(self.session_folder(session))

    def session_files(self, session: SessionId = SESSION) -> SessionFiles:
        return find_files(self.parts, session, self.repository)


def outcomes(events: Sequence[Event]) -> dict[str, Outcome]:
    """Of the main agent's calls, the last of each."""
    own = [event.body for event in events if event.actor == MAIN]
    return {body.call_id: body.outcome for body in own if isinstance(body, EffectFinished)}


def tree(folder: Path) -> dict[str, str]:
    """Text of each file below `folder` by relative path; `.git` is left out."""
    paths = [
        path for path in sorted(folder.rglob("*")) if path.is_file() and ".git" not in path.relative_to(folder).parts
    ]
    return {str(path.relative_to(folder)): path.read_text() for path in paths}


def starts(name: str) -> Callable[[Body], bool]:
    """Whether a body is the intent of a tool of this name, or of `model`."""

    def is_it(body: Body) -> bool:
        effect = body.effect if isinstance(body, EffectStarted) else None
        return isinstance(effect, CallModel) if name == "model" else isinstance(effect, RunTool) and effect.tool == name

    return is_it


def ends(call_id: str) -> Callable[[Body], bool]:
    return lambda body: isinstance(body, EffectFinished) and body.call_id == call_id


def check_conversation(state: State) -> None:
    """Every provider takes it: each call has exactly one result, straight after its reply, in its order; and what is
    asked next is valid in every protocol, whichever it was held in."""
    messages = list(state.messages)
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            wanted = [tool_call.id for tool_call in message.tool_calls]
            after = messages[index + 1 : index + 1 + len(wanted)]
            assert [m.call_id for m in after if isinstance(m, ToolMessage)] == wanted
    results = [message.call_id for message in messages if isinstance(message, ToolMessage)]
    assert len(results) == len(set(results))
    assert state.context is not None
    if not messages or isinstance(messages[-1], AssistantMessage):
        messages.append(UserMessage(text="Go on."))
    for protocol, dialect in DIALECTS.items():
        context = state.context.model_copy(update={"builder": WIRES[protocol].builder, "parameters": "{}"})
        dialect.read(json.loads(build_request(context, messages, None)))


def check_replay(events: Sequence[Event]) -> Verified:
    found = verify(events)
    assert isinstance(found, Verified), found
    return found


def wait_until(true: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)
