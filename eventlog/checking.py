"""Check a log's files against its hash chain and its anchor, without changing a byte of them."""

import gc
import hashlib
import re
import shutil
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from configs.scratch import scratch
from eventlog.anchor import Head, Reading, read_anchor
from eventlog.blobs import BlobStore, sync_folder
from eventlog.codec import GENESIS, decode
from eventlog.database import Database, aside_path, wal_path
from eventlog.errors import BlobMissing, LogBusy, LogDamaged, LogNotFound, reason
from eventlog.events import DamageAccepted, Event, Rewound
from eventlog.ids import AgentId
from eventlog.leases import Lease, note_stored

Reader = Callable[[Event], None]
Begin = Callable[[AbstractSet[int]], Reader]
"""Who wants to see a log while it is read, for none of its events is kept. Called once, with every seq that a later
event takes the session back to (and perhaps others); what it returns is called with each event, in order, once its hash
was found right."""

DATABASE, ANCHOR, LOCK = "log.duckdb", "head", "writer.lock"
_TO_SEQ = '"to_seq":'


@dataclass(slots=True)
class Contents:
    """Of the events that were read so far; each is shown to `show` too."""

    show: Reader
    count: int = 0
    last: Event | None = None
    leases: dict[AgentId, Lease] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        self.count += 1
        self.last = event
        note_stored(self.leases, event)
        self.show(event)


@dataclass(frozen=True, slots=True)
class Survey:
    """What a log holds, up to the first thing that is wrong."""

    contents: Contents
    head: Head
    """Of `contents`."""
    damage: LogDamaged | None
    last_known: int
    """The highest seq that anyone may have been told: later events must not take it again."""


def nobody(back_to: AbstractSet[int]) -> Reader:
    """A `Begin` for those who only want to know whether all is right."""
    return lambda event: None


def finish_checkpoint(folder: Path) -> None:
    """Of one that a loss of power cut short, go back to the file before it, to which the WAL still belongs. The caller
    holds the writer's lock."""
    aside = aside_path(folder / DATABASE)
    if not aside.exists():
        return
    if not _opens(folder / DATABASE) and _opens(aside):
        aside.rename(folder / DATABASE)
    else:
        aside.unlink()
    sync_folder(folder)


def _opens(database: Path) -> bool:
    import duckdb

    try:
        Database(database, read_only=True).close()
    except duckdb.Error as error:
        # One that somebody writes is whole, and is not to be replaced beneath them.
        return "Could not set lock" in str(error)
    return True


@contextmanager
def opened_for_reading(folder: Path) -> Iterator[tuple[Database, str | None]]:
    """The database read-only, in place; where it does not open, a copy with the longest part of its WAL that does, and
    what is wrong. The caller holds the writer's lock. Raises LogDamaged where nothing opens, and LogBusy where
    a process writes the database all the same, as when the lock's file was removed beneath it."""
    import duckdb

    source = folder / DATABASE
    with ExitStack() as undo:
        try:
            database, trouble = Database(source, read_only=True), None
        except duckdb.Error as error:
            if "Could not set lock" in str(error):
                # No damage, though it looks like one; accepted as such, it would give the session a second history.
                pid = re.search(r"\(PID (\d+)\)", str(error))
                raise LogBusy(str(folder), int(pid[1]) if pid else None) from error
            trouble = f"its database cannot be opened ({reason(error)})"
            copy = undo.enter_context(scratch("read"))
            damage = LogDamaged(trouble, _acknowledged(folder), readable=False)
            database = _longest_part(source, copy / DATABASE, damage)
        undo.callback(database.close)
        yield database, trouble


def survey(
    folder: Path, database: Database, trouble: str | None, reading: Reading | None, begin: Begin = nobody
) -> Survey:
    """`reading` is the anchor as it was before `database` was opened. Raises Undecodable: that is no damage."""
    import duckdb

    blobs = BlobStore(folder / "blobs" / "sha256")
    was_on = gc.isenabled()
    gc.disable()  # It would walk what the reader makes of the events again and again, and find nothing.
    try:
        back_to = _back_to(database, blobs)
        contents = Contents(begin(back_to))
        head, broken = _follow(database, blobs, contents.add, back_to)
    finally:
        if was_on:
            gc.enable()
    trouble = trouble or broken or _compare(reading, head)
    anchored = reading.head.seq if reading and reading.head else 0
    last_known = max(head.seq, anchored)
    told = _told(reading)
    if told is None:
        # Each row behind the break may have been acknowledged.
        with suppress(duckdb.Error):
            last_known = max(last_known, head.seq + database.count() - contents.count)
    damage = LogDamaged(trouble, None if told is None else max(told - head.seq, 0)) if trouble else None
    return Survey(contents, head, damage, last_known)


def _back_to(database: Database, blobs: BlobStore) -> AbstractSet[int]:
    """The seqs that rewinds name. They are found by the column `kind`, which no hash covers: `_follow` sees whether it
    has hidden one. To look into all payloads instead would take a quarter of the time that the whole opening does."""
    import duckdb

    try:
        found = database.payloads("rewound")
        return {int(seq) for payload in found for seq in re.findall(_TO_SEQ + r"(\d{1,18})\b", payload)}
    except duckdb.Error:
        # Some of it cannot be read. Of what stands before that, all.
        seqs: set[int] = set()

        def note(event: Event) -> None:
            if isinstance(event.body, Rewound):
                seqs.add(event.body.to_seq)

        _follow(database, blobs, note)
        return seqs


def _follow(
    database: Database, blobs: BlobStore, show: Reader, back_to: AbstractSet[int] | None = None
) -> tuple[Head, str | None]:
    """Along the chain to its first break; `show` gets the events. Gives the head of those and what broke. `back_to`:
    every seq that a rewind may name; None where that is not known."""
    import duckdb

    head = Head(0, GENESIS)
    try:
        for covered, digest in database.links():
            seq, _, rest = covered.partition(b":")
            ts_us, _, payload = rest.partition(b":")
            # The hash first: of a row that does not link, nothing is believed.
            if hashlib.sha256(head.hash.encode() + covered).hexdigest() != digest:
                return head, _broken(head, int(seq))
            event = decode(int(seq), int(ts_us), payload, blobs.get)
            if event.seq != head.seq + 1 and not _explains(event, head):
                return head, _broken(head, event.seq)
            if back_to is not None and isinstance(event.body, Rewound) and event.body.to_seq not in back_to:
                return head, _broken(head, event.seq)
            show(event)
            head = Head(event.seq, digest)
    except BlobMissing as error:
        return head, f"event {head.seq + 1} is incomplete ({str(error).rstrip('.').lower()})"
    except duckdb.Error as error:
        return head, f"its database cannot be read ({reason(error)})"
    return head, None


def open_copy(folder: Path, target: Path) -> Database:
    """A read-only database of what was durable at this moment. A copy torn by a checkpoint is taken again."""
    import duckdb

    source = folder / DATABASE
    for attempt in range(3):
        before = _stamp(source)
        shutil.copyfile(source, target / DATABASE)
        aside = aside_path(source)
        if aside.exists() and not _opens(target / DATABASE) and _opens(aside):
            shutil.copyfile(aside, target / DATABASE)
        wal_path(target / DATABASE).unlink(missing_ok=True)
        if wal_path(source).exists():
            shutil.copyfile(wal_path(source), wal_path(target / DATABASE))
        if _stamp(source) != before and attempt < 2:
            continue
        try:
            return Database(target / DATABASE, read_only=True)
        except duckdb.Error as error:
            acknowledged = _acknowledged(folder)
            if acknowledged == 0:
                # Somebody is just making it.
                raise LogNotFound(f"Session {folder.name} has no event yet; ask again in a moment.") from error
            raise LogDamaged(f"its database cannot be opened ({reason(error)})", acknowledged) from error
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
    return _told(read_anchor(folder / ANCHOR))


def _told(reading: Reading | None) -> int | None:
    """seq of the last acknowledged event; None where a slot cannot be read, for that may be the one that knew it."""
    return None if reading is None or reading.head is None or reading.damaged else reading.head.seq


def _stamp(path: Path) -> tuple[int, int]:
    info = path.stat()
    return info.st_size, info.st_mtime_ns
