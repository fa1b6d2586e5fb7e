"""Models on the command line: what is shown, what is said where one is missing, and a fallback that takes over."""

import json

import pytest
from cli_program import KEY, WORK, Place, serving

OUT = {"faults": [{"fail": "503", "times": 99, "retry_after": 0}]}


def test_models_are_listed_and_no_key_is_shown(place: Place) -> None:
    place.env |= {"OPENAI_API_KEY": KEY}
    result = place.run("models")
    assert (result.code, result.err) == (0, "")
    assert "openai  https://api.openai.com/v1 · responses, chat · OPENAI_API_KEY is set\n" in result.out
    assert KEY not in result.out


def test_a_probe_ends_with_13_where_nobody_answers_and_with_2_where_a_key_is_missing(place: Place) -> None:
    place.env |= {"VLLM_BASE_URL": "http://127.0.0.1:1/v1"}
    assert place.run("models", "probe", "vllm/m").code == 13
    missing = place.run("models", "probe", "anthropic/claude-opus-4-5")
    assert (missing.code, missing.out) == (2, "")
    assert missing.err.startswith("ANTHROPIC_API_KEY is not set") and missing.err.count("\n") == 1


def test_settings_that_are_wrong_are_said_with_their_file(place: Place) -> None:
    place.config.write_text('[providers.mine]\nprotocol = "chat"\n')
    result = place.run("models")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"{place.config}: `providers`: mine is not known, so it needs a base_url")


@pytest.mark.both_ways
def test_a_fallback_takes_over_on_the_command_line(place: Place) -> None:
    place.config.write_text("max_attempts = 1\n")
    with serving(OUT) as chosen, serving(*WORK) as spare:
        place.use(chosen)
        place.env |= {"VLLM_BASE_URL": spare.base_url}
        result = place.run("exec", "Change it.", "-m", "openai/big", "--fallback-model", "vllm/small")
    assert result.code == 0, result.err
    lines = result.out.splitlines()
    assert lines[1:3] == ["model openai/big", "fallback vllm/small"]
    assert "! openai/big gives no reply; vllm/small answers for the rest of this turn." in lines
    assert "   M a.py +1 -1" in lines
    assert "replay verified" in place.run("replay", "--last", "--verify").out


def test_the_warning_of_a_model_reaches_a_person_beside_the_object_for_a_program(place: Place) -> None:
    with serving({"text": "Ok."}) as server:
        place.env |= {"MODEL_API_BASE_URL": server.base_url}
        result = place.run("exec", "Hi.", "-m", "meta/muse-spark-1.2-contributor", "--output-format", "json")
    assert result.code == 0, result.err
    assert json.loads(result.out)["result"] == "Ok."
    assert "improve its products" in result.err
