"""Several agents at once from the command line: what is asked for, how it ends, what is seen of it meanwhile."""

import json
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest
import typer
from cli_program import Place, Result, Turns, objects, shell, wait_until
from daemon_machine import Machine
from fan_program import script, wait_at_gate, write, writing
from typer.testing import CliRunner

from agent.roster import list_agents
from eventlog.effects import RunTool, SpawnAgent
from eventlog.events import EffectFinished, EffectStarted, Event, FanOutAsked
from eventlog.ids import MAIN, SessionId
from eventlog.outcomes import BranchAdvanced
from frontends.commands.agents import add_agents
from frontends.commands.fanout import read_tasks
from frontends.commands.options import Stop
from processes.tree import descendants, send
from tests.actors.playing import check_replay
from tests.chaos.invariants import check_nothing_left, check_order, check_outcomes

DONE: Mapping[str, Any] = {"text": "Done."}
NEVER: Turns = ({"text": "Never said.", "delay_ms": 600_000},)
WRONG: Sequence[tuple[str, str]] = (
    ("task = ", "cannot be read as TOML"),
    ("task = 5\n", "begins with [[task]]"),
    ('task = "Do it."\n', "begins with [[task]]"),
    ('[[task]]\ntext = " "\n', "each task needs a text"),
    ("[[task]]\n", "each task needs a text"),
    ("task = [5]\n", "each task needs a text"),
    ('[[tasks]]\ntext = "Do it."\n', "'tasks' is not known"),
    ('[[task]]\ntext = "Do it."\ncheck = "true"\n', "'check' of a task is not known"),
    ('jobs = true\n[[task]]\ntext = "Do it."\n', "`jobs` must be a number"),
    ('jobs = 0\n[[task]]\ntext = "Do it."\n', "`jobs` must be a number"),
    ('check = 1\n[[task]]\ntext = "Do it."\n', "`check` a command"),
    ("jobs = 2\n", "Name at least one task"),
)
"""What a file of tasks holds, and a part of what is said then."""


@pytest.fixture
def fresh(shared: Machine) -> Iterator[Machine]:
    """With a daemon that the module shares, and no session."""
    yield shared
    shared.put_aside()


def fan_out(place: Place, agents: Mapping[str, Turns], *arguments: str, output: str = "json") -> Result:
    return place.run("fanout", *arguments, "-m", script(place, agents), "--output-format", output)


@contextmanager
def running(place: Place, *arguments: str, **more: Any) -> "Iterator[Popen[str]]":
    """A fan-out, and nothing of its process afterwards."""
    with place.start("fanout", *arguments, **more) as run:
        try:
            yield run
        finally:
            run.kill()


def roster(place: Place, *arguments: str) -> list[dict[str, Any]]:
    """What `thalia agents` says to a program."""
    shown = place.run("agents", "--json", *arguments)
    assert (shown.code, shown.err) == (0, "")
    return objects(shown.out)


def stages(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    return [(line["stage"], line["round"]) for line in lines]


def made(place: Place, commit: str) -> dict[str, str]:
    """The files of a commit that were not there at the start."""
    names = place.git("diff", "--name-only", "--diff-filter=A", "main", commit).split()
    return {name: place.git("show", f"{commit}:{name}") for name in names}


def test_tasks_come_from_arguments_and_a_file_and_what_is_typed_counts_first(place: Place) -> None:
    tasks = place.folder / "tasks.toml"
    tasks.write_text('jobs = 3\ncheck = "false"\n[[task]]\ntext = "Write the second file."\n')
    agents = {"the first": writing("one.txt", "1\n"), "the second": writing("two.txt", "2\n")}
    typed = ("Write the first file.", "--file", str(tasks), "--jobs", "1", "--check", "test -s one.txt")
    result = fan_out(place, agents, *typed, output="stream-json")
    assert (result.code, result.err) == (0, "")
    *events, last = objects(result.out)
    assert events == [event.model_dump(mode="json") for event in place.events()], "the log and then the result"
    [asked] = [event.body for event in place.events() if isinstance(event.body, FanOutAsked)]
    assert asked.tasks == ("Write the first file.", "Write the second file.")
    assert (asked.jobs, asked.check) == (1, "test -s one.txt")
    assert (last["state"], last["exit_code"]) == ("done", 0)
    assert made(place, last["commit"]) == {"one.txt": "1\n", "two.txt": "2\n"}
    assert place.git("status", "--short") == "", "until it is merged"


@pytest.mark.alone("a sentence comes before anything runs")
def test_what_cannot_be_begun_is_refused_in_a_sentence(place: Place) -> None:
    table = place.folder / "table.toml"
    table.write_text('[task]\ntext = "Do it."\n')
    asked: Sequence[tuple[Sequence[str], str]] = (
        ((), "Name at least one task"),
        (("--file", str(place.folder / "none.toml")), "none.toml cannot be read as TOML (No such file or directory)."),
        (("--file", str(table)), "table.toml is not a list of tasks (each task begins with [[task]])"),
        (("Do it.", "--base", "nobody"), "There is no commit 'nobody' here"),
    )
    model = script(place, {})
    runs = [place.start("fanout", *arguments, "-m", model, "--output-format", "json") for arguments, _ in asked]
    ends = [(*run.communicate(timeout=60), run.returncode) for run in runs]
    for (out, err, code), (_, told) in zip(ends, asked, strict=True):
        sentence, _, example = err.partition("\n")
        assert (code, out) == (2, ""), err
        assert told in sentence and (example == "" or "[[task]]" in example), err
    assert place.sessions() == []


@pytest.mark.parametrize(("content", "told"), WRONG)
def test_a_file_that_is_no_list_of_tasks_is_refused(tmp_path: Path, content: str, told: str) -> None:
    file = tmp_path / "tasks.toml"
    file.write_text(content)
    with pytest.raises(Stop) as refused:
        read_tasks([], file, None, None)
    assert refused.value.code == 2
    assert told in str(refused.value)


def test_a_file_may_name_its_tasks_in_a_row(tmp_path: Path) -> None:
    file = tmp_path / "tasks.toml"
    file.write_text('task = ["One.", "Two."]\n')
    assert read_tasks([], file, 2, None) == {"tasks": ["One.", "Two."], "jobs": 2, "check": "", "labels": []}


def test_bytes_that_are_no_text_are_taken_as_they_can_be_read() -> None:
    wanted = {"tasks": ["An odd \ufffd task."], "jobs": None, "check": "echo \ufffd", "labels": []}
    assert read_tasks(["An odd \udcff task."], None, None, "echo \udcff") == wanted


def test_base_begins_with_that_commit_and_merge_brings_what_was_made(place: Place) -> None:
    place.git("commit", "--allow-empty", "-m", "second")
    (place.repository / "a.py").write_text("later\n")
    place.git("commit", "-am", "third")
    (place.repository / "dirty.txt").write_text("mine\n")
    agents = {"Copy": ({"tool_calls": [shell("cat a.py > copy.txt; ls > names.txt")]}, DONE)}
    result = fan_out(place, agents, "Copy it.", "--base", "main~2", "--merge")
    assert (result.code, result.err) == (0, "")
    assert (place.repository / "copy.txt").read_text() == "one\n"
    assert "dirty.txt" not in (place.repository / "names.txt").read_text().split()
    assert (place.repository / "a.py").read_text() == "later\n"
    assert place.git("status", "--short").split() == ["??", "copy.txt", "??", "dirty.txt", "??", "names.txt"]


def test_labels_without_the_daemon_are_refused_in_a_sentence(place: Place) -> None:
    result = fan_out(place, {"Copy": (DONE,)}, "Copy it.", "--labels", "zone=b")
    assert result.code == 10
    assert "Only the daemon has agents on other nodes; leave out --no-daemon, or --labels." in result.out
    wrong = place.run("fanout", "Copy it.", "--labels", "zone", "-m", "scripted/none")
    assert wrong.code == 2 and "'zone' is no label; NAME=VALUE is one" in wrong.err


def test_a_check_that_stays_red_ends_with_14_and_what_passes_it_is_merged(place: Place) -> None:
    worse = [part for n in range(3) for part in writing(f"bad{n}.txt", "x\n")]
    agents = {"good": writing("good.txt", "1\n"), "bad": worse}
    result = fan_out(place, agents, "Be good.", "Be bad.", "--jobs", "1", "--check", "test ! -e bad0.txt", "--merge")
    last = json.loads(result.out)
    assert (result.code, last["exit_code"], last["state"]) == (14, 14, "check_failed")
    assert made(place, last["commit"]) == {"good.txt": "1\n"}
    lines = roster(place)
    assert stages(lines) == [("merged", 1), ("red", 3)]
    kept = lines[1]["commit"]
    assert f"git merge {kept}" in last["result"]
    assert set(made(place, kept)) == {"bad0.txt", "bad1.txt", "bad2.txt", "good.txt"}
    assert place.git("status", "--short") == "", "nothing is brought to the checkout of what is not done"


def test_a_conflict_that_stays_ends_with_10_and_both_sides_are_kept(place: Place) -> None:
    leaves = [part for name in ("a.txt", "b.txt", "c.txt") for part in writing(name, "late\n")]
    agents = {"early": writing("a.txt", "early\n"), "late": leaves}
    result = fan_out(place, agents, "Be early.", "Be late.", "--jobs", "1")
    last = json.loads(result.out)
    assert (result.code, last["exit_code"], last["state"]) == (10, 10, "blocked")
    assert made(place, last["commit"]) == {"a.txt": "early\n"}
    lines = roster(place)
    assert stages(lines) == [("merged", 1), ("conflicted", 3)]
    kept = place.git("show", f"{lines[1]['commit']}:a.txt")
    assert {"early", "late"} <= set(kept.split())


@pytest.mark.xdist_group("both-ways")
def test_through_the_daemon_it_is_the_same(fresh: Machine) -> None:
    agents = {
        "upper": ({"tool_calls": [shell("echo ONE > a.py")]}, DONE),
        "double": (
            *({"tool_calls": [shell("echo one one > a.py")]}, DONE),
            *({"tool_calls": [shell("cat a.py; echo ONE ONE > a.py")]}, DONE),
        ),
    }
    model = script(fresh, agents)
    asked = ("fanout", "Make it upper.", "Make it double.", "-m", model, "--jobs", "1", "--check", "test -s a.py")
    ends = [fresh.run(*asked, "--output-format", "json", *way) for way in ((), ("--no-daemon",))]
    assert [end.code for end in ends] == [0, 0], ends
    names = fresh.sessions()
    hosts = [fresh.events(name)[0].body.pid for name in names]  # type: ignore[union-attr]
    assert [pid in fresh.pids() for pid in hosts] == [True, False]
    within, without = (told(fresh, json.loads(end.out)) for end in ends)
    assert within == without
    assert (within["file"], within["rounds"]) == ("ONE ONE\n", {("f1-1", 1), ("f1-2", 1), ("f1-2", 2)})


def told(place: Place, last: Mapping[str, Any]) -> dict[str, object]:
    """Of a session's end what is not of its time and place."""
    name = last["session"]
    lines = [
        {key: value for key, value in line.items() if key not in ("since_us", "commit")} for line in roster(place, name)
    ]
    said = {key: last[key] for key in ("state", "result", "exit_code", "turns", "cost_usd")}
    rounds = set(begun(place.events(name)))
    return {"agents": lines, "rounds": rounds, "file": place.git("show", f"{last['commit']}:a.py"), **said}


@pytest.mark.alone("the process itself is killed")
@pytest.mark.parametrize("commands", ["outlive it", "die with it"])
def test_a_run_killed_in_two_commands_is_finished_by_resume_and_does_each_once(place: Place, commands: str) -> None:
    counted = f"echo begun >> count-NAME; {wait_at_gate(place)}; echo ended >> count-NAME"
    agents = {
        name: ({"tool_calls": [write(f"{name}.txt", "new\n"), shell(counted.replace("NAME", name))]}, DONE)
        for name in ("left", "right")
    }
    tasks = ("Count on the left.", "Count on the right.", "-m", script(place, agents))
    with running(place, *tasks, "--check", "ls *.txt", start_new_session=True) as run:
        wait_until(lambda: len(list(place.home.glob("worktrees/*/*/count-*"))) == 2)
        below = descendants(run.pid) if commands == "die with it" else []
        os.killpg(run.pid, signal.SIGKILL)
        send(below, signal.SIGKILL)
    events = place.events()
    assert open_commands(events) == ["f1-1", "f1-2"]
    shown = place.run("agents").out
    assert shown.count("now        shell echo begun") == 2, shown
    assert f"Nobody runs this session; `thalia resume {place.session()}` goes on." in shown

    for line in list_agents(events):
        Path(line.worktree or "", "gate").touch()
    result = place.run("resume", "--last", "--output-format", "json")
    assert (result.code, result.err) == (0, "")
    counts = {"count-left": "begun\nended\n", "count-right": "begun\nended\n"}
    assert made(place, json.loads(result.out)["commit"]) == {**counts, "left.txt": "new\n", "right.txt": "new\n"}
    events = place.events()
    check_order(events)
    check_replay(events)
    for actor in (MAIN, "f1-1", "f1-2"):
        check_outcomes([event for event in events if event.actor == actor])
    assert begun(events) == [("f1-1", 1), ("f1-2", 1)]
    assert sum(isinstance(e.body, EffectFinished) and isinstance(e.body.outcome, BranchAdvanced) for e in events) == 2
    assert stages(roster(place)) == [("merged", 1), ("merged", 1)]
    check_nothing_left(place.home, place.repository, place.survivors())


def open_commands(events: Sequence[Event]) -> list[str]:
    """Whose commands have no outcome."""
    running: dict[tuple[str, str], str] = {}
    for event in events:
        match event.body:
            case EffectStarted(call_id=call, effect=RunTool(tool="shell")):
                running[event.actor, call] = event.actor
            case EffectFinished(call_id=call):
                running.pop((event.actor, call), None)
            case _:
                pass
    return sorted(running.values())


def begun(events: Sequence[Event]) -> list[tuple[str, int]]:
    """Each round that was begun, as often as it was."""
    bodies = [event.body for event in events if event.actor == MAIN and isinstance(event.body, EffectStarted)]
    return sorted((body.effect.agent, body.effect.round) for body in bodies if isinstance(body.effect, SpawnAgent))


@pytest.mark.both_ways
def test_agents_are_seen_while_they_work_and_afterwards(place: Place) -> None:
    waits = ({"tool_calls": [shell(f"{wait_at_gate(place)}; echo 1 > one.txt")]}, DONE)
    model = script(place, {"first": waits, "second": NEVER, "third": (DONE,)})
    asked = ("The first.\nIn two lines.", "The second.", "The third.", "--jobs", "2", "-m", model)
    with running(place, *asked) as run:
        first = look_at_work(place)
        Path(first["worktree"], "gate").touch()
        wait_until(lambda: [line.stage for line in list_agents(place.events())] == ["merged", "working", "unchanged"])
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=60)
    assert (run.returncode, err.strip()) == (130, ""), (out, err)
    first, second, third = roster(place, place.session()[:-1])
    assert (first["stage"], first["worktree"], first["doing"]) == ("merged", None, "")
    assert place.git("show", f"{first['commit']}:one.txt") == "1\n"
    assert (second["stage"], second["worktree"], second["commit"]) == ("stopped", None, None)
    assert (third["stage"], third["worktree"], third["commit"]) == ("unchanged", None, None)
    lines = place.run("agents", "--last").out.splitlines()
    assert lines[0].split()[:4] == ["f1-1", "merged", "round", "1"] and lines[0].endswith("$0.0000  The first.")
    assert lines[1].split() == ["commit", first["commit"]]
    assert len(lines) == 4


def look_at_work(place: Place) -> dict[str, Any]:
    """The first of three agents, two of which are at work; all are seen as they are."""
    wait_until(lambda: len(place.worktrees()) == 3)
    works = {"f1-1": "run_tool", "f1-2": "call_model"}
    wait_until(lambda: {line.agent: line.doing.kind for line in list_agents(place.events()) if line.doing} == works)
    first, second, third = roster(place)
    assert (first["agent"], first["task"], first["stage"], first["round"]) == ("f1-1", "The first.", "working", 1)
    assert first["doing"].startswith("shell until [ -e gate ]; do") and second["doing"] == "waits for the model"
    assert (third["stage"], third["round"], third["worktree"], third["since_us"]) == ("waiting", 0, None, None)
    assert len({first["worktree"], second["worktree"]}) == 2 and first["commit"] is None
    [*_, seen] = [event.ts_us for event in place.events() if event.actor == "f1-2"]
    assert (second["since_us"], second["cost_usd"]) == (seen, 0.0)
    assert "Nobody runs" not in place.run("agents").out
    return first


def test_a_session_without_a_fan_out_has_no_agents() -> None:
    app = typer.Typer()
    add_agents(app, lambda session, last: (SessionId("s1"), ()))
    assert CliRunner().invoke(app, []).output == "s1 has no agents beside the main one, and has had no fan-out.\n"
    assert CliRunner().invoke(app, ["--json"]).output == ""
