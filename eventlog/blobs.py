"""Content-addressed files beside the log: durable before the event that names them."""

import hashlib
import os
from pathlib import Path

from configs.crash import reached
from eventlog.errors import BlobMissing
from eventlog.ids import Digest


class BlobStore:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._counter = 0

    def path(self, digest: Digest) -> Path:
        return self._folder / digest[:2] / digest[2:]

    def put(self, data: bytes) -> Digest:
        """Durable on return: file and folders are fsynced. The same content is written once."""
        digest = Digest(hashlib.sha256(data).hexdigest())
        target = self.path(digest)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        # A file that is there may be altered, or may come from a process that ended before the folder was synced.
        if not target.exists() or target.read_bytes() != data:
            reached("before_blob_write")
            self._write(target, data)
        sync_folder(target.parent)
        sync_folder(self._folder)
        reached("after_blob")
        return digest

    def _write(self, target: Path, data: bytes) -> None:
        self._counter += 1
        temporary = self._folder / f".{target.name}.{os.getpid()}.{self._counter}"
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fdatasync(file.fileno())
            reached("before_blob_rename")
            temporary.rename(target)
            reached("after_blob_rename")
        except OSError:
            temporary.unlink(missing_ok=True)
            raise

    def discard_drafts(self) -> None:
        """What a killed writer left half-written. For the one writer, before it writes."""
        for draft in self._folder.glob(".*"):
            draft.unlink(missing_ok=True)

    def get(self, digest: Digest) -> bytes:
        """Raises BlobMissing where it is gone or its content is not what its name says."""
        try:
            data = self.path(digest).read_bytes()
        except FileNotFoundError as error:
            raise BlobMissing(f"Blob {digest[:12]} is missing from the session's folder.") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise BlobMissing(f"Blob {digest[:12]} was altered.")
        return data


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file: temp, fsync, rename, fsync of the folder."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    sync_folder(path.parent)
