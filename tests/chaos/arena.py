"""A place to kill sessions in: a repository, a model server, a state folder, an outside ledger. All real."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from agent.folding import fold_events
from eventlog.events import EffectFinished, EffectStarted, Event
from eventlog.opening import read_log
from eventlog.outcomes import OutcomeUnknown, ToolFailed
from processes.tree import descendants, is_alive, parent, pids, read, send
from tests.actors.playing import check_conversation
from tests.chaos.keyboard import Attended
from worktrees.sample import make_repository

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = (
    sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); from cli import main; main()",
)  # fmt: skip
"""Of this very tree: a copy of it runs itself."""
Kind = Literal["harness", "wrapper", "everything"]
SECRET = "planted-secret-0123456789"

EDIT = {"name": "edit", "arguments": {"path": "a.py", "old_text": "one", "new_text": "two"}}
COUNT = "echo begun >> counter.txt; sleep 0.2; echo ended >> counter.txt"
TURNS = [
    {"tool_calls": [{"name": "read", "arguments": {"path": "a.py"}},
                    {"name": "grep", "arguments": {"pattern": "one"}}]},
    {"tool_calls": [EDIT, {"name": "shell", "arguments": {"command": COUNT}}]},
    {"tool_calls": [{"name": "write", "arguments": {"path": "b.txt", "content": "new\n"}},
                    {"name": "commit", "arguments": {"message": "Both"}}]},
    {"tool_calls": [{"name": "shell", "arguments": {"command": f"cat counter.txt; echo {SECRET}"}}]},
    {"text": "Done."},
]  # fmt: skip
FINAL = {"a.py": "two\n", "b.txt": "new\n", "counter.txt": "begun\nended\n"}


@dataclass(slots=True)
class Arena:
    folder: Path
    turns: Sequence[object] = field(default_factory=lambda: TURNS)
    options: tuple[str, ...] = ()
    settings: str = ""
    """The user's config.toml."""
    attended: bool = False
    """Somebody sits at a terminal and says yes to all that is asked."""
    conversations: Mapping[str, Sequence[object]] = field(default_factory=dict)
    """Turns of those whose first user message holds these words."""
    program: tuple[str, ...] = PROGRAM
    server: "subprocess.Popen[bytes] | None" = None
    port: int = 0
    past: set[str] = field(default_factory=set)
    """Sessions that were here before the one that is killed."""

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def repository(self) -> Path:
        return self.folder / "repo"

    def __enter__(self) -> "Arena":
        make_repository(self.repository, {"a.py": "one\n"})
        script, port_file = self.folder / "script.json", self.folder / "port"
        others = [{"when": words, "turns": turns} for words, turns in self.conversations.items()]
        script.write_text(json.dumps({"turns": self.turns, "conversations": others}))
        self.server = subprocess.Popen(
            [sys.executable, "-m", "agent.models.server", "--script", str(script), "--port-file", str(port_file)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )
        wait_until(lambda: port_file.exists() and port_file.read_text().strip() != "", 30)
        self.port = int(port_file.read_text())
        (self.folder / "config.toml").write_text(self.settings)
        return self

    def __exit__(self, *_: object) -> None:
        assert self.server is not None and self.server.stdin is not None
        self.server.stdin.close()
        self.server.wait()

    def start(self, *arguments: str, crash_at: str = "", trace: Path | None = None) -> "subprocess.Popen[bytes]":
        """`crash_at`: points, a space between; those of the process around a command begin with `wrapper:`."""
        env = {name: value for name, value in os.environ.items() if not name.startswith(("THALIA_", "OPENAI_"))}
        env |= {
            "THALIA_HOME": str(self.home),
            "THALIA_DAEMON": "off",
            "THALIA_CONFIG": str(self.folder / "config.toml"),
            "OPENAI_BASE_URL": f"http://127.0.0.1:{self.port}/v1",
            "OPENAI_API_KEY": SECRET,
        }
        for place in crash_at.split():
            name, _, point = place.partition("wrapper:")
            env |= {"THALIA_CRASH_WRAPPER": point} if point else {"THALIA_CRASH_AT": name}
        env |= {"THALIA_CRASH_TRACE": str(trace)} if trace else {}
        if self.attended:
            return Attended(self.program, arguments, self.repository, env, self.folder / "errors.txt")
        out = (self.folder / f"out-{time.monotonic_ns()}.jsonl").open("wb")
        with out, (self.folder / "errors.txt").open("ab") as errors:
            return subprocess.Popen(
                [*self.program, *arguments, "--output-format", "stream-json"],
                cwd=self.repository,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
            )

    def go_on(self, *, crash_at: str = "", trace: Path | None = None, last: bool = False) -> "subprocess.Popen[bytes]":
        """Begin the session, or take it up where there is one. `last`: nothing will be killed any more."""
        merge = ("--merge",) if last else ()
        if self.session_folder() is None:
            begin = ("exec", "Do it.", "-m", "openai/test")
            return self.start(*begin, *self.options, *merge, crash_at=crash_at, trace=trace)
        options = tuple(option for option in self.options if option.startswith("--dangerously"))
        return self.start("resume", "--last", *options, *merge, crash_at=crash_at, trace=trace)

    def session_folder(self) -> Path | None:
        """The one session that got as far as its first event."""
        folders = [path.parent for path in self.home.glob("sessions/*/log.duckdb")]
        found = [path for path in folders if path.name not in self.past and self._has_begun(path)]
        assert len(found) <= 1
        return found[0] if found else None

    def _has_begun(self, folder: Path) -> bool:
        if not (folder / "head").exists():
            return False
        if not any(event.body.kind == "user_said" for event in read_log(folder)):
            # A session without its first transaction never was: a person would start anew, and so do we.
            for path in sorted(folder.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            folder.rmdir()
            return False
        return True

    def finish(self) -> int:
        """Go on without kills, to the end and the merge. The exit code."""
        run = self.go_on(last=True)
        return run.wait(120)

    def events(self) -> tuple[Event, ...]:
        folder = self.session_folder()
        assert folder is not None
        return read_log(folder)

    def errors(self) -> str:
        return (self.folder / "errors.txt").read_text()

    def files(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted(self.repository.iterdir()) if path.is_file()}

    def survivors(self) -> list[int]:
        """Processes that still belong to the session, by its mark in their environment."""
        folder = self.session_folder()
        mark = f"THALIA_RUN={folder.name}".encode() if folder else b"\xff"
        home = f"THALIA_HOME={self.home}".encode()
        found = [pid for pid in pids() if {mark, home} & set(read(f"/proc/{pid}/environ").split(b"\0"))]
        return [pid for pid in found if pid != os.getpid() and is_alive(pid)]

    def printed(self) -> list[dict[str, object]]:
        """Events on the standard output of all runs, whole lines only."""
        lines = [line for path in self.folder.glob("out-*.jsonl") for line in path.read_bytes().split(b"\n")[:-1]]
        return [event for event in map(json.loads, lines) if "seq" in event]


def kill(run: "subprocess.Popen[bytes]", kind: Kind) -> None:
    """SIGKILL, and nothing else."""
    below = descendants(run.pid)
    match kind:
        case "harness":
            targets = [run.pid]
        case "wrapper":
            helpers = [pid for pid in below if parent(pid) == run.pid]
            targets = [pid for pid in below if parent(pid) in helpers]
        case "everything":
            targets = [run.pid, *below]
    send(targets, signal.SIGKILL)


def wait_until(true: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


def check_log(events: Sequence[Event]) -> None:
    """No gap, every outcome after its one intent, exactly one outcome for each attempt, and a conversation that every
    provider takes."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    started: set[tuple[str, int]] = set()
    finished: set[tuple[str, int]] = set()
    for event in events:
        match event.body:
            case EffectStarted(call_id=call, attempt=attempt):
                assert (call, attempt) not in started, f"{call}.{attempt} was started twice"
                started.add((call, attempt))
            case EffectFinished(call_id=call, attempt=attempt):
                assert (call, attempt) in started, f"{call}.{attempt} ended before it began"
                assert (call, attempt) not in finished, f"{call}.{attempt} ended twice"
                finished.add((call, attempt))
            case _:
                pass
    assert started == finished
    check_conversation(fold_events(events))


def unknown_calls(events: Sequence[Event]) -> list[str]:
    """Calls whose outcome is told as unknown."""
    finished = [event.body for event in events if isinstance(event.body, EffectFinished)]
    return [body.call_id for body in finished if isinstance(body.outcome, OutcomeUnknown)]


def failed_calls(events: Sequence[Event]) -> list[str]:
    """Calls that are told as failed: nothing of them ran, or it ran and said so."""
    finished = [event.body for event in events if isinstance(event.body, EffectFinished)]
    return [body.call_id for body in finished if isinstance(body.outcome, ToolFailed)]


def check_acknowledged(arena: Arena, events: Sequence[Event]) -> None:
    """What a run has shown was durable, and is in the log as it was shown."""
    stored = {event.seq: event.model_dump(mode="json") for event in events}
    for shown in arena.printed():
        assert stored[int(str(shown["seq"]))] == shown
