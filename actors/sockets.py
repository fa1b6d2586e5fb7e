"""A private Unix socket: 0600 in a folder of 0700, in the place of one that a killed process left."""

import contextlib
import os
import socket
import stat
from pathlib import Path

from eventlog.errors import reason

LONGEST_PATH = 100
"""Bytes. The system takes 107, and on macOS 103."""


class CannotListen(Exception):
    """One sentence."""


def listen(path: Path) -> socket.socket:
    """A bound socket, 0600 from its first moment under this name. Raises CannotListen."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise CannotListen(f"The path {path} is too long for a socket ({LONGEST_PATH} bytes); set THALIA_HOME shorter.")
    try:
        _make_folder(path.parent)
        _check_free(path)
        fresh = path.with_name(f".{path.name[:2]}{os.getpid()}")
        fresh.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(str(fresh))
            fresh.chmod(0o600)
            # Takes the place of one that a killed process left; nobody ever meets a door that is half made.
            fresh.rename(path)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise CannotListen(f"The socket {path} cannot be made ({reason(error)}); set THALIA_HOME elsewhere.") from error
    return listener


def _make_folder(folder: Path) -> None:
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    info = folder.stat()
    if info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise CannotListen(f"{folder} must belong to you alone; `chmod 700` it, or set THALIA_HOME to another place.")


def _check_free(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise CannotListen(f"{path} is in the way of a socket; move it away.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
    raise CannotListen(f"Another process serves {path}; this session is coordinated there.")
