"""An agent whose machine was lost goes on elsewhere with the files that its log promises, wherever the move was cut."""

import asyncio
import hashlib
import os
import pickle
import signal
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

import pytest
from far_life import NOW, Life, make_home, shell, work_on

from actors.moving import Move, bring_over, move_in
from agent.fakes import ScriptedWorld
from agent.left_over import move_id
from agent.loop import Loop
from eventlog.effects import TakeSnapshot
from eventlog.events import EffectFinished, EffectStarted
from eventlog.ids import CallId
from eventlog.outcomes import AttemptLost, Outcome, OutcomeUnknown, Refused, SnapshotTaken, WorktreeReady
from tests.agent.core_bodies import PlainPlanner
from tests.worktrees.repositories import content, plain_git, user_state
from worktrees.objects import move_ref, read_ref
from worktrees.snapshot import PrivateIndex

ROOT = Path(__file__).resolve().parents[2]
LONG_AGO_NS, FIRST_ENTRY, TRAILER = 1_700_000_000_000_000_000, 12, 20


class Killed(Exception):
    pass


@pytest.fixture
def life(tmp_path: Path) -> Life:
    """An agent on node A with all kinds of work behind it."""
    one = Life(make_home(tmp_path))
    one.come_to("A")
    one.begin()
    work_on(one)
    return one


def bring(life: Life) -> WorktreeReady | Refused:
    assert life.left is not None
    return bring_over(life.files, life.left, life.lease, NOW)


def brought(life: Life) -> Path:
    ready = bring(life)
    assert isinstance(ready, WorktreeReady), ready
    return Path(ready.path)


def refused(life: Life) -> str:
    outcome = bring(life)
    assert isinstance(outcome, Refused), outcome
    return outcome.text


async def move(life: Life, arrived: Callable[[], Awaitable[None]] | None = None) -> None:
    """As the next incarnation does it, before its loop runs."""

    async def deliver() -> None:
        await asyncio.to_thread(life.deliver)

    left = life.left
    assert left is not None
    loop = Loop(life, PlainPlanner(), ScriptedWorld(lambda intent: None), life.state, lambda event: None)
    plan = Move(left, life.lease, NOW, asyncio.to_thread, arrived or deliver)
    await move_in(loop, life, life.files, plan)
    assert loop.state == life.state


def home_ref(life: Life, name: str) -> str | None:
    return read_ref(life.home.files.repository.git, life.home.files.ref(name))


def outcomes(life: Life) -> Mapping[CallId, Outcome]:
    return {e.body.call_id: e.body.outcome for e in life.events if isinstance(e.body, EffectFinished)}


# The files


def test_all_that_it_made_stands_on_the_next_machine_byte_for_byte(life: Life) -> None:
    before = life.found
    life.come_to("B")
    ready = bring(life)
    assert isinstance(ready, WorktreeReady) and ready.start is not None
    assert content(Path(ready.path)) == before
    assert before["unended"] == ("file", b"no line end") and before["tool"] == ("program", b"#!/bin/sh")
    assert before["run"][0] == "file" and before["link"] == ("link", b"nowhere/at/all") and "gone.txt" not in before
    shown = life.home.folder / "shown"
    plain_git(life.files.repository.git_dir, "--git-dir", ".", "worktree", "add", str(shown), ready.start)
    assert content(shown) == before, "what it starts from is what it has"


def test_it_comes_home_when_no_other_machine_is_left_and_the_checkout_stays_as_it_is(life: Life) -> None:
    root, before = life.home.files.repository.root, life.found
    users = user_state(root)
    life.come_to("")
    assert content(brought(life)) == before
    assert user_state(root) == users


@pytest.mark.parametrize("last", ["snapshot", "edit", "command", "restore"])
async def test_it_moves_on_from_whatever_came_last(last: str, life: Life) -> None:
    match last:
        case "snapshot":
            life.snapshot()
        case "edit":
            life.edit("write", path="é x/last.txt", content="unended")
        case "command":
            life.command(lambda root: (root / "first.txt").rename(root / "renamed.txt"))
        case _:
            life.snapshot()
            life.restore(life.home.head)
    before = life.found
    life.come_to("B")
    await move(life)
    assert life.found == before
    life.edit("write", path="next.txt", content="next\n")
    assert home_ref(life, "main") != life.snapshot() == home_ref(life, "main"), "and so do its snapshots"


async def test_what_it_makes_after_a_move_moves_on_as_well(life: Life) -> None:
    life.come_to("B")
    await move(life)
    life.edit("write", path="later.txt", content="later\n")
    life.command(lambda root: (root / "tool").unlink())
    life.edit("edit", path="later.txt", old_text="later", new_text="latest")
    before = life.found
    for node in ("C", "D"):
        life.come_to(node)
        await move(life)
        assert life.found == before


@pytest.mark.parametrize("torn", [False, True], ids=["other files", "lost its power"])
async def test_a_worktree_that_it_had_there_before_is_set_right(torn: bool, life: Life) -> None:
    """On A; the agent goes to B and on, and back to a machine that has A's folder."""
    stale = life.place.path
    life.command(lambda root: None)
    if torn:
        tear(life)
    else:
        (stale / "third" / "new.txt").unlink()
        (stale / "src" / "deep" / "b.py").write_text("half of it")
        (stale / "nobody.txt").write_text("was told of this\n")
    life.come_to("B")
    before = content(brought(life))
    life.deliver()
    life.come_to("C")
    life.node = "A"
    assert brought(life) == stale
    assert life.found == before
    assert "nobody.txt" not in before and before[".gitignore"] == ("file", b"*.log\n")


def tear(life: Life) -> None:
    """The first file of the worktree has other content, and the size and times that its index knows."""
    worktree = life.place.worktree
    assert worktree is not None
    path, index = worktree.path / ".gitignore", life.files.pool.index_path(worktree)
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    PrivateIndex(life.files.repository.at(worktree), index).run("update-index", "-q", "--refresh")
    path.write_text("\0\0\0\0\0\0")
    os.utime(path, ns=(LONG_AGO_NS, LONG_AGO_NS))
    data = bytearray(index.read_bytes()[:-TRAILER])
    data[FIRST_ENTRY : FIRST_ENTRY + 8] = struct.pack(">II", *divmod(path.stat().st_ctime_ns, 10**9))
    index.write_bytes(data + hashlib.sha1(data, usedforsecurity=False).digest())


# What cannot be made again


def test_a_tree_that_never_arrived_is_refused_in_a_sentence(life: Life) -> None:
    """The tree after an earlier command did."""
    life.command(lambda root: (root / "late.txt").write_text("late\n"), arrives=False)
    life.come_to("B")
    assert refused(life) == "The files that its last command left did not come from the machine that was lost."


def test_an_edit_that_does_not_fit_its_files_is_refused_in_a_sentence(life: Life) -> None:
    known = len(life.events)
    life.edit("write", path="first.txt", content="2\n")
    # As if nobody had logged that one.
    del life.events[known:]
    life.edit("write", path="first.txt", content="3\n")
    life.come_to("B")
    assert refused(life).startswith("An edit could not be made again on another machine: first.txt was changed")


def test_a_snapshot_of_which_the_log_does_not_know_is_kept_beside(life: Life) -> None:
    parent, before = life.state.snapshot, life.found
    assert parent is not None
    taken = life.files.take_snapshot(life.place, TakeSnapshot(parent=parent, at_s=NOW, reason="never told"))
    assert isinstance(taken, SnapshotTaken)
    life.deliver()
    life.come_to("B")
    assert content(brought(life)) == before
    life.deliver()
    assert home_ref(life, "before-move/2") == taken.commit != home_ref(life, "main")
    life.come_to("C")
    assert content(brought(life)) == before, "also where the first move is begun anew"


def test_what_an_incarnation_made_there_and_told_nobody_is_not_there_for_the_next(life: Life) -> None:
    files, told = life.files, life.home.refs
    git = files.repository.git
    move_ref(git, files.ref("work"), life.home.head, (None,))
    move_ref(git, files.ref("main"), life.home.head, (read_ref(git, files.ref("main")),))
    life.come_to("A")
    assert read_ref(git, files.ref("work")) is None
    assert {ref: read_ref(git, ref) for ref in told} == told == life.home.refs


# The move as an effect


async def test_a_move_is_a_worktree_in_the_log_and_ends_with_the_commands_that_were_under_way(life: Life) -> None:
    """Also where a trace of them is: what they wrote went when the tree was set back."""
    life.snapshot()
    confined = shell(confined=True, snapshot=life.state.snapshot)
    for call, effect in {"safe": confined, "unsafe": shell(), "reads": shell(effect_class="read")}.items():
        life.put(EffectStarted(call_id=CallId(call), attempt=1, effect=effect))
    life.place.path.joinpath("first.txt").write_text("half of what a command writes")
    life.come_to("B")
    await move(life)
    ends = outcomes(life)
    assert isinstance(ends[CallId("safe")], AttemptLost) and isinstance(ends[CallId("unsafe")], OutcomeUnknown)
    assert list(life.state.open) == ["reads"]
    ready = ends[move_id(2)]
    assert isinstance(ready, WorktreeReady) and life.state.worktree == ready
    assert (life.state.snapshot, life.state.written, life.left) == (ready.start, "no", None)
    assert life.found["first.txt"] == ("file", b"1\n")


@pytest.mark.parametrize("node", ["B", "C", ""])
@pytest.mark.parametrize("arrives", [False, True])
async def test_a_move_that_was_killed_is_begun_again_under_its_first_name(arrives: bool, node: str, life: Life) -> None:
    before = life.found
    life.come_to("B")

    async def killed() -> None:
        if arrives:
            await asyncio.to_thread(life.deliver)
        raise Killed

    with pytest.raises(Killed):
        await move(life, killed)
    assert list(life.state.open) == [move_id(2)]
    life.come_to(node)
    await move(life)
    assert life.found == before and life.left is None
    assert [call for call in outcomes(life) if call.startswith("m")] == [move_id(2)]


async def test_a_refused_move_is_tried_again_by_the_next_incarnation(life: Life) -> None:
    life.command(lambda root: None, arrives=False)
    for number, node in enumerate(("B", "C"), start=2):
        life.come_to(node)
        await move(life)
        assert isinstance(outcomes(life)[move_id(number)], Refused)
        assert life.state.worktree is None and life.state.refused is not None


CHILD = """
import os, pickle, sys
from pathlib import Path
folder, node, lease, left = sys.argv[1:]
from far_life import NOW, Life, open_home
from actors.moving import bring_over
life = Life(open_home(Path(folder)), node=node)
bring_over(life.files, pickle.loads(Path(left).read_bytes()), int(lease), NOW)
"""


def bring_in_child(life: Life, **crash: str) -> int:
    """The exit code of a process that does it."""
    left = life.home.folder / "left"
    left.write_bytes(pickle.dumps(life.left))
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests" / "actors")))
    env = {**os.environ, "PYTHONPATH": paths, **{f"THALIA_CRASH_{name}": value for name, value in crash.items()}}
    arguments = (str(life.home.folder), life.node, str(life.lease), str(left))
    return subprocess.run([sys.executable, "-c", CHILD, *arguments], env=env, timeout=60, check=False).returncode


def dirty(life: Life) -> None:
    """A worktree of the agent that was here before, with other files."""
    path = brought(life)
    (path / "first.txt").write_text("other\n")
    (path / "nobody.txt").write_text("was told\n")


@pytest.mark.parametrize("prepare", [lambda life: None, dirty], ids=["a new worktree", "one with other files"])
def test_a_move_that_is_killed_at_any_of_its_points_comes_to_the_same(
    prepare: Callable[[Life], None], life: Life
) -> None:
    before, trace, nodes = life.found, life.home.folder / "trace", map("B{}".format, range(100))
    life.come_to(next(nodes))
    prepare(life)
    assert bring_in_child(life, TRACE=str(trace)) == 0
    start = read_ref(life.files.repository.git, life.files.ref("main"))
    last = {line.partition(":")[0]: line for line in trace.read_text().split()}
    assert {"restore_after_checkout", "before_rename", "after_rename"} <= last.keys()
    for point in last.values():
        life.come_to(next(nodes))
        prepare(life)
        assert bring_in_child(life, AT=point) == -signal.SIGKILL, point
        life.come_to(life.node)
        assert content(brought(life)) == before, point
        assert read_ref(life.files.repository.git, life.files.ref("main")) == start, point
