"""Background agents: what each may spend and what is counted, and what outlasts a turn."""

import pytest

from agent.background import HOUR_S
from agent.folding import fold_events
from agent.waking import SHARE
from eventlog.effects import FanOut, RestoreTree
from eventlog.events import AgentsChosen, EffectFinished, Forked, Interrupted, Rewound
from eventlog.ids import CallId, SessionId
from eventlog.messages import Usage
from eventlog.outcomes import AttemptLost, Refused, ToolFailed
from tests.agent.core_background import NOW, CrewPlanner, House, agent, early, house, quiet, report
from tests.agent.core_bodies import (
    BASE,
    MAKE,
    done,
    finished,
    fold_bodies,
    limits,
    ready,
    said,
    started,
    stored,
)
from tests.agent.core_fans import commit

LOST = AttemptLost(evidence="It is gone.")


def test_a_wake_up_may_spend_what_is_left_of_the_hour_before_it() -> None:
    planner = CrewPlanner()
    room = House(agent("edit", "command", budget=1.0), planner=planner)
    left: list[float | None] = []
    for digit, at_s, usd in (("1", 0, 0.4), ("2", 600, 1.0)):
        planner.now = NOW + at_s
        room.edit(digit)
        left.append(room.wake().budget_usd)
        room.rest(quiet(usd=usd))
    planner.now = NOW + HOUR_S - 1
    assert room.edit("3") == []
    planner.now = NOW + HOUR_S
    assert room.reply("read") == ["scout_w3", "c4_1"], "time wakes nobody, and what happens next does"
    left.append(room.wake().budget_usd)
    room.rest(quiet(usd=1.2))
    room.end("c4_1", done())
    planner.now = NOW + HOUR_S + 600
    room.edit("5")
    left.append(room.wake().budget_usd)
    assert left == [1.0, pytest.approx(0.6), pytest.approx(0.4), pytest.approx(0.8)]
    room.rest(quiet(usd=9.0))
    assert room.edit("6") == [], "more than all of it is spent"
    planner.now += HOUR_S
    room.edit("7")
    assert room.wake().budget_usd == 1.0
    room.rest(quiet(usd=9.0))
    assert len(room.one().spending) == 1, "what is older is not kept"


def test_a_wake_up_may_spend_a_share_of_what_is_left_of_the_session_and_reserved_by_nobody() -> None:
    planner = CrewPlanner(reserved_usd=2.0)
    room = House(
        agent("start", "edit"), agent("start", name="other"), planner=planner, bodies=(limits(max_budget_usd=10.0),)
    )
    assert [wake.budget_usd for wake in room.at_work] == [8 * SHARE, 8 * SHARE / 2], "the call may cost 2"
    assert room.state.reserved_usd == pytest.approx(1.2)
    room.edit("1")
    room.rest(quiet(usd=0.5))
    assert room.wake().budget_usd == pytest.approx((10 - 0.5 - 0.4 - 2) * SHARE)


def test_however_many_are_woken_at_once_they_never_pass_what_is_left() -> None:
    crew = [agent("start", name=f"agent{number}") for number in range(12)]
    room = House(*crew, bodies=(limits(max_budget_usd=1.0),))
    assert len(room.at_work) == 12 and room.state.reserved_usd < 1.0


def test_the_smaller_of_both_budgets_holds_and_nobody_is_woken_where_one_is_spent() -> None:
    assert house("start", budget=0.1, session_budget=2.0).wake().budget_usd == 0.1
    assert house("start", budget=9.0, session_budget=2.0).wake().budget_usd == 2.0 * SHARE
    room = house("edit", session_budget=1.0)
    room.reply("edit", cost=1.0)
    assert room.end("c1_1", done(wrote=True)) == ["c2", "s1"]
    assert room.snap("1") == []
    room.put(limits(id="l2", max_budget_usd=2.0))
    assert room.wakes == [("scout", ("edit",), commit("1"))], "it is woken once there is money again"


def test_what_agents_may_still_spend_is_not_the_main_agent_s_to_spend() -> None:
    planner = CrewPlanner()
    room = House(agent("start"), planner=planner, bodies=(limits(max_budget_usd=1.0),))
    planner.reserved_usd = 1.0 - SHARE
    assert room.act("read") == ["c2"], "it just fits"
    assert room.rest(LOST) == ["scout_w1"]
    planner.reserved_usd += 0.01
    assert room.act("read") == []
    assert room.rest(early()) == ["c3"], "those at work end, so that it can go on"
    planner.reserved_usd = 1.1
    assert room.act("read") == [] and room.ending == "out_of_budget"


def test_one_whose_process_died_ends_too_where_the_main_agent_needs_what_it_may_spend() -> None:
    planner = CrewPlanner()
    room = House(agent("start"), planner=planner, bodies=(limits(max_budget_usd=1.0),))
    room.reply("read")
    planner.reserved_usd = 0.95
    decided = room.put(finished("c1_1", done()), finished("scout_w1", LOST))
    assert [body.kind for body in decided] == ["effect_started", "interrupted"]
    assert room.rest(LOST) == ["c2", "scout_w2"], "once it was told to end it does not go on, and may begin anew"
    assert room.wake().budget_usd == pytest.approx(0.05 * SHARE)


def test_a_fan_out_shares_what_is_left_without_that() -> None:
    room = House(agent("start"), bodies=(limits(max_budget_usd=1.0),))
    room.reply("fan_out")
    fan = room.effect("c1_1")
    assert isinstance(fan, FanOut) and fan.budget_usd == (1.0 - SHARE) / 2


def test_what_it_uses_over_its_wake_ups_is_counted_once() -> None:
    room = house("start", "edit")
    room.rest(quiet(usd=0.5).model_copy(update={"usage": Usage(input=10, output=2)}))
    room.edit("1")
    before = room.state.usage
    assert (room.state.spent_usd, before.input) == (0.5, 20) and not room.state.unpriced
    room.rest(early("failed", usd=0.75).model_copy(update={"usage": Usage(input=30, output=2), "unpriced": True}))
    assert (room.state.spent_usd, room.state.usage - before) == (0.75, Usage(input=20)) and room.state.unpriced
    assert (room.one().spent_usd, room.one().spending) == (0.75, ((NOW, 0.5), (NOW, 0.25)))


@pytest.mark.parametrize("how", ["rewind", "fork"])
def test_a_rewind_or_a_fork_keeps_what_agents_know_and_cost_and_closes_what_they_do(how: str) -> None:
    room = house("start", "edit", "turn_end")
    room.rest(report(usd=0.5))
    room.edit("1")
    room.edit("2")
    cut = Forked(session=SessionId("t"), seq=9) if how == "fork" else Rewound(to_seq=6, saved=None, restored=None)
    state = fold_events(stored([*room.story, cut, finished("scout_w2", quiet(usd=9.0))]))
    (one,) = state.crew
    assert (one.round, one.at_work, one.seen, len(one.reports)) == (2, None, BASE, 0)
    assert (one.spent_usd, state.spent_usd, state.reserved_usd, state.open) == (0.5, 0.5, 0.0, {})
    assert one.due == ("edit",), "what it did not look at to the end"
    room.state = state
    room.put(started("w2", MAKE), finished("w2", ready()), said("Anew.", "u9"))
    assert (room.wake().round, room.wake().reasons, room.state.open[CallId("scout_w3")].attempt) == (3, ("edit",), 1)


def test_a_question_that_was_open_at_a_rewind_has_no_answer_any_more() -> None:
    room = house("turn_end")
    room.reply("ask_scout")
    answered = fold_bodies([finished("scout_w1", report())], room.state)
    assert answered.crew[0].answers
    room.state = fold_bodies([Forked(session=SessionId("t"), seq=9)], answered)
    room.put(started("w2", MAKE), finished("w2", ready()), said("Anew.", "u9"))
    assert room.parts == ["c2"]


def test_who_is_chosen_again_keeps_what_is_known_of_it_with_its_definition_as_it_is_now() -> None:
    room = house("start", "edit")
    room.rest(quiet(usd=0.5))
    before = room.one()
    room.put(AgentsChosen(agents=(agent("commit", name="other"), agent("command", budget=2.0))))
    assert [one.agent for one in room.state.crew] == ["other", "scout"]
    after = room.one()
    assert after.chosen.wakes_on == ("command",) and after.chosen.budget_usd_per_hour == 2.0
    assert (after.round, after.seen, after.spent_usd, after.said) == (1, before.seen, 0.5, before.said)
    room.edit("1")
    assert len(room.wakes) == 1


def test_who_is_named_no_more_is_ended_and_goes_on_from_there_when_it_comes_back() -> None:
    room = house("start", "edit", session_budget=1.0)
    room.reply("ask_scout")
    decided = room.put(AgentsChosen(agents=()))
    assert [body.id for body in decided if isinstance(body, Interrupted)] == ["scout_w1-end"]
    outcome = room.outcome("c1_1")
    assert isinstance(outcome, ToolFailed) and "without this agent" in outcome.text
    assert room.state.crew == () and room.state.reserved_usd == SHARE
    room.edit("1")
    assert room.rest(early(usd=0.25)) == [] and (room.state.spent_usd, room.state.reserved_usd) == (0.25, 0.0)
    assert room.reply(text="Done.") == [] and room.ending == "done"
    room.put(AgentsChosen(agents=(agent("edit"),)), said("More.", "u2"))
    assert room.wakes[1] == ("scout", ("edit",), commit("1"))
    assert (room.wake().round, room.one().spent_usd) == (2, 0.25)


def test_who_is_named_no_more_ends_where_the_turn_fails_at_once() -> None:
    room = house("start")
    restore = started("b1", RestoreTree(commit=BASE))
    decided = room.put(AgentsChosen(agents=()), restore, finished("b1", Refused(text="The disk is full.")))
    assert [body.kind for body in decided] == ["interrupted"]


def test_what_one_had_to_say_is_not_told_once_it_is_named_no_more() -> None:
    room = house("start")
    room.put(finished("scout_w1", report()), AgentsChosen(agents=()))
    room.act("read")
    assert room.told == []
    room.put(AgentsChosen(agents=(agent("start"),)))
    room.act("read")
    assert len(room.told) == 1


def test_an_answer_for_one_that_is_gone_and_its_end_are_one_outcome() -> None:
    room = house()
    room.reply("ask_scout")
    room.put(finished("scout_w1", report("Here.")), AgentsChosen(agents=()))
    ends = [body for body in room.story if isinstance(body, EffectFinished) and body.call_id == "c1_1"]
    assert len(ends) == 1 and room.result == "Here."
