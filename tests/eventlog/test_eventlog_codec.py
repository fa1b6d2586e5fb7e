"""Bodies to bytes and back: nothing is lost, nothing is added, old bytes stay readable."""

import json
from typing import Any

import pytest
from eventlog_values import BODIES, EFFECTS, OUTCOMES, anything
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from eventlog.blobs import BlobStore
from eventlog.clean import prepare
from eventlog.codec import BLOB_THRESHOLD, Undecodable, decode, decode_body, encode_body, encode_payload, move_to_blobs
from eventlog.errors import BlobMissing
from eventlog.events import (
    Body,
    ContextSet,
    Draft,
    EffectFinished,
    EffectStarted,
    FallbackSet,
    ModelRoute,
    UserSaid,
)
from eventlog.ids import CallId, CommandId, Digest, SessionId
from eventlog.messages import AssistantMessage, OpaquePart, TextPart, ToolCall, Usage
from eventlog.outcomes import ModelReplied, ToolSucceeded
from eventlog.redact import Redactor, markers
from eventlog.seams import Prepared

quick = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def no_blob(digest: Digest) -> bytes:
    raise AssertionError(digest)


def payload_of(body: Body, **changes: Any) -> bytes:
    prepared = prepare(Draft(body=body, **changes), Redactor())
    return encode_payload(prepared.draft, prepared.encoded, SessionId("s"), 1, ())


def there_and_back(body: Body) -> Body:
    return decode(7, 8, payload_of(body), no_blob).body


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
@quick
@given(data=st.data())
def test_every_body_comes_back_as_it_was(kind: type[BaseModel], data: st.DataObject) -> None:
    body = data.draw(anything(kind))
    assert there_and_back(body) == body


@pytest.mark.parametrize("kind", EFFECTS, ids=lambda kind: kind.__name__)
@quick
@given(data=st.data())
def test_every_effect_comes_back_as_it_was(kind: type[BaseModel], data: st.DataObject) -> None:
    body = EffectStarted(call_id=CallId("c1"), attempt=1, effect=data.draw(anything(kind)))
    assert there_and_back(body) == body


@pytest.mark.parametrize("kind", OUTCOMES, ids=lambda kind: kind.__name__)
@quick
@given(data=st.data())
def test_every_outcome_comes_back_as_it_was(kind: type[BaseModel], data: st.DataObject) -> None:
    body = EffectFinished(call_id=CallId("c1"), attempt=1, outcome=data.draw(anything(kind)))
    assert there_and_back(body) == body


def test_each_kind_has_a_name_of_its_own() -> None:
    kinds = [kind.model_fields["kind"].default for kind in (*BODIES, *EFFECTS, *OUTCOMES)]
    assert len(set(kinds)) == len(kinds)


@pytest.mark.parametrize(
    "body",
    [
        '{"kind":"context_set","builder":"chat/1","model":"p/m","wire_model":"m","system":"s","tools":"[]",'
        '"parameters":"{}","window":9,"input_usd":1.0,"cached_usd":0.1,"output_usd":2.0,"token_bound":null,'
        '"snapshots":true,"setup":"","warning":"","instead_of":null}',
        '{"kind":"fallback_set","route":{"builder":"chat/1","model":"p/m","wire_model":"m","parameters":"{}",'
        '"window":9,"input_usd":1.0,"cached_usd":0.1,"output_usd":2.0,"warning":""}}',
    ],
)
def test_a_context_that_was_written_before_writes_to_a_cache_had_a_price_is_read(body: str) -> None:
    payload = encode_payload(Draft(body=said("")), body.encode(), SessionId("s"), 1, ())
    read = decode(7, 8, payload, no_blob).body
    priced = read.route if isinstance(read, FallbackSet) else read
    assert isinstance(priced, ContextSet | ModelRoute)
    assert (priced.output_usd, priced.cache_write_usd) == (2.0, None)


def test_the_envelope_comes_back_too() -> None:
    event = decode(7, 8, payload_of(said("hi"), lease=3, actor_seq=4, causation=5), no_blob)
    assert (event.seq, event.ts_us, event.session, event.epoch) == (7, 8, "s", 1)
    assert (event.actor, event.lease, event.actor_seq, event.causation, event.version) == ("main", 3, 4, 5, 1)


@quick
@given(text=st.text(max_size=60))
def test_a_clean_body_is_left_as_it_is(text: str) -> None:
    draft = Draft(body=said(text))
    prepared = prepare(draft, Redactor(["a-known-secret"]))
    assert prepared == Prepared(draft, encode_body(draft.body))


def test_a_body_without_suspicion_is_not_even_copied() -> None:
    draft = Draft(body=said("plain words, through https://example.org/"))
    assert prepare(draft, Redactor(["a-known-secret"])).draft is draft


@quick
@given(text=st.text(st.characters(), max_size=60))
def test_any_text_becomes_storable_and_stays_as_it_was_then(text: str) -> None:
    body = prepare(Draft(body=said(text)), Redactor()).draft.body
    assert there_and_back(body) == body


def test_a_lone_surrogate_is_replaced_and_a_pair_is_joined() -> None:
    body = prepare(Draft(body=said("a\ud800b \ud83d\ude00")), Redactor()).draft.body
    assert isinstance(body, UserSaid)
    assert body.text == "a\ufffdb 😀"


def test_nul_bytes_stay() -> None:
    assert there_and_back(said("a\0b")) == said("a\0b")


def test_a_secret_is_found_however_deep_it_lies() -> None:
    secret = "hunter2-hunter2"
    call = ToolCall(
        id=CallId("c1_1"), provider_id="p", name="shell", arguments=json.dumps({"command": f"echo {secret}"})
    )
    parts = (TextPart(text=f"see {secret}"), call, OpaquePart(provider="x", data=f'{{"k":"{secret}"}}'))
    body = replied(AssistantMessage(parts=parts))
    prepared = prepare(Draft(body=body), Redactor([secret]))
    assert secret.encode() not in prepared.encoded
    assert len(markers(prepared.encoded.decode())) == 1
    assert decode_body(json.loads(prepared.encoded)) == prepared.draft.body


def test_an_opaque_item_is_searched_for_known_values_only() -> None:
    shaped = "ghp_" + "a" * 36
    body = replied(AssistantMessage(parts=(OpaquePart(provider="x", data=shaped), TextPart(text=shaped))))
    stored = prepare(Draft(body=body), Redactor()).draft.body
    assert isinstance(stored, EffectFinished) and isinstance(stored.outcome, ModelReplied)
    opaque, text = stored.outcome.message.parts
    assert opaque == OpaquePart(provider="x", data=shaped)
    assert isinstance(text, TextPart) and shaped not in text.text


def test_a_long_text_leaves_the_event_and_comes_back(tmp_path) -> None:
    blobs = BlobStore(tmp_path)
    text = "漢" * BLOB_THRESHOLD
    body = finished(text)
    moved, digests = move_to_blobs(encode_body(body), blobs.put)
    payload = encode_payload(Draft(body=body), moved, SessionId("s"), 1, digests)
    assert len(payload) < 1000
    assert decode(1, 1, payload, blobs.get).body == body


def test_a_text_at_the_threshold_stays_in_the_event(tmp_path) -> None:
    encoded = encode_body(finished("x" * BLOB_THRESHOLD))
    assert move_to_blobs(encoded, BlobStore(tmp_path).put) == (encoded, ())


def test_an_altered_or_missing_blob_is_named(tmp_path) -> None:
    blobs = BlobStore(tmp_path)
    digest = blobs.put(b"x" * 10)
    blobs.path(digest).write_bytes(b"y" * 10)
    with pytest.raises(BlobMissing, match=f"{digest[:12]} was altered"):
        blobs.get(digest)
    blobs.path(digest).unlink()
    with pytest.raises(BlobMissing, match=f"{digest[:12]} is missing"):
        blobs.get(digest)


def test_an_altered_blob_is_mended_by_the_same_content(tmp_path) -> None:
    blobs = BlobStore(tmp_path)
    digest = blobs.put(b"x" * 10)
    blobs.path(digest).write_bytes(b"y" * 10)
    assert blobs.put(b"x" * 10) == digest
    assert blobs.get(digest) == b"x" * 10


def test_a_text_that_looks_like_a_reference_is_a_text(tmp_path) -> None:
    text = '{"$blob":"' + "0" * 64 + '"},"blobs":["' + "0" * 64 + '"]'
    assert there_and_back(said(text)) == said(text)
    assert there_and_back(finished(text)) == finished(text)


def test_an_old_version_is_lifted_step_by_step() -> None:
    old = payload_of(said("hi")).replace(b'"version":1', b'"version":-1').replace(b'"text"', b'"words"')

    def to_zero(tree: dict[str, Any]) -> dict[str, Any]:
        return {**tree, "version": 0}

    def to_one(tree: dict[str, Any]) -> dict[str, Any]:
        body = dict(tree["body"])
        body["text"] = body.pop("words")
        return {**tree, "version": 1, "body": body}

    assert decode(1, 1, old, no_blob, {-1: to_zero, 0: to_one}).body == said("hi")


def test_a_newer_version_is_refused_with_a_sentence() -> None:
    newer = payload_of(said("hi")).replace(b'"version":1', b'"version":2')
    with pytest.raises(Undecodable, match=r"Event 5 was written by a newer version; upgrade Thalia"):
        decode(5, 1, newer, no_blob)


@pytest.mark.parametrize("payload", [b"", b"[]", b"{}", b'{"version":1,"body":{}}', b'{"version":"x"}', b"\xff"])
def test_bytes_that_are_no_event_are_undecodable(payload: bytes) -> None:
    with pytest.raises(Undecodable, match="Event 5"):
        decode(5, 1, payload, no_blob)


def said(text: str) -> UserSaid:
    return UserSaid(id=CommandId("u"), text=text)


def finished(text: str) -> EffectFinished:
    return EffectFinished(call_id=CallId("c1_1"), attempt=1, outcome=ToolSucceeded(text=text))


def replied(message: AssistantMessage) -> EffectFinished:
    outcome = ModelReplied(
        message=message, stop="stop", usage=Usage(), cost_usd=None, model="m", first_byte_ms=1, total_ms=2
    )
    return EffectFinished(call_id=CallId("c1"), attempt=1, outcome=outcome)
