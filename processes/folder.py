"""The folder of one call: its file names, its two locks, and writes that last. Standard library only, for the helper.

`lock`    held (exclusive) by the wrapper and by every process of its tree: free means that the tree is gone.
`start`   made once, before the command is; held (exclusive) by the wrapper alone.
`output`  the first bytes of stdout and stderr, `tail` the last ones beyond the cap.
`done`    the result; there is no moment at which it is half written.

Who only looks takes both locks shared, so lookers never disturb each other.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LOCK, START, OUTPUT, TAIL, DONE = "lock", "start", "output", "tail", "done"
TAIL_BYTES = 64 * 1024
NAME_VARIABLE = "THALIA_CALL"
MARK_VARIABLE = "THALIA_MARK"


def mark(call_dir: str) -> str:
    """What every process of this call carries in MARK_VARIABLE; unlike the folder's name, unique on the machine."""
    return hashlib.sha256(os.path.realpath(call_dir).encode(errors="surrogateescape")).hexdigest()[:24]


def make_folder(path: str) -> bool:
    """True where it was made now: its own name is then not durable yet."""
    try:
        os.mkdir(path, 0o700)  # noqa: PTH102 - see open_lock
    except FileExistsError:
        return False
    return True


def sync_folder(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def create(path: str, data: bytes) -> None:
    """A durable new file, but for its name: the folder is to be synced. FileExistsError where it was made before."""
    fd = create_unsynced(path, data)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def create_unsynced(path: str, data: bytes) -> int:
    """An open descriptor of a new file, to be synced by the caller. FileExistsError where it was made before."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    write_all(fd, data)
    return fd


def create_held(path: str, data: bytes) -> int:
    """An open descriptor of a new file that was whole and held exclusively when it got its name.

    FileExistsError where it was made before. Neither name nor content is durable: the folder is to be synced.
    """
    temporary = f"{path}.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        write_all(fd, data)
        os.link(temporary, path)
    finally:
        os.unlink(temporary)  # noqa: PTH108 - see open_lock
    return fd


def write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def hold_exclusively(path: str) -> int:
    """Waits. The descriptor only reads: a child that inherits it can do no more than keep the lock."""
    fd = open_lock(path, os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    return fd


def open_lock(path: str, flags: int = 0) -> int:
    try:
        return os.open(path, os.O_RDONLY | flags, 0o600)
    except PermissionError:
        # A confined command reaches this one file through its init's descriptors and may have taken the mode away.
        os.chmod(path, 0o600)  # noqa: PTH101 - pathlib costs the helper its start
        return os.open(path, os.O_RDONLY | flags, 0o600)


def is_held(path: str) -> bool:
    """False where the file does not exist."""
    try:
        fd = open_lock(path)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


@contextmanager
def holding(call_dir: str) -> Iterator[bool]:
    """Keep every wrapper of this call away, as a restore must; gives False where its tree still lives."""
    fds: list[int] = []
    free = True
    try:
        with suppress(FileNotFoundError):
            for name, operation in ((LOCK, fcntl.LOCK_SH), (START, fcntl.LOCK_EX)):
                fds.append(open_lock(f"{call_dir}/{name}"))
                try:
                    fcntl.flock(fds[-1], operation | fcntl.LOCK_NB)
                except BlockingIOError:
                    free = False
                    break
        yield free
    finally:
        for fd in fds:
            os.close(fd)
