"""What the log names must be on the disk before the log is. Git syncs what it writes where it is told to, but no
folder: mostly names come along with the next sync, on some file systems, as btrfs, only with that of their folder."""

import contextlib
import os
import time
from collections.abc import MutableMapping
from pathlib import Path

from eventlog.blobs import sync_folder

RECENT_NS = 40 * 10**9
"""What is older the kernel has written by itself."""
TICK_NS = 20 * 10**6
"""Changes closer to each other than the kernel's clock can have the same time."""


def sync_objects(common_dir: Path, synced: MutableMapping[str, int]) -> None:
    """Make the names of all new objects durable. `synced`: by folder, its time of change when it last was."""
    objects = common_dir / "objects"
    with os.scandir(objects) as entries:
        folders = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    # The outermost last: it is what makes a new folder's own name durable.
    for folder in (*folders, str(objects)):
        # A folder that goes meanwhile is one of what is just let in, or empty: git clears those away.
        with contextlib.suppress(FileNotFoundError):
            changed, now = Path(folder).stat().st_mtime_ns, time.time_ns()
            if now - changed > RECENT_NS or synced.get(folder) == changed:
                continue
            sync_folder(Path(folder))
            if now - changed > TICK_NS:
                synced[folder] = changed


def make_folders(folder: Path, mode: int = 0o777) -> None:
    """With its missing parents, each name durable."""
    if folder.is_dir():
        return
    if folder.parent != folder:
        make_folders(folder.parent, mode)
    folder.mkdir(mode=mode, exist_ok=True)
    sync_folder(folder.parent)


def sync_below(folder: Path) -> None:
    """All files and folders in it, and its own content. For few and small ones."""
    for at, folders, files in os.walk(folder, topdown=False):
        for name in files:
            sync_plain(Path(at, name))
        for name in folders:
            if not Path(at, name).is_symlink():
                sync_folder(Path(at, name))
    sync_folder(folder)


def sync_plain(path: Path) -> None:
    """A regular file; a link has no content to sync."""
    if path.is_symlink():
        return
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
