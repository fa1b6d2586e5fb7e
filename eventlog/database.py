"""The DuckDB file of a log: one narrow table, appends that are durable on return, typed views over the payload.

DuckDB pays for each column, so the table has six and the views do the rest. No key, no index, no ALTER on a live
log. Appends and checkpoints come from one thread; readers get cursors of their own."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from eventlog.anchor import Head
from eventlog.blobs import sync_file, sync_folder
from eventlog.codec import GENESIS
from eventlog.views import VIEWS

CLOSING_BYTES = 8 * 1024 * 1024
"""Size of the WAL from which a closing log moves it into the file. Opening one of this size takes about 0.1 s."""
PAGE = 4096
"""Rows a fetch while reading: an unfinished fetch blocks its connection, and a whole log may not fit in memory."""

_TABLE = """
CREATE TABLE events (
    seq BIGINT NOT NULL, ts_us BIGINT NOT NULL, kind VARCHAR NOT NULL, call_id VARCHAR,
    payload VARCHAR NOT NULL, hash VARCHAR NOT NULL
)"""


class Row(NamedTuple):
    seq: int
    ts_us: int
    kind: str
    call_id: str | None
    payload: str
    hash: str


class Link(NamedTuple):
    """A row as the hash chain sees it."""

    covered: bytes
    """`seq:ts_us:payload`, what the hash covers besides the hash before."""
    hash: str


class Database:
    """Raises duckdb.Error. Opened read-only, it changes no byte: not of the file, not of its WAL."""

    def __init__(self, path: Path, *, read_only: bool = False) -> None:
        import duckdb

        self.path = path
        self._writes = not read_only
        self._connection = duckdb.connect(
            str(path),
            read_only=read_only,
            config={
                "threads": 1,
                # Checkpoints are ours to place: a stall of half a second belongs where nobody waits.
                "checkpoint_threshold": "1TB",
                "allow_community_extensions": "false",
                "autoinstall_known_extensions": "false",
            },
        )
        self._appender: duckdb.Appender | None = None
        try:
            self.empty = not self._fetch("SELECT 1 FROM duckdb_tables() WHERE table_name = 'events'")
            if not read_only:
                self._connection.execute("PRAGMA disable_checkpoint_on_shutdown")
                self._prepare_files()
        except (duckdb.Error, OSError):
            self._connection.close()
            raise

    def append(self, rows: Sequence[Row]) -> None:
        """One transaction: all rows are durable on return, or none."""
        if self._appender is None:
            self._appender = self._connection.appender("events")
        self._appender.append_rows(rows)
        self._appender.flush()

    def head(self) -> Head:
        if self.empty:
            return Head(0, GENESIS)
        row = self._fetch("SELECT seq, hash FROM events ORDER BY rowid DESC LIMIT 1")
        return Head(*row[0]) if row else Head(0, GENESIS)

    def count(self) -> int:
        return 0 if self.empty else self._fetch("SELECT count(*) FROM events")[0][0]

    def rows(self, after_seq: int = 0, last_seq: int | None = None) -> Iterator[Row]:
        """In the order of the table, which is that of the appends; up to `last_seq`, or the head at the call."""
        last = self.head().seq if last_seq is None else last_seq
        # Ranges, not ORDER BY: a scan keeps the order, and a sort of a whole log costs more than reading it.
        while after_seq < last:
            upto = min(after_seq + PAGE, last)
            yield from map(Row._make, self._fetch("SELECT * FROM events WHERE seq > ? AND seq <= ?", after_seq, upto))
            after_seq = upto

    def links(self) -> Iterator[Link]:
        """All rows in the order of the table. What is damaged may hold any seq, so pages go by place."""
        # One text a row, put together by DuckDB: each value that crosses to Python costs as much as its hash.
        sql = "SELECT encode(concat(seq, ':', ts_us, ':', payload)), hash FROM events WHERE rowid >= ? AND rowid < ?"
        for start in range(0, self.count(), PAGE):
            yield from map(Link._make, self._fetch(sql, start, start + PAGE))

    def payloads(self, kind: str) -> list[str]:
        """Of the rows whose column `kind`, which no hash covers, says so. In no order."""
        if self.empty:
            return []
        return [row[0] for row in self._fetch("SELECT payload FROM events WHERE kind = ?", kind)]

    def page(self, start: int, stop: int) -> list[Row]:
        """Rows by place, from 0."""
        return list(map(Row._make, self._fetch("SELECT * FROM events WHERE rowid >= ? AND rowid < ?", start, stop)))

    def checkpoint(self) -> None:
        """Move the WAL into the file. Stalls appends for as long as it takes.

        DuckDB writes a block anew that its last header still needs: a loss of power in the middle leaves a file that
        does not open. So the file as it was stands beside it meanwhile (see checking.finish_checkpoint)."""
        aside = aside_path(self.path)
        # By another process: to close a second handle on the file in this one would drop DuckDB's lock.
        command, env = ["/bin/cp", "-f", str(self.path), str(aside)], {"LC_ALL": "C"}
        copied = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", check=False)
        if copied.returncode != 0:
            aside.unlink(missing_ok=True)
            raise OSError(f"it cannot be copied before that: {copied.stderr.strip().rpartition(': ')[2]}")
        sync_file(aside)
        sync_folder(self.path.parent)
        self._connection.execute("CHECKPOINT")
        aside.unlink()
        self._restrict_wal()

    def query(self, sql: str) -> tuple[list[str], list[tuple[object, ...]]]:
        """Column names and rows, on a cursor of its own."""
        cursor = self._connection.cursor()
        try:
            result = cursor.execute(sql)
            return [column[0] for column in result.description or ()], result.fetchall()
        finally:
            cursor.close()

    def export(self, file: Path, last_seq: int) -> None:
        """The rows up to `last_seq`, as Parquet, on a cursor of its own."""
        cursor = self._connection.cursor()
        try:
            cursor.execute(f"COPY (FROM events WHERE seq <= {last_seq}) TO {_quoted(file)} (FORMAT parquet)")
        finally:
            cursor.close()

    def wal_bytes(self) -> int:
        wal = wal_path(self.path)
        return wal.stat().st_size if wal.exists() else 0

    def close(self) -> None:
        """A writer's close is a checkpoint too, where its WAL has become large."""
        self._appender = None
        try:
            # Without space for the copy the WAL stays: it holds everything.
            with suppress(OSError):
                if self._writes and self.wal_bytes() > CLOSING_BYTES:
                    self.checkpoint()
        finally:
            self._connection.close()

    def _fetch(self, sql: str, *values: object) -> list[tuple]:
        # A cursor is a connection of its own: nothing that reads can block an append, or be blocked.
        cursor = self._connection.cursor()
        try:
            return cursor.execute(sql, values).fetchall()
        finally:
            cursor.close()

    def _prepare_files(self) -> None:
        # DuckDB makes its file under the caller's umask, which belongs to the whole process and is left alone: for
        # these milliseconds the folder's 0700 stands guard. The WAL is made by us, so it is private from the start.
        self.path.chmod(0o600)
        if self.empty:
            self._connection.execute(_TABLE)
            for view in VIEWS:
                self._connection.execute(view)
            self._connection.execute("CHECKPOINT")
            self.empty = False
        self._restrict_wal()

    def _restrict_wal(self) -> None:
        descriptor = os.open(wal_path(self.path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)
        # Its name too: a checkpoint removes the WAL before, and a name of old would hide what is appended to this one.
        sync_folder(self.path.parent)


def load_engine() -> None:
    """Import DuckDB now, so that the first log does not wait for it."""
    import duckdb  # noqa: F401 - only its import is wanted


def _quoted(file: Path) -> str:
    return "'" + str(file).replace("'", "''") + "'"


def aside_path(database: Path) -> Path:
    """The file as it was before a checkpoint that is not over."""
    return database.with_name(database.name + ".before")


def wal_path(database: Path) -> Path:
    return database.with_name(database.name + ".wal")
