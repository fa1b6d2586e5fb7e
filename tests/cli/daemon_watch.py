"""What the daemon's processes are seen to do from outside: what they look into, what they listen on, what they hold."""

import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes.tree import descendants, is_alive, read

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
"""127.0.0.1, the same inside IPv6, and ::1, as the kernel shows them."""
_IN_ACCESS, _IN_OPEN = 0x1, 0x20


class Watch:
    """Sees every listing of a folder and every opening of a file in it. An import looks into each folder of the path
    that comes before the module's own, so what stays unseen is on nobody's path."""

    def __init__(self, folders: Iterable[Path]) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for folder in folders:
            added = libc.inotify_add_watch(self._descriptor, os.fsencode(folder), _IN_ACCESS | _IN_OPEN)
            assert added > 0, os.strerror(ctypes.get_errno())

    def seen(self) -> bool:
        """Whether anybody looked since the last question."""
        try:
            return bool(os.read(self._descriptor, 1 << 16))
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self._descriptor)


@dataclass(frozen=True, slots=True)
class Inside:
    """A Python process as it sees itself."""

    name: str
    pid: int
    cwd: str
    path: tuple[str, ...]
    modules: tuple[str, ...]
    """Files that they came from."""
    environment: dict[str, str]


def look_into_workers(address: str, folder: Path) -> list[Inside]:
    """All actors in which sessions run or could, asked by a driver of its own."""
    command = [sys.executable, "-I", __file__, address, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return [Inside(**one) for one in json.loads(done.stdout.splitlines()[-1])]


def with_descendants(pids: Iterable[int]) -> list[int]:
    """Living ones. Helpers carry no mark, but have parents that do."""
    found = set(pids)
    return sorted(pid for pid in found.union(*map(descendants, found)) if is_alive(pid))


def arguments(pid: int) -> list[str]:
    return read(f"/proc/{pid}/cmdline").decode(errors="replace").split("\0")


def open_to_others(pids: Iterable[int]) -> tuple[set[str], int]:
    """(addresses off this machine on which these processes can be reached, how many of their sockets were looked at):
    TCP that listens, UDP that has a port."""
    inodes = {link for pid in pids for link in _sockets(pid)}
    beyond: set[str] = set()
    looked = 0
    for table in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[9] in inodes and (columns[3] == "0A" or table.startswith("udp")):
                looked += 1
                address = columns[1].split(":")[0]
                beyond |= {address} - LOOPBACK
    return beyond, looked


def _sockets(pid: int) -> Iterator[str]:
    # It may close one, or end, while it is looked at.
    with suppress(FileNotFoundError, ProcessLookupError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                target = str(entry.readlink())
                if target.startswith("socket:["):
                    yield target.removeprefix("socket:[").removesuffix("]")


def _drive(address: str, folder: Path) -> list[dict[str, Any]]:
    from actors.head import HeadFiles, connect

    connect(address, HeadFiles(folder))
    import ray

    names = [name for name in ray.util.list_named_actors() if name.startswith("worker-")]
    found = []
    for name in names:
        actor: Any = ray.get_actor(name)
        modules: Any = ray.get(actor.list_modules.remote(), timeout=30)
        state: Any = ray.get(actor.__ray_call__.remote(_describe), timeout=30)
        found.append({"name": name, "modules": sorted(modules.values()), **state})
    return found


def _describe(_: object) -> dict[str, Any]:
    return {"pid": os.getpid(), "cwd": os.getcwd(), "path": sys.path, "environment": dict(os.environ)}  # noqa: PTH109


if __name__ == "__main__":
    print(json.dumps(_drive(sys.argv[1], Path(sys.argv[2]))))
