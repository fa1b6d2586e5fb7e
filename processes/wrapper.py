"""The wrapper of one command: forked by the helper, it outlives helper and harness. Standard library only.

Order: lock, start (durable before the next), command, done (whole when it is told, durable right after). What it knows
of the command is the request:
{call_dir, argv, sandbox: [bwrap, option...]?, cwd, env, timeout_s?, output_bytes, lease: [path, seconds, number?]?,
crash_at?}.
"""

import json
import os
import select
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

from processes import fence, folder, tree

GRACE_S = 1.0
"""Between SIGTERM and SIGKILL on timeout."""
CANCEL_GRACE_S = 0.1
"""The same on cancel: somebody waits for the end, and what is left undone the worktree's snapshot undoes."""
LEFTOVER_GRACE_S = 0.2
"""The same for what the command left in the background."""
CHUNK = 256 * 1024

Request = dict[str, Any]


def never(_name: str) -> None:
    pass


def crash_points(wanted: str | None) -> Callable[[str], None]:
    """`reached(name)`: the process dies there when the request asked for it."""

    def reached(name: str) -> None:
        if name == wanted:
            os.kill(os.getpid(), signal.SIGKILL)

    return reached if wanted else never


def prepare(adopt_orphans: Callable[[], None]) -> tuple[int, list[int]]:
    """All that needs no request."""
    os.setsid()
    adopt_orphans()
    rehearse()
    return watch_signals()


def rehearse() -> None:
    """What is touched here is copied after the fork, now and not while somebody waits."""
    request = json.loads(json.dumps({"timeout_s": 1.5, "sandbox": None, "output_bytes": 1, "call_dir": "/dev/null"}))
    start_record(request, moment())
    watch = Watch(request, -1, -1, [])
    watch.enforce(0.0)
    with suppress(OSError):
        watch.pump()
    with suppress(OSError):
        folder.create("/dev/null/none", b"")
    watch.reap()
    json.dumps(watch.result(moment()))


def wrap(request: Request, wake: int, asked: list[int], tell: Callable[[str], None]) -> None:
    """Run the request's command and tell the harness: `done`, or `exists` where it was started before, or `superseded`
    where its lease is another's by now."""
    reached = crash_points(request.get("crash_at"))
    call_dir = request["call_dir"]
    made = folder.make_folder(call_dir)
    reached("before_lock")
    if os.path.exists(f"{call_dir}/{folder.START}"):  # noqa: PTH110 - see folder.py
        return tell("exists")
    lock = folder.hold_exclusively(f"{call_dir}/{folder.LOCK}")
    reached("after_lock")
    started = moment()
    try:
        # Its name is the promise, so the folder is what must be durable; a reader can do without the content.
        with fenced(request):
            start = folder.create_held(f"{call_dir}/{folder.START}", start_record(request, started))
    except FileExistsError:
        return tell("exists")
    except fence.Superseded:
        return tell("superseded")
    folder.sync_folder(call_dir)
    if made:
        folder.sync_folder(os.path.dirname(call_dir))  # noqa: PTH120 - see folder.py
    reached("after_start")
    watch = Watch(request, lock, wake, asked)
    watch.begin(reached)
    reached("before_done")
    write_done(call_dir, watch.result(started), reached, tell)
    os.close(start)
    os.close(lock)
    return None


def fenced(request: Request) -> AbstractContextManager[None]:
    """Around the making of `start`: whoever takes over finds it, or it is never made."""
    path, _, number = request.get("lease") or ("", 0.0, None)
    return nullcontext() if number is None else fence.performing(path, number)


def moment() -> tuple[int, int]:
    """Microseconds since 1970, for people and files, and since boot, for durations: nobody sets that clock."""
    return time.time_ns() // 1000, tree.boot_us()


def start_record(request: Request, started: tuple[int, int]) -> bytes:
    own = os.getpid()
    record = {
        "pid": own,
        "pid_start": tree.start_time(own),
        "started_us": started[0],
        "started_boot_us": started[1],
        "timeout_s": request["timeout_s"],
        "confined": request["sandbox"] is not None,
    }
    return json.dumps(record).encode()


def write_done(
    call_dir: str, result: dict[str, Any], reached: Callable[[str], None], tell: Callable[[str], None]
) -> None:
    """Told as soon as no death of a process can undo it, and synced behind that: until then only a power cut can, and
    what it leaves is a `start` without a readable `done`, which counts as lost, never as another result."""
    temporary = f"{call_dir}/{folder.DONE}.tmp"
    fd = folder.create_unsynced(temporary, json.dumps(result).encode())
    reached("after_done_tmp")
    os.rename(temporary, f"{call_dir}/{folder.DONE}")  # noqa: PTH104 - see folder.py
    tell("done")
    os.fsync(fd)
    os.close(fd)
    folder.sync_folder(call_dir)
    reached("after_done")


def watch_signals() -> tuple[int, list[int]]:
    """A descriptor that wakes a poll, and a list that is no longer empty when SIGTERM asked us to cancel."""
    asked: list[int] = []
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    os.set_blocking(write_end, False)
    signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    return read_end, asked


class Watch:
    """One command from its start to the death of its last descendant."""

    def __init__(self, request: Request, lock: int, wake: int, asked: list[int]) -> None:
        self.request, self.lock, self.wake, self.asked = request, lock, wake, asked
        self.main = 0
        self.status: int | None = None
        self.setup_error: str | None = None
        self.timed_out = self.cancelled = self.gone = False
        self.kept = self.total = 0
        self.ring = b""
        self.ending_at: float | None = None
        self.next_look = 0.0
        self.renewed, self.renewed_at = -1, 0.0
        self.sandbox_status = -1
        self.pipe = self.output = -1
        self.deadline = float("inf")
        self.poll = select.poll()

    def begin(self, reached: Callable[[str], None]) -> None:
        output = f"{self.request['call_dir']}/{folder.OUTPUT}"
        self.output = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        self.deadline = time.monotonic() + (self.request["timeout_s"] or float("inf"))
        self.cancelled = bool(self.asked)
        if not self.cancelled:
            try:
                self.spawn()
            except OSError as fault:
                self.setup_error = f"The command could not be started: {fault.strerror}: {fault.filename or 'bash'}."
            else:
                reached("after_spawn")
                self.attend()
        if self.total:
            os.fsync(self.output)
        if self.ring:
            folder.create(f"{self.request['call_dir']}/{folder.TAIL}", self.ring)

    def spawn(self) -> None:
        self.pipe, write_end = os.pipe()
        os.set_blocking(self.pipe, False)
        argv, env, status_end = self.command_line()
        os.chdir(self.request["cwd"])
        null = (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)
        copies = [(os.POSIX_SPAWN_DUP2, write_end, fd) for fd in (1, 2)]
        try:
            self.main = os.posix_spawn(
                argv[0],
                argv,
                env,
                file_actions=[null, *copies],
                # A group of its own: `kill 0` in a script must not reach us.
                setpgroup=0,
                setsigmask=[],
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT],
            )
        finally:
            os.close(write_end)
            if status_end is not None:
                os.close(status_end)
        self.poll.register(self.pipe, select.POLLIN)
        self.poll.register(self.wake, select.POLLIN)

    def command_line(self) -> tuple[list[str], dict[str, str], int | None]:
        """Confined, the lock goes to bubblewrap's init alone, which dies last and which the command cannot close."""
        argv, env, sandbox = self.request["argv"], self.request["env"], self.request["sandbox"]
        if sandbox is None:
            os.set_inheritable(self.lock, True)
            return argv, env, None
        self.sandbox_status, status_end = os.pipe()
        # Over a descriptor: the environment must not show in a process listing.
        options = os.memfd_create("options", 0)
        folder.write_all(options, b"".join(os.fsencode(option) + b"\0" for option in sandbox[1:]))
        os.lseek(options, 0, os.SEEK_SET)
        for fd in (self.lock, status_end):
            os.set_inheritable(fd, True)
        numbers = ["--sync-fd", str(self.lock), "--json-status-fd", str(status_end), "--args", str(options)]
        own = {name: env[name] for name in (folder.NAME_VARIABLE, folder.MARK_VARIABLE) if name in env}
        return [sandbox[0], *numbers, "--", *argv], own, status_end

    def attend(self) -> None:
        while not self.gone:
            self.sleep()
            self.pump()
            self.reap()
            self.enforce(time.monotonic())
        while self.pump():
            pass

    def sleep(self) -> None:
        due = min(self.deadline if self.ending_at is None else self.ending_at, self.next_lease_look())
        wait = None if due == float("inf") else max(0.0, (due - time.monotonic()) * 1000 + 0.5)
        self.poll.poll(wait)
        with suppress(BlockingIOError):
            os.read(self.wake, 4096)

    def pump(self) -> bool:
        try:
            data = os.read(self.pipe, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            with suppress(KeyError):
                self.poll.unregister(self.pipe)
            return False
        self.keep(data)
        return True

    def keep(self, data: bytes) -> None:
        self.total += len(data)
        first = data[: max(0, self.request["output_bytes"] - self.kept)]
        try:
            folder.write_all(self.output, first)
            self.kept += len(first)
        except OSError:
            # The disk is full: what follows goes to the ring, and is counted.
            self.request["output_bytes"] = self.kept = os.lseek(self.output, 0, os.SEEK_CUR)
            first = b""
        if len(first) < len(data):
            self.ring = (self.ring + data[len(first) :])[-folder.TAIL_BYTES :]

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.gone = True
                return
            if pid == 0:
                return
            if pid == self.main:
                self.status = status

    def enforce(self, now: float) -> None:
        """End the tree on cancel, timeout, a lease that ran out, or the end of the main process, whichever is first."""
        if self.gone:
            return
        if self.ending_at is None:
            self.cancelled = self.status is None and (bool(self.asked) or self.lease_ran_out(now))
            self.timed_out = self.status is None and not self.cancelled and now >= self.deadline
            if self.cancelled or self.timed_out or self.status is not None:
                patience = CANCEL_GRACE_S if self.cancelled else GRACE_S
                self.ending_at = now + (patience if self.status is None else LEFTOVER_GRACE_S)
                # The end of bubblewrap is the end of all in it: there is nothing to ask.
                if self.status is None or self.request["sandbox"] is None:
                    tree.send(self.members(), signal.SIGTERM)
        elif now >= self.ending_at:
            tree.send(self.members(kill=True), signal.SIGKILL)
            self.ending_at = now + 0.02

    def members(self, kill: bool = False) -> list[int]:
        """bubblewrap itself would die of SIGTERM at once and take the command's grace with it."""
        found = tree.descendants(os.getpid())
        if not found and self.status is None:
            found = [self.main]
        return [pid for pid in found if kill or self.request["sandbox"] is None or pid != self.main]

    def next_lease_look(self) -> float:
        return self.next_look if self.request.get("lease") and self.ending_at is None else float("inf")

    def lease_ran_out(self, now: float) -> bool:
        lease = self.request.get("lease")
        if not lease or now < self.next_look:
            return False
        path, seconds = lease[:2]
        self.next_look = now + min(1.0, seconds / 4)
        try:
            renewed, end_us = fence.look(path)
        except FileNotFoundError:
            return True
        if end_us:
            self.next_look = min(self.next_look, now + max(end_us - tree.boot_us(), 0) / 1e6)
            if fence.has_ended(end_us):
                return True
        if renewed != self.renewed:
            # Counted from the look that saw it: a clock that is set ends nothing, and lets nothing live on.
            self.renewed, self.renewed_at = renewed, now
        return now - self.renewed_at > seconds

    def result(self, started: tuple[int, int]) -> dict[str, Any]:
        code = None if self.status is None else os.waitstatus_to_exitcode(self.status)
        if self.main and self.request["sandbox"] and self.sandbox_never_ran():
            self.setup_error = f"The sandbox could not be made: {self.first_output()}"
            code = None
        return {
            "exit_code": code if code is not None and code >= 0 else None,
            "signal": -code if code is not None and code < 0 else None,
            "timed_out": self.timed_out,
            "cancelled": self.cancelled,
            "output_total": self.total,
            "output_omitted": self.total - self.kept - len(self.ring),
            "started_us": started[0],
            "finished_us": started[0] + tree.boot_us() - started[1],
            "setup_error": self.setup_error,
        }

    def sandbox_never_ran(self) -> bool:
        """bubblewrap reports the command's exit code; where it ended by itself without one, nothing ran."""
        if self.timed_out or self.cancelled or self.status is None or os.waitstatus_to_exitcode(self.status) <= 0:
            return False
        os.set_blocking(self.sandbox_status, False)
        with suppress(BlockingIOError):
            return b'"exit-code"' not in os.read(self.sandbox_status, 65536)
        return True

    def first_output(self) -> str:
        return tree.read(f"{self.request['call_dir']}/{folder.OUTPUT}")[:500].decode(errors="replace").strip()
