"""Background agents: the questions that they answer, what they report, and why they say nothing."""

from collections.abc import Sequence

import pytest

from agent.waking import NAMES
from eventlog.outcomes import (
    AgentEnded,
    AttemptLost,
    Cancelled,
    Outcome,
    Priority,
    Refused,
    ToolFailed,
    ToolSucceeded,
)
from tests.agent.core_background import QUESTION, CrewPlanner, House, agent, early, house, quiet, report
from tests.agent.core_bodies import (
    BASE,
    MAKE,
    done,
    finished,
    interrupted,
    replied,
    said,
    started,
)
from tests.agent.core_fans import CUT, commit

LOST = AttemptLost(evidence="It is gone.")
REFUSED = Refused(text="No place.")


def test_a_question_wakes_whom_it_is_put_to_and_the_answer_is_the_result() -> None:
    room = House(agent(), agent("edit", name="other"))
    assert room.reply("ask_scout") == ["c1_1", "scout_w1"]
    wake = room.wake()
    assert (wake.reasons, wake.asked, wake.base) == (("question",), ("c1_1",), BASE)
    assert "The main agent asks you." in wake.text and wake.text.endswith(f"The question:\n{QUESTION}")
    assert "last words" not in wake.text
    assert room.rest(report("In a.txt.", "high", "a.txt:1", "b.txt:2")) == ["c2"]
    assert room.result == "In a.txt.\nEvidence:\n- a.txt:1\n- b.txt:2"
    assert (room.told, room.one().answers) == ([], ()), "an answer is no report"
    assert isinstance(room.outcome("c1_1"), ToolSucceeded)


def test_a_question_waits_while_it_is_at_work_and_for_the_files_as_they_are() -> None:
    room = house("start", "commit")
    room.act("commit")
    room.reply("edit", "ask_scout")
    assert room.end("c2_1", done(wrote=True)) == ["s1"]
    assert room.snap("1") == ["c2_2"]
    assert room.rest(report()) == ["scout_w2"]
    assert room.wakes[1] == ("scout", ("commit", "question"), commit("1"))
    assert room.rest(quiet("It is nowhere.")) == ["c3"]
    assert room.outcome("c2_2") == ToolSucceeded(text="scout gave no answer: It is nowhere.")
    assert len(room.told) == 1, "what it had to say before is told as a report"


def test_of_two_questions_each_has_an_answer_of_its_own() -> None:
    room = House(agent(name="scout"), agent(name="other"))
    room.reply("ask_scout", "ask_scout", "ask_other")
    assert room.rest(report("one")) == ["c1_2", "scout_w2"]
    assert room.rest(report("two")) == ["c1_3", "other_w1"]
    assert room.rest(report("three"), "other") == ["c2"]
    outcomes = [room.outcome(f"c1_{number}") for number in (1, 2, 3)]
    assert [one.model_dump()["text"] for one in outcomes] == ["one", "two", "three"]


@pytest.mark.parametrize(
    ("endings", "answer"),
    [
        ([early("out_of_turns", "Stopped.")], ToolSucceeded),
        ([REFUSED], ToolFailed),
        ([LOST, LOST, LOST], ToolFailed),
        ([LOST, report("Here.")], ToolSucceeded),
    ],
)
def test_a_question_is_answered_once_however_the_wake_up_ends(
    endings: Sequence[Outcome], answer: type[ToolSucceeded | ToolFailed]
) -> None:
    room = house()
    room.reply("ask_scout")
    begun: list[str] = []
    for ending in endings:
        assert room.wake().asked == ("c1_1",)
        begun = room.rest(ending)
    assert begun == ["c2"] and isinstance(room.outcome("c1_1"), answer)
    assert room.one().answers == () and room.result


def test_where_the_budget_is_spent_a_question_is_not_put_and_the_call_says_so() -> None:
    room = house(budget=1.0)
    room.reply("ask_scout")
    room.rest(report(usd=1.0))
    assert room.reply("ask_scout") == ["c2_1", "c3"]
    outcome = room.outcome("c2_1")
    assert isinstance(outcome, ToolFailed) and outcome.text.startswith("scout has spent its budget")
    assert len(room.wakes) == 1


@pytest.mark.parametrize(
    ("late", "told"), [(early(), 0), (report("In a.txt."), 1), (quiet(), 0), (REFUSED, 0), (LOST, 0)]
)
def test_a_question_ends_with_an_interrupted_turn_and_a_late_answer_is_none(late: Outcome, told: int) -> None:
    room = house()
    room.reply("ask_scout")
    room.put(interrupted())
    outcome = room.outcome("c1_1")
    assert isinstance(outcome, Cancelled) and outcome.started and room.ending is None
    assert room.rest(late) == [] and room.ending == "interrupted"
    assert room.put(said("More.", "u2"))[-1].model_dump()["call_id"] == "c2"
    assert len(room.wakes) == 1, "nobody asks any more"
    assert len(room.told) == told, "what it found out is not lost"


def test_a_question_ends_where_the_turn_fails() -> None:
    room = house()
    room.reply("ask_scout", "read")
    decided = room.put(started("w2", MAKE), finished("w2", Refused(text="The disk is full.")))
    assert [body.kind for body in decided] == ["call_rejected", "effect_finished", "interrupted"]
    room.rest(early())
    assert room.ending == "failed"


def test_a_question_to_the_user_is_not_kept_back_by_what_agents_do() -> None:
    room = House(agent("start", "edit"), planner=CrewPlanner(asks=frozenset({"shell"})))
    assert room.reply("shell") == ["c1_1_ask"]
    assert room.at_work and room.state.resting
    room.rest(quiet())
    assert room.state.resting
    room = House(agent("start"))
    room.reply(text="Done.")
    assert not room.state.resting, "the turn waits for it"
    room.rest(early())
    assert room.state.resting


def test_reports_are_told_once_the_most_urgent_first_before_the_next_call() -> None:
    room = House(*[agent("start", "commit", name=name) for name in ("low", "high", "normal", "two")])
    urgencies: dict[str, Priority] = {"low": "low", "high": "high", "normal": "normal", "two": "high"}
    for name, priority in urgencies.items():
        room.rest(report(f"From {name}.", priority), name)
    assert room.told == [] and room.parts == ["c1"]
    assert room.act("read") == ["c2"]
    assert [text.split("\n")[1] for text in room.told] == ["From high.", "From two.", "From normal.", "From low."]
    call = room.effect("c2")
    assert call.model_dump()["messages"] == len(room.state.messages)
    room.act("read")
    assert len(room.told) == 4
    first, _, text = room.told[0].partition("\n")
    assert first.startswith(f"[Report of the background agent high, priority high, on commit {BASE}; ")
    assert text == "From high."


def test_a_report_is_told_with_its_evidence_and_what_it_changed_itself() -> None:
    room = house("start")
    room.rest(report("Look.", "normal", "a.txt:1", "b.txt:2", work=commit("7")))
    room.act("read")
    assert room.told[0].endswith(
        "Look.\nEvidence:\n- a.txt:1\n- b.txt:2\n"
        f"It changed files in its own worktree; `git diff {BASE} {commit('7')}` shows them."
    )


def test_a_report_is_told_with_what_has_changed_since() -> None:
    names = tuple(f"{number}.txt" for number in range(NAMES + 1))
    room = House(agent("start", "edit"), planner=CrewPlanner(differences={(BASE, commit("1")): ("a.txt",)}))
    room.rest(report("Nothing."))
    room.act("read")
    room.edit("1")
    room.rest(report("Nothing, again."))
    room.act("read")
    assert all("; nothing has changed since then. The user did not write this.]" in text for text in room.told)
    late = House(agent("start"), planner=CrewPlanner(differences={(BASE, commit("1")): ("a.txt", *names)}))
    late.edit("1")
    late.act("edit")
    late.rest(report())
    late.act("read")
    assert "; since then you changed a.txt, 0.txt, " in late.told[0] and "38.txt and 3 more. The" in late.told[0]


@pytest.mark.parametrize(
    ("tool", "told"),
    [
        ("edit", "since then you changed b.txt. The"),
        ("shell", "nothing has changed since then, and a command ran that may have changed more. The"),
        ("read", "nothing has changed since then. The"),
    ],
)
def test_a_report_is_told_with_what_is_in_no_snapshot_yet(tool: str, told: str) -> None:
    room = house("start")
    room.act(tool)
    room.rest(report())
    room.act("read")
    assert told in room.told[0]


def test_an_edit_that_failed_has_changed_nothing_and_a_snapshot_holds_what_was_edited_before() -> None:
    room = house("start")
    room.act("edit", ToolFailed(text="No."))
    room.rest(report())
    room.act("read")
    assert "nothing has changed" in room.told[0]
    room = house("start")
    room.edit("1")
    room.rest(report())
    room.act("read")
    assert "since then you changed nothing that git can name. The" in room.told[0]


def test_no_report_comes_between_a_reply_and_its_rest() -> None:
    room = house("start")
    paused = replied(text="I am ").model_copy(update={"stop": "pause"})
    room.rest(report())
    assert room.end("c1", paused) == ["c2"] and room.told == []
    assert room.reply(text="done.") == ["c3"] and len(room.told) == 1


def test_a_report_is_told_before_what_the_user_says_after_a_pause_is_sent() -> None:
    room = house("start")
    room.end("c1", replied(text="I am ").model_copy(update={"stop": "pause"}))
    room.put(interrupted(), finished("c2", CUT), finished("scout_w1", report()))
    assert room.ending == "interrupted"
    room.put(said("More.", "u2"))
    assert room.parts == ["c3"] and len(room.told) == 1


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (quiet("All is well."), "All is well."),
        (AgentEnded(ending="done", text="Hm."), "neither whether it reports nor why not. Its last words: Hm."),
        (early("out_of_budget", "Too dear."), "ended early (out_of_budget): Too dear."),
        (early(), "ended early (interrupted): Interrupted."),
        (REFUSED, "No place."),
        (CUT, "nobody said why"),
        (ToolFailed(text="No."), "No."),
        (done(), "ended as tool_succeeded"),
        (LOST, "Its process died: It is gone."),
    ],
)
def test_each_silence_has_a_reason(outcome: Outcome, reason: str) -> None:
    room = house("start")
    while room.at_work:
        room.rest(outcome)
    assert reason in room.silence() and room.told == []
