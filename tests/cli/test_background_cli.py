"""Agents in the background from the command line, and in the daemon: processes that die and outlive their session."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest
from cli_program import Place, wait_until
from daemon_machine import Machine, machine

from actors.history import Verified, verify
from eventlog.effects import RunTool, WakeAgent
from eventlog.events import AgentReported, EffectFinished, EffectStarted, Event, SessionOpened
from eventlog.outcomes import AgentEnded, AttemptLost, Report
from processes.tree import descendants, is_alive, read, send
from tests.chaos.invariants import check_session
from tests.worktrees.repositories import plain_git

pytestmark = pytest.mark.xdist_group("background-daemon")
COUNTED = "echo ran >> count.txt; until [ -e gate ]; do sleep 0.05; done; echo ended >> count.txt; rm gate"
SILENT = {"tool_calls": [{"name": "stay_silent", "arguments": {"reason": "Nothing new."}}]}
FOUND = {"name": "report", "arguments": {"text": "It is red.", "priority": "high", "evidence": ["count.txt"]}}


def model(folder: Path, *turns: object, **conversations: list[object]) -> str:
    """An agent's conversation is known by its first wake-up: `start` or `turn_end`."""
    when = {"start": "The session begins.", "turn_end": "The main agent says that it is done"}
    talks = [{"when": when[name], "turns": said} for name, said in conversations.items()]
    path = folder / "background.json"
    path.write_text(json.dumps({"turns": list(turns), "conversations": talks}))
    return f"scripted/{path}"


def call(name: str, **arguments: object) -> dict[str, object]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


def test_what_one_reports_is_shown_and_its_silence_too(place: Place) -> None:
    said = model(
        place.folder, call("write", path="b.txt", content="b\n"), {"text": "Done."}, {"text": "I heard."},
        start=[SILENT], turn_end=[{"tool_calls": [FOUND]}],
    )  # fmt: skip
    done = place.run("exec", "Do it.", "-m", said, "--agent", "scout", "--agent", "reviewer")
    assert done.code == 0, done.err
    assert "in the background: scout (configs/agents/scout.md), reviewer (configs/agents/reviewer.md)" in done.out
    assert "◌ scout has nothing to report: Nothing new." in done.out
    assert "◆ reviewer reports (high)" in done.out and "  │ It is red." in done.out and "I heard." in done.out
    listed = place.run("agents", "--last")
    assert "scout    rests" in listed.out and "silent     Nothing new." in listed.out
    assert "reported   It is red." in listed.out
    one, two = (json.loads(line) for line in place.run("agents", "--last", "--json").out.splitlines())
    assert (one["agent"], one["stage"], two["said"]["priority"]) == ("scout", "resting", "high")


def test_which_there_are_is_listed_with_what_is_wrong_with_the_others(place: Place) -> None:
    folder = place.repository / ".agents" / "agents"
    folder.mkdir(parents=True)
    (folder / "odd.md").write_text("no front matter\n")
    (folder / "own.md").write_text("---\ndescription: Ours.\n---\nLook.\n")
    shown = place.run("agents", "--available", "-C", str(place.repository)).out
    assert "checker " in shown and "configs/agents/scout.md; wakes on start, commit, question" in shown
    assert ".agents/agents/own.md; counts where it is named" in shown
    assert "! The agent definition '.agents/agents/odd.md' cannot be used" in shown


def test_one_that_is_not_there_is_a_mistake_in_the_command(place: Place) -> None:
    done = place.run("exec", "Do it.", "-m", model(place.folder, {"text": "Done."}), "--agent", "nobody")
    assert done.code != 0 and "There is no background agent 'nobody'; there are checker, reviewer, scout." in done.err


@pytest.fixture(scope="module")
def computer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("machine")) as one:
        assert one.run("up").code == 0
        yield one


@pytest.fixture
def fresh(computer: Machine) -> Iterator[Machine]:
    yield computer
    computer.put_aside()


def begin(computer: Machine) -> "Popen[str]":
    """A checker counts in its worktree until somebody opens its gate; the main agent waits for what it says."""
    counts = [call("shell", command=COUNTED, timeout_s=60), {"tool_calls": [FOUND]}, *[SILENT] * 5]
    main = [
        call("shell", command="true"),
        call("ask_agent", agent="checker", question="Is it green?"),
        {"text": "Done."},
    ]
    said = model(computer.folder, *main, start=counts)
    run = computer.start("exec", "Do it.", "-m", said, "--agent", "checker", "--output-format", "stream-json")
    wait_until(lambda: bool(at_work(computer)), 60)
    return run


def at_work(computer: Machine) -> list[int]:
    """Processes of agents below which the command runs."""
    agents = [pid for pid in computer.pids() if read(f"/proc/{pid}/cmdline").startswith(b"ray::AgentWorker")]
    return [pid for pid in agents if any(b"count.txt" in read(f"/proc/{p}/cmdline") for p in descendants(pid))]


def finish(computer: Machine, run: "Popen[str]") -> tuple[Event, ...]:
    wait_until(lambda: any(computer.home.glob("worktrees/*/*/count.txt")))
    [counted] = computer.home.glob("worktrees/*/*/count.txt")
    (counted.parent / "gate").touch()
    out, err = run.communicate(timeout=90)
    assert run.returncode == 0, (out[-2000:], err)
    computer.wait_over()
    events = computer.events()
    check_session(events)
    assert isinstance(verify(events), Verified)
    # At its next wake-up its worktree was set to the session's files; what it had made is kept.
    kept = f"refs/thalia/{computer.session()}+checker/changes/1:count.txt"
    assert plain_git(computer.repository, "show", kept) == "ran\nended", "once"
    reports = [e.body.outcome.said for e in events if isinstance(e.body, EffectFinished)
               and isinstance(e.body.outcome, AgentEnded) and isinstance(e.body.outcome.said, Report)]  # fmt: skip
    told = [event for event in events if isinstance(event.body, AgentReported)]
    assert [one.text for one in reports] == ["It is red."] and len(told) == 1
    return events


def attempts(events: tuple[Event, ...]) -> list[tuple[int, int]]:
    """(round, attempt) of each wake-up."""
    bodies = [event.body for event in events if isinstance(event.body, EffectStarted)]
    return [(body.effect.round, body.attempt) for body in bodies if isinstance(body.effect, WakeAgent)]


def test_one_whose_process_is_killed_goes_on_from_the_log_and_its_command_is_waited_for(fresh: Machine) -> None:
    run = begin(fresh)
    [agent] = at_work(fresh)
    send([agent], signal.SIGKILL)
    wait_until(lambda: (1, 2) in attempts(fresh.events()))
    events = finish(fresh, run)
    assert attempts(events)[:2] == [(1, 1), (1, 2)]
    lost = [e for e in events if isinstance(e.body, EffectFinished) and isinstance(e.body.outcome, AttemptLost)]
    assert len(lost) == 1
    shells = [e.body.effect for e in events if e.actor == "checker" and isinstance(e.body, EffectStarted)]
    assert len([one for one in shells if isinstance(one, RunTool) and one.tool == "shell"]) == 1


def test_one_outlives_the_process_of_its_session_and_is_found_by_the_next(fresh: Machine) -> None:
    run = begin(fresh)
    [agent] = at_work(fresh)
    host = fresh.host()
    send([host], signal.SIGKILL)
    wait_until(lambda: fresh.is_open() and fresh.host() != host)
    events = finish(fresh, run)
    assert (1, 2) not in attempts(events), "the same incarnation went on"
    assert sum(isinstance(event.body, SessionOpened) for event in events) == 2
    assert is_alive(agent), "warm for its next wake-up"


def test_what_one_does_is_stopped_by_itself_and_the_session_goes_on(fresh: Machine) -> None:
    run = begin(fresh)
    done = fresh.run("stop", f"{fresh.session()}/checker")
    assert done.code == 0, done.err
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 0, out[-2000:]
    fresh.wait_over()
    assert at_work(fresh) == []
    check_session(fresh.events())
