"""The program as a person runs it: a folder of their own, a repository, a model server, and the command itself."""

import asyncio
import errno
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.models.script import Script
from agent.models.server import ModelServer
from configs.places import MARK, daemon_place
from eventlog.events import Event
from eventlog.opening import read_log
from processes.tree import is_alive, pids, read
from worktrees.sample import make_repository

KEY = "planted-key-0123456789abcdef"
PROGRAM = (sys.executable, "-I", "-m", "cli")
FILES = {"a.py": "one\n", "README.md": "A small project.\n", "folder/b.py": "b\n"}
EDIT = {"name": "edit", "arguments": {"path": "a.py", "old_text": "one", "new_text": "two"}}
Turns = Sequence[Mapping[str, Any]]
WORK: Turns = ({"text": "I change it.", "tool_calls": [EDIT]}, {"text": "It is changed."})


@dataclass(frozen=True, slots=True)
class Result:
    code: int
    out: str
    err: str


@dataclass(slots=True)
class Place:
    """A person's machine: home, state, repository, settings. `env` is all that a program gets."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    home: Path = Path()
    """The state folder, and so the daemon's too; one in `folder` where none is named."""

    def __post_init__(self) -> None:
        if self.home == Path():
            self.home = self.folder / "state"
        self.user.mkdir(parents=True)
        make_repository(self.repository, FILES)
        own = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.user),
            "LANG": "C.UTF-8",
            "THALIA_HOME": str(self.home),
            "THALIA_DAEMON": "off",
            "THALIA_CONFIG": str(self.config),
        }
        self.env = {**own, **self.env}

    @property
    def user(self) -> Path:
        return self.folder / "user"

    @property
    def config(self) -> Path:
        return self.folder / "config.toml"

    @property
    def repository(self) -> Path:
        return self.folder / "project"

    def use(self, server: ModelServer) -> None:
        self.env |= {"OPENAI_BASE_URL": server.base_url, "OPENAI_API_KEY": KEY}

    def script(self, *turns: Mapping[str, Any], loop: bool = False) -> str:
        """The name of a model that says this."""
        file = self.folder / f"script-{len(list(self.folder.glob('script-*')))}.json"
        file.write_text(json.dumps({"turns": turns, "loop": loop}))
        return f"scripted/{file}"

    def start(
        self,
        *arguments: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
        program: Sequence[str] = PROGRAM,
        **more: Any,
    ) -> "subprocess.Popen[str]":
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(
            [*before, *program, *arguments],
            cwd=cwd or self.repository,
            env={**self.env, **(env or {})},
            **{"encoding": "utf-8", **pipes, **more},
        )

    def run(self, *arguments: str, typed: str | None = None, **more: Any) -> Result:
        if typed is not None:
            more["stdin"] = subprocess.PIPE
        with self.start(*arguments, **more) as run:
            out, err = run.communicate(typed, timeout=90)
        return Result(run.returncode, out or "", err or "")

    def sessions(self) -> list[str]:
        return sorted(path.name for path in self.home.glob("sessions/*"))

    def session(self) -> str:
        [name] = self.sessions()
        return name

    def session_folder(self) -> Path:
        return self.home / "sessions" / self.session()

    def events(self, name: str = "") -> tuple[Event, ...]:
        return read_log(self.home / "sessions" / (name or self.session()))

    def kinds(self, name: str = "") -> list[str]:
        return [event.body.kind for event in self.events(name)]

    def worktrees(self) -> list[Path]:
        return [path for path in self.home.glob("worktrees/*/*") if (path / ".git").exists()]

    def git(self, *arguments: str, cwd: Path | None = None) -> str:
        own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
        names = ("-c", "user.name=A", "-c", "user.email=a@localhost", "-c", "protocol.file.allow=always")
        command = ["git", *names, *arguments]
        done = subprocess.run(command, cwd=cwd or self.repository, env=own, capture_output=True, text=True, check=True)
        return done.stdout

    def survivors(self) -> list[int]:
        """Living processes that were started by a run here, those of a daemon left out."""
        mark = f"THALIA_HOME={self.home}".encode()
        marks = {mark, *(f"THALIA_RUN={name}".encode() for name in self.sessions())}
        variables = {pid: set(read(f"/proc/{pid}/environ").split(b"\0")) for pid in pids()}
        daemon = f"{MARK}={daemon_place(self.home).folder}".encode()
        found = [pid for pid, there in variables.items() if marks & there and daemon not in there]
        return [pid for pid in found if pid != os.getpid() and is_alive(pid)]


def objects(lines: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.splitlines()]


def shell(command: str, **more: Any) -> dict[str, Any]:
    return {"name": "shell", "arguments": {"command": command, **more}}


def wait_until(true: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


@contextmanager
def serving(*turns: Mapping[str, Any], loop: bool = False) -> Iterator[ModelServer]:
    """A model server on the loopback address, in a thread of its own."""
    server = ModelServer(Script.model_validate({"turns": turns, "loop": loop}))
    ready, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with server:
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(30)
    try:
        yield server
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join()


@dataclass(slots=True)
class Terminal:
    """A program on a pseudoterminal of 80 columns: what it shows, and a keyboard."""

    process: "subprocess.Popen[bytes]"
    master: int
    shown: bytes = b""

    def read(self, seconds: float) -> bool:
        """Some more of what it shows; False at its end."""
        ready, _, _ = select.select([self.master], [], [], seconds)
        if not ready:
            return True
        try:
            piece = os.read(self.master, 65536)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            piece = b""
        self.shown += piece
        return bool(piece)

    def wait_for(self, text: str, after: int = 0, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while text.encode() not in self.shown[after:]:
            assert time.monotonic() < end, f"never shown: {text!r}, but {self.shown.decode(errors='replace')}"
            assert self.read(0.1), f"it ended without {text!r}: {self.shown.decode(errors='replace')}"

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def finish(self, seconds: float = 30) -> int:
        end = time.monotonic() + seconds
        while self.read(0.1):
            assert time.monotonic() < end, self.shown.decode(errors="replace")
        return self.process.wait(seconds)

    @property
    def text(self) -> str:
        """Line ends as the program wrote them: the terminal makes CR LF of each."""
        return self.shown.decode(errors="replace").replace("\r\n", "\n")


@contextmanager
def terminal(place: Place, *arguments: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", _OWN_TERMINAL, *arguments],
        cwd=place.repository,
        env=place.env,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    screen = Terminal(process, master)
    try:
        yield screen
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(master)


_OWN_TERMINAL = """import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
sys.argv[0] = 'thalia'
from cli import main
main()"""
