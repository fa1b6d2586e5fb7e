"""Check a log's files against its hash chain and its anchor, without changing a byte of them."""

import gc
import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from eventlog.anchor import Head, Reading, read_anchor
from eventlog.blobs import BlobStore
from eventlog.codec import GENESIS, decode
from eventlog.database import Database, wal_path
from eventlog.errors import BlobMissing, LogDamaged, reason
from eventlog.events import DamageAccepted, Event

DATABASE, ANCHOR, LOCK = "log.duckdb", "head", "writer.lock"


@dataclass(frozen=True, slots=True)
class Survey:
    """What a log holds, up to the first thing that is wrong."""

    events: tuple[Event, ...]
    head: Head
    """Of `events`."""
    damage: LogDamaged | None
    last_known: int
    """The highest seq that anyone may have been told: later events must not take it again."""


@contextmanager
def opened_for_reading(folder: Path) -> Iterator[tuple[Database, str | None]]:
    """The database read-only, in place; where it does not open, a copy with the longest part of its WAL that does, and
    what is wrong. The caller holds the writer's lock. Raises LogDamaged where nothing opens."""
    import duckdb

    source = folder / DATABASE
    try:
        database, trouble = Database(source, read_only=True), None
    except duckdb.Error as error:
        trouble = f"its database cannot be opened ({reason(error)})"
        database = None
    with TemporaryDirectory(prefix="thalia-read-") as copy:
        if database is None:
            database = _longest_part(source, Path(copy) / DATABASE, LogDamaged(trouble or "", _acknowledged(folder)))
        try:
            yield database, trouble
        finally:
            database.close()


def survey(folder: Path, database: Database, trouble: str | None, reading: Reading | None) -> Survey:
    """`reading` is the anchor as it was before `database` was opened. Raises Undecodable: that is no damage."""
    get = BlobStore(folder / "blobs" / "sha256").get
    events: list[Event] = []
    head = Head(0, GENESIS)
    was_on = gc.isenabled()
    gc.disable()  # It would walk the growing heap again and again and find nothing.
    try:
        for covered, digest in database.links():
            seq, _, rest = covered.partition(b":")
            ts_us, _, payload = rest.partition(b":")
            # The hash first: of a row that does not link, nothing is believed.
            if hashlib.sha256(head.hash.encode() + covered).hexdigest() != digest:
                trouble = trouble or _broken(head, int(seq))
                break
            event = decode(int(seq), int(ts_us), payload, get)
            if event.seq != head.seq + 1 and not _explains(event, head):
                trouble = trouble or _broken(head, event.seq)
                break
            events.append(event)
            head = Head(event.seq, digest)
    except BlobMissing as error:
        trouble = trouble or f"event {head.seq + 1} is incomplete ({str(error).rstrip('.').lower()})"
    finally:
        if was_on:
            # Nor will it find anything later: values refer to nothing that refers back, and live until they are let go.
            gc.freeze()
            gc.enable()
    trouble = trouble or _compare(reading, head)
    anchored = reading.head.seq if reading and reading.head else None
    # Without an anchor, each row behind the break may have been acknowledged.
    last_known = max(head.seq, anchored if anchored is not None else head.seq + database.count() - len(events))
    damage = LogDamaged(trouble, None if anchored is None else max(anchored - head.seq, 0)) if trouble else None
    return Survey(tuple(events), head, damage, last_known)


def open_copy(folder: Path, target: Path) -> Database:
    """A read-only database of what was durable at this moment. A copy torn by a checkpoint is taken again."""
    import duckdb

    source = folder / DATABASE
    for attempt in range(3):
        before = _stamp(source)
        shutil.copyfile(source, target / DATABASE)
        wal_path(target / DATABASE).unlink(missing_ok=True)
        if wal_path(source).exists():
            shutil.copyfile(wal_path(source), wal_path(target / DATABASE))
        if _stamp(source) != before and attempt < 2:
            continue
        try:
            return Database(target / DATABASE, read_only=True)
        except duckdb.Error as error:
            raise LogDamaged(f"its database cannot be opened ({reason(error)})", _acknowledged(folder)) from error
    raise LogDamaged("its database changes while it is read", None)


def _longest_part(source: Path, copy: Path, damage: LogDamaged) -> Database:
    """DuckDB reads a WAL that was cut anywhere and refuses one that was altered: so cut before what was altered."""
    import duckdb

    shutil.copyfile(source, copy)
    wal = wal_path(source).read_bytes() if wal_path(source).exists() else b""

    def attempt(length: int) -> Database | None:
        wal_path(copy).write_bytes(wal[:length])
        try:
            return Database(copy, read_only=True)
        except duckdb.Error:
            return None

    works, fails = 0, len(wal)
    while fails - works > 1:
        middle = (works + fails) // 2
        database = attempt(middle)
        if database is None:
            fails = middle
        else:
            database.close()
            works = middle
    database = attempt(works)
    if database is None:
        raise damage
    return database


def _explains(event: Event, head: Head) -> bool:
    """A gap in the numbers is right only where this very event says that the user gave up what stood there."""
    body = event.body
    return isinstance(body, DamageAccepted) and (body.first_lost, body.last_lost) == (head.seq + 1, event.seq - 1)


def _broken(head: Head, seq: int) -> str:
    return f"event {head.seq + 1} was altered" if seq == head.seq + 1 else f"event {head.seq + 1} is missing"


def _compare(reading: Reading | None, head: Head) -> str | None:
    if reading is None:
        return "its anchor file `head` is missing, so that nobody can tell whether events are"
    anchored = reading.head
    if anchored is None:
        return "its anchor file `head` cannot be read, so that nobody can tell whether events are missing"
    if head.seq < anchored.seq:
        return f"it ends at event {head.seq}, but event {anchored.seq} was acknowledged"
    if head.seq == anchored.seq and head.hash != anchored.hash:
        return f"event {head.seq} is not the one that was acknowledged"
    if reading.damaged and head.seq == anchored.seq:
        # A write of the anchor that was torn came after its events: then the log would be ahead of the older slot.
        return "half of its anchor file `head` cannot be read, so that nobody can tell whether events are missing"
    return None


def _acknowledged(folder: Path) -> int | None:
    reading = read_anchor(folder / ANCHOR)
    return reading.head.seq if reading and reading.head else None


def _stamp(path: Path) -> tuple[int, int]:
    info = path.stat()
    return info.st_size, info.st_mtime_ns
