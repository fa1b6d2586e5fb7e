"""The log of one session on disk: group commit, anchor, one writer.

One thread owns the database. Appends that wait together are stored in one transaction, then the anchor is written,
then all are acknowledged. After a failed write the log takes nothing more."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self

from configs.crash import reached
from eventlog.anchor import Anchor, Head
from eventlog.blobs import BlobStore
from eventlog.clean import prepare
from eventlog.codec import decode, event_json, move_to_blobs
from eventlog.database import PAGE, Database, Row
from eventlog.errors import LeaseSuperseded, LogError, LogWriteFailed, reason
from eventlog.events import Draft, Event
from eventlog.ids import AgentId, SessionId
from eventlog.leases import Leases, admit_all
from eventlog.lock import WriterLock
from eventlog.redact import Redactor
from eventlog.rows import make_row
from eventlog.seams import Clock, Prepared

CHECKPOINT_BYTES = 64 * 1024 * 1024
"""Size of the WAL from which an idle moment is used for a checkpoint."""


@dataclass(frozen=True, slots=True)
class _Append:
    prepared: Sequence[Prepared]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[tuple[Event, ...]]


@dataclass(frozen=True, slots=True)
class _Checkpoint:
    pass


@dataclass(frozen=True, slots=True)
class _Close:
    pass


class DuckLog:
    """Made by eventlog.opening, which checks the files first. `head` must be what the database holds.

    Appends may come from several event loops. One that is cancelled while it waits is stored all the same."""

    def __init__(
        self,
        folder: Path,
        database: Database,
        anchor: Anchor,
        *,
        session: SessionId,
        epoch: int,
        head: Head,
        clock: Clock,
        redactor: Redactor,
        leases: Leases | None = None,
        lock: WriterLock | None = None,
    ) -> None:
        self.folder = folder
        self.session = session
        self.epoch = epoch
        self.checkpoint_bytes = CHECKPOINT_BYTES
        self.blobs = BlobStore(folder / "blobs" / "sha256")
        self._database = database
        self._anchor = anchor
        self._head = head
        self._clock = clock
        self._redactor = redactor
        self._leases: Leases = leases or {}
        self._lock = lock
        self._failure: LogError | None = None
        self._closing = False
        self._asked = False
        """Whether a checkpoint waits in the queue: with many agents many would ask for one."""
        self._gate = threading.Lock()
        """So that nothing is put in the queue behind the word to close, where nobody would answer."""
        self._queue: SimpleQueue[_Append | _Checkpoint | _Close] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="log-writer", daemon=True)
        self._thread.start()

    @property
    def head(self) -> Head:
        """Of what was acknowledged."""
        return self._head

    def prepare(self, draft: Draft) -> Prepared:
        return prepare(draft, self._redactor)

    @property
    def leases(self) -> Leases:
        return self._leases

    async def append(self, prepared: Sequence[Prepared]) -> tuple[Event, ...]:
        """What was stored: without those that an agent had sent before. Raises LeaseSuperseded, LogWriteFailed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[tuple[Event, ...]] = loop.create_future()
        self._submit(_Append(prepared, loop, future))
        return await future

    def read(self, after_seq: int = 0) -> Iterator[Event]:
        """Up to what is acknowledged at the call. From any thread. Raises LogError."""
        for row in self._rows(after_seq, self._head.seq):
            yield decode(row.seq, row.ts_us, row.payload.encode(), self.blobs.get)

    def read_encoded(self, after_seq: int, upto: int) -> Iterator[tuple[int, bytes]]:
        """seq and JSON of each event behind `after_seq`, up to `upto`, which is acknowledged. From any thread.
        Raises LogError, also on a closed log."""
        for row in self._rows(after_seq, upto):
            yield row.seq, event_json(row.seq, row.ts_us, row.payload.encode(), self.blobs.get)

    def find_sent(self, agent: AgentId, lease: int, numbers: range) -> tuple[Event, ...]:
        """What an agent has stored under these numbers of its own, in order. From any thread. Raises LogError."""
        found: list[Event] = []
        upto = self._head.seq
        while upto > 0 and len(found) < len(numbers):
            # From the end, where what is asked for mostly stands.
            after = max(upto - PAGE, 0)
            for row in self._rows(after, upto):
                event = decode(row.seq, row.ts_us, row.payload.encode(), self.blobs.get)
                if (event.actor, event.lease) == (agent, lease) and event.actor_seq in numbers:
                    found.append(event)
            upto = after
        return tuple(sorted(found, key=lambda event: event.seq))

    def export(self, file: Path) -> None:
        """What is acknowledged at the call, as Parquet. From any thread; appends go on meanwhile."""
        self._database.export(file, self._head.seq)

    def _rows(self, after_seq: int, upto: int) -> Iterator[Row]:
        import duckdb

        try:
            yield from self._database.rows(after_seq, upto)
        except duckdb.Error as error:
            raise LogError(f"The log cannot be read ({reason(error)}); open the session again.") from error

    def checkpoint_when_large(self) -> None:
        """To be called when nobody waits for an append, as while a model thinks."""
        if not self._asked and self.wal_bytes() > self.checkpoint_bytes:
            self._asked = True
            self.checkpoint()

    def wal_bytes(self) -> int:
        """Written since the last checkpoint."""
        return self._database.wal_bytes()

    def checkpoint(self) -> None:
        """Ask for one; appends wait until it is over. Nothing happens on a log that takes nothing more."""
        with contextlib.suppress(LogError):
            self._submit(_Checkpoint())

    def close(self) -> None:
        """What was appended before is stored and acknowledged; later appends are refused. May be repeated."""
        with self._gate:
            if not self._closing:
                self._closing = True
                self._queue.put(_Close())
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, item: _Append | _Checkpoint) -> None:
        with self._gate:
            if self._failure is not None:
                raise self._failure
            if self._closing:
                raise LogWriteFailed("The log is closed; nothing was started.")
            self._queue.put(item)

    def _run(self) -> None:
        try:
            self._serve()
        finally:
            # Also when our own mistake ends this thread: whoever waits must hear of it.
            with self._gate:
                self._failure = failure = self._failure or LogWriteFailed("The log is closed; nothing was started.")
            with contextlib.suppress(Empty):
                while True:
                    item = self._queue.get_nowait()
                    if isinstance(item, _Append):
                        _settle([(item, failure)])
            self._close_files()

    def _serve(self) -> None:
        while True:
            batch: list[_Append] = []
            item = self._queue.get()
            while isinstance(item, _Append):
                batch.append(item)
                try:
                    item = self._queue.get_nowait()
                except Empty:
                    break
            if batch:
                self._store(batch)
            match item:
                case _Checkpoint():
                    self._checkpoint()
                    self._asked = False
                case _Close():
                    return
                case _Append():
                    pass

    def _store(self, batch: list[_Append]) -> None:
        import duckdb

        # Stays only where our own mistake ends this thread: its waiters must hear of it too.
        failure = self._failure or LogWriteFailed("The log's writer stopped; nothing was started.")
        results: list[tuple[_Append, tuple[Event, ...] | LogError]] = []
        try:
            if self._failure is None:
                rows, head, stored = self._make_rows(batch)
                self._check_lock()
                self._commit(rows, head)
                # Again, for what is acknowledged: who became the writer after this moment finds these events.
                self._check_lock()
                self._head = head
                results.extend(zip(batch, stored, strict=True))
        except LogWriteFailed as error:
            failure = error
        except (duckdb.Error, OSError) as error:
            failure = LogWriteFailed(
                f"The log cannot be written ({reason(error)}); nothing was started. "
                "Free space in the state folder, then `thalia resume`."
            )
        finally:
            if not results:
                self._failure = failure
            _settle(results or [(append, failure) for append in batch])
        reached("after_acknowledge")

    def _make_rows(self, batch: list[_Append]) -> tuple[list[Row], Head, list[tuple[Event, ...] | LogError]]:
        head = self._head
        rows: list[Row] = []
        stored: list[tuple[Event, ...] | LogError] = []
        for append in batch:
            events: list[Event] = []
            try:
                self._leases, fresh = admit_all(self._leases, [item.draft for item in append.prepared])
            except LeaseSuperseded as late:
                stored.append(late)
                continue
            for item in compress(append.prepared, fresh):
                body, blobs = move_to_blobs(item.encoded, self.blobs.put)
                row, event = make_row(item, head, self._clock.now_us(), self.session, self.epoch, body, blobs)
                head = Head(row.seq, row.hash)
                rows.append(row)
                events.append(event)
            stored.append(tuple(events))
        return rows, head, stored

    def _check_lock(self) -> None:
        """Raises LogWriteFailed."""
        if self._lock is not None and not self._lock.is_ours:
            raise LogWriteFailed(
                "The session's `writer.lock` was removed or replaced, so that another process may write the log; this "
                "one stops. `thalia resume` goes on with what is there."
            )

    def _commit(self, rows: list[Row], head: Head) -> None:
        """Durable, anchored. An exception from a commit does not mean that it did not happen: look again."""
        import duckdb

        if not rows:
            return
        reached("before_commit")
        try:
            self._database.append(rows)
        except duckdb.Error:
            with contextlib.suppress(duckdb.Error):
                self._database.close()
            self._database = Database(self._database.path)
            if self._database.head() != head:
                raise
        reached("after_commit")
        self._anchor.write(head)
        reached("after_anchor")

    def _checkpoint(self) -> None:
        import duckdb

        reached("before_checkpoint")
        try:
            self._database.checkpoint()
        except (duckdb.Error, OSError) as error:
            # The instance is dead, though every commit stands: the next open reads them.
            self._failure = LogWriteFailed(
                f"The log cannot be compacted ({reason(error)}). Free space, then `thalia resume`."
            )
        reached("after_checkpoint")

    def _close_files(self) -> None:
        import duckdb

        # A checkpoint on a full disk: the WAL stays and holds everything.
        with contextlib.suppress(duckdb.Error):
            self._database.close()
        self._anchor.close()


def _settle(results: Sequence[tuple[_Append, tuple[Event, ...] | LogError]]) -> None:
    """Tell the waiters, with one wake-up of each loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[_Append, tuple[Event, ...] | LogError]]] = {}
    for result in results:
        by_loop.setdefault(result[0].loop, []).append(result)

    def tell(mine: list[tuple[_Append, tuple[Event, ...] | LogError]]) -> None:
        for append, outcome in mine:
            if append.future.done():
                continue
            if isinstance(outcome, LogError):
                append.future.set_exception(outcome)
            else:
                append.future.set_result(outcome)

    for loop, mine in by_loop.items():
        with contextlib.suppress(RuntimeError):  # A loop that was closed has nobody waiting.
            loop.call_soon_threadsafe(tell, mine)
