"""The sessions of a user: list them, find one, query all of them as one.

Each has a cached `summary.json`, made anew when its log has changed; recovery never reads it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from pydantic import ValidationError

from configs.scratch import scratch
from eventlog.anchor import read_anchor
from eventlog.blobs import write_durably
from eventlog.checking import ANCHOR, DATABASE, LOCK, open_copy
from eventlog.database import wal_path
from eventlog.errors import LogDamaged, LogError, LogNotFound, reason
from eventlog.events import ContextSet, EffectFinished, Event, FanOutAsked, TurnEnded, UserSaid
from eventlog.finding import session_folders
from eventlog.ids import MAIN
from eventlog.lock import is_held
from eventlog.opening import read_log
from eventlog.outcomes import Ending, ModelReplied
from eventlog.values import Value
from eventlog.views import VIEWS

if TYPE_CHECKING:
    import duckdb

SUMMARY = "summary.json"
_TITLE = 100
_MEMORY = "1GB"
_NOTHING = "SELECT 0::BIGINT AS seq, 0::BIGINT AS ts_us, '' AS kind, '' AS call_id, '' AS payload, '' AS hash LIMIT 0"


class Summary(Value):
    title: str
    """The first line of the first thing the user said."""
    model: str | None
    started_us: int
    changed_us: int
    events: int
    turns: int
    ending: Ending | None
    """Of the last turn; None while one goes on."""
    cost_usd: float | None
    """None where the price of a reply is not known."""
    stamp: tuple[int, ...]
    """Sizes and times of the files it was made from."""


@dataclass(frozen=True, slots=True)
class Listed:
    """`summary` or `trouble`. A live session's summary may be older than its log."""

    folder: Path
    live: bool
    summary: Summary | None
    trouble: str | None


def list_sessions(state: Path) -> tuple[Listed, ...]:
    """Newest change first; those that cannot be read last. `state` holds one folder a session."""
    listed = [_look(folder) for folder in session_folders(state)]
    return tuple(sorted(listed, key=lambda one: -(one.summary.changed_us if one.summary else 0)))


def summarize(events: Sequence[Event], stamp: tuple[int, ...]) -> Summary:
    title, model, turns, ending = "", None, 0, None
    cost: float | None = 0.0
    for event in events:
        body = event.body
        if isinstance(body, EffectFinished) and isinstance(body.outcome, ModelReplied):
            # Whoever asked: money is the session's.
            paid = body.outcome.cost_usd
            cost = None if cost is None or paid is None else cost + paid
        if event.actor != MAIN:
            continue
        match body:
            case UserSaid() | FanOutAsked():
                text = body.text if isinstance(body, UserSaid) else body.tasks[0]
                title = title or next((line.strip()[:_TITLE] for line in text.splitlines() if line.strip()), "")
                ending = None
            case ContextSet():
                model = body.model
            case TurnEnded():
                turns, ending = turns + 1, body.ending
            case _:
                pass
    return Summary(
        title=title,
        model=model,
        started_us=events[0].ts_us if events else 0,
        changed_us=events[-1].ts_us if events else 0,
        events=len(events),
        turns=turns,
        ending=ending,
        cost_usd=cost,
        stamp=stamp,
    )


@dataclass(frozen=True, slots=True)
class UnionView:
    """All sessions as one database: `events`, `log`, `model_calls`, `tool_runs`, `approvals`."""

    connection: "duckdb.DuckDBPyConnection"
    skipped: tuple[tuple[Path, str], ...]
    """Sessions that are not in it, and why."""

    def query(self, sql: str) -> tuple[list[str], list[tuple[object, ...]]]:
        """Column names and rows of one SELECT. Raises ValueError, with a sentence, for anything that cannot be run."""
        import duckdb

        try:
            statements = duckdb.extract_statements(sql)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise ValueError("Only one SELECT can be run; it reads the sessions and nothing else.")
            result = self.connection.execute(statements[0])
            return [column[0] for column in result.description or ()], result.fetchall()
        except duckdb.Error as error:
            raise ValueError(reason(error)) from error


@contextmanager
def union_view(folders: Sequence[Path], exports: Mapping[str, Path] | None = None) -> Iterator[UnionView]:
    """Reads copies, so live sessions may be among them; better are the `exports` of their writers (DuckLog.export), by
    the name of the folder. SQL reaches no file, no network and no setting."""
    import duckdb

    with scratch("sql") as copies, duckdb.connect() as connection:
        skipped: list[tuple[Path, str]] = []
        parts: list[str] = []
        for number, folder in enumerate(folders):
            if exports and folder.name in exports:
                connection.execute(
                    f"CREATE TABLE session_{number} AS FROM read_parquet(?)", [str(exports[folder.name])]
                )
                parts.append(f"SELECT * FROM session_{number}")
                continue
            copy = copies / str(number)
            copy.mkdir(mode=0o700)
            try:
                _copy_checked(folder, copy)
                connection.execute(f"ATTACH '{copy / DATABASE}' AS session_{number} (READ_ONLY)")
            except (LogError, duckdb.Error, OSError) as error:
                skipped.append((folder, str(error) if isinstance(error, LogError) else reason(error)))
            else:
                parts.append(f"SELECT * FROM session_{number}.main.events")
        connection.execute("CREATE VIEW events AS " + " UNION ALL ".join(parts or [_NOTHING]))
        for view in VIEWS:
            connection.execute(view)
        _confine(connection, str(copies))
        yield UnionView(connection, tuple(skipped))


def _confine(connection: "duckdb.DuckDBPyConnection", folder: str) -> None:
    for setting, value in (
        ("memory_limit", f"'{_MEMORY}'"),
        ("temp_directory", f"'{folder}'"),
        ("allow_community_extensions", "false"),
        ("autoinstall_known_extensions", "false"),
        ("autoload_known_extensions", "false"),
        ("enable_external_access", "false"),
        ("lock_configuration", "true"),
    ):
        connection.execute(f"SET {setting} = {value}")


def _copy_checked(folder: Path, copy: Path) -> None:
    """Whether events are missing at its end is checked, the whole chain is not: that is for opening."""
    if not (folder / DATABASE).exists():
        raise LogNotFound(f"There is no session {folder.name}; `thalia sessions` lists them.")
    reading = read_anchor(folder / ANCHOR)
    database = open_copy(folder, copy)
    try:
        head = database.head()
    finally:
        database.close()
    if reading is None or reading.head is None:
        raise LogDamaged("its anchor file `head` cannot be read", None)
    if head.seq < reading.head.seq:
        raise LogDamaged(f"it ends at event {head.seq}", reading.head.seq - head.seq)


def _look(folder: Path) -> Listed:
    live = is_held(folder / LOCK)
    cached = _cached(folder)
    stamp = _stamp(folder)
    if cached is not None and (live or cached.stamp == stamp):
        return Listed(folder, live, cached, None)
    try:
        summary = summarize(read_log(folder), stamp)
    except LogError as error:
        return Listed(folder, live, None, str(error))
    with suppress(OSError):  # A full disk must not keep anyone from seeing the list.
        write_durably(folder / SUMMARY, orjson.dumps(summary.model_dump()))
    return Listed(folder, live, summary, None)


def _cached(folder: Path) -> Summary | None:
    try:
        return Summary.model_validate_json((folder / SUMMARY).read_bytes())
    except (OSError, ValidationError):
        return None


def _stamp(folder: Path) -> tuple[int, ...]:
    stamp: list[int] = []
    for path in (folder / DATABASE, wal_path(folder / DATABASE), folder / ANCHOR):
        with suppress(FileNotFoundError):
            info = path.stat()
            stamp += [info.st_size, info.st_mtime_ns]
    return tuple(stamp)
