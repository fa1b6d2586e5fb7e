"""What is brought over after a loss at any event, with trees that were set back and nodes that come again."""

from dataclasses import dataclass, field
from random import Random

import pytest
from core_bodies import BASE, finished, started, tool
from core_left import AGENT, ONE, READY, WORKTREE, WROTE, Files, Log, on

from agent.apply import apply
from agent.left_over import LeftOver, move_id, settle_left
from agent.state import State
from eventlog.effects import MakeWorktree, RestoreTree, RunTool, TakeSnapshot
from eventlog.events import Forked
from eventlog.ids import MAIN, AgentId, CallId, Commit, SessionId
from eventlog.outcomes import (
    AttemptLost,
    Conflicted,
    Outcome,
    OutcomeUnknown,
    Refused,
    SnapshotTaken,
    ToolFailed,
    ToolSucceeded,
    WorktreeReady,
)

OTHER = AgentId("b")


def test_a_tree_that_was_set_back_is_what_its_commit_says_and_nothing_that_came_before_counts() -> None:
    log = on("n1").put(started("c1", tool("shell")), finished("c1", WROTE))
    log.put(started("c2", tool("edit")), finished("c2", WROTE))
    log.put(started("t2", RestoreTree(commit=ONE)), finished("t2", SnapshotTaken(commit=ONE, changed=True)))
    assert log.grant("n2").left == LeftOver(READY, "n1", ONE)


def test_a_tree_that_could_not_be_set_back_counts_as_it_was() -> None:
    log = on("n1").put(started("c1", tool("shell")), finished("c1", WROTE))
    log.put(started("t2", RestoreTree(commit=ONE)), finished("t2", Refused(text="No.")))
    assert log.grant("n2").left == LeftOver(READY, "n1", BASE, (CallId("c1"), 1))


def test_an_outcome_of_an_attempt_that_was_given_up_says_nothing() -> None:
    log = on("n1").put(started("c1", tool("shell")), started("c1", tool("shell"), 2), finished("c1", WROTE))
    assert log.grant("n2").left == LeftOver(READY, "n1", BASE)


def test_what_others_do_and_where_they_are_says_nothing() -> None:
    """Their calls have the same names."""
    log = on("n1").put(started("c1", tool("shell")))
    log.put(started("w2", WORKTREE), finished("c1", WROTE), actor=OTHER)
    assert log.grant("n2", OTHER).left is None
    assert log.grant("n2").left == LeftOver(READY, "n1", BASE)


def test_a_lease_that_comes_back_after_a_move_that_never_ended_moves_as_well() -> None:
    """The worktree there is as it was left, but the agent's state has none any more."""
    log = on("n1").put(started("c1", tool("edit")), finished("c1", WROTE))
    log.grant("n2").put(started(move_id(2), WORKTREE)).grant("n1")
    assert log.left == LeftOver(READY, "n1", BASE, None, (tool("edit"),))
    assert log.put(finished(move_id(2), READY)).left is None


def test_a_fork_in_the_middle_of_a_move_leaves_nothing_to_be_moved() -> None:
    log = on("n1").grant("n2").put(started(move_id(2), WORKTREE))
    log.put(Forked(session=SessionId("s"), seq=1), actor=MAIN).grant("n2")
    assert log.put(started("w2", WORKTREE), finished("w2", READY)).left is None


def test_a_refused_move_is_made_by_the_next_incarnation_also_on_the_same_node() -> None:
    log = on("n1").grant("n2").put(started(move_id(2), WORKTREE), finished(move_id(2), Refused(text="No.")))
    assert log.left == log.grant("n2").left == LeftOver(READY, "n1", BASE)


# A model


@dataclass(slots=True)
class Agent:
    """Its files as a dict; an edit says what it makes of which file, 0 that it deletes it."""

    random: Random
    log: Log = field(default_factory=lambda: on("n0"))
    files: Files = field(default_factory=dict)
    promised: Files = field(default_factory=dict)
    """By the outcomes in the log."""
    commits: dict[Commit, Files] = field(default_factory=lambda: {BASE: {}})
    captured: tuple[tuple[CallId, int], Files] = ((CallId(""), 0), {})
    """What its session has under that name: only the last."""
    calls: int = 0
    lost: int = 0

    @property
    def state(self) -> State:
        state = State()
        for event in self.log.events:
            state = apply(state, event.body) if event.actor == AGENT else state
        return state

    def commit(self) -> Commit:
        name = Commit(f"{len(self.commits):040x}")
        self.commits[name] = dict(self.files)
        return name

    def step(self) -> None:
        """One effect, during which the machine may be lost."""
        self.calls += 1
        call, effect = CallId(f"c{self.calls}"), self.choose()
        self.log.put(started(call, effect))
        outcome = self.perform(call, effect)
        if self.random.random() < 0.3:
            return self.move()
        self.log.put(finished(call, outcome))
        self.promised = dict(self.files)
        if self.random.random() < 0.1:
            self.move()
        return None

    def choose(self) -> RunTool | TakeSnapshot | RestoreTree:
        """As it is decided: between a command and whatever writes next there is a snapshot."""
        if self.state.written == "more":
            return TakeSnapshot(parent=BASE, at_s=0, reason="test")
        match self.random.choice(("edit", "edit", "bad", "shell", "shell", "snapshot", "restore")):
            case "edit":
                value = self.random.choice((self.calls, self.calls, 0))
                return tool("edit", arguments=f"f{self.random.randrange(4)} {value}")
            case "bad":
                return tool("edit", arguments="")
            case "shell":
                return tool("shell", confined=self.random.random() < 0.5, snapshot=BASE)
            case "snapshot":
                return TakeSnapshot(parent=BASE, at_s=0, reason="test")
            case _:
                return RestoreTree(commit=self.random.choice(list(self.commits)))

    def perform(self, call: CallId, effect: RunTool | TakeSnapshot | RestoreTree) -> Outcome:
        match effect:
            case TakeSnapshot():
                return SnapshotTaken(commit=self.commit(), changed=True)
            case RestoreTree(commit=commit):
                self.files = dict(self.commits[commit])
                return SnapshotTaken(commit=commit, changed=True)
            case RunTool(effect_class="edit", arguments=""):
                return ToolFailed(text="It does not fit.")
            case RunTool(effect_class="edit"):
                edit(self.files, effect)
                return WROTE
            case _:
                return self.run(call)

    def run(self, call: CallId) -> Outcome:
        """A command: what it may have written is captured, but where its attempt was lost and undone."""
        before = dict(self.files)
        self.files = {name: value for name, value in self.files.items() if self.random.random() < 0.7}
        self.files[f"f{self.random.randrange(4)}"] = self.calls
        unknown, conflicted = OutcomeUnknown(evidence="?"), Conflicted(text="", found=None)
        outcome = self.random.choice((WROTE, ToolFailed(text="", wrote=True), unknown, conflicted, None, None))
        if outcome is None:
            self.files = before
            return self.random.choice((AttemptLost(evidence="gone"), ToolSucceeded(text="")))
        self.captured = ((call, 1), dict(self.files))
        return outcome

    def move(self) -> None:
        """To a node where it may have been before; perhaps at the second or third try."""
        self.lost += 1
        while True:
            self.log.grant(self.random.choice((f"n{self.lost}", f"again{self.lost}")))
            left = self.log.left
            assert left is not None
            begun = next((call for call in self.state.open if call.startswith("m")), None)
            move = begun or move_id(self.log.lease)
            if begun is None:
                self.log.put(started(move, WORKTREE))
            if self.random.random() < 0.7:
                break
        self.files = self.carry_out(left)
        ready = WorktreeReady(path=f"/w{self.lost}", base=BASE, start=self.commit())
        self.log.put(*settle_left(self.state), finished(move, ready))
        for call in [call for call, item in self.state.open.items() if not isinstance(item.effect, MakeWorktree)]:
            # As its loop would: what began elsewhere and is none of those is not done here.
            self.log.put(finished(call, Refused(text="gone")))

    def carry_out(self, left: LeftOver) -> Files:
        if left.captured is None:
            files = dict(self.commits[left.snapshot])
        else:
            assert left.captured == self.captured[0], "the session has another tree"
            files = dict(self.captured[1])
        for one in left.edits:
            edit(files, one)
        return files


def edit(files: Files, effect: RunTool) -> None:
    name, value = effect.arguments.split()
    if value == "0":
        files.pop(name, None)
    else:
        files[name] = int(value)


@pytest.mark.parametrize("seed", range(40))
def test_lost_at_any_event_the_files_are_those_that_the_outcomes_promise(seed: int) -> None:
    agent = Agent(Random(seed))
    for _ in range(60):
        lost = agent.lost
        agent.step()
        if agent.lost > lost:
            assert agent.files == agent.promised
            state = agent.state
            assert state.snapshot is not None and agent.commits[state.snapshot] == agent.files
            assert (state.written, agent.log.left) == ("no", None)
    assert agent.lost > 5
