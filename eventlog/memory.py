"""The same log in memory: same preparation, same bytes, same hashes. For tests and what-if runs."""

import hashlib
from collections.abc import Iterator, Sequence
from itertools import compress

from eventlog.anchor import Head
from eventlog.clean import prepare
from eventlog.codec import GENESIS, chain, decode, encode_payload, move_to_blobs
from eventlog.errors import BlobMissing, LogError
from eventlog.events import Draft, Event
from eventlog.ids import Digest, SessionId
from eventlog.leases import Leases, admit_all
from eventlog.redact import Redactor
from eventlog.seams import Clock, FixedClock, Prepared

_SESSION = SessionId("memory")


class MemoryLog:
    """`fail_after` makes the log refuse once it holds that many events."""

    def __init__(
        self,
        session: SessionId = _SESSION,
        epoch: int = 1,
        clock: Clock | None = None,
        redactor: Redactor | None = None,
        fail_after: int | None = None,
    ) -> None:
        self.session = session
        self.epoch = epoch
        self.head = Head(0, GENESIS)
        self.payloads: list[tuple[int, bytes]] = []
        """`ts_us` and payload of each event, from seq 1."""
        self.blobs: dict[Digest, bytes] = {}
        self.leases: Leases = {}
        self._clock = clock or FixedClock()
        self._redactor = redactor or Redactor()
        self._fail_after = fail_after

    def prepare(self, draft: Draft) -> Prepared:
        return prepare(draft, self._redactor)

    async def append(self, prepared: Sequence[Prepared]) -> tuple[Event, ...]:
        if self._fail_after is not None and len(self.payloads) + len(prepared) > self._fail_after:
            raise LogError("The log is full.")
        events: list[Event] = []
        self.leases, fresh = admit_all(self.leases, [item.draft for item in prepared])
        for item in compress(prepared, fresh):
            body, blobs = move_to_blobs(item.encoded, self._put)
            payload = encode_payload(item.draft, body, self.session, self.epoch, blobs)
            seq, ts_us = self.head.seq + 1, self._clock.now_us()
            self.head = Head(seq, chain(self.head.hash, seq, ts_us, payload))
            self.payloads.append((ts_us, payload))
            events.append(decode(seq, ts_us, payload, self._get))
        return tuple(events)

    def read(self, after_seq: int = 0) -> Iterator[Event]:
        for index in range(after_seq, len(self.payloads)):
            yield decode(index + 1, *self.payloads[index], self._get)

    def checkpoint_when_large(self) -> None:
        """Nothing to do."""

    def _put(self, data: bytes) -> Digest:
        digest = Digest(hashlib.sha256(data).hexdigest())
        self.blobs[digest] = data
        return digest

    def _get(self, digest: Digest) -> bytes:
        try:
            return self.blobs[digest]
        except KeyError as error:
            raise BlobMissing(f"Blob {digest[:12]} is missing.") from error
