"""What an agent made on another node comes to its session: first a file beside the log, then references of the user's.

The file is of no meaning until the agent asks, at the session's door and under its present lease, that it be taken."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from actors.door_requests import Move
from actors.files import SessionFiles
from configs.crash import reached, reached_in
from worktrees.bundle import BundleRefused, check_own, read_header, take_bundle
from worktrees.objects import read_ref

FOLDER = "bundles"


class NotStored(Exception):
    """It has to be sent again."""


def store_bundle(session_folder: Path, name: str, bundle: bytes) -> None:
    """Whole under its name, or not there. Raises OSError, also where there is no such session."""
    folder = session_folder / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    # Nobody waits for the disk: who takes it syncs what comes of it.
    handle, draft = tempfile.mkstemp(dir=folder, prefix=".")
    try:
        with open(handle, "wb") as out:
            out.write(bundle)
        reached("bundle_before_stored")
        Path(draft).rename(folder / name)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise


def take_delivered(files: SessionFiles, session_folder: Path, name: str, moves: Mapping[str, Move]) -> None:
    """Move the agent's references, each by compare-and-swap. Blocks; may be repeated. Raises GitError, also where a
    name leads out of the agent's own folder or the bundle holds other commits; and FileNotFoundError where the file is
    not there and something is left to be moved."""
    file = session_folder / FOLDER / name
    wanted = {check_own(files.ref(ref)): move for ref, move in moves.items()}
    git = files.repository.git
    if any(read_ref(git, ref) != move.new for ref, move in wanted.items()):
        old, bundle = {ref: move.old for ref, move in wanted.items()}, file.read_bytes()
        for ref, commit in read_header(bundle).refs.items():
            if ref in wanted and wanted[ref].new != commit:
                raise BundleRefused(f"The bundle holds another commit for {ref} than was told; nothing was taken.")
        take_bundle(files.repository, bundle, old, reached=reached_in("bundle"))
    file.unlink(missing_ok=True)
    reached("bundle_after_taken")


def discard_bundles(session_folder: Path) -> None:
    """What nobody asked to be taken, at the session's start: it is sent again."""
    for file in (session_folder / FOLDER).glob("*"):
        file.unlink(missing_ok=True)
