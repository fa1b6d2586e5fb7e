"""A session's git side on a machine without the user's disk: the same outcomes as in the user's repository."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from actors.files import SessionFiles, open_files
from eventlog.effects import MakeWorktree, MergeWork, RestoreTree, RunTool, TakeSnapshot
from eventlog.ids import CallId, Commit, SessionId
from eventlog.outcomes import Refused, SnapshotTaken, ToolSucceeded, WorktreeReady
from worktrees.bundle import make_bundle, take_bundle
from worktrees.mirror import mirror_settings, open_mirror
from worktrees.objects import read_ref
from worktrees.repository import BareRepository
from worktrees.sample import make_repository

NAME, BASE = SessionId("s+a"), "refs/thalia/s/base"
NOW = 1_800_000_000


@dataclass(frozen=True, slots=True)
class Machines:
    """The session's own files of an agent, and those of the machine on which the agent works."""

    here: SessionFiles
    there: SessionFiles
    head: Commit


@pytest.fixture
def machines(tmp_path: Path) -> Machines:
    root = tmp_path / "user"
    head = Commit(make_repository(root, {"a.txt": "one\n", ".worktreeinclude": ".venv\n", ".gitignore": ".venv\n"}))
    (root / ".venv").mkdir()
    (root / ".venv" / "pyvenv.cfg").write_text("")
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    here = open_files(NAME, root, tmp_path / "state", tmp_path / "scratch", variables)
    mirror = open_mirror(tmp_path / "node", "one", mirror_settings(here.repository, variables), variables)
    take_bundle(mirror, make_bundle(here.repository, {BASE: head}, ()), {BASE: None})
    there = SessionFiles(NAME, mirror, tmp_path / "node-state", tmp_path / "node-scratch", variables)
    return Machines(here, there, head)


def work(files: SessionFiles, head: Commit) -> list[object]:
    """What an agent does to its files, as outcomes; paths left out."""
    ready = files.make_worktree(MakeWorktree(repository="", head=head, carry_dirty=False, at_s=NOW))
    assert isinstance(ready, WorktreeReady)
    place = files.place(ready)
    assert files.holds(ready)
    (place.path / "a.txt").write_text("two\n")
    (place.path / "new.txt").write_text("n\n")
    taken = files.take_snapshot(place, TakeSnapshot(parent=head, at_s=NOW, reason="test"))
    assert isinstance(taken, SnapshotTaken)
    run = RunTool(tool="commit", arguments="{}", effect_class="commit", allowed_by="", snapshot=taken.commit, at_s=NOW)
    committed = files.commit(CallId("c1"), run, "Work", head)
    back = files.restore_tree(place, RestoreTree(commit=head, at_s=NOW))
    assert (place.path / "a.txt").read_text() == "one\n" and not (place.path / "new.txt").exists()
    forth = files.restore_tree(place, RestoreTree(commit=taken.commit, at_s=NOW))
    assert (place.path / "a.txt").read_text() == "two\n"
    return [ready.base, taken, committed, back, forth, files.ignored_since(place, 0)]


def test_the_same_work_gives_the_same_outcomes_and_commits(machines: Machines) -> None:
    assert work(machines.there, machines.head) == work(machines.here, machines.head)


def test_what_was_made_there_comes_back_under_the_agents_references(machines: Machines) -> None:
    outcomes = work(machines.there, machines.head)
    made = next(one for one in outcomes if isinstance(one, ToolSucceeded)).commit
    assert made is not None
    ref = machines.there.ref("work")
    assert read_ref(machines.here.repository.git, ref) is None
    bundle = make_bundle(machines.there.repository, {ref: made}, [machines.head])
    take_bundle(machines.here.repository, bundle, {ref: None})
    assert read_ref(machines.here.repository.git, ref) == made
    assert machines.here.find_commit(ref) == made


def test_what_is_bound_from_the_users_checkout_is_not_there(machines: Machines) -> None:
    """So a setup command has to make it."""
    make = MakeWorktree(repository="", head=machines.head, carry_dirty=False, at_s=NOW)
    found = []
    for files in (machines.here, machines.there):
        ready = files.make_worktree(make)
        assert isinstance(ready, WorktreeReady)
        found.append([bind.target.name for bind in files.project(files.place(ready)).binds])
    assert found == [[".venv"], []]


def test_what_only_the_users_checkout_has_is_refused_in_one_sentence(machines: Machines) -> None:
    there, head = machines.there, machines.head
    with pytest.raises(BareRepository):
        there.make_worktree(MakeWorktree(repository="", head=head, carry_dirty=False, at_s=NOW, in_place=True))
    for outcome in (
        there.make_worktree(MakeWorktree(repository="", head=head, carry_dirty=True, at_s=NOW)),
        there.merge(CallId("c2"), MergeWork(base=head, result=head, checkout="", head=head, at_s=NOW)),
    ):
        assert isinstance(outcome, Refused) and "do this where your checkout is" in outcome.text
