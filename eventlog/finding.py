"""Find a session by what a person types. Looks at names and times of files alone, so that it is done at once."""

from pathlib import Path

from eventlog.anchor import read_anchor
from eventlog.errors import LogNotFound

DATABASE, ANCHOR = "log.duckdb", "head"
_MAGIC = b"DUCK"
"""Stands behind the checksum of a DuckDB file's first block."""


def session_folders(state: Path) -> list[Path]:
    """`state` holds one folder a session."""
    if not state.is_dir():
        return []
    return [folder for folder in state.iterdir() if (folder / DATABASE).is_file()]


def find_session(state: Path, name: str) -> Path:
    """By id or by the beginning of one. Raises LogNotFound where none or several fit."""
    fitting = [folder for folder in session_folders(state) if name and folder.name.startswith(name)]
    exact = [folder for folder in fitting if folder.name == name]
    match exact or fitting:
        case [folder]:
            return folder
        case []:
            raise LogNotFound(f"There is no session {name}; `thalia sessions` lists them.")
        case several:
            names = ", ".join(sorted(folder.name for folder in several)[:3])
            raise LogNotFound(f"{len(several)} sessions begin with {name} ({names}); give more of the id.")


def last_session(state: Path) -> Path:
    """The one in which something was logged last. Raises LogNotFound where there is none."""
    folders = session_folders(state)
    if not folders:
        raise LogNotFound("There is no session yet; `thalia exec PROMPT` begins one.")
    return max(folders, key=_rank)


def choose_session(state: Path, name: str | None, last: bool) -> str:
    """Its id. Raises LogNotFound."""
    return (find_session(state, name) if name is not None and not last else last_session(state)).name


def _rank(folder: Path) -> tuple[bool, int]:
    """Those with a whole anchor and a database first, by the time of their last event."""
    reading = read_anchor(folder / ANCHOR)
    begun = reading is not None and reading.head is not None and reading.head.seq > 0
    with (folder / DATABASE).open("rb") as file:
        whole = begun and file.read(12)[8:] == _MAGIC
    return whole, (folder / (ANCHOR if whole else DATABASE)).stat().st_mtime_ns
