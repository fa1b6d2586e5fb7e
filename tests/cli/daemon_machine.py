"""A person's machine with a daemon of its own: the program as it is typed, and every process of the daemon by name."""

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cli_program import Place, wait_until

from agent.folding import fold_events
from agent.state import State
from configs.places import MARK, DaemonPlace, daemon_place
from frontends.client import Daemon
from processes.tree import carriers, is_alive, read, send

ROLES = {"actors.daemon": "supervisor", "actors.gateway": "gateway", "gcs_server": "gcs", "raylet/raylet": "raylet"}


@dataclass(slots=True)
class Machine(Place):
    """Ends with `down`. What the daemon's processes are is looked up in /proc."""

    def __post_init__(self) -> None:
        Place.__post_init__(self)
        self.env["THALIA_DAEMON"] = "on"

    @property
    def daemon_place(self) -> DaemonPlace:
        return daemon_place(self.home)

    @property
    def daemon(self) -> Daemon:
        return Daemon(self.daemon_place, self.env)

    def pids(self) -> list[int]:
        return carriers(MARK, str(self.daemon_place.folder))

    def find(self, role: str) -> list[int]:
        """supervisor, gateway, gcs, raylet, worker (idle ones too), host (of a session)."""
        if role == "host":
            return [self.host()]
        return [pid for pid in self.pids() if _role(pid) == role]

    def host(self) -> int:
        """The process that has the session's lock."""
        holder = json.loads((self.session_folder() / "writer.lock").read_bytes())
        return holder["pid"]

    def is_open(self) -> bool:
        """Whether a process that lives has the session."""
        lock = self.session_folder() / "writer.lock"
        return bool(lock.read_bytes()) and is_alive(self.host())

    def kill(self, *roles: str) -> None:
        """SIGKILL, all at once."""
        pids = [pid for role in roles for pid in (self.pids() if role == "all" else self.find(role))]
        assert pids, f"nothing of {roles} runs"
        send(pids, signal.SIGKILL)

    def status(self) -> dict[str, Any]:
        return self.daemon.ask("GET", "/status")

    def wait_started(self, command: str) -> None:
        """Until a command of the session runs, by a text of its argument list."""
        wait_until(lambda: any(command in _line(pid) for pid in self.survivors()))

    def wait_over(self, session: str = "", seconds: float = 60) -> None:
        """Until the daemon hosts it no more."""
        name = session or self.session()
        wait_until(lambda: self.daemon.runs() and name not in self.status()["hosted"], seconds)

    def state(self, session: str = "") -> State:
        return fold_events(self.events(session))

    def put_aside(self) -> None:
        """The sessions until now: the next test finds none."""
        for session in self.status()["hosted"] if self.daemon.runs() else ():
            self.run("stop", session)
        past = self.folder / f"past-{len(list(self.folder.glob('past-*')))}"
        past.mkdir()
        for path in (*self.home.glob("sessions"), *self.home.glob("worktrees"), *self.home.glob("fault-*")):
            path.rename(past / path.name)

    def down(self) -> None:
        """And nothing of it is left."""
        done = self.run("down", cwd=self.folder)
        assert done.code == 0, done.err
        assert not self.daemon_place.folder.exists()
        left = [pid for pid in (*self.pids(), *self.survivors()) if is_alive(pid)]
        assert left == [], [_line(pid)[:200] for pid in left]
        assert list(self.daemon_place.hosted.glob("*")) == []


@contextmanager
def machine(folder: Path, env: Mapping[str, str] | None = None) -> Iterator[Machine]:
    one = Machine(folder, dict(env or {}))
    try:
        yield one
    finally:
        one.down()


def _line(pid: int) -> str:
    return read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace")


def _role(pid: int) -> str:
    line = _line(pid)
    if line.startswith("ray::"):
        return "worker"
    return next((role for text, role in ROLES.items() if text in line.split(" --")[0]), "other")
