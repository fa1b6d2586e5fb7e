"""Server-sent events whatever the cuts."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.models.sse import EventReader, ServerEvent

STREAM = (
    b"\xef\xbb\xbf: comment\n\nevent: error\ndata: one\n\ndata:two\ndata: three\n\nid: 4\nretry: 10\n\n"
    b"data:  four\n\ndata\n\ndata: \xe4\xb8\x96\n\ndata: last"
)
EVENTS = [
    ServerEvent("error", b"one"),
    ServerEvent("", b"two\nthree"),
    ServerEvent("", b" four"),
    ServerEvent("", "世".encode()),
    ServerEvent("", b"last"),
]


def read(chunks: list[bytes]) -> list[ServerEvent]:
    reader = EventReader()
    found = [event for chunk in chunks for event in reader.feed(chunk)]
    return found + reader.finish()


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_events_are_the_same_byte_by_byte_and_with_any_end_of_line(newline: bytes) -> None:
    body = STREAM.replace(b"\n", newline)
    assert read([body]) == EVENTS
    assert read([body[at : at + 1] for at in range(len(body))]) == EVENTS


@given(st.lists(st.integers(0, len(STREAM) * 2)), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_events_are_the_same_wherever_the_bytes_are_cut(cuts: list[int], newline: bytes) -> None:
    body = STREAM.replace(b"\n", newline)
    ends = sorted({0, len(body), *(cut % len(body) for cut in cuts)})
    assert read([body[start:end] for start, end in pairwise(ends)]) == EVENTS


def test_an_empty_stream_has_no_event() -> None:
    assert read([]) == []
