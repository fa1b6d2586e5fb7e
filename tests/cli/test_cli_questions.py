"""Mode ask at a terminal: the whole question is shown, and the answer is what happens."""

import os
import signal
from collections.abc import Mapping
from typing import Any

import pytest
from cli_program import Place, serving, shell, terminal

PROMPT = "run it? [y/N, or a word of why not]"
ASKED = "echo x > /dev/tcp/127.0.0.1/9; echo tried > tried"
QUESTION: Mapping[str, Any] = {"text": "May I?", "tool_calls": [shell(ASKED)]}
PADDED = f"echo '{' ' * 300}'; touch tried"
HOSTILE = (
    "\x1b[2J",
    "\x1b[8mhidden",
    "\x1b]52;c;eA==\x07",
    "\x1b]8;;http://x\x07a\x1b]8;;\x07",
    "rm -rf x\rls    ",
    "\x9b2J",
)


def tried(place: Place) -> bool:
    return any((tree / "tried").exists() for tree in place.worktrees())


def test_a_yes_runs_the_command(place: Place) -> None:
    with serving(QUESTION, {"text": "Thank you."}) as server:
        place.use(server)
        with terminal(place, "exec", "Do it.", "-m", "openai/test") as screen:
            screen.wait_for(PROMPT)
            assert ASKED in screen.text
            assert not tried(place)
            screen.type("y\n")
            screen.wait_for("Thank you.")
            assert screen.finish() == 0
    assert tried(place)
    kinds = place.kinds()
    assert kinds.index("approved") < kinds.index("effect_finished", kinds.index("approved"))


@pytest.mark.both_ways
def test_a_long_reply_behind_an_answer_is_shown_whole(place: Place) -> None:
    text = "".join(f"Line {number} of a long reply.\n" for number in range(4000))
    with serving(QUESTION, {"text": text}) as server:
        place.use(server)
        with terminal(place, "exec", "Do it.", "-m", "openai/test") as screen:
            screen.wait_for(PROMPT)
            screen.type("n\n")
            assert screen.finish() == 0
        assert all(f"Line {number} of" in screen.text for number in range(4000))


@pytest.mark.both_ways
def test_a_no_and_its_reason_reach_the_model(place: Place) -> None:
    with serving(QUESTION, {"text": "I see."}) as server:
        place.use(server)
        with terminal(place, "exec", "Do it.", "-m", "openai/test") as screen:
            screen.wait_for(PROMPT)
            screen.type("use the local mirror\n")
            screen.wait_for("I see.")
            screen.finish()
        assert b"use the local mirror" in server.requests[1]
        assert b"did not run" in server.requests[1]
    assert not tried(place)


def test_an_empty_line_is_a_no(place: Place) -> None:
    with serving(QUESTION, {"text": "I see."}) as server:
        place.use(server)
        with terminal(place, "exec", "Do it.", "-m", "openai/test") as screen:
            screen.wait_for(PROMPT)
            screen.type("\n")
            screen.wait_for("I see.")
            screen.finish()
        assert b"did not allow this call" in server.requests[1]
    assert not tried(place)


def test_the_question_shows_all_of_the_command_and_obeys_none_of_it(place: Place) -> None:
    """G23."""
    calls = [shell(f"echo '{text}' > /dev/tcp/127.0.0.1/9") for text in HOSTILE]
    with serving({"tool_calls": [*calls, shell(PADDED + " > /dev/tcp/127.0.0.1/9")]}, {"text": "Ok."}) as server:
        place.use(server)
        with terminal(place, "exec", "Do it.", "-m", "openai/test") as screen:
            for _ in range(len(calls) + 1):
                seen = len(screen.shown)
                screen.wait_for(PROMPT, after=max(seen - 1, 0))
                screen.type("n\n")
            screen.wait_for("Ok.")
            screen.finish()
    shown = screen.text
    assert not {"\x1b", "\r", "\x07", "\x9b"} & set(shown)
    for escaped in ("\\u001b[2J", "\\u001b[8mhidden", "\\u001b]52;c;eA==\\u0007", "rm -rf x\\rls    ", "<U+009B>2J"):
        assert escaped in shown
    assert "touch tried" in shown
    assert " " * 300 in shown
    assert not tried(place)


@pytest.mark.both_ways
def test_ctrl_c_at_the_question_interrupts_the_turn(place: Place) -> None:
    with serving(QUESTION, {"text": "Never."}) as server:
        place.use(server)
        with terminal(place, "exec", "Do it.", "-m", "openai/test") as screen:
            screen.wait_for(PROMPT)
            screen.type("\x03")
            assert screen.finish(10) == 130
        assert not tried(place)
        result = place.run("resume", "--last", "Another way, then.")
        assert (result.code, "Never." in result.out) == (0, True)
    assert "Traceback" not in screen.text


def test_a_question_survives_a_kill_and_is_asked_again(place: Place) -> None:
    with serving(QUESTION, {"text": "Thank you."}) as server:
        place.use(server)
        with terminal(place, "exec", "Do it.", "-m", "openai/test") as screen:
            screen.wait_for(PROMPT)
            os.kill(screen.process.pid, signal.SIGKILL)
            screen.process.wait()
        result = place.run("resume", "--last")
        assert (result.code, "a question waits for you" in result.out) == (10, True), result
        with terminal(place, "resume", "--last") as again:
            again.wait_for(PROMPT)
            assert ASKED in again.text
            again.type("y\n")
            again.wait_for("Thank you.")
            assert again.finish() == 0
        assert len(server.requests) == 2
    assert tried(place)


def test_what_was_typed_before_the_question_is_no_answer(place: Place) -> None:
    with serving({**QUESTION, "delay_ms": 700}, {"text": "I see."}) as server:
        place.use(server)
        with terminal(place, "exec", "Do it.", "-m", "openai/test") as screen:
            screen.wait_for("model openai/test")
            screen.type("y\n")
            screen.wait_for(PROMPT)
            screen.type("n\n")
            screen.wait_for("I see.")
            screen.finish()
    assert not tried(place)


def test_ctrl_d_leaves_the_question_open(place: Place) -> None:
    with serving(QUESTION, {"text": "Thank you."}) as server:
        place.use(server)
        with terminal(place, "exec", "Do it.", "-m", "openai/test") as screen:
            screen.wait_for(PROMPT)
            screen.type("\x04")
            assert screen.finish() == 10
        assert "a question waits for you" in screen.text
        assert len(server.requests) == 1
    assert not tried(place)


def test_text_appears_on_a_terminal_as_the_model_writes_it(place: Place) -> None:
    words = "A long reply in many words. " * 30
    with serving({"text": words, "chunk_bytes": 40}) as server:
        place.use(server)
        with terminal(place, "exec", "Do it.", "-m", "openai/test") as screen:
            assert screen.finish() == 0
    assert screen.text.count("A long reply") == 30
    assert screen.text.count(words.strip()) == 1
