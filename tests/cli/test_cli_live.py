"""A session that runs: others may read it and fork it, none may write it; Ctrl-C ends its turn."""

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_program import EDIT, KEY, Place, objects, serving, shell, wait_until

from agent.models.server import ModelServer
from processes.tree import pids, read

WAITING = {"text": "I wait.", "tool_calls": [EDIT, shell("echo begun > marker; sleep 60 & sleep 60")]}

EDITING = {"tool_calls": [EDIT, shell("env; sleep 0.3; cat a.py")]}


@contextmanager
def running(place: Place, server: ModelServer) -> Iterator["subprocess.Popen[str]"]:
    """A session in the middle of its command."""
    place.use(server)
    with place.start("exec", "Do it.", "-m", "openai/test", "--output-format", "stream-json") as run:
        try:
            wait_until(lambda: any(place.home.glob("worktrees/*/*/marker")))
            yield run
        finally:
            if run.poll() is None:
                run.kill()


@pytest.mark.alone("a daemon hands what is said to the session that runs")
def test_a_second_resume_is_refused_and_reading_and_forking_work(place: Place) -> None:
    with serving(WAITING, {"text": "Done."}) as server, running(place, server) as run:
        name = place.session()
        begin = time.monotonic()
        result = place.run("resume", name, "Me too.")
        assert time.monotonic() - begin < 10
        assert (result.code, result.err.count("\n")) == (10, 1), result
        assert f"process {run.pid}" in result.err
        assert "thalia log" in result.err
        assert "thalia fork" in result.err
        assert place.run("merge", name).code == 10
        assert place.run("rewind", f"{name}@9").code == 10
        seen = objects(place.run("log", name, "--output-format", "json").out)
        assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))
        assert "running" in place.run("sessions").out
        assert place.run("sql", "SELECT count(*) FROM log").code == 0
        assert "-one" in place.run("diff", name).out
        forked = place.run("fork", name)
        assert (forked.code, forked.err) == (0, "")
        assert run.poll() is None
        [other] = set(place.sessions()) - {name}
        result = place.run("resume", other)
        assert (result.code, "Done." in result.out) == (0, True), result
        assert b"whether it ran is unknown" in server.requests[-1]
        run.send_signal(signal.SIGINT)
        out, _ = run.communicate(timeout=30)
    shown = objects(out)
    assert shown[: len(seen)] == seen


@pytest.mark.both_ways
def test_ctrl_c_interrupts_the_turn_and_the_session_goes_on(place: Place) -> None:
    with serving(WAITING, {"text": "Done."}) as server, running(place, server) as run:
        begin = time.monotonic()
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=30)
        assert time.monotonic() - begin < 15
        assert (run.returncode, err) == (130, "")
        wait_until(lambda: place.survivors() == [], 2)
        last = objects(out)[-1]
        assert (last["state"], last["exit_code"]) == ("interrupted", 130)
        result = place.run("resume", "--last", "Go on.")
        assert (result.code, result.err) == (0, "")
        assert [message["role"] for message in messages(server)] == [
            "system", "user", "assistant", "tool", "tool", "user",
        ]  # fmt: skip
        assert place.run("replay", "--verify").code == 0


def test_ctrl_c_while_the_model_writes_keeps_nothing_of_its_reply(place: Place) -> None:
    with serving({"text": "Slow.", "delay_ms": 60_000}, {"text": "Never."}) as server:
        place.use(server)
        with place.start("exec", "Do it.", "-m", "openai/test") as run:
            wait_until(lambda: bool(server.requests))
            run.send_signal(signal.SIGINT)
            out, err = run.communicate(timeout=10)
    assert (run.returncode, err) == (130, "")
    assert "interrupted" in out
    with serving({"text": "Quick."}) as server:
        place.use(server)
        assert place.run("resume", "--last").code == 0
        assert [message["role"] for message in messages(server)] == ["system", "user"]


def test_ctrl_c_twice_leaves_the_session_as_it_is(place: Place) -> None:
    stubborn = {"tool_calls": [shell("trap '' TERM INT HUP; echo begun > marker; sleep 61")]}
    with serving(stubborn, {"text": "Done."}) as server, running(place, server) as run:
        run.send_signal(signal.SIGINT)
        wait_until(lambda: "interrupted" in place.kinds())
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=10)
        assert run.returncode == 130
        assert err.count("\n") <= 1, err
        assert place.run("resume", "--last").code in (0, 130)
        assert place.run("replay", "--verify").code == 0
    wait_until(lambda: place.survivors() == [], 5)


def test_ctrl_c_before_the_session_began_leaves_nothing(place: Place) -> None:
    with place.start("exec", "-", "-m", place.script({"text": "Ok."}), stdin=subprocess.PIPE) as run:
        assert run.stdout is not None
        run.stdout.readline()
        wait_until(lambda: waits_for_input(run.pid))
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=10)
    assert run.returncode == 130, err
    assert err.count("\n") <= 1, err
    assert place.sessions() == []


def waits_for_input(pid: int) -> bool:
    return "pipe" in Path(f"/proc/{pid}/wchan").read_text()


def test_the_key_is_in_no_command_line_and_in_no_file(place: Place) -> None:
    """G22, from the first moment to the last."""
    with serving(EDITING, {"text": "Done."}) as server:
        place.use(server)
        with place.start("exec", "Do it.", "-m", "openai/test") as run:
            while run.poll() is None:
                assert KEY.encode() not in command_lines()
        assert run.returncode == 0
        assert KEY.encode() not in b"".join(server.requests)
        assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    stored = b"".join(path.read_bytes() for path in place.home.rglob("*") if path.is_file())
    assert KEY.encode() not in stored


def command_lines() -> bytes:
    return b"".join(read(f"/proc/{pid}/cmdline") for pid in pids())


def messages(server: ModelServer) -> list[dict[str, str]]:
    return json.loads(server.requests[-1])["messages"]
