"""What a call folder says: its state, its output, and who still belongs to it."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from processes import folder, tree
from processes.commands import CallState, Done, Lost, NotStarted, Running, result_from_json

FILE_CLOCK_US = 20_000
"""How far a file's time may lag behind the clock: the kernel takes it from its last tick, every 10 ms at most."""


def inspect(call_dir: Path) -> CallState:
    """Between the lock and `start` of a wrapper the answer is NotStarted: a second start then waits, and is refused."""
    # The lock first: what is found after it was free is final.
    held = is_held(call_dir)
    try:
        return Done(result_from_json((call_dir / folder.DONE).read_bytes()))
    except (FileNotFoundError, ValueError, TypeError):
        # One that cannot be read is what a power cut leaves before it was synced: how it ended is not known.
        start = read_start(call_dir)
    if start is None:
        return NotStarted()
    return Running(start["pid"]) if held else Lost(start["started_us"])


def is_held(call_dir: Path) -> bool:
    """A process of the tree, or the wrapper, lives."""
    return folder.is_held(f"{call_dir}/{folder.LOCK}") or folder.is_held(f"{call_dir}/{folder.START}")


def read_start(call_dir: Path) -> dict[str, Any] | None:
    """None where there is none. One that cannot be read is a start all the same: its name is the promise."""
    path = call_dir / folder.START
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return json.loads(text)
    except ValueError:
        started_us = path.stat().st_mtime_ns // 1000
        return {"pid": 0, "pid_start": 0, "started_us": started_us, "timeout_s": None, "confined": False}


def began_us(call_dir: Path) -> int:
    """Microseconds since 1970, by the clock as it is set now, or as it was then, whichever is earlier: so that no file
    that the call changed has a time before it. 0 where nothing was started."""
    start = read_start(call_dir)
    if start is None:
        return 0
    # Read in this order, a pause between the two makes it earlier, never later.
    now_us = time.time_ns() // 1000
    # After a reboot the difference is smaller than the true one, and the recorded time stands.
    elapsed = tree.boot_us() - start["started_boot_us"] if "started_boot_us" in start else 0
    return min(int(start["started_us"]), now_us - elapsed) - FILE_CLOCK_US


def is_orphaned(call_dir: Path) -> bool:
    """The wrapper is dead and its tree is not. A `start` that cannot be read yet may be one that is being written."""
    start = read_start(call_dir)
    if start is None or start["pid"] == 0:
        return False
    return not folder.is_held(f"{call_dir}/{folder.START}") and folder.is_held(f"{call_dir}/{folder.LOCK}")


def overdue(call_dir: Path, grace_s: float = 5.0) -> bool:
    """Nobody but us will end this orphaned tree: its timeout is over, or it is confined.

    A confined one should be dead as well, but bubblewrap that lost its parent in its first moments hangs instead.
    """
    start = read_start(call_dir)
    if start is None or not is_orphaned(call_dir):
        return False
    if start["confined"] or start["timeout_s"] is None:
        return start["confined"]
    return tree.boot_us() > start["started_boot_us"] + (start["timeout_s"] + grace_s) * 1_000_000


def end_tree(call_dir: Path, patience_s: float = 5.0) -> bool:
    """SIGKILL the wrapper and all that belongs to the call; True when nothing is left. Blocks, milliseconds as a rule.

    Found by the held lock and by the mark in the environment: also what left its session, parent or descriptors.
    """
    give_up = time.monotonic() + patience_s
    lock, value = f"{call_dir}/{folder.LOCK}", folder.mark(str(call_dir))
    while tree.kill_holders(lock, folder.MARK_VARIABLE, value):
        if time.monotonic() > give_up:
            return False
        time.sleep(0.005)
    return True


@dataclass(frozen=True, slots=True)
class Output:
    head: bytes
    tail: bytes
    """What follows the head, or the last bytes where something is omitted between them."""
    omitted: int
    """Bytes between head and tail."""
    total: int
    path: Path
    """The spill: the first bytes that were kept, up to the command's cap."""


def read_output(call_dir: Path, head: int, tail: int) -> Output:
    """At most `head` first and `tail` last bytes. Of a command that still runs, or was lost, what is on disk."""
    path = call_dir / folder.OUTPUT
    kept = size(path)
    ring = read_range(call_dir / folder.TAIL, 0, folder.TAIL_BYTES)
    total = kept + len(ring)
    match inspect(call_dir):
        case Done(result):
            total = max(total, result.output_total)
        case _:
            pass
    first = read_range(path, 0, head)
    if kept + len(ring) < total:
        last = ring[-tail:] if tail else b""
    else:
        wanted = min(tail, total - len(first))
        last = read_range(path, max(len(first), total - wanted), wanted) + ring
        last = last[-wanted:] if wanted else b""
    return Output(first, last, total - len(first) - len(last), total, path)


def size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def read_range(path: Path, start: int, length: int) -> bytes:
    """Empty where there is no such file."""
    try:
        with open(path, "rb") as file:
            file.seek(start, os.SEEK_SET)
            return file.read(length)
    except FileNotFoundError:
        return b""
