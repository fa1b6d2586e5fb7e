"""Open a session's log: make it, check it against its anchor, take the writer's lock, raise the epoch.

What is wrong is named and counted before anything is written. Nothing is deleted: accepted damage is copied aside."""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from configs.scratch import scratch
from eventlog.anchor import Anchor, Head, read_anchor
from eventlog.blobs import BlobStore, sync_file, sync_folder
from eventlog.checking import (
    ANCHOR,
    DATABASE,
    LOCK,
    Begin,
    Survey,
    finish_checkpoint,
    nobody,
    open_copy,
    opened_for_reading,
    survey,
)
from eventlog.clean import prepare
from eventlog.codec import GENESIS
from eventlog.database import PAGE, Database, Row, wal_path
from eventlog.errors import LogNotFound, LogUnsafe, LogWriteFailed, reason
from eventlog.events import DamageAccepted, Draft, Event
from eventlog.ids import SessionId
from eventlog.lock import WriterLock
from eventlog.redact import Redactor
from eventlog.rows import make_row
from eventlog.seams import Clock
from eventlog.store import DuckLog


@dataclass(frozen=True, slots=True)
class Lost:
    """Acknowledged events that the user gave up. `last` is before `first` where none is known to be lost."""

    first: int
    last: int
    kept_at: str
    told: Event | None = None
    """The DamageAccepted that says so, the log's last event."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A log with its lock, checked against the hash chain. What it held when it was opened was shown to who began to
    read, and is not kept: it may be more than everything else in memory."""

    log: DuckLog
    lock: WriterLock
    last: Event | None
    """Of what it held; the DamageAccepted, where damage was accepted."""
    lost: Lost | None

    def read(self) -> tuple[Event, ...]:
        """All of it, once more. Raises LogError."""
        return tuple(self.log.read())

    def close(self) -> None:
        self.log.close()
        self.lock.release()


def create_log(folder: Path, session: SessionId, clock: Clock, redactor: Redactor) -> Opened:
    """A new session's folder, 0700, and its log at epoch 1. Raises LogWriteFailed."""
    import duckdb

    try:
        _make_folder(folder, new=True)
        for part in ("calls", "blobs/sha256"):
            _make_folder(folder / part)
        lock = WriterLock(folder / LOCK)
        # The anchor first: a database without one would look like damage, though nothing was acknowledged.
        anchor = Anchor(folder / ANCHOR)
        anchor.write(Head(0, GENESIS))
        database = Database(folder / DATABASE)
        for changed in (folder / "blobs", folder, folder.parent):
            sync_folder(changed)
    except (OSError, duckdb.Error) as error:
        raise LogWriteFailed(
            f"The state folder {folder.parent} cannot be written ({reason(error)}); "
            "free space or set THALIA_HOME to another folder."
        ) from error
    head = Head(0, GENESIS)
    log = DuckLog(
        folder, database, anchor, session=session, epoch=1, head=head, clock=clock, redactor=redactor, lock=lock
    )
    return Opened(log, lock, None, None)


def has_begun(folder: Path) -> bool:
    """Whether a session's first events were acknowledged. A folder where none were is removed: whoever asked for it
    was told nothing yet, and asks again. Raises LogBusy."""
    if not folder.exists():
        return False
    reading = read_anchor(folder / ANCHOR)
    if reading is None or reading.head is None or reading.head.seq > 0:
        return True
    lock = WriterLock(folder / LOCK)
    shutil.rmtree(folder)
    lock.release()
    return False


def open_log(
    folder: Path,
    session: SessionId,
    clock: Clock,
    redactor: Redactor,
    *,
    accept_damage: bool = False,
    begin: Begin = nobody,
) -> Opened:
    """`begin` is shown what the log holds; where an error is raised, it may have seen a part.

    Raises LogNotFound, LogUnsafe, LogBusy (at once), LogDamaged (unless accepted), LogWriteFailed, Undecodable.
    After any of them the files are what they were."""
    import duckdb

    _check_folder(folder)
    with ExitStack() as undo:
        try:
            lock = WriterLock(folder / LOCK)
            undo.callback(lock.release)
            finish_checkpoint(folder)
            found, lost = _take_stock(folder, session, clock, redactor, accept_damage, begin)
            database = Database(folder / DATABASE)
            undo.callback(database.close)
            anchor = Anchor(folder / ANCHOR)
            # Events beyond the anchor were never acknowledged and still stand: their effects never started.
            anchor.write(found.head)
            if lost is not None:
                # Both slots: one that is left as it was would be damage at the next opening.
                anchor.write(found.head)
        except (OSError, duckdb.Error) as error:
            raise LogWriteFailed(
                f"The log cannot be written ({reason(error)}); free space, then `thalia resume`."
            ) from error
        undo.pop_all()
    contents, head = found.contents, found.head
    epoch = contents.last.epoch + 1 if contents.last else 1
    BlobStore(folder / "blobs" / "sha256").discard_drafts()
    log = DuckLog(
        folder,
        database,
        anchor,
        session=session,
        epoch=epoch,
        head=head,
        clock=clock,
        redactor=redactor,
        leases=contents.leases,
        lock=lock,
    )
    return Opened(log, lock, contents.last, lost)


def read_log(folder: Path) -> tuple[Event, ...]:
    """All events; otherwise `look_through`."""
    events: list[Event] = []
    look_through(folder, lambda back_to: events.append)
    return tuple(events)


def look_through(folder: Path, begin: Begin) -> None:
    """Show all events, read from a copy: the files of a live session are never opened beside its writer.

    Raises LogNotFound, LogUnsafe, LogDamaged, Undecodable."""
    _check_folder(folder)
    # Before the copy: a live writer moves on meanwhile, and what it acknowledged until now must be in there.
    reading = read_anchor(folder / ANCHOR)
    with scratch("read") as copy:
        database = open_copy(folder, copy)
        try:
            found = survey(folder, database, None, reading, begin)
        finally:
            database.close()
    if found.damage is not None:
        raise found.damage


def _take_stock(
    folder: Path, session: SessionId, clock: Clock, redactor: Redactor, accept: bool, begin: Begin
) -> tuple[Survey, Lost | None]:
    reading = read_anchor(folder / ANCHOR)
    with opened_for_reading(folder) as (database, trouble):
        found = survey(folder, database, trouble, reading, begin)
        if found.damage is None:
            return found, None
        if not accept:
            raise found.damage
        aside = _copy_aside(folder)
        lost = Lost(found.head.seq + 1, found.last_known, str(aside))
        row, event = _acceptance(found, lost, session, clock, redactor)
        _rebuild(folder, database, found.contents.count, row)
    found.contents.add(event)
    return Survey(found.contents, Head(row.seq, row.hash), None, row.seq), replace(lost, told=event)


def _acceptance(found: Survey, lost: Lost, session: SessionId, clock: Clock, redactor: Redactor) -> tuple[Row, Event]:
    """The event that names the gap is the one right behind it: a log never has a gap that nothing explains. The numbers
    of the lost events stay theirs, for frontends may have seen them."""
    body = DamageAccepted(first_lost=lost.first, last_lost=lost.last, kept_at=lost.kept_at)
    epoch = found.contents.last.epoch if found.contents.last else 0
    prepared = prepare(Draft(body=body), redactor)
    head = Head(lost.last, found.head.hash)
    return make_row(prepared, head, clock.now_us(), session, epoch, prepared.encoded, ())


def _copy_aside(folder: Path) -> Path:
    number = len(list((folder / "damaged").glob("*"))) + 1
    aside = folder / "damaged" / str(number)
    _make_folder(aside)
    for path in (folder / DATABASE, wal_path(folder / DATABASE), folder / ANCHOR):
        if path.exists():
            shutil.copyfile(path, aside / path.name)
            (aside / path.name).chmod(0o600)
            sync_file(aside / path.name)
    for changed in (aside, aside.parent, folder):
        sync_folder(changed)
    return aside


def _rebuild(folder: Path, source: Database, kept: int, last: Row) -> None:
    """A fresh file with the first `kept` rows and `last` takes the place of the damaged one."""
    fresh = folder / f"{DATABASE}.new"
    for stale in (fresh, wal_path(fresh)):
        stale.unlink(missing_ok=True)
    database = Database(fresh)
    try:
        for page in _pages(source, kept):
            database.append(page)
        database.append([last])
        database.checkpoint()
    finally:
        database.close()
    sync_file(fresh)
    with suppress(FileNotFoundError):
        wal_path(fresh).unlink()
    # Killed between these two, the new file has a WAL that is not its own: damage again, with the same way out.
    fresh.rename(folder / DATABASE)
    wal_path(folder / DATABASE).unlink(missing_ok=True)
    sync_folder(folder)


def _pages(source: Database, kept: int) -> Iterator[list[Row]]:
    for start in range(0, kept, PAGE):
        yield source.page(start, min(start + PAGE, kept))


def _make_folder(folder: Path, *, new: bool = False) -> None:
    """With its missing parents, all 0700 (`mkdir` gives parents what the umask says), and their names durable."""
    if folder.parent != folder and not folder.parent.exists():
        _make_folder(folder.parent)
    if new or not folder.exists():
        folder.mkdir(mode=0o700, exist_ok=not new)
        sync_folder(folder.parent)


def _check_folder(folder: Path) -> None:
    if not (folder / DATABASE).exists():
        raise LogNotFound(f"There is no session {folder.name}; `thalia sessions` lists them.")
    info = folder.stat()
    if info.st_uid != os.getuid() or info.st_mode & 0o077:
        raise LogUnsafe(f"{folder} must belong to you alone; `chmod 700` it, or choose another THALIA_HOME.")
