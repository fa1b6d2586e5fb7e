"""A cable is pulled: what is cut off stops by itself, and what goes on elsewhere begins after that.

Hosts are network namespaces (two_hosts.py): worktrees and processes of all of them are seen from here."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from actors.history import Verified, verify
from configs.places import RUN_MARK
from eventlog.effects import RunTool
from eventlog.errors import LogNotFound
from eventlog.events import EffectFinished, EffectStarted, Event, LeaseGranted
from eventlog.outcomes import AttemptLost, WorktreeReady
from processes.tree import carriers, is_alive
from tests.chaos.two_hosts import Hosts, two_hosts
from tests.cli.cli_program import shell, wait_until
from tests.cli.cluster_stage import JoinedNode

pytestmark = [pytest.mark.xdist_group("partition"), pytest.mark.timeout(240)]
LEASE_S = 13.0
"""Longer than it takes until the loss is noticed: who goes on elsewhere has to wait, and would be too early else."""
MARGIN_S = 1.5
"""For what ends to be ended, on a busy machine."""
TICKING = "echo ran >> count.txt; until [ -e gate ]; do date +%s%N >> ticks.log; sleep 0.05; done; rm gate ticks.log"
LATE = "echo ran >> count.txt; until [ -e gate ]; do sleep 0.05; done; rm gate; pwd > late.txt"
FIRST = {"name": "write", "arguments": {"path": "first.txt", "content": "1\n"}}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    with two_hosts(tmp_path_factory.mktemp("hosts") / "machine") as hosts:
        yield hosts


@pytest.fixture
def hosts(stage: Hosts) -> Iterator[Hosts]:
    """Without nodes, and without sessions."""
    yield stage
    for name in list(stage.nodes):
        stage.network.mend(name)
        stage.leave(name)
    stage.head.put_aside()
    stage.head.git("reset", "-q", "--hard")
    stage.head.git("clean", "-qfd")


def begin(hosts: Hosts, said: dict[str, list[dict[str, Any]]]) -> "subprocess.Popen[str]":
    """A fan-out of one agent for each task, that makes these calls."""
    hosts.head.config.write_text(f"agent_lease_s = {LEASE_S}\n")
    turns = {task: [*({"tool_calls": [call]} for call in calls), {"text": "Done."}] for task, calls in said.items()}
    path = hosts.head.folder / "partition.json"
    conversations = [{"when": task, "turns": played} for task, played in turns.items()]
    path.write_text(json.dumps({"turns": [], "conversations": conversations}))
    options = ("-m", f"scripted/{path}", "--labels", "disk=big", "--merge", "--output-format", "stream-json")
    return hosts.head.start("fanout", *said, *options)


def end(hosts: Hosts, run: "subprocess.Popen[str]") -> tuple[Event, ...]:
    out, err = run.communicate(timeout=120)
    assert run.returncode == 0, (out[-3000:], err)
    hosts.head.wait_over()
    events = hosts.head.events()
    assert isinstance(verify(events), Verified)
    return events


def events_of(hosts: Hosts) -> tuple[Event, ...]:
    """None before there is a session."""
    with suppress(LogNotFound):
        return hosts.head.events() if hosts.head.sessions() else ()
    return ()


def leases(events: tuple[Event, ...], agent: str) -> list[str]:
    """Where each incarnation was."""
    bodies = [event.body for event in events if isinstance(event.body, LeaseGranted)]
    return [body.node for body in bodies if body.agent == agent]


def worktree(hosts: Hosts, node: JoinedNode, agent: str) -> Path:
    """The agent's on that node, once its command runs there."""

    def found() -> list[Path]:
        ended = [e.body.outcome for e in events_of(hosts) if e.actor == agent and isinstance(e.body, EffectFinished)]
        paths = [Path(one.path) for one in ended if isinstance(one, WorktreeReady)]
        return [path for path in paths if path.is_relative_to(node.state) and (path / "count.txt").exists()]

    wait_until(lambda: bool(found()), 60)
    return found()[-1]


def ticks(tree: Path) -> list[float]:
    """When the command there said that it lives, in seconds since 1970."""
    return [int(line) / 1e9 for line in (tree / "ticks.log").read_text().splitlines()]


def begun(events: tuple[Event, ...]) -> int:
    """Attempts at a command that waits for its gate."""
    bodies = [event.body for event in events if isinstance(event.body, EffectStarted)]
    return sum(isinstance(body.effect, RunTool) and "gate" in body.effect.model_dump_json() for body in bodies)


def lost(events: tuple[Event, ...]) -> list[str]:
    bodies = [event.body for event in events if isinstance(event.body, EffectFinished)]
    return [body.outcome.evidence for body in bodies if isinstance(body.outcome, AttemptLost)]


def merged(hosts: Hosts, name: str) -> str:
    return (hosts.head.repository / name).read_text()


def test_a_link_that_is_back_within_the_lease_has_cost_nothing(hosts: Hosts) -> None:
    node = hosts.join("b", "disk=big")
    run = begin(hosts, {"Count.": [FIRST, shell(TICKING), shell("cat first.txt > last.txt")]})
    tree = worktree(hosts, node, "f1-1")
    hosts.network.cut("b")
    seen = len(ticks(tree))
    # About a second and a half.
    wait_until(lambda: len(ticks(tree)) > seen + 24)
    hosts.network.mend("b")
    (tree / "gate").touch()
    events = end(hosts, run)
    assert leases(events, "f1-1") == [node.id] and lost(events) == [] and begun(events) == 1
    assert (merged(hosts, "count.txt"), merged(hosts, "last.txt")) == ("ran\n", "1\n")


def test_an_agent_whose_connections_break_goes_on_in_another_process_on_its_node(hosts: Hosts) -> None:
    node = hosts.join("b", "disk=big")
    run = begin(hosts, {"Count.": [FIRST, shell(TICKING)]})
    tree = worktree(hosts, node, "f1-1")
    [before] = node.agents()
    if not hosts.network.reset("b"):
        pytest.skip("this kernel ends no connection that is another's (ss -K)")
    wait_until(lambda: node.agents() not in ([before], []), 30)
    (tree / "gate").touch()
    events = end(hosts, run)
    assert leases(events, "f1-1") == [node.id] * 2 and begun(events) == 1
    assert merged(hosts, "count.txt") == "ran\n", "the command was waited for"
    # Nobody would ask that one any more.
    wait_until(lambda: before not in node.agents())


def test_an_agent_that_is_cut_off_stops_by_itself_and_goes_on_elsewhere_after_that(hosts: Hosts) -> None:
    """The cable stays pulled, so nobody tells that host anything."""
    node = hosts.join("b", "disk=big")
    run = begin(hosts, {"Count.": [FIRST, shell(TICKING)]})
    tree = worktree(hosts, node, "f1-1")
    other = hosts.join("c", "disk=big")
    commands = carriers(RUN_MARK, hosts.head.session())
    hosts.network.cut("b")
    cut_at = time.time()
    wait_until(lambda: not any(map(is_alive, commands)), LEASE_S + MARGIN_S)
    last = ticks(tree)[-1]
    # Somebody was heard until up to an eighth of it before, and on a busy machine more.
    assert cut_at + LEASE_S / 2 < last < cut_at + LEASE_S + MARGIN_S

    (worktree(hosts, other, "f1-1") / "gate").touch()
    events = end(hosts, run)
    assert leases(events, "f1-1") == [node.id, other.id]
    assert last < min(event.ts_us for event in events if event.lease == 2) / 1e6
    assert ticks(tree)[-1] == last
    assert (merged(hosts, "count.txt"), merged(hosts, "first.txt")) == ("ran\n", "1\n")
    assert sum("of which nothing is heard any more" in text for text in lost(events)) == 1
    assert leave_of(node) == f"The head at {hosts.address} is gone; start `thalia node` again when it is back.\n"
    assert state_of(hosts, node) == "lost"


def test_what_comes_late_of_an_agent_that_was_cut_off_is_refused(hosts: Hosts) -> None:
    """Its command ends while nobody can be told. It tells when the cable is back, and its lease has not ended then."""
    node = hosts.join("b", "disk=big")
    run = begin(hosts, {"Be late.": [shell(LATE)]})
    tree = worktree(hosts, node, "f1-1")
    other = hosts.join("c", "disk=big")
    hosts.network.cut("b")
    before = len(events_of(hosts))
    (tree / "gate").touch()
    wait_until(lambda: len(leases(events_of(hosts), "f1-1")) == 2, 60)
    hosts.network.mend("b")
    (worktree(hosts, other, "f1-1") / "gate").touch()
    events = end(hosts, run)
    assert leases(events, "f1-1") == [node.id, other.id]
    assert [event for event in events[before:] if event.actor == "f1-1" and event.lease == 1] == []
    assert merged(hosts, "count.txt") == "ran\n"
    assert Path(merged(hosts, "late.txt").strip()).is_relative_to(other.state)
    assert (tree / "late.txt").read_text() == f"{tree}\n"
    stays_unknown(hosts, node, tree / "late.txt")
    assert f"The head at {hosts.address} is there, or a new one" in leave_of(node)


def stays_unknown(hosts: Hosts, node: JoinedNode, file: Path) -> None:
    """The node made a commit of it, and nothing of that came to the session's repository."""
    blob = hosts.head.git("hash-object", str(file)).strip()
    [mirror] = (node.state / "node" / "mirrors").glob("*.git")
    assert hosts.head.git("cat-file", "-t", blob, cwd=mirror) == "blob\n"
    with pytest.raises(subprocess.CalledProcessError):
        hosts.head.git("cat-file", "-t", blob)


def leave_of(node: JoinedNode) -> str:
    """The one sentence with which it ended by itself; nothing of it is left."""
    out, err = node.process.communicate(timeout=60)
    assert (node.process.returncode, out, err.count("\n")) == (10, "", 1), err
    assert node.pids() == []
    return err


def state_of(hosts: Hosts, node: JoinedNode) -> str:
    told = json.loads(hosts.head.run("status", "--json").out)
    return next(one["state"] for one in told["nodes"] if one["id"] == node.id)
