"""Where the daemon of a user lives: a short private folder for what dies with it, and the state folder for what stays.

Sockets need short paths (107 bytes on Linux, 103 on macOS), so the folder is in /tmp, named after the user and the
state folder: two state folders have two daemons."""

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

_PASSED = frozenset(
    ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "XDG_CONFIG_HOME", "XDG_STATE_HOME")
)
_PASSED_BEGINNINGS = ("THALIA_HOME", "THALIA_CONFIG", "THALIA_IDLE_S", "THALIA_HUNG_S", "THALIA_CRASH_")
WARM_WORKERS = 2
"""Processes that wait for a session."""


RUN_MARK = "THALIA_RUN"
"""Variable of every command of a session: the session's id."""
MARK = "THALIA_DAEMON_FOLDER"
"""Variable of every process of a daemon: the path of its folder."""


class PlaceUnsafe(Exception):
    """Somebody else made the folder, or can enter it."""


@dataclass(frozen=True, slots=True)
class DaemonPlace:
    folder: Path
    """Mode 0700; gone after `thalia down`."""
    state_folder: Path

    @property
    def gateway(self) -> Path:
        """The socket on which frontends find the gateway."""
        return self.folder / "gateway.sock"

    @property
    def lock(self) -> Path:
        """Held by the supervisor as long as it lives."""
        return self.folder / "daemon.lock"

    @property
    def doors(self) -> Path:
        """One socket a hosted session, by its id."""
        return self.folder / "doors"

    @property
    def ray(self) -> Path:
        return self.folder / "ray"

    @property
    def log(self) -> Path:
        """What the daemon's processes complain of. Outlives them."""
        return self.state_folder / "daemon.log"

    @property
    def hosted(self) -> Path:
        """One request a session that is to go on, by its id. Outlives the daemon: its next start takes them up."""
        return self.state_folder / "hosted"

    def door(self, session: str) -> Path:
        """The socket of a hosted session."""
        return self.doors / session

    def request(self, session: str) -> Path:
        return self.hosted / f"{session}.json"

    def make(self) -> None:
        """Raises PlaceUnsafe, OSError."""
        for folder in (self.folder, self.doors):
            folder.mkdir(mode=0o700, exist_ok=True)
            check_private(folder)
        self.hosted.mkdir(mode=0o700, parents=True, exist_ok=True)


def append_line(file: Path, text: str) -> None:
    """To a log for people, 0600."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(descriptor, f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} {text.rstrip()}\n".encode())
    finally:
        os.close(descriptor)


def daemon_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """What of a user's variables the daemon's own processes get: no key, and nothing that steers Python or Ray."""
    return {name: value for name, value in variables.items() if name in _PASSED or name.startswith(_PASSED_BEGINNINGS)}


def encode_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """As JSON can carry them."""
    return {to_letters(name): to_letters(value) for name, value in variables.items()}


def decode_variables(encoded: Mapping[str, str]) -> dict[str, str]:
    return {from_letters(name): from_letters(value) for name, value in encoded.items()}


def to_letters(text: str) -> str:
    """Of a name or variable that is no text, Python keeps bytes as halves of surrogate pairs, which no JSON holds: here
    each byte becomes one letter of Latin-1."""
    return os.fsencode(text).decode("latin-1")


def from_letters(text: str) -> str:
    return os.fsdecode(text.encode("latin-1"))


def state_folder(variables: Mapping[str, str]) -> Path:
    import platformdirs

    home = variables.get("THALIA_HOME")
    return Path(home).expanduser().absolute() if home else Path(platformdirs.user_state_dir("thalia"))


def config_file(variables: Mapping[str, str]) -> Path:
    import platformdirs

    named = variables.get("THALIA_CONFIG")
    return Path(named).expanduser() if named else Path(platformdirs.user_config_dir("thalia")) / "config.toml"


def read_variables() -> dict[str, str]:
    """What this process was started with."""
    return dict(os.environ)


def wants_daemon(variables: Mapping[str, str]) -> bool:
    """THALIA_DAEMON=off runs sessions in the process that asks for them."""
    return variables.get("THALIA_DAEMON", "").lower() not in ("off", "0", "no", "false")


def idle_limit_s(variables: Mapping[str, str]) -> float:
    """How long a daemon that runs no session and has no client stays (THALIA_IDLE_S)."""
    try:
        return max(float(variables.get("THALIA_IDLE_S", "")), 0.1)
    except ValueError:
        return 1800.0


def hung_limit_s(variables: Mapping[str, str]) -> float:
    """How long a process of the daemon may say nothing until it is replaced (THALIA_HUNG_S). To open 100,000 events
    takes 2.4 s, and that blocks no answer."""
    try:
        return max(float(variables.get("THALIA_HUNG_S", "")), 0.5)
    except ValueError:
        return 10.0


def daemon_place(state_folder: Path) -> DaemonPlace:
    name = hashlib.sha256(os.fsencode(state_folder)).hexdigest()[:8]
    return DaemonPlace(Path(f"/tmp/thalia-{os.getuid()}-{name}"), state_folder)


def node_place(variables: Mapping[str, str]) -> DaemonPlace:
    """Of a machine that has joined another one's cluster; its daemon, if it has one too, has another."""
    return daemon_place(state_folder(variables) / "node")


def place_of(folder: str) -> DaemonPlace:
    """Of a process that was started for this state folder; empty: for the node on which it is."""
    return daemon_place(Path(folder)) if folder else node_place(read_variables())


def check_private(folder: Path) -> None:
    """Raises PlaceUnsafe, FileNotFoundError."""
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
        raise PlaceUnsafe(f"{folder} is not a private folder of yours; remove it, or set THALIA_HOME to another place.")
