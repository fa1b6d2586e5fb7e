"""Whatever a person gets wrong ends in one sentence on the error stream, the right exit code, and nothing left."""

from collections.abc import Callable
from pathlib import Path

import pytest
from cli_program import WORK, Place, Result, serving

from processes.sandbox import candidates


def refused(result: Result, code: int, *words: str) -> None:
    """One line that says what happened and what to do."""
    assert result.code == code, result
    assert result.err.count("\n") == 1, result.err
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err


def left_nothing(place: Place) -> None:
    assert place.sessions() == []
    assert place.worktrees() == []
    assert not list(place.home.glob("fault-*"))


def no_repository(place: Place) -> Path:
    (place.folder / "plain").mkdir()
    return place.folder / "plain"


def empty_repository(place: Place) -> Path:
    place.git("init", "-q", str(place.folder / "empty"), cwd=place.folder)
    return place.folder / "empty"


def bare_repository(place: Place) -> Path:
    place.git("clone", "-q", "--bare", str(place.repository), str(place.folder / "bare"), cwd=place.folder)
    return place.folder / "bare"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (no_repository, "git init"),
        (empty_repository, "git commit --allow-empty"),
        (bare_repository, "git clone"),
        (lambda place: place.folder / "missing", "does not exist"),
    ],
    ids=["no repository", "an empty one", "a bare one", "no folder"],
)
def test_a_folder_that_cannot_be_worked_on_is_refused(place: Place, make: Callable[[Place], Path], words: str) -> None:
    folder = make(place)
    refused(place.run("exec", "Do it.", "-m", place.script(*WORK), "-C", str(folder)), 2, words)
    left_nothing(place)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model = [", ("is not valid TOML",)),
        ('modle = "openai/gpt-5"', ("`modle`",)),
        ('max_turns = "many"', ("`max_turns`",)),
        ("[permissions]\nallow = ['shell(']", ("shell(",)),
        ("model = '\x00'", ("is not valid TOML",)),
    ],
    ids=["syntax", "wrong key", "wrong type", "bad rule", "control byte"],
)
def test_a_damaged_settings_file_is_named(place: Place, text: str, words: tuple[str, ...]) -> None:
    place.config.write_text(text)
    refused(place.run("exec", "Do it.", "-m", place.script(*WORK)), 2, *words)
    left_nothing(place)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nobody/gpt", "openai"),
        ("gpt-5", "openai/gpt-5"),
        ("openai/gpt-5", "OPENAI_API_KEY"),
        ("scripted/missing.json", "missing.json"),
    ],
    ids=["unknown provider", "no provider", "no key", "no script"],
)
def test_a_model_that_cannot_be_used_is_named(place: Place, name: str, words: str) -> None:
    refused(place.run("exec", "Do it.", "-m", name), 2, words)
    left_nothing(place)


def test_without_a_model_and_a_server_it_says_how_to_choose_one(place: Place) -> None:
    own_network = (str(candidates()[0]), "--dev-bind", "/", "/", "--unshare-net", "--")
    refused(place.run("exec", "Do it.", before=own_network), 2, "-m provider/name")
    left_nothing(place)


def test_a_script_with_a_mistake_is_named(place: Place) -> None:
    (place.folder / "bad.json").write_text('{"turns": [{"txt": "x"}]}')
    refused(place.run("exec", "Do it.", "-m", f"scripted/{place.folder / 'bad.json'}"), 2, "turns.0.txt")
    left_nothing(place)


@pytest.mark.parametrize(
    "schema", ["{not json", '{"type": "nothing"}', "missing.json", "", "[]"], ids=lambda text: text or "empty"
)
def test_a_schema_that_is_none_is_refused(place: Place, schema: str) -> None:
    refused(place.run("exec", "Do it.", "-m", place.script(*WORK), "--json-schema", schema), 2, "--json-schema")
    left_nothing(place)


def test_a_budget_needs_a_known_price(place: Place) -> None:
    place.env["OPENAI_API_KEY"] = "planted-key-0123456789"
    result = place.run("exec", "Do it.", "-m", "openai/unpriced", "--max-budget-usd", "1")
    refused(result, 2, "No price is known for openai/unpriced", "[prices]")
    left_nothing(place)


def test_a_key_that_cannot_be_one_is_refused_and_not_shown(place: Place) -> None:
    env = {"OPENAI_API_KEY": "planted\nsecret", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    result = place.run("exec", "Do it.", "-m", "openai/test", env=env)
    refused(result, 2, "OPENAI_API_KEY")
    assert "planted" not in result.err
    left_nothing(place)


def test_a_state_folder_inside_the_checkout_is_refused(place: Place) -> None:
    home = place.repository / ".state"
    refused(place.run("exec", "Do it.", "-m", place.script(*WORK), env={"THALIA_HOME": str(home)}), 2, "THALIA_HOME")
    assert not home.exists()


def test_an_empty_prompt_is_refused(place: Place) -> None:
    refused(place.run("exec", "-", "-m", place.script(*WORK), typed=" \n"), 2, "prompt")
    left_nothing(place)


def test_bypass_needs_its_own_flag(place: Place) -> None:
    result = place.run("exec", "Do it.", "-m", place.script(*WORK), "--permission-mode", "bypass")
    refused(result, 2, "--dangerously-bypass-approvals-and-sandbox")
    left_nothing(place)


@pytest.mark.parametrize(
    "arguments",
    [("resume",), ("resume", "nobody"), ("log",), ("log", "nobody"), ("fork", "nobody"), ("rewind", "nobody@3"),
     ("diff", "nobody"), ("merge", "nobody"), ("replay", "nobody"), ("resume", "../state"), ("log", "")],
    ids=" ".join,
)  # fmt: skip
def test_a_session_that_is_not_there_is_named(place: Place, arguments: tuple[str, ...]) -> None:
    refused(place.run(*arguments), 2, "thalia ")
    left_nothing(place)


def test_what_is_wrong_with_a_name_or_a_number_is_said(place: Place) -> None:
    model = place.script(*WORK)
    assert place.run("exec", "Do it.", "-m", model).code == 0
    first = place.session()
    before = place.events()
    assert place.run("exec", "Do it.", "-m", model).code == 0
    refused(place.run("log", first[:4]), 2, "2 sessions begin with", "more of the id")
    refused(place.run("fork", f"{first}@x"), 2, "ID@SEQ")
    refused(place.run("fork", f"{first}@999"), 2, "There is no event 999", str(len(before)))
    refused(place.run("fork", f"{first}@1"), 2, "no worktree yet")
    refused(place.run("rewind", first), 2, "ID@SEQ")
    refused(place.run("rewind", f"{first}@999"), 2, "There is no event 999")
    refused(place.run("rewind", f"{first}@0"), 2, "There is no event 0")
    refused(place.run("replay", first, "--until", "999"), 2, "There is no event 999")
    refused(place.run("replay", first, "--checkout", str(place.repository)), 2, str(place.repository))
    refused(place.run("sql", "DROP TABLE log"), 2, "Only one SELECT")
    refused(place.run("sql", "SELECT nothing FROM log"), 2, "nothing")
    refused(place.run("log", first, "--export", str(place.folder / "none" / "x.jsonl")), 2, "none")
    assert place.events(first) == before
    assert len(place.sessions()) == 2
    assert place.git("status", "--short") == ""


@pytest.mark.parametrize(
    ("fault", "words"),
    [("401", "OPENAI_API_KEY"), ("404", "404"), ("400", "400")],
    ids=["wrong key", "unknown model", "refused request"],
)
def test_a_model_server_that_refuses_ends_the_turn(place: Place, fault: str, words: str) -> None:
    with serving({"text": "Here.", "faults": [{"fail": fault}]}) as server:
        place.use(server)
        result = place.run("exec", "Do it.", "-m", "openai/test")
        assert result.code == 13
        assert words in result.out
        assert result.err == ""
        assert len(server.requests) == 1
        assert place.run("resume", "--last").code == 0


def test_a_model_server_that_is_not_there_ends_the_turn(place: Place) -> None:
    with serving() as gone:
        place.use(gone)
    place.config.write_text("max_attempts = 2\n")
    result = place.run("exec", "Do it.", "-m", "openai/test")
    assert result.code == 13
    assert "`thalia resume` tries again" in result.out
    with serving({"text": "Here."}) as server:
        place.use(server)
        result = place.run("resume", "--last")
        assert (result.code, result.err) == (0, "")
