"""Agents on other nodes than their session's, here on one machine: each node has its own address and folders.

What they make comes back as bundles; a node that is lost takes nothing with it that stands in the log."""

import json
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cli_program import wait_until
from cluster_stage import Cluster, JoinedNode, cluster
from daemon_machine import Machine

from actors.history import Verified, verify
from eventlog.effects import RunTool
from eventlog.errors import LogNotFound
from eventlog.events import EffectFinished, EffectStarted, Event, LeaseGranted
from eventlog.outcomes import AttemptLost, Refused, WorktreeReady
from processes.tree import send

pytestmark = [pytest.mark.xdist_group("far-agents"), pytest.mark.timeout(180)]
LEASE_S = 3
MODEL_TURNS = dict[str, Any]
GATED = "echo ran >> count.txt; until [ -e gate ]; do sleep 0.05; done; echo ended >> count.txt; rm gate"


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("far"), LEASE_S) as one:
        one.join("b", "127.0.0.3", "zone=b,disk=big")
        one.join("c", "127.0.0.4", "zone=c,disk=big")
        yield one


@pytest.fixture
def fresh(stage: Cluster) -> Iterator[Cluster]:
    yield stage
    stage.head.put_aside()
    # What was merged is not to be carried into the next session.
    stage.head.git("reset", "-q", "--hard")
    stage.head.git("clean", "-qfd")


def conversation(when: str, *calls: dict[str, Any]) -> MODEL_TURNS:
    return {"when": when, "turns": [*({"tool_calls": [call]} for call in calls), {"text": f"{when} Done."}]}


def shell(command: str) -> dict[str, Any]:
    return {"name": "shell", "arguments": {"command": command}}


def write(path: str, content: str) -> dict[str, Any]:
    return {"name": "write", "arguments": {"path": path, "content": content}}


def begin(computer: Machine, conversations: list[MODEL_TURNS], *arguments: str):
    path = computer.folder / "far.json"
    path.write_text(json.dumps({"turns": [], "conversations": conversations}))
    return computer.start("fanout", *arguments, "-m", f"scripted/{path}", "--output-format", "stream-json")


def end(computer: Machine, run, code: int = 0) -> tuple[Event, ...]:
    out, err = run.communicate(timeout=120)
    assert run.returncode == code, (out[-3000:], err)
    computer.wait_over()
    events = computer.events()
    assert isinstance(verify(events), Verified)
    return events


def leases(events: tuple[Event, ...], agent: str) -> list[str]:
    """Where each incarnation was."""
    bodies = [event.body for event in events if isinstance(event.body, LeaseGranted)]
    return [body.node for body in bodies if body.agent == agent]


def worktree(stage: Cluster, node: JoinedNode, agent: str = "f1-1") -> Path:
    """The agent's on that node, once its command counts there. One that is given back keeps its files for a while, so
    the log is asked."""

    def found() -> list[Path]:
        ready = [e.body.outcome for e in events_of(stage) if e.actor == agent and isinstance(e.body, EffectFinished)]
        paths = [Path(one.path) for one in ready if isinstance(one, WorktreeReady)]
        return [path for path in paths if path.is_relative_to(node.state)]

    wait_until(lambda: any((path / "count.txt").exists() for path in found()), 60)
    return found()[0]


def events_of(stage: Cluster) -> tuple[Event, ...]:
    """None before there is a session."""
    with suppress(LogNotFound):
        return stage.head.events() if stage.head.sessions() else ()
    return ()


def known(stage: Cluster, agent: str) -> list[str]:
    return leases(events_of(stage), agent)


def where(stage: Cluster, agent: str) -> JoinedNode:
    """On which it is now."""
    wait_until(lambda: bool(known(stage, agent)), 60)
    last = known(stage, agent)[-1]
    return next(node for node in stage.nodes.values() if node.id == last)


def lost(events: tuple[Event, ...]) -> list[str]:
    bodies = [event.body for event in events if isinstance(event.body, EffectFinished)]
    return [body.outcome.evidence for body in bodies if isinstance(body.outcome, AttemptLost)]


def merged(stage: Cluster, name: str) -> str:
    return (stage.head.repository / name).read_text()


def test_agents_work_where_the_labels_say_and_what_they_make_is_merged(fresh: Cluster) -> None:
    told = [
        conversation("Count.", shell("echo 1 > one.txt; cat a.py > copy.txt"), write("two.txt", "2\n")),
        conversation("Write.", write("b.txt", "b\n"), {"name": "commit", "arguments": {"message": "b"}}),
    ]
    (fresh.head.repository / "a.py").write_text("dirty\n")
    run = begin(fresh.head, told, "Count.", "Write.", "--labels", "zone=b", "--merge")
    events = end(fresh.head, run)
    assert set(leases(events, "f1-1") + leases(events, "f1-2")) == {fresh.nodes["b"].id}
    for name, text in {"one.txt": "1\n", "two.txt": "2\n", "b.txt": "b\n", "copy.txt": "dirty\n"}.items():
        assert merged(fresh, name) == text
    assert fresh.head.git("checkout", "a.py") == ""
    ready = [e.body.outcome for e in events if isinstance(e.body, EffectFinished) and e.actor != "main"]
    paths = [Path(one.path) for one in ready if isinstance(one, WorktreeReady)]
    assert len(paths) == 2 and all(path.is_relative_to(fresh.nodes["b"].state) for path in paths)


def test_a_label_that_no_node_has_is_told_in_a_sentence(fresh: Cluster) -> None:
    run = begin(fresh.head, [conversation("Write.", write("b.txt", "b\n"))], "Write.", "--labels", "zone=nowhere")
    events = end(fresh.head, run, 10)
    told = [e.body.outcome for e in events if isinstance(e.body, EffectFinished)]
    [refused] = [one.text for one in told if isinstance(one, Refused)]
    assert (
        refused
        == "No node has zone=nowhere; add one with `thalia node ADDRESS --labels zone=nowhere`, or ask for less."
    )


def test_an_agent_whose_process_dies_goes_on_on_its_node(fresh: Cluster) -> None:
    told = [conversation("Count.", write("first.txt", "1\n"), shell(GATED))]
    run = begin(fresh.head, told, "Count.", "--labels", "zone=b", "--merge")
    node = where(fresh, "f1-1")
    tree = worktree(fresh, node)
    send(node.agents(), signal.SIGKILL)
    wait_until(lambda: len(known(fresh, "f1-1")) == 2, 60)
    (tree / "gate").touch()
    events = end(fresh.head, run)
    assert leases(events, "f1-1") == [node.id] * 2
    assert merged(fresh, "count.txt") == "ran\nended\n", "the command was waited for"
    assert merged(fresh, "first.txt") == "1\n"


def test_what_a_command_wrote_that_ended_while_its_agent_was_dead_comes_home_too(fresh: Cluster) -> None:
    run = begin(fresh.head, [conversation("Count.", shell(GATED))], "Count.", "--labels", "zone=b", "--merge")
    node = where(fresh, "f1-1")
    tree = worktree(fresh, node)
    send(node.agents(), signal.SIGKILL)
    (tree / "gate").touch()
    events = end(fresh.head, run)
    assert merged(fresh, "count.txt") == "ran\nended\n"
    bodies = [e.body for e in events if isinstance(e.body, EffectStarted)]
    [(call, attempt)] = {(b.call_id, b.attempt) for b in bodies if isinstance(b.effect, RunTool)}
    captured = f"refs/thalia/{fresh.head.session()}+f1-1/captured"
    assert fresh.head.git("show", "-s", "--format=%s", captured).strip() == f"After {call}.{attempt}"


def test_an_agent_outlives_its_session_s_process(fresh: Cluster) -> None:
    told = [conversation("Count.", write("first.txt", "1\n"), shell(GATED), shell("echo more > more.txt"))]
    run = begin(fresh.head, told, "Count.", "--labels", "zone=b", "--merge")
    tree, host = worktree(fresh, fresh.nodes["b"]), fresh.head.host()
    send([host], signal.SIGKILL)
    wait_until(lambda: fresh.head.is_open() and fresh.head.host() != host, 60)
    (tree / "gate").touch()
    events = end(fresh.head, run)
    assert len(leases(events, "f1-1")) == 1
    assert (merged(fresh, "count.txt"), merged(fresh, "more.txt")) == ("ran\nended\n", "more\n")


def test_an_agent_whose_node_is_lost_goes_on_elsewhere_with_all_that_the_log_says(fresh: Cluster) -> None:
    """Edits, what commands wrote, a commit of its own; and the command that was under way, from the start."""
    steps = (
        write("first.txt", "1\n"),
        shell("echo 2 > second.txt; echo ignored > kept.log"),
        {"name": "commit", "arguments": {"message": "Two files"}},
        write("third.txt", "3\n"),
        shell("echo 4 > fourth.txt"),
        write("fifth.txt", "5\n"),
        shell(GATED),
        write("sixth.txt", "6\n"),
    )
    run = begin(fresh.head, [conversation("Count.", *steps)], "Count.", "--labels", "disk=big", "--merge")
    node = where(fresh, "f1-1")
    worktree(fresh, node)
    [name] = [name for name, one in fresh.nodes.items() if one is node]
    node.lose()
    wait_until(lambda: len(known(fresh, "f1-1")) == 2, 60)
    other = where(fresh, "f1-1")
    assert other is not node
    tree = worktree(fresh, other)
    (tree / "gate").touch()
    events = end(fresh.head, run)
    assert leases(events, "f1-1") == [node.id, other.id]
    assert merged(fresh, "count.txt") == "ran\nended\n"
    texts = {"first": "1\n", "second": "2\n", "third": "3\n", "fourth": "4\n", "fifth": "5\n", "sixth": "6\n"}
    assert {key: merged(fresh, f"{key}.txt") for key in texts} == texts
    assert any("of which nothing is heard any more; the worktree is set back" in text for text in lost(events))
    shells = [e.body for e in events if isinstance(e.body, EffectStarted) and isinstance(e.body.effect, RunTool)]
    assert sum(GATED in body.effect.model_dump_json() or "gate" in str(body.effect) for body in shells) == 2
    fresh.join(f"{name}2", "127.0.0.5", "zone=b,disk=big")
