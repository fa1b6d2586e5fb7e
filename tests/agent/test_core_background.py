"""Background agents: what wakes whom, on which files, and what the end of a turn means for them."""

import pytest

from agent.background import MAX_LOST
from agent.waking import GOAL, MAX_ENDS, NAMES, SHARE
from eventlog.effects import RestoreTree, Wake
from eventlog.events import Continued, Forked, Interrupted
from eventlog.ids import CallId, CommandId, SessionId
from eventlog.outcomes import (
    AgentsRetired,
    AttemptLost,
    Outcome,
    OutcomeUnknown,
    Priority,
    Refused,
    ToolFailed,
)
from tests.agent.core_background import EVERY, NOW, CrewPlanner, House, agent, early, house, quiet, report
from tests.agent.core_bodies import (
    BASE,
    MAKE,
    done,
    finished,
    interrupted,
    limits,
    ready,
    replied,
    said,
    started,
    taken,
    tool,
)
from tests.agent.core_fans import CUT, commit, worked

LOST = AttemptLost(evidence="It is gone.")
FAILED = ToolFailed(text="No.")


def test_each_is_woken_at_the_start_once_the_worktree_is_there() -> None:
    room = House(agent("start"), agent("start", name="other"), agent("edit", name="third"), made=False)
    assert room.parts == ["w1", "c1"]
    assert room.end("w1", ready()) == ["scout_w1", "other_w1"]
    wake = room.wake()
    assert (wake.round, wake.base, wake.reasons, wake.budget_usd, wake.at_s) == (1, BASE, ("start",), None, NOW)
    assert "The session begins." in wake.text and wake.text.endswith("What the session was asked for:\nDo it.")
    assert f"commit {BASE}" in wake.text and "Changed since" not in wake.text


def test_waiting_costs_nothing_and_what_only_reads_wakes_nobody() -> None:
    room = house(*EVERY)
    room.rest(quiet())
    assert [room.act("read") for _ in range(3)] == [["c2"], ["c3"], ["c4"]]
    assert len(room.wakes) == 1


@pytest.mark.parametrize("wakes_on", ["edit", "command", "commit"])
@pytest.mark.parametrize(
    ("name", "outcome", "reason"),
    [
        ("edit", done(wrote=True), "edit"),
        ("edit", FAILED, None),
        ("shell", done(wrote=True), "command"),
        ("shell", ToolFailed(text="1 failed", exit_code=1, wrote=True), "command"),
        ("shell", OutcomeUnknown(evidence="it began"), "command"),
        ("commit", done(), "commit"),
        ("commit", FAILED, None),
        ("read", done(), None),
    ],
)
def test_one_is_woken_only_for_what_it_wakes_on(
    name: str, outcome: Outcome, reason: Wake | None, wakes_on: Wake
) -> None:
    room = house(wakes_on)
    room.act(name, outcome)
    if room.state.written != "no":
        assert room.wakes == [], "its files are in no snapshot"
        room.snap("1")
    assert room.state.snapshot is not None
    assert room.wakes == ([("scout", (reason,), room.state.snapshot)] if reason == wakes_on else [])


def test_the_user_s_own_programs_count_as_commands_and_what_can_write_nothing_does_not() -> None:
    room = house("command")
    room.put(started("x", tool("shell", read_only=True)), finished("x", done()))
    room.put(started("y", tool("edit", effect_class="external")), finished("y", LOST))
    assert room.wakes == []
    room.put(started("y", tool("edit", effect_class="external"), 2), finished("y", done(), 2))
    assert room.wakes == [("scout", ("command",), BASE)]


@pytest.mark.parametrize("merged", [True, False])
def test_what_a_fan_out_merged_is_an_edit_and_nobody_is_woken_while_it_is_under_way(merged: bool) -> None:
    room = House(agent("edit", "command"), planner=CrewPlanner(tasks=("one",)))
    room.act("shell", done())
    room.rest(quiet())
    room.reply("fan_out")
    room.put(started("x", tool("shell")), finished("x", done()))
    if merged:
        room.merge("c2_1-1", "1")
        assert room.end("c2_1_end", AgentsRetired()) == ["c2_1_tree"]
        assert room.end("c2_1_tree", taken("1")) == ["c3", "scout_w2"]
        assert room.wake().reasons == ("command", "edit") and room.wake().base == commit("1")
    else:
        room.end("c2_1-1_r1", worked(None))
        assert room.end("c2_1_end", AgentsRetired()) == ["c3", "scout_w2"]
        assert room.wake().reasons == ("command",)


def test_edits_while_it_is_at_work_are_one_wake_up_afterwards() -> None:
    room = house("start", "edit", "commit")
    room.edit("1")
    room.edit("2")
    room.act("commit")
    assert len(room.wakes) == 1
    assert room.rest(quiet()) == ["scout_w2"]
    assert room.wakes[1] == ("scout", ("edit", "commit"), commit("2"))
    assert room.rest(quiet()) == []


def test_nobody_is_woken_while_a_snapshot_is_taken_though_what_was_written_before_is_known() -> None:
    room = house("edit", "command")
    room.act("edit")
    room.reply("read")
    assert room.end("c2_1", done()) == ["c3"] and room.wakes == []
    assert room.snap("1") == ["scout_w1"]


def test_it_is_told_what_has_changed_since_it_looked_last_and_what_the_user_said() -> None:
    many = tuple(f"{number}.txt" for number in range(NAMES + 2))
    planner = CrewPlanner(differences={(BASE, commit("1")): many[:1], (commit("1"), commit("2")): many})
    room = House(agent("edit"), agent("edit", name="other"), planner=planner)
    room.edit("1")
    assert f"Changed since then (commit {BASE}): 0.txt." in room.wake().text
    room.rest(quiet())
    room.rest(early(), "other")
    room.edit("2")
    text = room.wake().text
    assert "You are woken. The main agent edited files." in text and "told last" not in text
    assert f"Changed since you looked last (commit {commit('1')}): 0.txt, 1.txt" in text
    assert "39.txt and 2 more." in text and "40.txt" not in text
    assert f"Changed since then (commit {BASE}): nothing that git can name." in room.wake("other").text, "it was cut"
    room.rest(report())
    room.rest(quiet(), "other")
    room.put(said("x" * GOAL + "y", "u2"))
    room.edit("3")
    assert "What it was told last:\n" + "x" * GOAL in room.wake().text and "xy" not in room.wake().text
    room.rest(quiet())
    room.edit("4")
    assert "told last:\nx" in room.wake().text, "its own report is not what the session was told"


def test_an_end_wakes_it_where_something_is_new_and_waits_for_it() -> None:
    room = house("turn_end")
    room.edit("1")
    assert room.reply(text="I am done.") == ["scout_w1"]
    assert room.wakes == [("scout", ("turn_end",), commit("1"))] and room.ending is None
    assert room.wake().text.endswith("The main agent's last words:\nI am done.")
    assert room.rest(quiet()) == [] and room.ending == "done"
    room.put(said("More.", "u2"))
    room.reply(text="Nothing to do.")
    assert room.ending == "done" and len(room.wakes) == 1, "it has seen these files"


def test_an_end_wakes_nobody_where_nothing_has_changed_since_the_session_began() -> None:
    room = House(agent("turn_end"), agent("start", "turn_end", name="other"))
    room.rest(early("failed"), "other")
    room.reply(text="It is so.")
    assert room.ending == "done" and len(room.wakes) == 1


@pytest.mark.parametrize(("priority", "goes_on"), [("high", True), ("normal", True), ("low", False)])
def test_its_report_makes_the_turn_go_on_and_one_that_can_wait_does_not(priority: Priority, goes_on: bool) -> None:
    room = house("turn_end")
    room.edit("1")
    room.reply(text="Done.")
    assert room.rest(report(priority=priority)) == (["c3"] if goes_on else [])
    assert len(room.told) == goes_on and (room.ending is None) == goes_on
    room.put(said("More.", "u2"))
    room.reply("read")
    room.end(room.state.calls[0].call.id, done())
    assert len(room.told) == 1, "what could wait is told in the next turn"


def test_an_end_wakes_it_at_most_three_times_in_a_turn_and_again_in_the_next() -> None:
    room = house("turn_end")
    for digit in "123":
        room.edit(digit)
        room.reply(text="Done.")
        room.rest(report())
    room.edit("4")
    room.reply(text="Done.")
    assert room.ending == "done" and len(room.wakes) == MAX_ENDS == 3
    room.put(said("More.", "u2"))
    assert room.reply(text="Done.") == ["scout_w4"]


@pytest.mark.parametrize("outcome", [early("out_of_budget"), early("failed"), Refused(text="No place.")])
def test_one_that_fails_at_the_end_of_a_turn_is_not_woken_for_the_same_files_again(outcome: Outcome) -> None:
    room = house("turn_end")
    room.edit("1")
    room.reply(text="Done.")
    assert room.rest(outcome) == [] and room.ending == "done"
    room.put(said("More.", "u2"))
    assert room.reply(text="Done.") == ["scout_w2"], "in another turn it is"


def test_each_that_wants_is_woken_for_the_end_and_the_turn_goes_on_when_all_have_spoken() -> None:
    room = House(agent("turn_end"), agent("turn_end", name="other"))
    room.edit("1")
    assert room.reply(text="Done.") == ["scout_w1", "other_w1"]
    assert room.rest(report()) == [] and room.told == []
    assert room.rest(quiet(), "other") == ["c3"] and len(room.told) == 1


def test_what_others_look_at_ends_with_the_turn() -> None:
    room = House(agent("start"), agent("turn_end", name="other"))
    room.edit("1")
    assert room.reply(text="Done.") == ["other_w1"]
    decided = room.put(finished("other_w1", quiet()))
    assert [(body.agent, body.id) for body in decided if isinstance(body, Interrupted)] == [("scout", "scout_w1-end")]
    assert room.ending is None and not room.state.interrupting
    assert room.put(said("Wait.", "u2")) == [], "it is told once"
    assert room.rest(early()) == ["c3"] and room.state.messages[-1].model_dump()["text"] == "Wait."


@pytest.mark.parametrize("why", ["out_of_turns", "out_of_budget", "failed", "withheld"])
def test_it_ends_with_the_turn_however_that_ends(why: str) -> None:
    planner = CrewPlanner(rejects=frozenset({"edit"} if why == "withheld" else ()))
    budget = 1.0 if why == "out_of_budget" else None
    room = House(agent("start"), planner=planner, bodies=(limits(max_turns=1, max_budget_usd=budget),))
    if why == "withheld":
        room.put(limits(id="l2"))
        room.reply("edit")
        room.reply(text="I may not.")
    elif why == "failed":
        room.put(started("b1", RestoreTree(commit=BASE)), finished("b1", Refused(text="The disk is full.")))
        room.reply(text="Well.")
    else:
        room.reply("read", cost=1.0)
        planner.reserved_usd = 0.01
        room.put(limits(id="l3", max_budget_usd=budget, max_turns=None if budget else 1))
        room.end("c1_1", done())
    assert len([body for body in room.story if isinstance(body, Interrupted)]) == 1 and room.ending is None
    room.rest(early())
    assert room.ending == why


def test_a_turn_that_is_about_to_end_wakes_nobody_whom_it_would_have_to_end() -> None:
    room = house("edit")
    room.edit("1")
    room.edit("2")
    room.act("edit")
    room.reply(text="Done.")
    assert room.snap("3") == [] and room.rest(early()) == [] and room.ending == "done"
    assert len(room.wakes) == 1
    room.put(said("More.", "u2"))
    assert room.wakes[1:] == [("scout", ("edit",), commit("3"))], "the next turn does"


@pytest.mark.parametrize(("word", "again"), [(quiet(), False), (early("failed"), True)])
def test_an_end_waits_for_one_that_wakes_for_it_too_and_wakes_it_for_what_it_has_not_seen(
    word: Outcome, again: bool
) -> None:
    room = house("edit", "turn_end")
    room.edit("1")
    assert room.reply(text="Done.") == [] and room.ending is None
    assert not any(isinstance(body, Interrupted) for body in room.story)
    assert room.rest(word) == (["scout_w2"] if again else [])
    assert (room.ending is None) == again and (not again or room.wake().reasons == ("turn_end",))


def test_what_it_says_though_it_was_to_end_is_heard() -> None:
    room = house("start")
    room.reply(text="Done.")
    assert room.rest(report()) == ["c2"] and len(room.told) == 1


def test_nobody_is_woken_for_the_end_before_the_worktree_is_there() -> None:
    room = house("turn_end")
    room.edit("1")
    room.put(Forked(session=SessionId("t"), seq=9), started("w2", MAKE), said("More.", "u2"))
    assert room.reply(text="Done.") == []
    assert room.end("w2", ready()) == [] and room.ending == "done"


def test_an_interrupt_waits_for_those_at_work_and_wakes_nobody() -> None:
    room = house("start", "edit")
    room.act("edit")
    assert room.put(interrupted()) == []
    room.snap("1")
    assert room.end("c2", CUT) == [] and room.ending is None
    assert room.rest(early()) == [] and room.ending == "interrupted"
    room.put(Continued(id=CommandId("k")))
    assert room.wakes[1:] == [("scout", ("edit",), commit("1"))]


def test_a_process_that_dies_is_followed_by_another_that_goes_on_with_the_same_wake_up() -> None:
    room = house("start", "edit")
    first = room.wake()
    room.edit("1")
    assert room.rest(LOST) == ["scout_w1"] and room.wake() == first, "it may have been told of these files already"
    room.edit("2")
    assert room.rest(quiet()) == ["scout_w2"]
    assert room.wakes == [("scout", ("start",), BASE), ("scout", ("edit",), commit("2"))]
    assert room.one().seen == BASE


def test_what_kills_it_three_times_is_left_and_has_its_reason() -> None:
    room = house("start", "edit")
    assert [room.rest(LOST) for _ in range(MAX_LOST)] == [["scout_w1"], ["scout_w1"], []]
    assert room.silence() == "Its process died: It is gone."
    room.edit("1")
    assert room.rest(LOST) == ["scout_w2"], "of each wake-up the attempts are counted"
    assert room.state.open[CallId("scout_w2")].attempt == 2


def test_a_lost_wake_up_for_the_end_is_one_end_and_goes_on_before_the_turn_ends() -> None:
    room = house("turn_end")
    room.edit("1")
    room.reply(text="Done.")
    assert room.rest(LOST) == ["scout_w1"] and room.wake().reasons == ("turn_end",)
    assert len(room.one().ends) == 1
    assert [room.rest(LOST), room.rest(LOST)] == [["scout_w1"], []] and room.ending == "done"


def test_one_that_dies_while_another_looks_at_the_end_is_woken_anew_in_the_next_turn() -> None:
    room = House(agent("start"), agent("turn_end", name="other"), bodies=(limits(max_budget_usd=1.0),))
    room.edit("1")
    room.put(finished("c2", replied(text="Done.", call="c2", cost=0.0)), finished("scout_w1", LOST))
    assert room.parts == ["other_w1"] and room.wake("other").budget_usd == (1 - SHARE) * SHARE
    assert room.rest(quiet(), "other") == [] and room.ending == "done"
    room.put(said("More.", "u2"))
    assert room.wake() == room.wake().model_copy(update={"round": 2, "base": commit("1"), "reasons": ("start",)})


def test_one_that_dies_while_the_turn_ends_is_woken_anew_in_the_next() -> None:
    room = House(agent("start", "turn_end"), agent("turn_end", name="other"))
    room.reply(text="Done.")
    assert room.rest(LOST) == [] and room.ending == "done"
    room.put(said("More.", "u2"))
    assert room.wakes == [("scout", ("start",), BASE)] * 2 and room.wake().round == 2, "what it was for, it did not see"
    room.edit("1")
    assert room.reply(text="Done.") == ["other_w1"]
    room.put(interrupted())
    assert room.rest(early()) == room.rest(LOST, "other") == [] and room.ending == "interrupted"
    room.put(said("Again.", "u3"))
    assert len(room.wakes) == 3, "an end that is over wakes nobody"
