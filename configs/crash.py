"""Crash points: a process ends itself with SIGKILL at a named place when its environment says so, to test recovery.

THALIA_CRASH_AT=name:3      the third time that this process reaches the place
THALIA_CRASH_PLAN=file      for processes that inherit it: where the file says `name:3`, whoever is the third of all to
                            reach the place ends; the file goes then, and file.next takes its place if there is one
THALIA_CRASH_SIGNAL=STOP    stops there instead, until somebody sends SIGCONT
THALIA_CRASH_TRACE=file     lists each place that is reached, `name:count` a line, and `killed` where a plan came true
THALIA_CRASH_BOOT=name      the machine was started anew since it had another name here
THALIA_CRASH_WRAPPER=name   a point of the process around a command; `name:3` is the third command of the session

A new point is one line in POINTS, DAEMON_POINTS or FAR_POINTS; a run that never reaches it, or reaches one that is not
there, fails the harness."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

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
    "before_spawn_agent",
    "after_spawn_agent",
    "before_wake_agent",
    "after_wake_agent",
    "before_prepare_merge",
    "after_prepare_merge",
    "before_check_merge",
    "after_check_merge",
    "before_advance_branch",
    "after_advance_branch",
    "before_retire_agents",
    "after_retire_agents",
    # An agent's lease, in the log and on its node.
    "before_lease",
    "after_lease",
    "before_fence",
    "after_fence",
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
    "result_before_ref",
    "result_after_ref",
    "branch_before_begin",
    "branch_before_ref",
    "branch_after_ref",
    "before_check_worktree",
    "after_check_worktree",
    "before_retire_worktree",
    "after_retire_worktree",
    # Questions.
    "before_answer",
    "after_answer",
)
"""Of a session's own process."""
DAEMON_POINTS = (
    # The supervisor.
    "after_daemon_lock",
    "after_daemon_clear",
    "after_listen",
    "before_ray",
    "after_ray",
    "before_gateway",
    "after_gateway",
    "before_daemon_end",
    "after_daemon_end",
    # The gateway's beginning.
    "before_take_up",
    "after_take_up",
    "before_join",
    "after_join",
    # A request, from the frontend's question to its answer.
    "before_request",
    "after_variables",
    "after_request",
    "before_give",
    "after_give",
    "before_host_answer",
    "after_host_answer",
    # The same in the worker.
    "before_host",
    "before_door",
    "after_door",
    # A command, from the gateway to the log and back.
    "before_say",
    "after_say",
    "before_door_answer",
    "after_door_answer",
    "before_command_answer",
    "after_command_answer",
    # What is shown.
    "before_door_events",
    "after_door_events",
    "before_stream",
    "after_stream",
    # The end of a session.
    "before_last_words",
    "after_last_words",
    "after_log_closed",
    "after_request_done",
    "before_give_back",
    "before_forget",
    "after_forget",
    # Stop and down.
    "before_stop",
    "after_stop",
    "before_cut",
    "after_cut",
    "before_abandon",
    "after_abandon",
    "before_down_answer",
    "after_down_answer",
)
"""Of a daemon's processes, besides POINTS in those that host a session."""
FAR_POINTS = (
    # From the session to another node.
    "bundle_out_before_make",
    "bundle_out_after_make",
    # What an agent made there, on its way back.
    "bundle_before_make",
    "bundle_after_make",
    "bundle_before_stored",
    # Taken on either side.
    "bundle_before_index",
    "bundle_after_index",
    "bundle_after_objects",
    "bundle_before_ref",
    "bundle_after_ref",
    "bundle_after_taken",
    # Another worktree in place of one that was lost with its node.
    "before_move",
    "after_move",
)
"""Of agents on other nodes than their session's, besides POINTS and DAEMON_POINTS."""
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
_plan = os.environ.get("THALIA_CRASH_PLAN", "")
_signal = signal.SIGSTOP if os.environ.get("THALIA_CRASH_SIGNAL") == "STOP" else signal.SIGKILL
_trace = os.environ.get("THALIA_CRASH_TRACE", "")
_times: Counter[str] = Counter()
ACTIVE = bool(_where or _plan or _trace)
BOOT = os.environ.get("THALIA_CRASH_BOOT", "")
WRAPPER: str | None = os.environ.get("THALIA_CRASH_WRAPPER") or None


def reached(name: str) -> None:
    """Nothing, unless a test asked for this place."""
    if not ACTIVE:
        return
    _times[name] += 1
    _note(f"{name}:{_times[name]}")
    if (name == _where and _times[name] == int(_count or 1)) or (_plan and _is_due(name)):
        # To this thread: a stop that another one gets first leaves us some steps more.
        signal.pthread_kill(threading.get_ident(), _signal)


def reached_in(where: str) -> Callable[[str], None]:
    """`reached` for a part that several have, each under its own name."""
    return lambda name: reached(f"{where}_{name}")


def _note(line: str) -> None:
    if _trace:
        descriptor = os.open(_trace, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, f"{line}\n".encode())
        os.close(descriptor)


def _is_due(name: str) -> bool:
    """Whether the plan comes true now. Each process that reaches the place adds a byte to the file, and where this one
    came to stand says how many had been there before it."""
    try:
        descriptor = os.open(_plan, os.O_RDWR | os.O_APPEND)
    except FileNotFoundError:
        return False
    try:
        place = os.read(descriptor, 256).partition(b"\n")[0].decode()
        if place.partition(":")[0] != name:
            return False
        os.write(descriptor, b".")
        times = os.lseek(descriptor, 0, os.SEEK_CUR) - len(place) - 1
    finally:
        os.close(descriptor)
    if times != int(place.partition(":")[2]):
        return False
    _note("killed")
    try:
        Path(f"{_plan}.next").replace(_plan)
    except FileNotFoundError:
        Path(_plan).unlink()
    return True
