"""What went wrong, and how long to wait."""

from datetime import UTC, datetime
from email.utils import format_datetime
from itertools import pairwise
from random import Random

import pytest
from models_wire import Recording, recordings

from agent.models.faults import fault_of_error, fault_of_response, told_s, wait_ms

EXPECTED = {
    "chat-error-key": ("refused", False),
    "chat-error-too-long": ("context_too_long", False),
    "chat-error-too-long-local": ("context_too_long", False),
    "chat-error-rate": ("rate_limited", True),
    "chat-error-quota": ("rate_limited", False),
    "chat-error-overloaded": ("overloaded", True),
    "chat-error-server": ("server", False),
    "responses-error-key": ("refused", False),
    "responses-error-too-long": ("context_too_long", False),
    "responses-error-rate": ("rate_limited", True),
    "responses-error-quota": ("rate_limited", False),
    "responses-error-server": ("server", True),
}
BY_STATUS = {400: ("refused", False), 404: ("refused", False), 429: ("rate_limited", True)}
RECORDED = recordings("chat-error-*.json") + recordings("responses-error-*.json")


@pytest.mark.parametrize("recording", RECORDED, ids=lambda recording: recording.name)
def test_a_recorded_error_is_the_right_fault(recording: Recording) -> None:
    fault = fault_of_response(recording.status, recording.headers, recording.body)
    assert (fault.kind, fault.retry) == EXPECTED.get(recording.name, BY_STATUS.get(recording.status))
    assert "\n" not in fault.text
    assert len(fault.text) < 700


@pytest.mark.parametrize(
    ("status", "kind", "retry"),
    [
        (301, "refused", False),
        (400, "refused", False),
        (401, "refused", False),
        (403, "refused", False),
        (404, "refused", False),
        (408, "timeout", True),
        (409, "server", True),
        (413, "context_too_long", False),
        (422, "refused", False),
        (429, "rate_limited", True),
        (500, "server", True),
        (502, "server", True),
        (503, "overloaded", True),
        (529, "overloaded", True),
    ],
)
def test_a_status_decides_unless_the_server_says_otherwise(status: int, kind: str, retry: bool) -> None:
    fault = fault_of_response(status, {}, b"")
    assert (fault.kind, fault.retry) == (kind, retry)
    for told in (True, False):
        assert fault_of_response(status, {"x-should-retry": str(told).lower()}, b"").retry is told


@pytest.mark.parametrize(
    "said",
    [
        "This model's maximum context length is 8192 tokens.",
        "prompt is too long: 210000 tokens > 200000 maximum",
        "the request exceeds the available context size (4096 tokens)",
        "Input is too long for requested model.",
        "Your input exceeds the context window of this model.",
        "Please reduce the length of the messages or completion.",
    ],
)
def test_a_conversation_that_is_too_long_is_known_by_its_texts(said: str) -> None:
    assert fault_of_error({"message": said}).kind == "context_too_long"
    assert fault_of_response(400, {}, b'{"error":{"message":"%s"}}' % said.encode()).kind == "context_too_long"


def test_a_refused_key_names_the_setting_to_check() -> None:
    assert "check MY_KEY" in fault_of_response(401, {}, b"", "MY_KEY").text


@pytest.mark.parametrize(
    "body",
    [
        b'{"error":{"message":"Encrypted content is not supported with this model.","type":"invalid_request_error"}}',
        b'{"error":{"message":"Not supported.","type":"invalid_request_error","param":"include"}}',
        b'{"error":{"message":"Unknown value: reasoning.encrypted_content","param":null}}',
        b'{"detail":[{"type":"literal_error","loc":["body","include",0],"msg":"Input should be file_search"}]}',
    ],
)
def test_a_server_that_gives_no_encrypted_reasoning_is_told_apart_with_what_to_set(body: bytes) -> None:
    fault = fault_of_response(400, {}, body)
    assert (fault.kind, fault.retry) == ("refused", False)
    assert "set reasons = false for its [providers.NAME] in your settings" in fault.text
    assert "\n" not in fault.text


@pytest.mark.parametrize("said", ["Tools must not include files.", "The encrypted content gAAA could not be verified."])
def test_no_other_refusal_speaks_of_that_setting(said: str) -> None:
    text = fault_of_response(400, {}, b'{"error":{"message":"%s","param":"input"}}' % said.encode()).text
    assert text == f"The model server refused the request (400): {said} (input)"


def test_a_web_page_is_never_shown() -> None:
    assert fault_of_response(502, {}, b"<html>...</html>").text == "The model server failed (502): a page in HTML"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": format_datetime(datetime.fromtimestamp(1030, UTC), usegmt=True)}, 30.0),
        ({"retry-after": format_datetime(datetime.fromtimestamp(900, UTC), usegmt=True)}, 0.0),
    ],
)
def test_the_wait_that_a_server_asks_for_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert told_s(headers, now_s=1000.0) == seconds


def test_waits_grow_and_stay_under_their_cap() -> None:
    random = Random(1)
    means = [sum(wait_ms({}, sent, random, 0.0) for _ in range(300)) / 300 for sent in range(9)]
    assert all(later > earlier for earlier, later in pairwise(means[:7]))
    assert all(wait_ms({}, sent, random, 0.0) <= 30_000 for sent in (6, 20, 1000) for _ in range(50))


def test_four_agents_do_not_retry_in_lockstep_even_when_told_the_same_wait() -> None:
    for headers in ({}, {"retry-after": "1"}):
        waits = {wait_ms(headers, 3, Random(agent), 0.0) for agent in range(4)}
        assert max(waits) - min(waits) > 20
    assert min(waits) >= 1000
