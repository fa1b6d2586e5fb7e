"""From a name to an address, a key's name and a profile; and the table that ships."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from models_wire import request
from pydantic import SecretStr, ValidationError

from agent.models.client import Prices, ignore_delta
from agent.models.discovery import Found
from agent.models.http import HttpModel
from agent.models.requests import build_request
from agent.models.resolve import NoModel, Target, choose, open_client
from agent.models.script import Script, Turn
from agent.models.scripted import ScriptedModel
from agent.models.wires import WIRES
from configs.models import DEFAULT_WINDOW, KnownModel, known_models, load_models, lookup
from eventlog.events import ContextSet
from eventlog.outcomes import ModelReplied


def target(model: str, **settings: str) -> Target:
    chosen = choose(model, settings)
    assert isinstance(chosen, Target), chosen
    return chosen


def sentence(model: str | None, **settings: str) -> str:
    chosen = choose(model, settings)
    assert isinstance(chosen, NoModel), chosen
    return chosen.sentence


def test_openai_has_its_address_and_its_key() -> None:
    chosen = target("openai/gpt-5", OPENAI_API_KEY="k")
    assert (chosen.base_url, chosen.key_name) == ("https://api.openai.com/v1", "OPENAI_API_KEY")
    assert (chosen.model, chosen.wire_model) == ("openai/gpt-5", "gpt-5")
    assert chosen.prices == Prices(1.25, 0.125, 10.0)
    assert chosen.protocol == "responses"
    assert chosen.parameters({"temperature": 1}) == {"temperature": 1}


def test_openai_means_any_compatible_server_and_a_local_one_needs_no_key() -> None:
    for address in ("http://127.0.0.1:9/v1", "http://localhost:9/v1/", "http://[::1]:9/v1"):
        chosen = target("openai/mine", OPENAI_BASE_URL=address)
        assert (chosen.base_url, chosen.key_name) == (address.rstrip("/"), None)
        assert chosen.protocol == "chat", "what all of them speak"
        assert chosen.parameters({}) == {"max_tokens_name": "max_completion_tokens"}
        assert chosen.profile.window == DEFAULT_WINDOW
        assert chosen.prices == Prices(None, None, None)


def test_a_key_that_is_set_is_sent_to_a_local_server_too() -> None:
    assert target("openai/a", OPENAI_BASE_URL="http://127.0.0.1:9", OPENAI_API_KEY="k").key_name == "OPENAI_API_KEY"


@pytest.mark.parametrize(
    ("address", "asks"),
    [("https://127.0.0.1.example.com/v1", True), ("http://10.0.0.1/v1", True), ("http://127.8.8.8/v1", False)],
)
def test_a_remote_server_needs_a_key(address: str, asks: bool) -> None:
    assert isinstance(choose("openai/a", {"OPENAI_BASE_URL": address}), NoModel) is asks


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (None, "choose one with -m"),
        ("gpt-5", "openai/gpt-5"),
        ("openai/", "provider/name"),
        ("nobody/x", "known are "),
        ("openai/gpt-5", "OPENAI_API_KEY is not set"),
        ("meta/muse-spark-1.2", "MODEL_API_KEY is not set"),
        ("scripted/no-such-file.json", "no-such-file.json is not there"),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(model: str | None, says: str) -> None:
    said = sentence(model)
    assert says in said
    assert said.endswith(".")
    assert "\n" not in said


def test_no_sentence_holds_a_key() -> None:
    assert "hunter2" not in sentence("openai/a", OPENAI_BASE_URL="http://[bad", OPENAI_API_KEY="hunter2")


@pytest.mark.parametrize(
    ("provider", "port"), [("ollama", 11434), ("lmstudio", 1234), ("llamacpp", 8080), ("vllm", 8000)]
)
def test_local_servers_need_nothing_and_cost_nothing(provider: str, port: int) -> None:
    chosen = target(f"{provider}/some/model")
    assert (chosen.base_url, chosen.key_name) == (f"http://127.0.0.1:{port}/v1", None)
    assert (chosen.wire_model, chosen.prices) == ("some/model", Prices(0.0, 0.0, 0.0))


def test_without_a_model_the_first_server_found_with_one_is_taken() -> None:
    found = (Found("vllm", "http://127.0.0.1:7/v1", ()), Found("ollama", "http://127.0.0.1:8/v1", ("q", "r")))
    chosen = choose(None, {"OLLAMA_BASE_URL": "http://elsewhere"}, found)
    assert isinstance(chosen, Target)
    assert (chosen.model, chosen.base_url) == ("ollama/q", "http://127.0.0.1:8/v1")


def test_parameters_that_a_provider_refuses_are_left_out() -> None:
    chosen = target("meta/muse-spark-1.2", MODEL_API_KEY="k", MODEL_API_BASE_URL="https://other/v1")
    assert chosen.base_url == "https://other/v1"
    assert chosen.protocol == "responses", "its own address may be another"
    assert chosen.parameters({"stop": ["x"], "stop_sequences": ["x"], "tool_choice": "none", "top_p": 1}) == {
        "top_p": 1
    }


@pytest.mark.parametrize(
    "off", [{"reasoning": {"effort": "none"}}, {"reasoning_effort": "none"}, {"thinking": {"type": "disabled"}}]
)
def test_reasoning_is_never_turned_off_where_it_cannot_be(off: dict[str, object]) -> None:
    assert target("meta/muse-spark-1.2", MODEL_API_KEY="k").parameters(off) == {}
    assert target("anthropic/claude-opus-4-5", ANTHROPIC_API_KEY="k").parameters(off) == off
    low = {"reasoning": {"effort": "low"}}
    assert target("meta/muse-spark-1.2", MODEL_API_KEY="k").parameters(low) == low


@pytest.mark.parametrize(
    ("model", "protocol"),
    [
        ("openai/a", "responses"),
        ("anthropic/a", "messages"),
        ("meta/a", "responses"),
        ("openrouter/a", "chat"),
        ("ollama/a", "chat"),
        ("vllm/a", "chat"),
        ("llamacpp/a", "chat"),
        ("lmstudio/a", "chat"),
    ],
)
def test_each_provider_is_asked_in_its_own_protocol(model: str, protocol: str) -> None:
    keys = dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "MODEL_API_KEY", "OPENROUTER_API_KEY"), "k")
    assert target(model, **keys).protocol == protocol


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "http://127.0.0.1:9/", "http://127.0.0.1:9/v1"])
def test_an_address_of_messages_may_leave_out_its_version(address: str) -> None:
    chosen = target("anthropic/a", ANTHROPIC_BASE_URL=address)
    assert (chosen.base_url, chosen.protocol) == ("http://127.0.0.1:9/v1", "messages")


def test_the_published_address_is_none_of_the_users_own() -> None:
    chosen = target("openai/a", OPENAI_BASE_URL="https://api.openai.com/v1/", OPENAI_API_KEY="k")
    assert chosen.protocol == "responses"


def test_the_cheap_route_that_learns_from_its_data_says_so() -> None:
    profile = lookup("meta", "muse-spark-1.2-contributor")
    assert (profile.input_usd, profile.cached_usd, profile.output_usd) == (0.10, 0.002, 0.20)
    assert "improve its products" in (profile.warning or "")
    assert lookup("meta", "muse-spark-1.2").warning is None


def test_a_model_that_finds_no_end_is_given_one(tmp_path: Path) -> None:
    (tmp_path / "smollm2.gguf").write_bytes(b"GGUF")
    small = choose("local/smollm2", {}, models_folder=tmp_path)
    assert isinstance(small, Target)
    assert small.parameters({}) == {"max_tokens": 512, "max_tokens_name": "max_tokens"}
    assert replace(small, protocol="messages").parameters({}) == {"max_output": 512}
    assert replace(small, protocol="responses").parameters({}) == {"max_output": 512}
    assert replace(small, protocol="responses").parameters({"max_output": 9}) == {"max_output": 9}, "who chose one"


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4.1-mini-2025-04-14", "chatgpt-4o-latest", "gpt-5-chat-latest"])
def test_a_model_that_does_not_reason_is_asked_for_no_reasoning(model: str) -> None:
    chosen = target(f"openai/{model}", OPENAI_API_KEY="k")
    assert chosen.parameters({}) == {"include": None}
    assert b"include" not in request_of(chosen)
    assert replace(chosen, protocol="chat").parameters({}) == {"max_tokens_name": "max_completion_tokens"}
    assert b'"include":["reasoning.encrypted_content"]' in request_of(target("openai/gpt-5", OPENAI_API_KEY="k"))


def request_of(chosen: Target) -> bytes:
    context = ContextSet(
        builder=WIRES[chosen.protocol].builder, model=chosen.model, wire_model=chosen.wire_model, system="", tools="",
        parameters=json.dumps(chosen.parameters({})), window=1,
    )  # fmt: skip
    return build_request(context, [], None)


def test_what_anthropic_puts_into_its_cache_costs_a_quarter_more_than_other_input() -> None:
    known = {name: model for name, model in load_models().models.items() if "anthropic/" in name}
    assert len(known) >= 6
    for model in known.values():
        assert model.input_usd is not None and model.cache_write_usd == pytest.approx(1.25 * model.input_usd)
    chosen = target("anthropic/claude-sonnet-4-5-20250929", ANTHROPIC_API_KEY="k")
    assert chosen.prices == Prices(3.0, 0.3, 15.0, 3.75)


def test_a_dated_name_stands_for_the_name_and_a_longer_one_does_not() -> None:
    assert lookup("openai", "gpt-5-2025-08-07") == lookup("openai", "gpt-5")
    assert lookup("openai", "gpt-5-something").input_usd is None


def test_every_model_of_the_table_has_a_provider_and_a_window() -> None:
    table = load_models()
    assert len(table.models) > 30
    assert all(model.window >= 8192 for model in table.models.values())
    assert all(table.providers[name].protocol in table.providers[name].protocols for name in table.providers)
    assert all(isinstance(choose(f"{name}/x", {}), Target | NoModel) for name in known_models().providers)


def test_half_a_price_is_no_price() -> None:
    with pytest.raises(ValidationError, match="a price needs"):
        KnownModel(input_usd=1.0, output_usd=2.0, as_of="2026-01", source="somewhere")
    with pytest.raises(ValidationError, match="a price needs"):
        KnownModel(cache_write_usd=1.0)


async def test_a_scripted_target_opens_a_scripted_model(tmp_path: Path) -> None:
    file = tmp_path / "script.json"
    file.write_text(Script(turns=(Turn(text="hello"),)).model_dump_json())
    client = open_client(target(f"scripted/{file}"), None, Random(1))
    assert isinstance(client, ScriptedModel)
    outcome = await client.complete(request(), ignore_delta)
    assert isinstance(outcome, ModelReplied)


async def test_any_other_target_opens_a_client_for_its_address() -> None:
    client = open_client(target("openai/m", OPENAI_API_KEY="k"), SecretStr("k"), Random(1))
    assert isinstance(client, HttpModel)
    assert "api.openai.com" in repr(client)
    await client.close()
