"""Crash points: a process ends itself with SIGKILL at a named place when its environment says so, to test recovery.

THALIA_CRASH_AT=name:3      the third time that this process reaches the place
THALIA_CRASH_ONCE=file      by whoever makes this file first, and nobody after it: for variables that are inherited
THALIA_CRASH_SIGNAL=STOP    stops there instead, until somebody sends SIGCONT
THALIA_CRASH_TRACE=file     lists each place that is reached, `name:count` a line, instead
THALIA_CRASH_WRAPPER=name   a point of the process around a command; `name:3` is the third command of the session

A new point is one line in POINTS; a run that never reaches it, or reaches one that is not there, fails the harness."""

import os
import signal
from collections import Counter
from contextlib import suppress

POINTS = (
    # The log.
    "before_blob_write",
    "before_blob_rename",
    "after_blob_rename",
    "after_blob",
    "before_commit",
    "after_commit",
    "before_anchor_sync",
    "after_anchor",
    "after_acknowledge",
    "before_checkpoint",
    "after_checkpoint",
    # Effects, from the durable intent to the outcome in the inbox.
    "before_call_model",
    "after_call_model",
    "before_run_tool",
    "after_run_tool",
    "before_make_worktree",
    "after_make_worktree",
    "before_take_snapshot",
    "after_take_snapshot",
    "before_restore_tree",
    "after_restore_tree",
    "before_merge_work",
    "after_merge_work",
    # Edits.
    "before_write",
    "after_temp",
    "before_rename",
    "after_rename",
    # Git.
    "pool_before_add",
    "pool_after_add",
    "pool_before_reset",
    "pool_after_reset",
    "carry_after_base",
    "carry_after_scan",
    "carry_after_read_tree",
    "carry_after_checkout",
    "snapshot_before_add",
    "snapshot_after_tree",
    "snapshot_before_ref",
    "snapshot_after_ref",
    "commit_before_ref",
    "commit_after_ref",
    "restore_after_scan",
    "restore_after_remove",
    "restore_after_read_tree",
    "restore_after_checkout",
    "merge_after_save",
    "merge_before_rename",
    "merge_after_rename",
    # Questions.
    "before_answer",
    "after_answer",
)
"""Of a session's own process."""
WRAPPER_POINTS = (
    "before_lock",
    "after_lock",
    "after_start",
    "after_spawn",
    "before_done",
    "after_done_tmp",
    "after_done",
)
"""Of the process around a command (processes/wrapper.py)."""

_where, _, _count = os.environ.get("THALIA_CRASH_AT", "").partition(":")
_once = os.environ.get("THALIA_CRASH_ONCE", "")
_signal = signal.SIGSTOP if os.environ.get("THALIA_CRASH_SIGNAL") == "STOP" else signal.SIGKILL
_trace = os.environ.get("THALIA_CRASH_TRACE", "")
_times: Counter[str] = Counter()
ACTIVE = bool(_where or _trace)
WRAPPER: str | None = os.environ.get("THALIA_CRASH_WRAPPER") or None


def reached(name: str) -> None:
    """Nothing, unless a test asked for this place."""
    if not ACTIVE:
        return
    _times[name] += 1
    if _trace:
        descriptor = os.open(_trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{name}:{_times[name]}\n".encode())
        os.close(descriptor)
    if name == _where and _times[name] == int(_count or 1) and _is_first():
        os.kill(os.getpid(), _signal)


def _is_first() -> bool:
    if not _once:
        return True
    with suppress(FileExistsError):
        os.close(os.open(_once, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        return True
    return False
