"""Events to bytes and back: canonical JSON, the hash chain, blobs for long texts, upcasters for old versions.

Canonical means: fields in declared order, no spaces, UTF-8. Stored bytes never change; an old version is
lifted on read by pure functions on its JSON."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from eventlog.errors import Undecodable
from eventlog.events import SCHEMA_VERSION, Body, Draft, Event
from eventlog.ids import Digest, SessionId

BLOB_THRESHOLD = 16 * 1024
"""Bytes of UTF-8 over which a string leaves the event for the blob store."""

GENESIS = "0" * 64
"""The hash before the first event."""

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]
UPCASTERS: Mapping[int, Upcaster] = {}
"""From version n to n+1, each a pure function on the payload's JSON; it sets `version` too."""

_body: TypeAdapter[Body] = TypeAdapter(Body)
_event: TypeAdapter[Event] = TypeAdapter(Event)


def encode_body(body: Body) -> bytes:
    """Raises ValueError (pydantic's) on a lone surrogate: clean first."""
    return _body.dump_json(body)


def decode_body(data: Any) -> Body:
    return _body.validate_python(data)


def encode_payload(draft: Draft, body: bytes, session: SessionId, epoch: int, blobs: tuple[str, ...]) -> bytes:
    """The envelope around an encoded body."""
    head = {
        "version": SCHEMA_VERSION,
        "session": session,
        "epoch": epoch,
        "actor": draft.actor,
        "lease": draft.lease,
        "actor_seq": draft.actor_seq,
        "causation": draft.causation,
    }
    if blobs:
        head["blobs"] = blobs
    return orjson.dumps(head)[:-1] + b',"body":' + body + b"}"


def chain(previous: str, seq: int, ts_us: int, payload: bytes) -> str:
    """The hash of an event: sha256 over the previous one and all that is stored of this one."""
    return link(previous, b"%d:%d:%b" % (seq, ts_us, payload))


def link(previous: str, covered: bytes) -> str:
    """`chain` where `seq:ts_us:payload` is at hand."""
    return hashlib.sha256(previous.encode() + covered).hexdigest()


def move_to_blobs(encoded: bytes, put: Callable[[bytes], Digest]) -> tuple[bytes, tuple[str, ...]]:
    """Replace each string over the threshold by a reference. Bodies hold no free-form objects: none is mistaken."""
    if len(encoded) <= BLOB_THRESHOLD:
        return encoded, ()
    digests: list[str] = []

    def walk(node: Any) -> Any:
        if isinstance(node, str) and len(node) > BLOB_THRESHOLD // 4:
            raw = node.encode()
            if len(raw) > BLOB_THRESHOLD:
                digests.append(put(raw))
                return {"$blob": digests[-1]}
        elif isinstance(node, dict):
            return {key: walk(value) for key, value in node.items()}
        elif isinstance(node, list):
            return [walk(value) for value in node]
        return node

    tree = walk(orjson.loads(encoded))
    return (orjson.dumps(tree), tuple(digests)) if digests else (encoded, ())


def decode(
    seq: int,
    ts_us: int,
    payload: bytes,
    get: Callable[[Digest], bytes],
    upcasters: Mapping[int, Upcaster] = UPCASTERS,
    current: int = SCHEMA_VERSION,
) -> Event:
    """Raises Undecodable, and what `get` raises."""
    try:
        if payload.startswith(b'{"version":%d,' % current) and not _has_blobs(payload):
            return _event.validate_json(b'{"seq":%d,"ts_us":%d,%b' % (seq, ts_us, payload[1:]))
        return _decode_slowly(seq, ts_us, payload, get, upcasters, current)
    except (ValidationError, orjson.JSONDecodeError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise Undecodable(
            f"Event {seq} cannot be read by this version ({type(error).__name__}); "
            "read the session with the version that wrote it."
        ) from error


def event_json(seq: int, ts_us: int, payload: bytes, get: Callable[[Digest], bytes]) -> bytes:
    """The event as JSON, long texts in their places: mostly the stored bytes as they are. Raises what `decode` does."""
    if payload.startswith(b'{"version":%d,' % SCHEMA_VERSION) and not _has_blobs(payload):
        return b'{"seq":%d,"ts_us":%d,%b' % (seq, ts_us, payload[1:])
    return decode(seq, ts_us, payload, get).model_dump_json().encode()


def _has_blobs(payload: bytes) -> bool:
    # A quote inside a text is escaped in JSON, so no name in the envelope can look like its end, or like its blobs.
    return payload.find(b',"blobs":[', 0, payload.find(b',"body":') + 1) >= 0


def _decode_slowly(
    seq: int,
    ts_us: int,
    payload: bytes,
    get: Callable[[Digest], bytes],
    upcasters: Mapping[int, Upcaster],
    current: int,
) -> Event:
    tree = orjson.loads(payload)
    if tree["version"] > current:
        raise Undecodable(f"Event {seq} was written by a newer version; upgrade Thalia to read this session.")
    while tree["version"] < current:
        tree = upcasters[tree["version"]](tree)
    known = set(tree.pop("blobs", ()))

    def walk(node: Any) -> Any:
        if isinstance(node, dict):
            if node.keys() == {"$blob"} and node["$blob"] in known:
                return get(Digest(node["$blob"])).decode()
            return {key: walk(value) for key, value in node.items()}
        if isinstance(node, list):
            return [walk(value) for value in node]
        return node

    return _event.validate_python({"seq": seq, "ts_us": ts_us, **walk(tree)})
