"""Crash points: a process ends itself with SIGKILL at a named place when its environment says so, to test recovery.

THALIA_CRASH_AT=name:3 is the third time that the place is reached; THALIA_CRASH_TRACE=file lists the places instead."""

import os
import signal
from collections import Counter

_where, _, _count = os.environ.get("THALIA_CRASH_AT", "").partition(":")
_trace = os.environ.get("THALIA_CRASH_TRACE", "")
_times: Counter[str] = Counter()
ACTIVE = bool(_where or _trace)
WRAPPER: str | None = os.environ.get("THALIA_CRASH_WRAPPER") or None
"""A point of processes/wrapper.py, at which the process around a command ends itself."""


def reached(name: str) -> None:
    """Nothing, unless a test asked for this place."""
    if not ACTIVE:
        return
    _times[name] += 1
    if _trace:
        descriptor = os.open(_trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{name}:{_times[name]}\n".encode())
        os.close(descriptor)
    if name == _where and _times[name] == int(_count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
