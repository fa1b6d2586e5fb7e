"""What a run prints: lines for a person, one object or the log itself for a program; and how it ends."""

import json
import time
from pathlib import Path

import pytest
from cli_program import EDIT, WORK, Place, objects, serving, shell, wait_until

FIELDS = ["session", "state", "result", "exit_code", "turns", "usage", "cost_usd", "worktree", "commit"]
LONG: tuple[dict[str, object], ...] = (
    {"tool_calls": [{"name": "read", "arguments": {"path": "a.py"}}]},
    {"tool_calls": [{"name": "read", "arguments": {"path": "README.md"}}]},
    {"text": "Read."},
)


def test_the_first_line_comes_before_anything_slow(place: Place) -> None:
    begin = time.monotonic()
    with place.start("exec", "-", "-m", place.script(*WORK), stdin=-1) as run:
        assert run.stdout is not None
        first = run.stdout.readline()
        # Reading the prompt comes after the slow imports, so the line did not wait for them or for the session.
        assert place.sessions() == []
        assert time.monotonic() - begin < 10
        out, err = run.communicate("Do it.", timeout=60)
    assert first == f"thalia 0.1.0 · session {place.session()}\n"
    assert (run.returncode, err) == (0, "")
    assert "thalia 0.1.0" not in out


@pytest.mark.both_ways
def test_text_shows_each_step_its_cost_and_what_changed(place: Place) -> None:
    place.config.write_text('[prices."openai/test"]\ninput = 2.0\noutput = 8.0\nwindow = 10000\n')
    usage = {"input": 1000, "output": 500}
    with serving({**WORK[0], "usage": usage}, {**WORK[1], "usage": usage}) as server:
        place.use(server)
        result = place.run("exec", "Change it.", "-m", "openai/test")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    session = place.session()
    assert lines[0] == f"thalia 0.1.0 · session {session}"
    # The worktree is made beside the first model call: its line may stand before or after the reply's.
    steps = [line for line in lines if not line.startswith("worktree ")]
    assert len(steps) == len(lines) - 1
    assert steps[1:4] == ["model openai/test", "> Change it.", "I change it."]
    assert "1,500 tokens · context 15 % · $0.0060" in steps[4]
    assert "● edit a.py" in lines
    assert {"  │ -one", "  │ +two"} <= set(lines)
    assert lines[-3:] == [
        "── done · 2 model calls · 3,000 tokens · context 15 % · $0.0120",
        "   M a.py +1 -1",
        f"see it: thalia diff {session}    take it: thalia merge {session}",
    ]


@pytest.mark.both_ways
def test_a_resumed_session_counts_on_from_where_it_was(place: Place) -> None:
    place.config.write_text('[prices."openai/test"]\ninput = 2.0\noutput = 8.0\nwindow = 10000\n')
    usage = {"input": 1000, "output": 500}
    with serving({"text": "One.", "usage": usage}, {"text": "Two.", "usage": usage}) as server:
        place.use(server)
        assert place.run("exec", "First.", "-m", "openai/test").code == 0
        result = place.run("resume", "--last", "Second.")
    assert "1,500 tokens · context 15 % · $0.0120" in result.out
    assert "── done · 2 model calls · 3,000 tokens · context 15 % · $0.0120" in result.out


def test_an_unknown_price_is_never_called_free(place: Place) -> None:
    with serving(*WORK) as server:
        place.use(server)
        result = place.run("exec", "Change it.", "-m", "openai/unpriced", "--output-format", "json")
    assert json.loads(result.out)["cost_usd"] is None
    assert "cost unknown" in place.run("sessions").out


def test_steps_are_shown_as_they_happen(place: Place) -> None:
    model = place.script(
        {"text": "Now I wait.", "tool_calls": [shell("while [ ! -e go ]; do sleep 0.05; done")]}, {"text": "Ok."}
    )
    with place.start("exec", "Wait.", "-m", model) as run:
        assert run.stdout is not None
        shown = ""
        while "● shell" not in shown:
            shown += run.stdout.readline()
        assert "Now I wait." in shown
        assert run.poll() is None
        wait_until(lambda: bool(place.worktrees()))
        (place.worktrees()[0] / "go").touch()
        run.communicate(timeout=60)


def test_json_is_one_object_with_exactly_these_fields(place: Place) -> None:
    result = place.run("exec", "Do it.", "-m", place.script(*WORK), "--output-format", "json")
    assert (result.code, result.err, result.out.count("\n")) == (0, "", 1)
    value = json.loads(result.out)
    assert list(value) == FIELDS
    assert value["session"] == place.session()
    assert (value["state"], value["result"], value["exit_code"], value["turns"]) == ("done", "It is changed.", 0, 2)
    assert set(value["usage"]) == {"input", "cached", "cache_written", "output", "reasoning"}
    assert Path(value["worktree"], "a.py").read_text() == "two\n"
    assert place.git("cat-file", "-p", f"{value['commit']}:a.py") == "two\n"


@pytest.mark.both_ways
def test_stream_json_is_the_log_and_then_the_result(place: Place) -> None:
    result = place.run("exec", "Do it.", "-m", place.script(*WORK), "--output-format", "stream-json")
    assert (result.code, result.err) == (0, "")
    *events, last = objects(result.out)
    assert list(last) == FIELDS
    assert events == [event.model_dump(mode="json") for event in place.events()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    again = place.run("resume", "--last", "More.", "--output-format", "stream-json")
    *later, _ = objects(again.out)
    assert [event["seq"] for event in later] == list(range(len(events) + 1, len(events) + len(later) + 1))
    assert objects(place.run("log", "--output-format", "stream-json").out) == [*events, *later]


def test_p_c_and_r_are_other_names_for_exec_and_resume(place: Place) -> None:
    model = place.script({"text": "One."}, {"text": "Two."}, {"text": "Three."})
    assert "One." in place.run("-p", "First.", "-m", model).out
    assert "Two." in place.run("-c", "Second.").out
    assert "Three." in place.run("-r", place.session(), "Third.").out
    said = [event.body.text for event in place.events() if event.body.kind == "user_said"]
    assert said == ["First.", "Second.", "Third."]


def test_a_prompt_is_read_from_standard_input(place: Place) -> None:
    assert place.run("exec", "-", "-m", place.script({"text": "Ok."}), typed="From a pipe.\n").code == 0
    assert "> From a pipe." in place.run("replay").out


@pytest.mark.both_ways
def test_resume_with_merge_brings_the_result_to_the_checkout(place: Place) -> None:
    model = place.script(*WORK)
    assert place.run("exec", "Do it.", "-m", model).code == 0
    assert (place.repository / "a.py").read_text() == "one\n"
    result = place.run("resume", "--last", "--merge")
    assert (result.code, result.err) == (0, "")
    assert "  ✓ a.py" in result.out
    assert "take it" not in result.out
    assert (place.repository / "a.py").read_text() == "two\n"
    assert place.git("status", "--short") == " M a.py\n"


def test_merge_refuses_what_it_would_overwrite(place: Place) -> None:
    assert place.run("exec", "Do it.", "-m", place.script(*WORK)).code == 0
    (place.repository / "a.py").write_text("mine\n")
    result = place.run("merge")
    assert result.code == 10
    assert "a.py" in result.out
    assert (place.repository / "a.py").read_text() == "mine\n"
    assert place.run("exec", "Do it.", "-m", place.script({"text": "No."}), "--merge").code == 0


def test_a_session_stopped_at_its_turns_goes_on_with_more(place: Place) -> None:
    model = place.script(*LONG)
    result = place.run("exec", "Do it.", "-m", model, "--max-turns", "1")
    assert result.code == 12
    assert "thalia resume --max-turns N" in result.out
    assert place.run("resume", "--last").code == 12
    result = place.run("resume", "--last", "--max-turns", "9", "--output-format", "json")
    assert (result.code, json.loads(result.out)["result"]) == (0, "Read.")


@pytest.mark.both_ways
def test_a_session_stopped_at_its_budget_goes_on_with_more(place: Place) -> None:
    place.config.write_text('[prices."openai/test"]\ninput = 10.0\noutput = 10.0\n')
    with serving(*({**turn, "usage": {"input": 9000, "output": 1000}} for turn in LONG)) as server:
        place.use(server)
        result = place.run("exec", "Do it.", "-m", "openai/test", "--max-budget-usd", "0.15")
        assert result.code == 12, result
        assert "thalia resume --max-budget-usd N" in result.out
        spent = len(server.requests)
        assert spent == 1
        result = place.run("resume", "--last", "--max-budget-usd", "5", "--output-format", "json")
        assert (result.code, json.loads(result.out)["result"]) == (0, "Read.")
        assert json.loads(result.out)["cost_usd"] == pytest.approx(0.3)


def test_what_nobody_can_permit_is_withheld_and_told(place: Place) -> None:
    """G28."""
    with serving({"tool_calls": [shell("echo x > /dev/tcp/localhost/80")]}, {"text": "Then not."}) as server:
        place.use(server)
        begin = time.monotonic()
        result = place.run("exec", "Fetch it.", "-m", "openai/test")
        assert time.monotonic() - begin < 10
        assert b"Not permitted unattended" in server.requests[1]
    assert (result.code, result.err) == (11, "")
    assert "withheld" in result.out
    assert "call_rejected" in place.kinds()


@pytest.mark.both_ways
def test_a_reply_that_does_not_fit_its_schema_fails_the_check(place: Place) -> None:
    schema = json.dumps({"type": "object", "required": ["n"]})
    model = place.script({"text": "no"}, {"text": '{"m": 1}'}, {"text": "still no"})
    result = place.run("exec", "Say n.", "-m", model, "--json-schema", schema, "--output-format", "json")
    assert result.code == 14
    assert json.loads(result.out)["exit_code"] == 14
    model = place.script({"text": "no"}, {"text": '{"n": 1}'})
    result = place.run("exec", "Say n.", "-m", model, "--json-schema", schema, "--output-format", "json")
    assert result.code == 0
    assert json.loads(json.loads(result.out)["result"]) == {"n": 1}


def test_a_check_that_fails_keeps_the_result_out_of_the_checkout(place: Place) -> None:
    model = place.script({"tool_calls": [EDIT]}, {"text": "no"}, {"text": "no"}, {"text": "no"})
    result = place.run("exec", "Do it.", "-m", model, "--json-schema", '{"type": "object"}', "--merge")
    assert result.code == 14
    assert (place.repository / "a.py").read_text() == "one\n"
