"""After another boot: what the fold knows of it and what recovery makes of it."""

import pytest

from agent.apply import TORN_TEXT
from agent.folding import rewind
from agent.recovery import CarryOn, Ended, Finish, NeverBegan, settle
from agent.state import State
from eventlog.effects import RestoreTree, TakeSnapshot
from eventlog.events import Rewound, SessionOpened
from eventlog.ids import CallId
from eventlog.messages import UserMessage
from tests.agent.core_bodies import (
    BASE,
    MAKE,
    OPENING,
    PlainPlanner,
    asked_for,
    done,
    finished,
    fold_bodies,
    go_on,
    model_call,
    replied,
    said,
    started,
    taken,
    tool,
)

RESTORE = RestoreTree(commit=BASE, kept_as="before-restart/2")
SHELL = tool("shell", confined=True, snapshot=BASE)


def boots(name: str, epoch: int = 2, torn: bool = False) -> SessionOpened:
    return SessionOpened(epoch=epoch, version="0", pid=1, host="h", boot=name, torn=torn)


def running(boot: str) -> State:
    """A command is under way."""
    return fold_bodies([started("c1_1", SHELL)], asked_for("shell", opening=[boots(boot, 1), *OPENING]))


def test_another_boot_shakes_what_was_open_and_the_worktree() -> None:
    state = fold_bodies([boots("after")], running("before"))
    assert state.open[CallId("c1_1")].shaken and state.torn
    assert state.boot == "after" and state.queued == ()


@pytest.mark.parametrize(("before", "after"), [("one", "one"), ("", "one"), ("one", ""), ("", "")])
def test_the_same_boot_and_one_that_is_not_known_shake_nothing(before: str, after: str) -> None:
    state = fold_bodies([boots(after)], running(before))
    assert not state.open[CallId("c1_1")].shaken and not state.torn
    assert state.boot == (after or before)


def test_what_began_after_the_boot_is_not_shaken() -> None:
    state = fold_bodies([boots("after"), started("c2", model_call())], running("before"))
    assert not state.open[CallId("c2")].shaken


def test_a_session_that_is_opened_twice_after_the_boot_is_still_shaken() -> None:
    state = fold_bodies([boots("after"), boots("after", 3)], running("before"))
    assert state.open[CallId("c1_1")].shaken and state.torn


def test_once_the_tree_was_read_it_is_trusted_and_what_was_open_is_not() -> None:
    state = fold_bodies([boots("after"), started("r2", RESTORE), finished("r2", taken("c"))], running("before"))
    assert not state.torn and state.snapshot == "c" * 40 and state.written == "no"
    assert state.open[CallId("c1_1")].shaken


def test_nothing_is_torn_where_there_was_no_worktree() -> None:
    state = fold_bodies([boots("before", 1), started("w1", MAKE), boots("after")])
    assert not state.torn and state.open[CallId("w1")].shaken


def test_a_rewind_does_not_forget_the_boot() -> None:
    present = fold_bodies([boots("after")], running("before"))
    back = rewind(running("before"), present, Rewound(to_seq=1, saved=BASE, restored=BASE))
    assert back.boot == "after" and back.torn


def test_the_model_is_told_once_and_before_it_decides_what_is_next() -> None:
    wrote = fold_bodies([finished("c1_1", done(wrote=True)), started("c2", model_call())], running("before"))
    state = fold_bodies([boots("after", torn=True), boots("later", 3, torn=True)], wrote)
    state = fold_bodies([finished("c2", replied("read", call="c2"))], state)
    state = fold_bodies([started("c2_1", tool("read")), finished("c2_1", done())], state)
    assert [m.text for m in state.messages if isinstance(m, UserMessage)] == ["Do it.", TORN_TEXT]


def test_a_rested_session_does_not_wake_up_because_the_machine_did() -> None:
    ended = [started("c1", model_call()), finished("c1", replied(text="Done."))]
    rested, _ = go_on(fold_bodies([boots("before", 1), *OPENING, *ended]), PlainPlanner())
    state, decided = go_on(fold_bodies([boots("after", torn=True)], rested), PlainPlanner())
    assert state.resting and decided == []
    told = fold_bodies([said("More.", "u2")], state)
    assert [m.text for m in told.messages if isinstance(m, UserMessage)] == ["Do it.", TORN_TEXT, "More."]


def test_a_snapshot_that_was_open_ends_where_the_tree_was_set_back_to_what_it_holds() -> None:
    snapshot = TakeSnapshot(parent=BASE, at_s=0, reason="r")
    assert settle(snapshot, 1, Ended(taken("c"))) == Finish(taken("c"))
    assert settle(snapshot, 1, NeverBegan()) == CarryOn()
