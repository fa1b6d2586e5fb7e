"""Which processes belong to a call, read from /proc. Standard library only, for the helper.

Where there is no /proc (macOS, untested) the answers are empty, and only the command's process group can be ended.
"""

import os
import signal
import time
from collections.abc import Iterable
from contextlib import suppress


def pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208 - see folder.py
    except FileNotFoundError:
        return []


def read(path: str) -> bytes:
    """Empty where the process is gone or is another user's."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    parts: list[bytes] = []
    with suppress(OSError):
        while part := os.read(fd, 65536):
            parts.append(part)
    os.close(fd)
    return b"".join(parts)


def fields(pid: int) -> list[bytes]:
    """/proc/PID/stat from the state on (field 3); empty where the process is gone."""
    return read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def start_time(pid: int) -> int:
    """Clock ticks since boot; 0 where unknown. With the pid it names a process for good."""
    found = fields(pid)
    return int(found[19]) if len(found) > 19 else 0


def boot_us() -> int:
    """Microseconds since boot, also those asleep. Unlike the time of day it is never set."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)) // 1000


def is_alive(pid: int) -> bool:
    return fields(pid)[:1] not in ([], [b"Z"], [b"X"])


def is_stopped(pid: int) -> bool:
    """By SIGSTOP and its like, or by a debugger."""
    return fields(pid)[:1] in ([b"T"], [b"t"])


def session(pid: int) -> int:
    """The id of its session; 0 where the process is gone."""
    found = fields(pid)
    return int(found[3]) if len(found) > 3 else 0


def parent(pid: int) -> int:
    """0 where the process is gone, and of the first one."""
    found = fields(pid)
    return int(found[1]) if len(found) > 1 else 0


def descendants(root: int) -> list[int]:
    """Parents before children. What died and was not reaped yet is among them."""
    children: dict[int, list[int]] = {}
    for pid in pids():
        found = fields(pid)
        if len(found) > 1:
            children.setdefault(int(found[1]), []).append(pid)
    order = list(children.get(root, []))
    for pid in order:
        order.extend(children.get(pid, []))
    return order


def send(targets: Iterable[int], number: int) -> None:
    for pid in targets:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def holders(lock: str, variable: str, value: str) -> list[int]:
    """Living processes, this one left out, that hold `lock` exclusively or carry variable=value in the environment."""
    try:
        wanted = os.stat(lock)  # noqa: PTH116 - see folder.py
        key = (wanted.st_dev, wanted.st_ino)
    except FileNotFoundError:
        key = None
    needle = f"\0{variable}={value}\0".encode()
    own = os.getpid()
    return [
        pid
        for pid in pids()
        if pid != own
        and ((b"\0" + read(f"/proc/{pid}/environ") + b"\0").find(needle) >= 0 or (key and holds(pid, key)))
        and is_alive(pid)
    ]


def carriers(variable: str, value: str) -> list[int]:
    """Living processes, this one left out, that carry variable=value in the environment."""
    needle = f"\0{variable}={value}\0".encode()
    own = os.getpid()
    return [
        pid for pid in pids() if pid != own and needle in b"\0" + read(f"/proc/{pid}/environ") + b"\0" and is_alive(pid)
    ]


def end_carriers(variable: str, value: str, patience_s: float) -> list[int]:
    """SIGKILL whoever carries variable=value, until nobody does. Those that still live after `patience_s`."""
    give_up = time.monotonic() + patience_s
    quiet = 0
    found: list[int] = []
    # Twice, since a process that is just being executed shows no environment.
    while quiet < 2:
        found = carriers(variable, value)
        if found and time.monotonic() > give_up:
            return found
        send(found, signal.SIGKILL)
        quiet = 0 if found else quiet + 1
        time.sleep(0.005)
    return []


def lock_holders(path: str) -> list[int]:
    """Living processes, this one left out, that hold the file in any way."""
    try:
        found = os.stat(path)  # noqa: PTH116 - see folder.py
    except FileNotFoundError:
        return []
    key, own = (found.st_dev, found.st_ino), os.getpid()
    return [pid for pid in pids() if pid != own and holds(pid, key, b"FLOCK") and is_alive(pid)]


def holds(pid: int, key: tuple[int, int], how: bytes = b"WRITE") -> bool:
    """Open is not enough: who only looks has the file open too, for a moment, and takes it shared."""
    try:
        names = os.listdir(f"/proc/{pid}/fd")  # noqa: PTH208 - see folder.py
    except OSError:
        return False
    for name in names:
        with suppress(OSError):
            found = os.stat(f"/proc/{pid}/fd/{name}")  # noqa: PTH116 - see folder.py
            if (found.st_dev, found.st_ino) == key and how in read(f"/proc/{pid}/fdinfo/{name}"):
                return True
    return False


def kill_holders(lock: str, variable: str, value: str) -> bool:
    """SIGKILL whoever still belongs to the call; False where nobody did. Call again until nobody does."""
    found = holders(lock, variable, value)
    send(found, signal.SIGKILL)
    return bool(found)
