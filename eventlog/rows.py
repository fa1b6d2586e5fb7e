"""A prepared body becomes a row of the table and the event that its readers get."""

from eventlog.anchor import Head
from eventlog.codec import chain, encode_payload
from eventlog.database import Row
from eventlog.events import SCHEMA_VERSION, CallRejected, EffectFinished, EffectStarted, Event
from eventlog.ids import SessionId
from eventlog.seams import Prepared


def make_row(
    item: Prepared, head: Head, ts_us: int, session: SessionId, epoch: int, body: bytes, blobs: tuple[str, ...]
) -> tuple[Row, Event]:
    """`head` is the event before; `body` is `item.encoded` once its long texts are in `blobs`."""
    draft = item.draft
    seq = head.seq + 1
    payload = encode_payload(draft, body, session, epoch, blobs)
    call_id = draft.body.call_id if isinstance(draft.body, (EffectStarted, EffectFinished, CallRejected)) else None
    row = Row(seq, ts_us, draft.body.kind, call_id, payload.decode(), chain(head.hash, seq, ts_us, payload))
    # Checked, and twice as fast as `model_construct` nevertheless.
    event = Event(
        seq=seq,
        ts_us=ts_us,
        session=session,
        epoch=epoch,
        actor=draft.actor,
        lease=draft.lease,
        actor_seq=draft.actor_seq,
        causation=draft.causation,
        version=SCHEMA_VERSION,
        body=draft.body,
    )
    return row, event
