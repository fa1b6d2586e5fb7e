"""Providers of a person's settings: what they change, what they add, and the sentence where they are wrong."""

from pathlib import Path

import pytest

from agent.models.resolve import CannotChoose, pick
from configs.models import ModelTable
from configs.settings import Environment, Settings, SettingsError, load_settings


def settings(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "config.toml"
    file.write_text(text)
    return load_settings(Environment({}, tmp_path, file))


def environment(**variables: str) -> Environment:
    return Environment(variables, Path("/nowhere"), Path("/nowhere/config.toml"))


def test_a_provider_of_ones_own_is_used_by_its_name(tmp_path: Path) -> None:
    own = settings(
        tmp_path,
        '[providers.mine]\nbase_url = "https://models.example/v1/"\nprotocol = "messages"\nkey_variable = "MINE_KEY"',
    )
    chosen = pick("mine/some/model", environment(MINE_KEY="k"), own)
    assert (chosen.base_url, chosen.protocol, chosen.wire_model) == (
        "https://models.example/v1",
        "messages",
        "some/model",
    )
    assert (chosen.key_name, chosen.prices.input_usd) == ("MINE_KEY", None)
    with pytest.raises(CannotChoose, match="MINE_KEY is not set"):
        pick("mine/some/model", environment(), own)


def test_a_provider_without_a_key_needs_none_wherever_it_is(tmp_path: Path) -> None:
    own = settings(tmp_path, '[providers.mine]\nbase_url = "https://models.example/v1"')
    assert pick("mine/m", environment(), own).key_name is None


def test_a_known_provider_keeps_what_is_not_changed(tmp_path: Path) -> None:
    own = settings(tmp_path, '[providers.meta]\nprotocol = "chat"')
    chosen = pick("meta/muse-spark-1.2", environment(MODEL_API_KEY="k"), own)
    assert (chosen.base_url, chosen.protocol) == ("https://api.meta.ai/v1", "chat")
    assert chosen.prices.output_usd == 4.25


def test_another_address_is_asked_in_what_all_speak_there_unless_the_protocol_is_named(tmp_path: Path) -> None:
    address = '[providers.openai]\nbase_url = "https://models.example/v1"\n'
    keyed = environment(OPENAI_API_KEY="k")
    assert pick("openai/m", keyed, settings(tmp_path, address)).protocol == "chat"
    named = settings(tmp_path, address + 'protocol = "responses"')
    assert pick("openai/m", keyed, named).protocol == "responses"
    elsewhere = environment(OPENAI_BASE_URL="http://127.0.0.1:9/v1")
    assert pick("openai/m", elsewhere, named).protocol == "responses"


def test_a_server_whose_models_do_not_reason_is_asked_for_no_reasoning(tmp_path: Path) -> None:
    own = settings(tmp_path, "[providers.openai]\nreasons = false")
    chosen = pick("openai/gpt-5", environment(OPENAI_API_KEY="k"), own)
    assert (chosen.protocol, chosen.parameters({})) == ("responses", {"include": None})


def test_a_price_of_ones_own_says_what_the_cache_takes_for_it_or_nothing(tmp_path: Path) -> None:
    text = '[prices."%s"]\ninput = 2.0\noutput = 9.0\n'
    name, keyed = "anthropic/claude-opus-4-5", environment(ANTHROPIC_API_KEY="k")
    assert pick(name, keyed, settings(tmp_path, text % name)).prices.cache_write_usd is None, "as any input"
    dearer = settings(tmp_path, text % name + "cache_write = 2.5\n")
    assert pick(name, keyed, dearer).prices.cache_write_usd == 2.5


def test_an_address_in_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    own = settings(tmp_path, '[providers.ollama]\nbase_url = "http://127.0.0.1:1/v1"')
    assert pick("ollama/m", environment(), own).base_url == "http://127.0.0.1:1/v1"
    assert pick("ollama/m", environment(OLLAMA_BASE_URL="http://127.0.0.1:2/v1"), own).base_url.endswith(":2/v1")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[providers.mine]\n", "needs a base_url"),
        ('[providers.mine]\nbase_url = "models.example"', "an address looks like"),
        ('[providers.mine]\nbase_url = "http://[bad"', "an address looks like"),
        ('[providers.mine]\nbase_url = "https://me:hunter2@models.example/v1"', "no user and no password"),
        ('[providers.mine]\nbase_url = "http://a/v1"\nprotocol = "soap"', "'chat', 'responses' or 'messages'"),
        ('[providers.mine]\nbase_url = "http://a/v1"\nkey_variable = "sk-hunter2"', "does not hold the key itself"),
        ('[providers.mine]\nbase_url = "http://a/v1"\nkey_variable = "MINE"', "such as MINE_API_KEY"),
        ('[providers."my/own"]\nbase_url = "http://a/v1"', "named in small letters"),
        ('[providers.scripted]\nbase_url = "http://a/v1"', "another name"),
        ('[providers.local]\nprotocol = "chat"', "another name"),
        ('[providers.mine]\nbase_url = "http://a/v1"\nurl = "x"', "providers.mine.url"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_sentence_without_a_secret(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as raised:
        settings(tmp_path, text)
    said = str(raised.value)
    assert says in said and said.startswith(str(tmp_path / "config.toml")) and said.endswith(".")
    assert "\n" not in said and "Value error" not in said and "hunter2" not in said


def test_a_key_under_a_name_of_ones_own_is_kept_from_logs(tmp_path: Path) -> None:
    """Whatever name the settings take for a key is one whose value counts as a secret."""
    assert "planted-0123456789" in environment(MINE_KEY="planted-0123456789").secrets


def test_a_model_of_the_table_needs_its_provider() -> None:
    with pytest.raises(ValueError, match="nobody/m has no provider"):
        ModelTable.model_validate({"providers": {}, "models": {"nobody/m": {}}})
