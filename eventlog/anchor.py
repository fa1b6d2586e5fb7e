"""The anchor: seq and hash of the last acknowledged event, outside the database.

DuckDB opens silently with acknowledged rows missing when its WAL was cut or deleted. The anchor is what makes that
visible. Two slots are written in turn, so that a torn write leaves the one before."""

import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

from configs.crash import reached

_SLOT = struct.Struct("<8sQQ64s")
_SIZE = 512
"""One sector a slot: a torn write cannot reach the other."""
_MAGIC = b"THALIA1\0"


@dataclass(frozen=True, slots=True)
class Head:
    seq: int
    hash: str


@dataclass(frozen=True, slots=True)
class Reading:
    head: Head | None
    damaged: bool
    """A slot that was written once does not check: the file was altered or a write was torn."""


class Anchor:
    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._turn = _newest(os.pread(self._descriptor, 2 * _SIZE, 0))[1] + 1
        if os.fstat(self._descriptor).st_size < 2 * _SIZE:
            os.ftruncate(self._descriptor, 2 * _SIZE)
            os.fsync(self._descriptor)

    def write(self, head: Head) -> None:
        """Durable on return."""
        record = _SLOT.pack(_MAGIC, self._turn, head.seq, head.hash.encode())
        record += zlib.crc32(record).to_bytes(4, "little")
        os.pwrite(self._descriptor, record, (self._turn % 2) * _SIZE)
        reached("before_anchor_sync")
        os.fdatasync(self._descriptor)
        self._turn += 1

    def close(self) -> None:
        os.close(self._descriptor)


def read_anchor(path: Path) -> Reading | None:
    """None where the file is missing."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    head, _, damaged = _newest(data)
    return Reading(head, damaged or len(data) < 2 * _SIZE)


def _newest(data: bytes) -> tuple[Head | None, int, bool]:
    head: Head | None = None
    newest = -1
    damaged = False
    for offset in (0, _SIZE):
        slot = data[offset : offset + _SLOT.size + 4]
        record, check = slot[: _SLOT.size], slot[_SLOT.size :]
        if len(record) == _SLOT.size and zlib.crc32(record).to_bytes(4, "little") == check:
            _, turn, seq, digest = _SLOT.unpack(record)
            if turn > newest:
                head, newest = Head(seq, digest.decode()), turn
        elif any(slot):
            damaged = True
    return head, newest, damaged
