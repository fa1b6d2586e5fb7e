"""Whether the daemon of a state folder is alone on its machine, the head of a cluster, or a node of one that somebody
else runs: what `thalia up` was told, remembered until `thalia down`."""

import contextlib
import json
import os
import re
import secrets
import socket
from dataclasses import asdict, dataclass
from pathlib import Path

DEFAULT_PORT = 7330
PORTS = 500
"""So many, from the head's own port on, are used on each machine."""
_HIGHEST = 65535 - PORTS
_LABEL = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?")


class ClusterRefused(Exception):
    """One sentence: an address, a token or what is remembered cannot be used."""


@dataclass(frozen=True, slots=True)
class Cluster:
    address: str
    """Of the head, HOST:PORT; HOST is an IPv4 address."""
    join: bool = False
    """Somebody else runs the head, and this machine is a node of it."""

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])


def parse_address(text: str) -> Cluster:
    """HOST[:PORT], names resolved. Raises ClusterRefused."""
    host, _, port = text.partition(":")
    number = port or str(DEFAULT_PORT)
    if not host or not number.isdecimal() or not 1024 <= int(number) <= _HIGHEST:
        raise ClusterRefused(f"{text!r} is not HOST or HOST:PORT, with a port from 1024 to {_HIGHEST}.")
    try:
        found = socket.getaddrinfo(host, None, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise ClusterRefused(f"{host} has no IPv4 address ({error.strerror}); name another one.") from error
    return Cluster(f"{found[0][4][0]}:{int(number)}")


def check_own(host: str) -> None:
    """Raises ClusterRefused where other machines cannot reach this one by that IPv4 address."""
    if host == "127.0.0.1":
        raise ClusterRefused(
            "127.0.0.1 is this machine for itself; give the address by which the other machines reach it."
        )
    try:
        with socket.socket(socket.AF_INET) as trial:
            trial.bind((host, 0))
    except OSError as error:
        raise ClusterRefused(f"{host} is no address of this machine; `ip address` lists those that are.") from error


NODE_LABEL = "thalia-version"
"""What `thalia node` adds to the labels of its machine: agents work on no other one."""


def parse_labels(text: str) -> dict[str, str]:
    """NAME=VALUE,… as Ray and Kubernetes have them. Raises ClusterRefused."""
    labels = dict[str, str]()
    for pair in filter(None, text.split(",")):
        name, _, value = pair.partition("=")
        if not _LABEL.fullmatch(name.rpartition("/")[2]) or not _LABEL.fullmatch(value) or name.startswith("ray.io/"):
            raise ClusterRefused(f"{pair!r} is no label; NAME=VALUE is one, of letters, digits and - _ . between them.")
        labels[name] = value
    return labels


def read_cluster(state_folder: Path) -> Cluster | None:
    """None: alone. Raises ClusterRefused."""
    file = _file(state_folder)
    try:
        return Cluster(**json.loads(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, OSError) as error:
        text = "`thalia down` forgets it, `thalia up --cluster` says it anew."
        raise ClusterRefused(f"{file} cannot be read ({type(error).__name__}); {text}") from error


def remember_cluster(state_folder: Path, cluster: Cluster) -> None:
    _write(_file(state_folder), json.dumps(asdict(cluster)))


def forget_cluster(state_folder: Path) -> None:
    """The own token stays: copies of it are on other machines."""
    for file in (_file(state_folder), token_file(state_folder, True)):
        file.unlink(missing_ok=True)


def token_file(state_folder: Path, join: bool) -> Path:
    """Of the own head, or of the one that is joined."""
    return state_folder / ("joined.token" if join else "cluster.token")


def make_token(state_folder: Path) -> None:
    """The own one, kept from one start to the next."""
    file = token_file(state_folder, False)
    if not file.exists():
        _write(file, secrets.token_hex(32))


def keep_joined_token(state_folder: Path, token: str) -> None:
    _write(token_file(state_folder, True), token)


def read_token(file: Path) -> str:
    """Raises ClusterRefused."""
    try:
        shown, text = file.stat().st_mode & 0o077, file.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise ClusterRefused(f"The token file {file} cannot be read ({type(error).__name__}).") from error
    if shown:
        raise ClusterRefused(f"The token file {file} is open to others; say `chmod 600 {file}`.")
    if not text or len(text.split()) > 1:
        raise ClusterRefused(f"The token file {file} holds no token; copy the one that `thalia up --cluster` names.")
    return text


def _file(state_folder: Path) -> Path:
    return state_folder / "cluster.json"


def _write(file: Path, text: str) -> None:
    """Whole or not at all, 0600."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        temporary.unlink()
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.rename(file)
