"""Sessions in the daemon: the same program, but they outlive the terminal that began them."""

import os
import signal
import sys
from collections.abc import Iterator

import pytest
from cli_program import EDIT, WORK, objects, serving, shell, terminal
from daemon_machine import Machine, machine

from eventlog.events import UserSaid
from processes.tree import read

pytestmark = pytest.mark.xdist_group("daemon-sessions")
WAITS = shell("echo begun >> made.txt; sleep 300")


@pytest.fixture(scope="module")
def computer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """One daemon for all tests here."""
    with machine(tmp_path_factory.mktemp("machine")) as one:
        yield one


@pytest.fixture
def fresh(computer: Machine) -> Iterator[Machine]:
    """Without the sessions of other tests."""
    for name in computer.sessions():
        (computer.home / "sessions" / name).rename(computer.folder / f"past-{name}")
    yield computer
    for session in computer.status()["hosted"]:
        computer.run("stop", session)


def test_exec_runs_in_the_daemon_and_says_what_it_says_without_it(fresh: Machine) -> None:
    model = fresh.script(*WORK)
    within = fresh.run("exec", "change it", "-m", model)
    without = fresh.run("exec", "change it", "-m", model, "--no-daemon")
    assert (within.code, without.code) == (0, 0), within.err
    first, second = fresh.sessions()
    hosts = [fresh.events(name)[0].body.pid for name in (first, second)]  # type: ignore[union-attr]
    assert hosts[0] in fresh.pids()
    assert neutral(within.out, first) == neutral(without.out, second)
    assert fresh.kinds(first) == fresh.kinds(second)


def neutral(text: str, session: str) -> list[str]:
    """Without what differs by time and place."""
    lines = text.replace(session, "SESSION").splitlines()
    return [line.split(" · ")[0] for line in lines if not line.startswith("worktree")]


@pytest.mark.parametrize("format", ["json", "stream-json"])
def test_json_is_the_same_through_the_daemon(fresh: Machine, format: str) -> None:
    done = fresh.run("exec", "change it", "-m", fresh.script(*WORK), "--output-format", format)
    *events, last = objects(done.out)
    assert (done.code, last["state"], last["exit_code"], last["result"]) == (0, "done", 0, "It is changed.")
    if format == "stream-json":
        assert [event["seq"] for event in events] == list(range(1, len(fresh.events()) + 1))


def test_exit_codes_come_through(fresh: Machine) -> None:
    spoiled = fresh.script({"tool_calls": [shell("sudo true")]}, {"text": "I may not."})
    assert fresh.run("exec", "do it", "-m", spoiled).code == 11
    assert fresh.run("exec", "do it", "-m", fresh.script(*WORK), "--max-turns", "1").code == 12
    unknown = fresh.run("exec", "do it", "-m", "nobody/nothing")
    assert (unknown.code, "nobody" in unknown.err) == (2, True)
    missing = fresh.run("exec", "do it", "-m", fresh.script(*WORK), cwd=fresh.folder)
    assert (missing.code, "repository" in missing.err) == (2, True)


def test_the_command_line_imports_neither_ray_nor_duckdb(fresh: Machine) -> None:
    program = (sys.executable, "-I", "-X", "importtime", "-m", "cli")
    model = fresh.script(*WORK)
    for arguments in (
        ("exec", "change it", "-m", model),
        ("attach", "--last"),
        ("resume", "--last", "again", "-m", model),
        ("sessions",),
        ("sql", "SELECT 1"),
        ("status",),
    ):
        done = fresh.run(*arguments, program=program)
        names = {line.split("|")[-1].strip().split(".")[0] for line in done.err.splitlines() if "|" in line}
        assert done.code == 0, done.err
        assert {"typer", "http"} <= names
        assert not {"ray", "duckdb", "httpx", "git"} & names, arguments


def test_closing_the_terminal_leaves_the_session_running_and_attach_comes_back(fresh: Machine) -> None:
    model = fresh.script({"text": "I wait.", "tool_calls": [shell("sleep 4; echo over > over.txt")]}, {"text": "Done."})
    with terminal(fresh, "exec", "wait", "-m", model, "--permission-mode", "auto") as screen:
        screen.wait_for("sleep 4")
        os.killpg(screen.process.pid, signal.SIGHUP)
        screen.process.wait(10)
    assert fresh.session() in fresh.status()["hosted"]
    back = fresh.run("attach", "--last", "--output-format", "stream-json")
    *events, last = objects(back.out)
    assert (back.code, last["state"]) == (0, "done")
    assert [event["seq"] for event in events] == list(range(1, len(fresh.events()) + 1))


def test_ctrl_c_interrupts_the_turn(fresh: Machine) -> None:
    model = fresh.script({"tool_calls": [WAITS]}, {"text": "Done."})
    with terminal(fresh, "exec", "wait", "-m", model, "--permission-mode", "auto") as screen:
        screen.wait_for("sleep 300")
        fresh.wait_started("sleep 300")
        screen.type("\x03")
        screen.wait_for("Interrupting")
        assert screen.finish() == 130
    assert fresh.state().ending is not None
    assert fresh.state().ending.ending == "interrupted"  # type: ignore[union-attr]
    fresh.wait_over()
    assert not any(b"sleep" in read(f"/proc/{pid}/cmdline") for pid in fresh.survivors())


def test_ctrl_c_a_second_time_detaches_and_stop_ends_it(fresh: Machine) -> None:
    """The model is silent, so that the interruption itself takes a moment."""
    model = fresh.script({"text": "Never said.", "delay_ms": 60_000})
    begun = fresh.run("exec", "wait", "-m", model, "--detach")
    assert begun.code == 0
    assert "thalia attach" in begun.out
    with terminal(fresh, "attach", "--last") as screen:
        screen.wait_for("wait")
        screen.process.send_signal(signal.SIGINT)
        screen.process.send_signal(signal.SIGINT)
        assert screen.finish() == 130
    fresh.run("stop", "--last")
    fresh.wait_over()
    ended = fresh.state().ending
    assert ended is not None
    assert ended.ending == "interrupted"


def test_a_question_waits_for_whoever_comes_back(fresh: Machine) -> None:
    model = fresh.script(
        {"tool_calls": [shell("curl -s http://127.0.0.1:9/ ; echo asked > asked.txt")]}, {"text": "Done."}
    )
    with terminal(fresh, "exec", "ask me", "-m", model, "--permission-mode", "ask") as screen:
        screen.wait_for("run it?")
        os.killpg(screen.process.pid, signal.SIGKILL)
        screen.process.wait(10)
    with terminal(fresh, "attach", "--last") as screen:
        screen.wait_for("run it?")
        screen.type("y\n")
        assert screen.finish() == 0
    assert [event.body.kind for event in fresh.events()].count("approved") == 1


def test_resume_speaks_to_a_session_that_runs(fresh: Machine) -> None:
    model = fresh.script({"tool_calls": [shell("sleep 2")]}, {"text": "First."}, {"text": "Second."})
    fresh.run("exec", "one", "-m", model, "--detach")
    fresh.wait_started("sleep 2")
    done = fresh.run("resume", "--last", "two", "--output-format", "json")
    assert (done.code, objects(done.out)[-1]["state"]) == (0, "done")
    said = [event.body.text for event in fresh.events() if isinstance(event.body, UserSaid)]
    assert said == ["one", "two"]


def test_log_follow_shows_each_event_once_until_the_end(fresh: Machine) -> None:
    fresh.run("exec", "wait", "-m", fresh.script({"tool_calls": [shell("sleep 2")]}, {"text": "Done."}), "--detach")
    followed = fresh.run("log", "--last", "--follow", "--output-format", "json")
    assert [event["seq"] for event in objects(followed.out)] == [event.seq for event in fresh.events()]


def test_sql_and_sessions_see_what_runs(fresh: Machine) -> None:
    fresh.run("exec", "wait here", "-m", fresh.script({"tool_calls": [WAITS]}), "--detach")
    fresh.wait_started("sleep 300")
    rows = fresh.run("sql", "SELECT count(*) AS n FROM log WHERE kind = 'user_said'", "--output-format", "json")
    assert objects(rows.out) == [{"n": 1}]
    assert "wait here" in fresh.run("sessions").out
    bad = fresh.run("sql", "DROP TABLE events")
    assert (bad.code, "SELECT" in bad.err) == (2, True)


def test_a_model_that_is_asked_over_the_network_works_and_its_key_stays_secret(fresh: Machine) -> None:
    with serving(*WORK) as server:
        fresh.use(server)
        done = fresh.run("exec", "change it", "-m", "openai/any")
    assert done.code == 0, done.err
    key = fresh.env.pop("OPENAI_API_KEY")
    fresh.env.pop("OPENAI_BASE_URL")
    for pid in fresh.pids():
        assert key.encode() not in read(f"/proc/{pid}/environ")
        assert key.encode() not in read(f"/proc/{pid}/cmdline")
    for folder in (fresh.home, fresh.daemon_place.folder):
        for file in folder.rglob("*"):
            assert not (file.is_file() and key.encode() in file.read_bytes()), file


def test_what_two_terminals_attach_to_they_both_see_whole(fresh: Machine) -> None:
    fresh.run(
        "exec", "wait", "-m", fresh.script({"tool_calls": [shell("sleep 2"), EDIT]}, {"text": "Done."}), "--detach"
    )
    watchers = [fresh.start("attach", "--last", "--output-format", "stream-json") for _ in range(2)]
    shown = [watcher.communicate(timeout=60)[0] for watcher in watchers]
    for text in shown:
        assert [event["seq"] for event in objects(text)[:-1]] == [event.seq for event in fresh.events()]
