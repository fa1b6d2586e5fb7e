"""The client against real loopback servers: every end of an attempt is a value."""

import asyncio
import gc
import gzip
import json
import logging
import socket
from random import Random
from typing import Any

import pytest
from models_wire import raw_server, request, stream
from pydantic import SecretStr

from agent.models.client import BadAddress, BadKey, Delta, ModelRequest, Prices, TextDelta, ignore_delta
from agent.models.http import HttpModel, Timeouts, shown_address
from agent.models.script import PlannedFault, Script, ScriptedCall, Turn
from agent.models.script_wire import Answer
from agent.models.server import ModelServer
from agent.models.wires import WIRES
from eventlog.ids import CallId
from eventlog.messages import AssistantMessage, TextPart, ToolCall, Usage
from eventlog.outcomes import ModelFailed, ModelReplied

CHAT = WIRES["chat"]
KEY = SecretStr("sk-very-secret-0123456789")
TURN = Turn(
    text="I read.", tool_calls=(ScriptedCall(name="read", arguments={"path": "a"}),), usage=Usage(input=1000, output=50)
)
QUICK = Timeouts(connect_s=2, silence_s=0.3)
SAID = b'data: {"choices":[{"delta":{"content":"yes"}}]}\n\n'
STOPPED = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


async def one(answer: Answer, sent: ModelRequest | None = None, **options: Any) -> ModelReplied | ModelFailed:
    """The outcome of one attempt with a server that gives this answer."""
    async with raw_server([answer]) as server, HttpModel(CHAT, server.base_url, random=Random(1), **options) as client:
        return await client.complete(sent or request(), ignore_delta)


async def failure(answer: Answer, sent: ModelRequest | None = None, **options: Any) -> ModelFailed:
    outcome = await one(answer, sent, **options)
    assert isinstance(outcome, ModelFailed), outcome
    return outcome


async def attempts(fault: PlannedFault, turn: Turn = TURN) -> list[ModelReplied | ModelFailed]:
    """Retried at once until it is not to be retried, at most five times."""
    script = Script(turns=(turn.model_copy(update={"faults": (fault,)}),))
    outcomes: list[ModelReplied | ModelFailed] = []
    async with (
        ModelServer(script) as server,
        HttpModel(CHAT, server.base_url, random=Random(1), timeouts=QUICK) as client,
    ):
        while len(outcomes) < 5:
            outcome = await client.complete(request(len(outcomes)), ignore_delta)
            outcomes.append(outcome)
            if isinstance(outcome, ModelReplied) or not outcome.retry:
                break
        assert all(body == request().body for body in server.requests)
    return outcomes


async def test_a_reply_is_whole_and_its_cost_follows_from_the_prices() -> None:
    script = Script(turns=(TURN.model_copy(update={"usage": Usage(input=1000, cached=400, output=50)}),))
    deltas: list[Delta] = []
    async with ModelServer(script) as server, HttpModel(CHAT, server.base_url, KEY) as client:
        outcome = await client.complete(request(), deltas.append)
        assert server.headers[0]["authorization"] == f"Bearer {KEY.get_secret_value()}"
        assert server.requests == [request().body]
    assert isinstance(outcome, ModelReplied)
    call = ToolCall(id=CallId("c1_1"), provider_id="call_0_0", name="read", arguments='{"path":"a"}')
    assert outcome.message == AssistantMessage(parts=(TextPart(text="I read."), call))
    assert (outcome.stop, outcome.usage) == ("tool_calls", Usage(input=1000, cached=400, output=50))
    assert outcome.cost_usd == pytest.approx((600 * 1.0 + 400 * 0.1 + 50 * 2.0) / 1e6)
    assert 0 <= outcome.first_byte_ms <= outcome.total_ms
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == "I read."


async def test_a_missing_price_is_never_called_free() -> None:
    outcome = await one(stream(SAID + STOPPED + DONE), request(prices=Prices(1.0, None, 2.0)))
    assert isinstance(outcome, ModelReplied)
    assert outcome.cost_usd is None


async def test_a_missing_usage_is_estimated_and_not_zero() -> None:
    outcome = await one(stream(SAID + STOPPED + DONE), request(body=b"x" * 4000))
    assert isinstance(outcome, ModelReplied)
    assert outcome.usage.input == 1000
    assert outcome.cost_usd


async def test_many_calls_use_one_connection() -> None:
    async with raw_server([stream(SAID + STOPPED + DONE)]) as server, HttpModel(CHAT, server.base_url) as client:
        for _ in range(5):
            assert isinstance(await client.complete(request(), ignore_delta), ModelReplied)
        assert server.connections == 1


async def test_a_server_that_never_ends_the_body_after_its_end_mark_is_not_waited_for() -> None:
    answer = stream(SAID + STOPPED + DONE, ending="silence")
    assert isinstance(await one(answer, timeouts=Timeouts(silence_s=60)), ModelReplied)


async def test_a_connection_that_breaks_after_the_finish_reason_loses_nothing() -> None:
    assert isinstance(await one(stream(SAID + STOPPED, ending="cut")), ModelReplied)


async def test_a_compressed_reply_is_read() -> None:
    answer = Answer(200, (("content-encoding", "gzip"),), gzip.compress(SAID + STOPPED + DONE))
    assert isinstance(await one(answer), ModelReplied)


# Cut streams (a call is never made of a part; one more attempt brings the reply).


@pytest.mark.parametrize(
    "fail", ["cut_before_arguments", "cut_arguments", "cut_after_arguments", "clean_close", "error_in_stream"]
)
async def test_a_cut_stream_is_a_failure_that_is_charged_and_tried_once_more(fail: str) -> None:
    first, second = await attempts(PlannedFault(fail=fail))
    assert isinstance(first, ModelFailed)
    assert first.fault == ("server" if fail == "error_in_stream" else "cut")
    assert first.charged_usd > 0
    assert isinstance(second, ModelReplied)
    assert [call.arguments for call in second.message.tool_calls] == ['{"path":"a"}']


async def test_a_stream_cut_at_any_byte_before_its_finish_reason_makes_no_call() -> None:
    script = Script(turns=(TURN.model_copy(update={"faults": tuple(
        PlannedFault(fail="cut_at", bytes=at) for at in range(0, 1000, 37)
    )}),))  # fmt: skip
    async with ModelServer(script) as server, HttpModel(CHAT, server.base_url) as client:
        for _ in range(0, 1000, 37):
            outcome = await client.complete(request(), ignore_delta)
            assert isinstance(outcome, ModelFailed)
            assert (outcome.fault, outcome.retry) == ("cut", True)
        assert isinstance(await client.complete(request(), ignore_delta), ModelReplied)


async def test_a_call_without_arguments_and_a_proper_stop_is_made() -> None:
    (outcome,) = await attempts(
        PlannedFault(fail="429", times=0), Turn(tool_calls=(ScriptedCall(name="ls", arguments=""),))
    )
    assert isinstance(outcome, ModelReplied)
    assert [(call.name, call.arguments) for call in outcome.message.tool_calls] == [("ls", "{}")]


# Odd replies.


@pytest.mark.parametrize("fail", ["empty", "spaces"])
async def test_a_reply_without_text_is_tried_again_and_what_it_cost_is_charged(fail: str) -> None:
    first, second = await attempts(PlannedFault(fail=fail))
    assert isinstance(first, ModelFailed)
    assert (first.fault, first.retry) == ("malformed", True)
    assert first.charged_usd == pytest.approx((1000 * 1.0 + 50 * 2.0) / 1e6)
    assert isinstance(second, ModelReplied)


@pytest.mark.parametrize("fail", ["unknown_tool", "same_id", "list_arguments", "deep_arguments"])
async def test_a_strange_call_is_a_reply_for_the_agent_to_judge(fail: str) -> None:
    two = TURN.model_copy(update={"tool_calls": TURN.tool_calls * 2})
    (outcome,) = await attempts(PlannedFault(fail=fail), two)
    assert isinstance(outcome, ModelReplied)
    ids = [call.id for call in outcome.message.tool_calls]
    assert ids == ["c1_1", "c1_2"][: len(ids)]
    assert ids


# HTTP errors, then success.


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (PlannedFault(fail="500", times=2), "server"),
        (PlannedFault(fail="529", times=2), "overloaded"),
        (PlannedFault(fail="429", times=2, retry_after=1), "rate_limited"),
        (PlannedFault(fail="reset", times=2), "network"),
        (PlannedFault(fail="html", times=2), "malformed"),
        (PlannedFault(fail="silence", times=2), "timeout"),
    ],
)
async def test_a_passing_failure_is_tried_again_until_it_has_passed(fault: PlannedFault, kind: str) -> None:
    *failures, last = await attempts(fault)
    assert [outcome.fault for outcome in failures if isinstance(outcome, ModelFailed)] == [kind, kind]
    assert isinstance(last, ModelReplied)
    if fault.retry_after:
        assert all(isinstance(outcome, ModelFailed) and 1000 <= outcome.wait_ms <= 1250 for outcome in failures)


@pytest.mark.parametrize("fail", ["400", "401", "403", "404", "context_too_long"])
async def test_a_refusal_is_not_tried_again(fail: str) -> None:
    (outcome,) = await attempts(PlannedFault(fail=fail, times=9))
    assert isinstance(outcome, ModelFailed)
    assert outcome.fault == ("context_too_long" if fail == "context_too_long" else "refused")
    assert (outcome.retry, outcome.charged_usd) == (False, 0.0)


async def test_a_silent_stream_is_charged_for_what_went_in_and_came_out() -> None:
    outcome = await failure(stream(SAID, ending="silence"), request(body=b"x" * 4000), timeouts=QUICK)
    assert outcome.fault == "timeout"
    assert outcome.charged_usd == pytest.approx(1000 / 1e6, rel=0.01)


async def test_a_server_that_gives_no_answer_at_all_is_a_timeout() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        async with HttpModel(CHAT, f"http://127.0.0.1:{listener.getsockname()[1]}/v1", timeouts=QUICK) as client:
            outcome = await client.complete(request(), ignore_delta)
    assert isinstance(outcome, ModelFailed)
    assert (outcome.fault, outcome.retry) == ("timeout", True)


async def test_a_call_as_a_whole_is_bounded() -> None:
    outcome = await failure(stream(SAID * 50, ending="silence"), timeouts=Timeouts(silence_s=60, total_s=0.2))
    assert (outcome.fault, outcome.retry) == ("timeout", True)


async def test_no_server_is_a_network_fault_with_its_address() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        async with HttpModel(CHAT, address) as client:
            outcome = await client.complete(request(3), ignore_delta)
    assert isinstance(outcome, ModelFailed)
    assert (outcome.fault, outcome.retry) == ("network", True)
    assert address in outcome.text


async def test_a_connection_that_breaks_before_an_answer_is_tried_again_at_once_and_then_with_a_wait() -> None:
    reset = stream(b"", ending="reset")
    assert (await failure(reset, request(0))).wait_ms == 0
    assert (await failure(reset, request(4))).wait_ms > 0


async def test_a_wait_that_is_too_long_is_not_waited_for() -> None:
    outcome = await failure(Answer(429, (("retry-after", "86400"),), b""))
    assert outcome.retry is False
    assert "86400" in outcome.text


async def test_a_redirect_is_not_followed() -> None:
    async with raw_server([stream(SAID + STOPPED)]) as other:
        outcome = await failure(Answer(307, (("location", other.base_url),), b""), key=KEY)
        assert other.requests == []
    assert (outcome.fault, outcome.retry, outcome.status) == ("refused", False, 307)


# Cancelling, secrets, addresses.


async def test_a_cancelled_call_closes_its_connection_and_the_client_can_be_used_again() -> None:
    answers = [stream(SAID, ending="silence"), stream(SAID + STOPPED + DONE)]
    async with raw_server(answers) as server, HttpModel(CHAT, server.base_url) as client:
        came = asyncio.Event()
        call = asyncio.create_task(client.complete(request(), lambda _: came.set()))
        await came.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert isinstance(await client.complete(request(), ignore_delta), ModelReplied)
        assert server.connections == 2
        gc.collect()  # of the server's talk with nobody only the server itself knows


@pytest.mark.parametrize("status", [200, 401, 500])
async def test_the_key_is_in_the_header_and_nowhere_else(status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    secret = KEY.get_secret_value()
    body = json.dumps({"error": {"message": f"Incorrect API key provided: {secret}"}}).encode()
    async with raw_server([Answer(status, (), body)]) as server, HttpModel(CHAT, server.base_url, KEY) as client:
        outcome = await client.complete(request(), ignore_delta)
        assert server.requests[0][0]["authorization"].endswith(secret)
        assert secret not in repr(client) + repr(vars(client.__class__)) + outcome.model_dump_json() + caplog.text
    assert isinstance(outcome, ModelFailed)
    assert "[key]" in outcome.text


@pytest.mark.parametrize("key", ["sk-a\nX: y", "sk-ä", "two words"])
def test_a_key_that_no_header_can_hold_is_refused_without_being_shown(key: str) -> None:
    with pytest.raises(BadKey) as caught:
        HttpModel(CHAT, "http://127.0.0.1/v1", SecretStr(key), key_name="MY_KEY")
    assert "MY_KEY" in str(caught.value)
    assert key not in str(caught.value)


@pytest.mark.parametrize(
    "address", ["", "api.example.com/v1", "ftp://host/v1", "http://", "http://host:port/", "http://[::1/v1"]
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(BadAddress):
        HttpModel(CHAT, address)


def test_an_address_with_a_password_is_refused_without_showing_it() -> None:
    with pytest.raises(BadAddress) as caught:
        HttpModel(CHAT, "https://user:hunter2@host/v1")
    assert "hunter2" not in str(caught.value)


def test_an_address_is_shown_without_its_query() -> None:
    assert shown_address("https://host:8443/v1?key=secret") == "https://host:8443/v1"
