"""A frontend's way to the daemon: HTTP on its Unix socket, from the standard library alone: it has to start at once."""

import http.client
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from configs.places import MARK, DaemonPlace, check_private, daemon_environment, encode_variables
from configs.version import VERSION
from processes.tree import is_alive

START_S = 20.0
"""How long the daemon may take until it listens; 0.1 s are usual."""
END_S = 20.0
"""How long it may take to end by itself; what is left then is killed."""
_TRIES = 3
"""Starts that fail at once, before it is said that it does not start; and how often what is left is cleared away."""
_PAUSE_S = 0.01
_ENDING_S = 0.1
"""A gateway that has said that it ends is gone by then."""
_LET_IN_S = 1.0
"""A request that was lost after so long had been taken, and waited for its answer."""
Take = Callable[[str, dict[str, Any]], None]
"""Gets each message of a stream: its kind and its value."""


class DaemonRefused(Exception):
    """The daemon's own sentence. `kinds` are the names of the error's classes over there, nearest first."""

    def __init__(self, status: int, kinds: tuple[str, ...], text: str) -> None:
        self.status, self.kinds = status, kinds
        super().__init__(text)


class DaemonUnreachable(Exception):
    """One sentence: nothing answers on the daemon's socket."""


class StateFolderRefused(Exception):
    """One sentence: nothing can be written there, so no session can be either."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, limit_s: float | None) -> None:
        super().__init__("localhost", timeout=limit_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        try:
            self.sock.connect(str(self._path))
        except OSError:
            self.sock.close()
            raise


@dataclass(slots=True)
class Daemon:
    place: DaemonPlace
    variables: Mapping[str, str] = field(repr=False)

    def runs(self) -> bool:
        """Whether somebody listens."""
        try:
            check_private(self.place.folder)
            connection = _Connection(self.place.gateway, 1.0)
            connection.connect()
        except OSError:
            return False
        connection.close()
        return True

    def start(self) -> None:
        """Returns when it listens, whoever started it. Raises DaemonUnreachable, PlaceUnsafe, StateFolderRefused."""
        give_up = time.monotonic() + START_S
        process: subprocess.Popen[bytes] | None = None
        failures = 0
        while not self.runs():
            # One that is just ending lets nobody in; the next attempt starts our own.
            if process is None or process.poll() is not None:
                # A negative code is a signal: whoever was first ends the others.
                failures += process is not None and process.returncode > 0
                if failures == _TRIES:
                    raise DaemonUnreachable(f"The daemon does not start; see {self.place.log}.")
                process = self._spawn()
            if time.monotonic() > give_up:
                process.kill()
                process.wait()
                raise DaemonUnreachable(f"The daemon does not start; see {self.place.log}.")
            time.sleep(_PAUSE_S)
        if process is not None and self.find_supervisor() != process.pid:
            # Another was first. Ours would find that out by itself, but perhaps only after the other has ended.
            process.kill()
            process.wait()

    def find_supervisor(self) -> int | None:
        """The pid of the one that holds the daemon's lock, or held it last."""
        try:
            return int(self.place.lock.read_text())
        except (OSError, ValueError):
            return None

    def renew(self) -> None:
        """A daemon of another version that hosts nothing is replaced by ours. Raises DaemonRefused, DaemonUnreachable,
        StateFolderRefused."""
        found, supervisor = self.insist("GET", "/status"), self.find_supervisor()
        if found["version"] == VERSION:
            return None
        if not found["hosted"]:
            try:
                # Only that one, and only if it hosts nothing by then: others may be doing the same.
                self.ask("POST", "/down", {"idle": found["pid"]})
            except DaemonRefused:
                return self.renew()
            except DaemonUnreachable:
                pass
            self._wait_gone(supervisor)
            return self.start()
        many = f"{len(found['hosted'])} session{'s' if len(found['hosted']) > 1 else ''}"
        text = (
            f"The daemon is thalia {found['version']} and runs {many}, but this is thalia {VERSION}: "
            "let them end or stop them with `thalia down`, then ask again."
        )
        raise DaemonRefused(409, ("OtherVersion",), text)

    def end(self) -> list[str]:
        """The sessions that were stopped. Blocks until nothing of the daemon is left."""
        supervisor, stopped = self.find_supervisor(), list[str]()
        give_up = time.monotonic() + END_S
        # A gateway that dies before it has said that it is over is replaced, and the next one has to be told.
        while self.runs() and self.find_supervisor() == supervisor and time.monotonic() < give_up:
            with suppress(DaemonUnreachable):
                stopped += self.ask("POST", "/down")["stopped"]
            time.sleep(_ENDING_S)
        self._wait_gone(supervisor)
        return stopped

    def _wait_gone(self, supervisor: int | None) -> None:
        give_up = time.monotonic() + END_S
        while time.monotonic() < give_up and supervisor is not None and is_alive(supervisor):
            time.sleep(_PAUSE_S)
        for _ in range(_TRIES):
            if not self.place.folder.exists():
                return
            # Its supervisor was killed, or is stuck.
            self._spawn("--end").wait()

    def ask(self, method: str, path: str, value: object = None, limit_s: float | None = 60.0) -> dict[str, Any]:
        """Raises DaemonRefused, DaemonUnreachable."""
        connection = _Connection(self.place.gateway, limit_s)
        try:
            connection.request(method, path, json.dumps(value) if value is not None else None)
            answer = connection.getresponse()
            return _read(answer)
        except (OSError, http.client.HTTPException) as error:
            raise DaemonUnreachable(f"The daemon does not answer ({type(error).__name__}).") from error
        finally:
            connection.close()

    def insist(self, method: str, path: str, value: object = None, limit_s: float | None = 60.0) -> dict[str, Any]:
        """As `ask`, for what may be asked twice: a daemon that is just ending, or dies, is started again.

        Raises DaemonRefused, DaemonUnreachable."""
        give_up = time.monotonic() + START_S
        while True:
            self.start()
            asked = time.monotonic()
            try:
                return self.ask(method, path, value, limit_s)
            except DaemonUnreachable:
                if time.monotonic() - asked > _LET_IN_S:
                    give_up = time.monotonic() + START_S
                elif asked > give_up:
                    raise
            time.sleep(_PAUSE_S)

    def follow(self, session: str, after: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """(kind, value) of each message until the stream breaks off. Raises DaemonRefused, DaemonUnreachable."""
        connection = _Connection(self.place.gateway, None)
        try:
            connection.request("GET", f"/sessions/{session}/events?after={after}")
            answer = connection.getresponse()
            if answer.status != 200:
                _read(answer)
            kind = ""
            for line in answer:
                name, _, text = line.rstrip(b"\n").partition(b": ")
                if name == b"event":
                    kind = text.decode()
                elif name == b"data":
                    yield kind, json.loads(text)
        except (OSError, http.client.HTTPException) as error:
            raise DaemonUnreachable(f"The daemon does not answer ({type(error).__name__}).") from error
        finally:
            connection.close()

    def _spawn(self, *options: str) -> "subprocess.Popen[bytes]":
        """Started with the variables on its standard input, since an environment can be read by others of this user."""
        with self._open_log() as log:
            process = subprocess.Popen(
                [sys.executable, "-I", "-m", "actors.daemon", str(self.place.state_folder), *options],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
                env={**daemon_environment(self.variables), MARK: str(self.place.folder)},
            )
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(encode_variables(self.variables)).encode())
            process.stdin.close()
        return process

    def _open_log(self) -> IO[bytes]:
        """Raises StateFolderRefused."""
        folder = self.place.state_folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return self.place.log.open("ab")
        except OSError as error:
            raise StateFolderRefused(
                f"The state folder {folder} cannot be written ({error.strerror}); "
                "free space or set THALIA_HOME to another folder."
            ) from error


class Stream:
    """A session's messages, read in a thread of its own: asked for once, and again after each break, from where it
    broke off. The last one is `over`, or `error`, `refused` or `lost`."""

    def __init__(
        self,
        daemon: Daemon,
        session: str,
        after: int | None,
        begin: Callable[[], dict[str, Any]],
        *,
        with_past: bool = False,
    ) -> None:
        """`begin` is called first, in the thread; a DaemonRefused of it is the message `refused`. It returns the seq of
        the last event before, behind which the stream begins where `after` says nothing else. `with_past`: the
        events until then come too, as `past`, where a fan-out may be under way; they tell what its agents are."""
        self.after = after or 0
        """The last event that is shown, or that is not to be."""
        self._from_head, self._with_past = after is None, with_past
        self._came_to: int | None = None
        """The last event that came, where it is another: one of the past."""
        self._daemon, self._session, self._begin = daemon, session, begin
        self._came: list[tuple[str, dict[str, Any]]] = []
        self._take: Take | None = None
        self._gate = threading.Lock()
        threading.Thread(target=self._run, daemon=True, name="stream").start()

    def deliver_to(self, take: Take | None) -> None:
        """Called in the thread from now on, and now with what has come already. None: kept until somebody asks."""
        with self._gate:
            self._take = take
            came, self._came = self._came, []
            for item in came:
                self._put(*item)

    def _run(self) -> None:
        try:
            opened = self._begin()
            if self._from_head:
                self.after = opened["head"]
                self._tell("opened", opened)
                standing = opened["standing"]
                # Of one that is hosted already nobody says where it stands.
                if self._with_past and (standing is None or standing["fanning"]):
                    self._came_to = 0
            self._read()
        except DaemonRefused as error:
            self._tell("refused", {"status": error.status, "kinds": error.kinds, "text": str(error)})
        except DaemonUnreachable as error:
            self._tell("lost", {"text": str(error)})

    def _read(self) -> None:
        """Raises DaemonRefused where the session is hosted no more, DaemonUnreachable."""
        while True:
            with suppress(DaemonUnreachable):
                after = self.after if self._came_to is None else self._came_to
                for kind, value in self._daemon.follow(self._session, after):
                    self._tell(self._note(value["event"]["seq"]) if kind == "event" else kind, value)
                    if kind in ("over", "error"):
                        return
            # The gateway was replaced, or the daemon is gone: whoever starts it takes its sessions up again.
            self._daemon.start()

    def _note(self, seq: int) -> str:
        """The kind of its message."""
        if seq <= self.after:
            self._came_to = seq
            return "past"
        self.after, self._came_to = seq, None
        return "event"

    def _tell(self, kind: str, value: dict[str, Any]) -> None:
        with self._gate:
            self._put(kind, value)

    def _put(self, kind: str, value: dict[str, Any]) -> None:
        if self._take is None:
            self._came.append((kind, value))
        else:
            self._take(kind, value)


def _read(answer: http.client.HTTPResponse) -> dict[str, Any]:
    """Raises DaemonRefused."""
    data = answer.read()
    try:
        value = json.loads(data)
    except ValueError:
        value = {"kinds": ["BadAnswer"], "text": f"The daemon failed ({answer.status}); see its log."}
    if answer.status != 200:
        raise DaemonRefused(answer.status, tuple(value["kinds"]), value["text"])
    return value
