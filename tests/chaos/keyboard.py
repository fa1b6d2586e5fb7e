"""A program at a pseudoterminal, and a person who says yes to whatever it asks."""

import errno
import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Thread

QUESTION = b"run it?"


class Attended(subprocess.Popen[bytes]):
    """Ends as any process does; what it showed is appended to `shown`."""

    def __init__(
        self, program: Sequence[str], arguments: Sequence[str], folder: Path, env: Mapping[str, str], shown: Path
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        super().__init__([*program, *arguments], cwd=folder, env=env, stdin=slave, stdout=slave, stderr=slave)
        os.close(slave)
        self._shown = shown
        self._thread = Thread(target=self._answer)
        self._thread.start()

    def wait(self, timeout: float | None = None) -> int:
        code = super().wait(timeout)
        self._thread.join()
        return code

    def _answer(self) -> None:
        seen = b""
        answered = 0
        while piece := self._read():
            seen += piece
            while answered < seen.count(QUESTION):
                answered += 1
                os.write(self._master, b"y\n")
        os.close(self._master)
        with self._shown.open("ab") as file:
            file.write(seen)

    def _read(self) -> bytes:
        """Nothing once nobody has the terminal any more."""
        try:
            return os.read(self._master, 65536)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""
