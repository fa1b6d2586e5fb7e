"""The table of protocols, and each of them through the one client."""

import json
from typing import get_args

import pytest
from models_wire import Recording, raw_server, recordings, request, stream
from pydantic import SecretStr

from agent.models.client import ModelError, ignore_delta
from agent.models.formats import UnknownFormat
from agent.models.http import HttpModel
from agent.models.requests import FORMATS, RequestCache, build_request
from agent.models.script_wire import Answer
from agent.models.wires import WIRES, wire_of
from configs.models import Protocol
from eventlog.events import ContextSet
from eventlog.messages import UserMessage
from eventlog.outcomes import ModelFailed, ModelReplied

KEY = SecretStr("sk-very-secret-0123456789")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
each_protocol = pytest.mark.parametrize("protocol", get_args(Protocol))


def example(protocol: str) -> Recording:
    return recordings(f"{protocol}-sse-*.json")[0]


def context(builder: str) -> ContextSet:
    return ContextSet(
        builder=builder, model="p/m", wire_model="m", system="be brief", tools="[]", parameters="{}", window=1000
    )


@each_protocol
def test_a_protocol_is_found_by_the_builder_that_a_session_has_logged(protocol: Protocol) -> None:
    assert wire_of(WIRES[protocol].builder) is WIRES[protocol]
    assert WIRES[protocol].builder in FORMATS


def test_a_builder_of_a_newer_version_is_named_in_a_sentence() -> None:
    for ask in (
        lambda: wire_of("chat/9"),
        lambda: build_request(context("chat/9"), [], None),
        lambda: RequestCache().update(context("chat/9"), [UserMessage(text="a")]),
    ):
        with pytest.raises(UnknownFormat, match=r"'chat/9'; open it with a newer Thalia\.$") as raised:
            ask()
        assert isinstance(raised.value, ModelError)


@each_protocol
async def test_a_request_goes_to_its_path_with_the_key_where_the_protocol_wants_it(protocol: Protocol) -> None:
    async with raw_server([stream(example(protocol).body)]) as server:
        async with HttpModel(WIRES[protocol], server.base_url, KEY) as client:
            await client.complete(request(), ignore_delta)
        async with HttpModel(WIRES[protocol], server.base_url) as client:
            await client.complete(request(), ignore_delta)
    (with_key, body), (without, _) = server.requests
    assert server.paths == [PATHS[protocol]] * 2
    assert body == request().body
    secret = KEY.get_secret_value()
    bearer, own = with_key.get("authorization"), with_key.get("x-api-key")
    assert (bearer, own) == ((None, secret) if protocol == "messages" else (f"Bearer {secret}", None))
    assert with_key.get("anthropic-version") == ("2023-06-01" if protocol == "messages" else None)
    assert not {"authorization", "x-api-key"} & without.keys()


@pytest.mark.parametrize("recording", recordings("responses-sse-*.json"), ids=lambda recording: recording.name)
async def test_a_reply_of_responses_is_an_outcome_with_its_cost(recording: Recording) -> None:
    answer = stream(recording.body, chunk_bytes=1000)
    async with (
        raw_server([answer]) as server,
        HttpModel(WIRES["responses"], server.base_url, KEY) as client,
    ):
        outcome = await client.complete(request(), ignore_delta)
        again = await client.complete(request(), ignore_delta)
        assert server.connections == 1
    if isinstance(outcome, ModelFailed):
        assert outcome.retry and recording.name in {"responses-sse-failed", "responses-sse-error"}
        assert outcome.charged_usd > 0
        return
    assert isinstance(again, ModelReplied)
    assert (outcome.message, outcome.stop) == (again.message, again.stop)
    assert outcome.cost_usd is not None and outcome.cost_usd > 0


async def test_a_refused_key_of_any_protocol_is_never_shown() -> None:
    secret = KEY.get_secret_value()
    body = json.dumps({"error": {"message": f"Incorrect key {secret}", "type": "authentication_error"}}).encode()
    for wire in WIRES.values():
        async with (
            raw_server([Answer(401, (), body)]) as server,
            HttpModel(wire, server.base_url, KEY, key_name="MY_KEY") as client,
        ):
            outcome = await client.complete(request(), ignore_delta)
        assert isinstance(outcome, ModelFailed)
        assert "MY_KEY" in outcome.text
        assert secret not in outcome.model_dump_json() + repr(client)
