"""Agents of a session in the daemon: processes of their own, which die, hang, outlive their session, are stopped."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_program import objects, wait_until
from daemon_machine import Machine, machine

from actors.history import Verified, verify
from eventlog.effects import RunTool, SpawnAgent
from eventlog.events import EffectFinished, EffectStarted, Event, LeaseGranted, SessionOpened
from eventlog.outcomes import AgentEnded, AttemptLost
from processes.tree import descendants, fields, is_alive, read, send

pytestmark = pytest.mark.xdist_group("fanout-daemon")
LIMIT_S = 3.0
COUNTED = "echo ran >> count.txt; until [ -e gate ]; do sleep 0.05; done; echo ended >> count.txt; rm gate"


@pytest.fixture(scope="module")
def computer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("machine"), {"THALIA_HUNG_S": str(LIMIT_S)}) as one:
        assert one.run("up").code == 0
        yield one


@pytest.fixture
def fresh(computer: Machine) -> Iterator[Machine]:
    yield computer
    computer.put_aside()


def agents_at_work(computer: Machine) -> list[int]:
    """Processes of agents below which a command runs."""
    return [pid for pid in computer.pids() if is_agent(pid) and any(b"count.txt" in line(p) for p in descendants(pid))]


def is_agent(pid: int) -> bool:
    return line(pid).startswith(b"ray::AgentWorker")


def line(pid: int) -> bytes:
    return read(f"/proc/{pid}/cmdline")


def begin(computer: Machine, *arguments: str):
    """One agent counts and waits for its gate, the other is done at once."""
    path = computer.folder / "fan.json"
    shell = {"name": "shell", "arguments": {"command": COUNTED}}
    write = {"name": "write", "arguments": {"path": "b.txt", "content": "b\n"}}
    conversations = [
        {"when": "Count.", "turns": [{"tool_calls": [shell]}, {"text": "Counted."}]},
        {"when": "Write.", "turns": [{"tool_calls": [write]}, {"text": "Written."}]},
    ]
    path.write_text(json.dumps({"turns": [], "conversations": conversations}))
    model = ("-m", f"scripted/{path}", "--output-format", "stream-json")
    run = computer.start("fanout", "Count.", "Write.", *model, *arguments)
    wait_until(lambda: bool(agents_at_work(computer)), 60)
    return run


def worktree(computer: Machine) -> Path:
    # One that is set back has none for a moment.
    wait_until(lambda: any(computer.home.glob("worktrees/*/*/count.txt")))
    [found] = computer.home.glob("worktrees/*/*/count.txt")
    return found.parent


def finish(computer: Machine, run) -> tuple[Event, ...]:
    """The gate opens as soon as there is one to open; the whole log, which must be right."""
    (worktree(computer) / "gate").touch()
    out, err = run.communicate(timeout=90)
    assert run.returncode == 0, (out[-2000:], err)
    computer.wait_over()
    events = computer.events()
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [seen["seq"] for seen in objects(out) if "seq" in seen] == [event.seq for event in events], "each shown once"
    assert isinstance(verify(events), Verified)
    state = computer.state()
    assert state.worktree is not None
    assert (Path(state.worktree.path) / "count.txt").read_text() == "ran\nended\n", "once"
    assert (Path(state.worktree.path) / "b.txt").read_text() == "b\n"
    assert started(events) >= {("f1-1", 1), ("f1-2", 1)} and len({agent for agent, _ in started(events)}) == 2
    return events


def started(events: tuple[Event, ...]) -> set[tuple[str, int]]:
    """(agent, attempt)."""
    bodies = [event.body for event in events if isinstance(event.body, EffectStarted)]
    return {(body.effect.agent, body.attempt) for body in bodies if isinstance(body.effect, SpawnAgent)}


def lost(events: tuple[Event, ...]) -> list[str]:
    bodies = [event.body for event in events if isinstance(event.body, EffectFinished) and event.actor == "main"]
    return [body.outcome.evidence for body in bodies if isinstance(body.outcome, AttemptLost)]


def test_an_agent_whose_process_is_killed_goes_on_from_the_log_and_its_command_is_waited_for(fresh: Machine) -> None:
    run = begin(fresh)
    [agent] = agents_at_work(fresh)
    send([agent], signal.SIGKILL)
    wait_until(lambda: "f1-1" in leases(fresh) and leases(fresh)["f1-1"] == 2)
    events = finish(fresh, run)
    assert ("f1-1", 2) in started(events) and len(lost(events)) == 1
    shells = [e.body for e in events if isinstance(e.body, EffectStarted) and isinstance(e.body.effect, RunTool)]
    assert len([body for body in shells if body.effect.kind == "run_tool" and body.effect.tool == "shell"]) == 1


def test_an_agent_that_is_killed_with_all_that_it_runs_is_set_back_and_counts_once(fresh: Machine) -> None:
    run = begin(fresh)
    [agent] = agents_at_work(fresh)
    send([agent, *descendants(agent)], signal.SIGKILL)
    wait_until(lambda: any(pid != agent for pid in agents_at_work(fresh)))
    finish(fresh, run)


def test_agents_outlive_the_process_of_their_session_and_are_found_by_the_next(fresh: Machine) -> None:
    run = begin(fresh)
    [agent] = agents_at_work(fresh)
    host = fresh.host()
    send([host], signal.SIGKILL)
    wait_until(lambda: fresh.is_open() and fresh.host() != host)
    events = finish(fresh, run)
    assert lost(events) == [] and leases_in(events)["f1-1"] == 1, "the same incarnation went on"
    assert sum(isinstance(event.body, SessionOpened) for event in events) == 2
    assert is_alive(agent), "warm for the next"


def test_an_agent_whose_process_is_stopped_is_replaced_after_the_limit(fresh: Machine) -> None:
    run = begin(fresh)
    [agent] = agents_at_work(fresh)
    send([agent], signal.SIGSTOP)
    wait_until(lambda: fields(agent)[:1] == [b"T"])
    wait_until(lambda: leases(fresh).get("f1-1") == 2)
    events = finish(fresh, run)
    assert len(lost(events)) == 1 and "did not answer" in lost(events)[0]
    assert not is_alive(agent)


def test_one_agent_is_stopped_by_itself_and_the_others_work_is_merged(fresh: Machine) -> None:
    run = begin(fresh)
    assert fresh.run("stop", f"{fresh.session()}/f9").code == 2
    done = fresh.run("stop", f"{fresh.session()}/f1-1")
    assert done.code == 0, done.err
    out, _ = run.communicate(timeout=60)
    assert run.returncode == 10, out[-2000:]
    fresh.wait_over()
    ends = [e.body.outcome for e in fresh.events() if isinstance(e.body, EffectFinished)]
    assert sorted(end.ending for end in ends if isinstance(end, AgentEnded)) == ["done", "interrupted"]
    assert agents_at_work(fresh) == []
    state = fresh.state()
    assert state.worktree is not None and (Path(state.worktree.path) / "b.txt").exists()


def test_who_follows_one_agent_sees_what_it_does(fresh: Machine) -> None:
    run = begin(fresh)
    follower = fresh.start("attach", f"{fresh.session()}/f1-1")
    finish(fresh, run)
    out, err = follower.communicate(timeout=60)
    assert follower.returncode == 0, err
    assert "Counted." in out and "● shell echo ran" in out and "write b.txt" not in out


def test_a_session_that_is_stopped_leaves_no_agent_at_work(fresh: Machine) -> None:
    run = begin(fresh)
    [agent] = agents_at_work(fresh)
    assert fresh.run("stop", fresh.session()).code == 0
    run.communicate(timeout=60)
    assert run.returncode == 130
    assert agents_at_work(fresh) == [] and fresh.survivors() == []
    records = [json.loads(path.read_text()) for path in fresh.home.glob("worktrees/*/*.json")]
    assert [one["key"] for one in records if one["state"] != "free"] == [fresh.session()]
    assert is_alive(agent)


def test_warm_agents_serve_another_session(fresh: Machine) -> None:
    finish(fresh, begin(fresh))
    before = {pid for pid in fresh.pids() if is_agent(pid)}
    fresh.put_aside()
    finish(fresh, begin(fresh))
    assert {pid for pid in fresh.pids() if is_agent(pid)} == before


def leases(computer: Machine) -> dict[str, int]:
    return leases_in(computer.events())


def leases_in(events: tuple[Event, ...]) -> dict[str, int]:
    bodies = [event.body for event in events if isinstance(event.body, LeaseGranted)]
    return {body.agent: body.lease for body in bodies}
