"""Run a program and record what it and all that it starts do to some folders: each write, name and sync, in order.

    python -m tests.chaos.power_record RECORDING --disk FOLDER... [--outside FILE...] -- PROGRAM...

Standard output, and the files of `--outside`, stand on another disk: what was written there had left the machine.
Paths and offsets come from /proc while the caller stands still, so mount namespaces, links and inherited descriptors
need no book-keeping."""

import argparse
import os
import pickle
import signal
import stat
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tests.chaos import power_ptrace as ptrace
from tests.chaos.power_ops import (
    Flushed,
    Kind,
    Made,
    ModeSet,
    Moved,
    Named,
    Node,
    NotModelled,
    Operation,
    Recording,
    Sized,
    Synced,
    Told,
    Unnamed,
    Wrote,
)

Key = tuple[int, int]
Back = Callable[[int], object]
"""What to do with the result of a call."""
AT_CWD = -100
SHOWN = "shown"
"""The channel of standard output."""


class Recorder:
    def __init__(self, disks: Sequence[Path], outside: Sequence[Path], unwatched: Sequence[str]) -> None:
        self.unwatched = tuple(unwatched)
        self.operations: list[Operation] = []
        out = os.fstat(1)
        self.channels = {(out.st_dev, out.st_ino): SHOWN} | {_key(path): path.name for path in outside}
        self.nodes: dict[Key, int] = {}
        self.before: dict[int, Node] = {}
        self.count = 0
        self.roots = {str(path): self._take_in(path) for path in disks}

    def recording(self) -> Recording:
        return Recording(self.roots, self.before, tuple(self.operations))

    def _take_in(self, path: Path) -> int:
        info = path.lstat()
        number = self._number(_key(path))
        kind, mode = _kind(info.st_mode), stat.S_IMODE(info.st_mode)
        match kind:
            case "folder":
                names = tuple((os.fsencode(inner.name), self._take_in(inner)) for inner in sorted(path.iterdir()))
                self.before[number] = Node(kind, mode, b"", names)
            case "file":
                self.before[number] = Node(kind, mode, path.read_bytes())
            case "link":
                self.before[number] = Node(kind, mode, os.fsencode(path.readlink()))
        return number

    def _number(self, key: Key) -> int:
        self.count += 1
        self.nodes[key] = self.count
        return self.count

    def enter(self, pid: int, call: ptrace.Call) -> Back | None:
        """What to do when the call comes back with its result; None where it is of no interest."""
        a = call.arguments
        match call.name:
            case "write" | "pwrite64" | "writev" | "pwritev" | "pwritev2" | "sendfile" | "copy_file_range":
                return self._write(pid, call)
            case "fsync" | "fdatasync" | "sync_file_range":
                return self._sync(pid, a[0], call.name)
            case "ftruncate" | "truncate":
                where = _descriptor(pid, a[0]) if call.name == "ftruncate" else _path(pid, AT_CWD, a[0])
                return self._size(where, a[1])
            case "open" | "openat" | "openat2" | "creat":
                return self._open(pid, call)
            case "mkdir" | "mkdirat" | "symlink" | "symlinkat":
                return self._make(pid, call)
            case "rename" | "renameat" | "renameat2" | "link" | "linkat":
                return self._move(pid, call)
            case "unlink" | "rmdir" | "unlinkat":
                where = _path(pid, *a[:2]) if call.name == "unlinkat" else _path(pid, AT_CWD, a[0])
                return self._remove(where)
            case "chmod" | "fchmod" | "fchmodat":
                return self._chmod(pid, call)
            case _:
                return self._other(pid, call)

    def _known(self, where: Path, *, follow: bool = True) -> int | None:
        with suppress(OSError):
            info = where.stat(follow_symlinks=follow)
            return self.nodes.get((info.st_dev, info.st_ino))
        return None

    def _write(self, pid: int, call: ptrace.Call) -> Back | None:
        a = call.arguments
        descriptor = a[2] if call.name == "copy_file_range" else a[0]
        where = _descriptor(pid, descriptor)
        with suppress(OSError):
            info = where.stat()
            key = (info.st_dev, info.st_ino)
            node, channel = self.nodes.get(key), self.channels.get(key)
            if node is None and channel is None:
                return None

            def back(count: int) -> None:
                if count <= 0:
                    return
                at = a[3] if call.name.startswith("pwrite") else _position(pid, descriptor) - count
                data = _written(pid, call, where, at, count)
                self.operations.append(Told(channel, data) if channel else Wrote(node or 0, at, data))

            return back
        return None

    def _sync(self, pid: int, descriptor: int, name: str) -> Back | None:
        node = self._known(_descriptor(pid, descriptor))
        if node is None:
            return None
        covers, kind = len(self.operations), Flushed if name == "sync_file_range" else Synced
        return lambda result: self.operations.append(kind(node, covers)) if result == 0 else None

    def _size(self, where: Path, size: int) -> Back | None:
        node = self._known(where)
        return None if node is None else lambda result: result or self.operations.append(Sized(node, size))

    def _open(self, pid: int, call: ptrace.Call) -> Back | None:
        a = call.arguments
        if call.name == "openat2":
            how = _memory(pid, a[2], 8)
            where, flags = _path(pid, *a[:2]), int.from_bytes(how, "little")
        elif call.name == "openat":
            where, flags = _path(pid, *a[:2]), a[2]
        else:
            where, flags = _path(pid, AT_CWD, a[0]), a[1] if call.name == "open" else os.O_CREAT | os.O_TRUNC
        if os.path.lexists(where):
            known = self._known(where)
            return self._size(where, 0) if known and flags & os.O_TRUNC and where.stat().st_size else None
        folder = self._known(where.parent)
        if folder is None or not flags & os.O_CREAT:
            return None

        def back(result: int) -> None:
            if result >= 0:
                self._new(folder, where)

        return back

    def _new(self, folder: int, where: Path) -> None:
        if where.name.startswith(self.unwatched):
            return
        info = where.lstat()
        kind = _kind(info.st_mode)
        node = self._number((info.st_dev, info.st_ino))
        target = os.fsencode(where.readlink()) if kind == "link" else b""
        self.operations.append(Made(node, kind, stat.S_IMODE(info.st_mode), target))
        self.operations.append(Named(folder, _name(where), node))

    def _make(self, pid: int, call: ptrace.Call) -> Back | None:
        a = call.arguments
        match call.name:
            case "mkdir":
                where = _path(pid, AT_CWD, a[0])
            case "mkdirat":
                where = _path(pid, *a[:2])
            case "symlink":
                where = _path(pid, AT_CWD, a[1])
            case _:
                where = _path(pid, a[1], a[2])
        folder = self._known(where.parent)
        if folder is None:
            return None
        return lambda result: result or self._new(folder, where)

    def _move(self, pid: int, call: ptrace.Call) -> Back | None:
        a = call.arguments
        a = a if call.name.endswith(("at", "at2")) else (AT_CWD, a[0], AT_CWD, a[1])
        old, new = _path(pid, *a[:2]), _path(pid, *a[2:4])
        folder, to = self._known(old.parent), self._known(new.parent)
        node = self._known(old, follow=False)
        if (to is None and folder is None) or old.name.startswith(self.unwatched):
            return None
        if node is None or folder is None or to is None:
            return lambda _: self.operations.append(NotModelled(f"{call.name} across disks"))
        links = call.name.startswith("link")
        operation = Named(to, _name(new), node) if links else Moved(folder, _name(old), to, _name(new), node)
        return None if self._known(new, follow=False) == node else self._and_forget(new, operation)

    def _remove(self, where: Path) -> Back | None:
        folder = self._known(where.parent)
        return None if folder is None else self._and_forget(where, Unnamed(folder, _name(where)))

    def _and_forget(self, where: Path, operation: Operation) -> Back:
        """What loses its last name there gives its number to whatever is made next, on the disks or elsewhere."""
        with suppress(FileNotFoundError):
            info = where.lstat()
            if info.st_nlink == 1 or stat.S_ISDIR(info.st_mode):
                key = (info.st_dev, info.st_ino)
                return lambda result: result or (self.nodes.pop(key, None), self.operations.append(operation))
        return lambda result: result or self.operations.append(operation)

    def _chmod(self, pid: int, call: ptrace.Call) -> Back | None:
        a = call.arguments
        match call.name:
            case "fchmod":
                where, mode = _descriptor(pid, a[0]), a[1]
            case "chmod":
                where, mode = _path(pid, AT_CWD, a[0]), a[1]
            case _:
                where, mode = _path(pid, *a[:2]), a[2]
        node = self._known(where)
        return None if node is None else lambda result: result or self.operations.append(ModeSet(node, mode & 0o7777))

    def _other(self, pid: int, call: ptrace.Call) -> Back | None:
        where = _descriptor(pid, call.arguments[4] if call.name == "mmap" else call.arguments[0])
        reads = call.name == "mmap" and not call.arguments[2] & 2
        anywhere = call.name in ("io_uring_setup", "sync", "syncfs")
        if reads or call.name == "msync" or not (anywhere or self._known(where)):
            return None
        return lambda _: self.operations.append(NotModelled(call.name))


def record(program: Sequence[str], recorder: Recorder) -> tuple[Recording, int]:
    """Until the program and all that it started have ended. With the program's exit code."""
    first = _start(program)
    waiting: dict[int, Back] = {}
    code = 0
    while True:
        try:
            pid, status = os.waitpid(-1, ptrace.WALL)
        except ChildProcessError:
            return recorder.recording(), code
        if os.WIFSTOPPED(status):
            _stopped(recorder, waiting, pid, os.WSTOPSIG(status), status >> 16)
        elif pid == first:
            code = os.waitstatus_to_exitcode(status)


def _start(program: Sequence[str]) -> int:
    hold, release = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(release)
        os.read(hold, 1)
        ptrace.stop_at_calls()
        os.execv(program[0], list(program))
    os.close(hold)
    ptrace.seize(pid)
    os.close(release)
    return pid


def _stopped(recorder: Recorder, waiting: dict[int, Back], pid: int, number: int, event: int) -> None:
    back = waiting.pop(pid, None)
    if number == signal.SIGTRAP | 0x80:
        if back is not None:
            back(ptrace.returned(pid))
        ptrace.go_on(pid)
    elif event == ptrace.SECCOMP:
        back = recorder.enter(pid, ptrace.entered(pid))
        if back is None:
            ptrace.go_on(pid)
        else:
            waiting[pid] = back
            ptrace.go_to_exit(pid)
    elif event == ptrace.STOPPED and number in (signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
        ptrace.stay_stopped(pid)
    elif event:
        ptrace.go_on(pid)
    else:
        ptrace.go_on(pid, number)


def _key(path: Path) -> Key:
    info = path.lstat()
    return info.st_dev, info.st_ino


def _kind(mode: int) -> Kind:
    return "folder" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "file"


def _name(where: Path) -> bytes:
    return os.fsencode(where.name)


def _descriptor(pid: int, number: int) -> Path:
    return Path(f"/proc/{pid}/fd/{number & 0xFFFFFFFF}")


def _path(pid: int, folder: int, address: int) -> Path:
    """As the caller sees it, for us."""
    text = os.fsdecode(_text(pid, address))
    if text.startswith("/"):
        return Path(f"/proc/{pid}/root{text}")
    number = folder & 0xFFFFFFFF
    return Path(f"/proc/{pid}/cwd/{text}" if number == AT_CWD & 0xFFFFFFFF else f"/proc/{pid}/fd/{number}/{text}")


def _text(pid: int, address: int) -> bytes:
    found = b""
    while b"\0" not in found:
        # Up to the end of a page: the next one may not be there.
        found += _memory(pid, address + len(found), 4096 - (address + len(found)) % 4096)
    return found.partition(b"\0")[0]


def _memory(pid: int, address: int, count: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        return os.pread(memory.fileno(), count, address)


def _position(pid: int, descriptor: int) -> int:
    text = Path(f"/proc/{pid}/fdinfo/{descriptor & 0xFFFFFFFF}").read_text()
    return int(text.split("pos:")[1].split()[0])


def _written(pid: int, call: ptrace.Call, where: Path, at: int, count: int) -> bytes:
    if call.name in ("write", "pwrite64"):
        return _memory(pid, call.arguments[1], count)
    with open(where, "rb") as file:
        return os.pread(file.fileno(), count, at)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("recording", type=Path)
    parser.add_argument("--disk", type=Path, nargs="+", required=True)
    parser.add_argument("--outside", type=Path, nargs="*", default=[])
    parser.add_argument("--unwatched", nargs="*", default=[], help="beginnings of names that nobody reads again")
    parser.add_argument("program", nargs="+")
    chosen = parser.parse_args()
    recording, code = record(chosen.program, Recorder(chosen.disk, chosen.outside, chosen.unwatched))
    chosen.recording.write_bytes(pickle.dumps(recording))
    sys.exit(code)


if __name__ == "__main__":
    main()
