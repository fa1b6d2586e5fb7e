"""Where sessions are killed and measured from outside: a repository, a state folder, a folder for temporary files, a
scripted model on loopback; and the command line program itself, a process for each start."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from configs.places import RUN_MARK
from processes.tree import descendants, is_alive, pids, read, send, start_time
from worktrees.sample import make_repository

ROOT = Path(__file__).resolve().parent.parent


@dataclass(slots=True)
class Place:
    folder: Path
    port: int = 0
    known: dict[int, int] = field(default_factory=dict)
    """pid and start time of each process that was ever seen to be of a session here."""

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def repository(self) -> Path:
        return self.folder / "repo"

    @property
    def temporary(self) -> Path:
        return self.folder / "tmp"

    @property
    def session(self) -> Path:
        """The folder of the one session."""
        [found] = (path.parent for path in self.home.glob("sessions/*/writer.lock"))
        return found

    def make(self, settings: str = "") -> None:
        self.temporary.mkdir(parents=True)
        (self.folder / "config.toml").write_text(settings)
        make_repository(self.repository, {"a.py": "count = 0\n", ".gitignore": "build/\n"})

    @contextmanager
    def model(self, turns: Sequence[object]) -> Iterator[None]:
        """Play `turns` to whoever asks. A server keeps each request it got: a long run takes a new one now and then."""
        script, port = self.folder / "script.json", self.folder / "port"
        script.write_text(json.dumps({"turns": turns}))
        port.unlink(missing_ok=True)
        program = [sys.executable, "-m", "agent.models.server", "--script", str(script), "--port-file", str(port)]
        with subprocess.Popen(program, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
            assert server.stdin is not None and server.stdout is not None
            # Its base URL, when it listens.
            server.stdout.readline()
            self.port = int(port.read_text())
            try:
                yield
            finally:
                server.stdin.close()

    def start(self, *arguments: str, out: Path) -> "subprocess.Popen[bytes]":
        """`thalia ARGUMENTS`."""
        return self.run("-I", "-m", "cli", *arguments, cwd=self.repository, out=out)

    def run(self, *arguments: str, cwd: Path, out: Path) -> "subprocess.Popen[bytes]":
        """`python ARGUMENTS` in a process group of its own, as a shell starts it."""
        passed = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL")}
        env = passed | {
            "HOME": str(self.folder),
            "TMPDIR": str(self.temporary),
            "THALIA_HOME": str(self.home),
            "THALIA_CONFIG": str(self.folder / "config.toml"),
            "THALIA_DAEMON": "off",
            "OPENAI_BASE_URL": f"http://127.0.0.1:{self.port}/v1",
            "OPENAI_API_KEY": "none-is-used",
        }
        with out.open("ab") as output, (self.folder / "errors.txt").open("ab") as errors:
            return subprocess.Popen(
                [sys.executable, *arguments],
                cwd=cwd,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                process_group=0,
            )

    def errors(self) -> str:
        return (self.folder / "errors.txt").read_text()[-2000:]

    def belonging(self, root: int = 0) -> list[int]:
        """Living processes below `root` and those that carry a mark of this place in their environment."""
        marks = [f"THALIA_HOME={self.home}".encode()]
        marks += [f"{RUN_MARK}={path.name}".encode() for path in self.home.glob("sessions/*")]
        found = {pid for pid in pids() if not set(marks).isdisjoint(read(f"/proc/{pid}/environ").split(b"\0"))}
        below = {root, *descendants(root)} if root else set[int]()
        alive = [pid for pid in sorted(found | below) if is_alive(pid)]
        self.known |= {pid: start_time(pid) for pid in alive}
        return alive

    def kill_everything(self, root: int) -> None:
        """SIGKILL every process of the session, grandchildren too, until there is none."""
        send([root], signal.SIGSTOP)  # So that it starts nothing while its processes are listed.
        while found := self.belonging(root):
            send(found, signal.SIGKILL)
            root = 0

    def left(self) -> list[int]:
        """Processes of earlier runs that still live."""
        self.belonging()
        return [pid for pid, started in self.known.items() if is_alive(pid) and start_time(pid) == started]
