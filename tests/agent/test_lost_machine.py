"""What an agent's files are made of, by its log alone, where its machine is lost: a model of files plays it."""

from dataclasses import dataclass, field
from random import Random

import pytest

from agent.left_over import LeftOver, move_id, settle_left
from agent.state import OpenEffect, State
from eventlog.effects import RunTool, TakeSnapshot
from eventlog.events import EffectFinished, EffectStarted, Forked
from eventlog.ids import MAIN, CallId, Commit, SessionId
from eventlog.outcomes import (
    AttemptLost,
    Conflicted,
    Outcome,
    OutcomeUnknown,
    SnapshotTaken,
    ToolFailed,
    ToolSucceeded,
    WorktreeReady,
)
from tests.agent.core_bodies import BASE, finished, started, tool
from tests.agent.core_left import ONE, WORKTREE, WROTE, Files, Log, on


def made(path: str = "/w", start: Commit | None = None) -> WorktreeReady:
    return WorktreeReady(path=path, base=BASE, start=start)


SNAPSHOT = TakeSnapshot(parent=BASE, at_s=0, reason="test")


def test_on_the_node_of_its_worktree_nothing_is_left_behind() -> None:
    assert Log().left is None
    assert on("").left is None
    assert on("n1").grant("n1").left is None


def test_what_is_left_is_the_last_snapshot_and_what_came_after_it() -> None:
    log = on("n1").do("e1", tool("edit"), WROTE).do("s1", SNAPSHOT, SnapshotTaken(commit=ONE, changed=True))
    second, third = tool("edit", arguments='{"n":2}'), tool("edit", arguments='{"n":3}')
    log.do("e2", second, WROTE).grant("n2")
    assert log.left == LeftOver(made(), "n1", ONE, None, (second,))
    log = on("n1").do("e2", second, WROTE).do("r1", tool("shell"), WROTE, attempt=2).do("e3", third, WROTE).grant("")
    assert log.left == LeftOver(made(), "n1", BASE, (CallId("r1"), 2), (third,))


@pytest.mark.parametrize(
    ("outcome", "captured"),
    [
        (ToolFailed(text="", wrote=True), True),
        (OutcomeUnknown(evidence="?"), True),
        (Conflicted(text="", found=None), True),
        (ToolFailed(text=""), False),
        (ToolSucceeded(text=""), False),
        (AttemptLost(evidence="gone"), False),
    ],
)
def test_a_tree_is_captured_after_whatever_may_have_written_anything(outcome: Outcome, captured: bool) -> None:
    left = on("n1").do("r1", tool("shell"), outcome).grant("n2").left
    assert left is not None and left.captured == ((CallId("r1"), 1) if captured else None)


def test_a_move_that_was_not_finished_is_begun_anew_from_what_was_before_it() -> None:
    edit = tool("edit")
    log = on("n1").do("e1", edit, WROTE).grant("n2").put(started(move_id(2), WORKTREE)).grant("n3")
    assert log.left == LeftOver(made(), "n1", BASE, None, (edit,))
    log.put(finished(move_id(2), made("/w2", ONE)))
    assert log.left is None, "it was finished under the lease of the third node"
    assert log.grant("n1").left == LeftOver(made("/w2", ONE), "n3", ONE)


def test_a_fork_and_a_worktree_that_is_made_for_a_new_round_leave_nothing() -> None:
    assert on("n1").put(Forked(session=SessionId("s"), seq=1), actor=MAIN).grant("n2").left is None
    assert on("n1").put(started("w2", WORKTREE)).grant("n2").left is None


def test_commands_that_were_under_way_are_settled_and_nothing_else_is() -> None:
    confined = tool("shell", confined=True, snapshot=BASE)
    open = {"c": confined, "u": tool("shell"), "e": tool("edit"), "r": tool("read"), "s": SNAPSHOT}
    state = State(open={CallId(call): OpenEffect(effect, 1) for call, effect in open.items()})
    ends = {body.call_id: body.outcome for body in settle_left(state)
            if isinstance(body, EffectFinished)}  # fmt: skip
    assert {call: type(end) for call, end in ends.items()} == {"c": AttemptLost, "u": OutcomeUnknown}


@dataclass(slots=True)
class Machine:
    """The files of an agent, and what its session has."""

    log: Log
    files: Files = field(default_factory=dict)
    commits: dict[Commit, Files] = field(default_factory=lambda: {BASE: {}})
    captured: dict[tuple[CallId, int], Files] = field(default_factory=dict)
    snapshot: Commit = BASE
    promised: Files = field(default_factory=dict)
    """What the files are by the outcomes in the log."""
    count: int = 0

    def step(self, random: Random) -> None:
        self.count += 1
        call, name = CallId(f"x{self.count}"), f"f{random.randrange(4)}"
        match random.choice(("edit", "shell", "snapshot", "lost")):
            case "edit":
                self.files[name] = self.count
                self.log.do(call, tool("edit", arguments=f'{{"{name}":{self.count}}}'), WROTE)
            case "shell":
                self.files = {key: value for key, value in self.files.items() if random.random() < 0.7}
                self.files[name] = self.count
                self.captured = {(call, 1): dict(self.files)}
                self.log.do(call, tool("shell"), random.choice((WROTE, ToolFailed(text="", wrote=True))))
            case "snapshot":
                self.snapshot = Commit(f"{self.count:040x}")
                self.commits[self.snapshot] = dict(self.files)
                self.log.do(call, SNAPSHOT, SnapshotTaken(commit=self.snapshot, changed=True))
            case _:
                # What it wrote is undone before it is run again.
                self.log.do(call, tool("shell"), AttemptLost(evidence="gone"))
        self.promised = dict(self.files)

    def move(self, random: Random) -> None:
        """To another node, at the second try where the first is killed."""
        self.log.grant(f"n{self.count}")
        if random.random() < 0.3:
            self.log.put(EffectStarted(call_id=move_id(self.log.lease), attempt=1, effect=WORKTREE))
            self.log.grant(f"m{self.count}")
        left = self.log.left
        assert left is not None
        files = dict(self.commits[left.snapshot] if left.captured is None else self.captured[left.captured])
        for edit in left.edits:
            files |= edit_of(edit)
        self.files = files
        self.snapshot = Commit(f"{self.count + 1_000_000:040x}")
        self.commits[self.snapshot] = dict(files)
        self.log.do(move_id(self.log.lease), WORKTREE, made(start=self.snapshot), attempt=1)


def edit_of(edit: RunTool) -> Files:
    name, _, number = edit.arguments.strip("{}").partition(":")
    return {name.strip('"'): int(number)}


@pytest.mark.parametrize("seed", range(60))
def test_wherever_a_machine_is_lost_the_files_are_those_that_the_log_promises(seed: int) -> None:
    random, machine = Random(seed), Machine(on("n0"))
    for _ in range(25):
        machine.step(random)
        if random.random() < 0.25:
            machine.move(random)
            assert machine.files == machine.promised
