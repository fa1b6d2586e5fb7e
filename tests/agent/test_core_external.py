"""What happens outside is done once: the table of evidence and answers, and the loop that carries it on."""

import asyncio
from dataclasses import dataclass

import pytest

from agent.decide import Plan, Start
from agent.external import Answer, CannotTell, Found, NotDone, settle_answer
from agent.fakes import ScriptedOutside, ScriptedWorld
from agent.recovery import (
    MAX_ATTEMPTS,
    Askable,
    Ended,
    Evidence,
    FilesAfter,
    FilesBefore,
    FilesOther,
    Finish,
    NeverBegan,
    StillRuns,
    Unseen,
    Vanished,
    settle,
    settle_all,
)
from agent.state import PendingCall, State
from eventlog.effects import RunTool
from eventlog.events import Body, CallRejected, EffectFinished, EffectStarted
from eventlog.outcomes import ToolSucceeded
from tests.agent.core_bodies import PlainPlanner, asked_for, done, finished, fold_bodies, go_on, interrupted, started

KEY = "s1-c1_1"
DEPLOY = RunTool(
    tool="deploy", arguments="{}", effect_class="external", allowed_by="a test", program=("/bin/deploy",), key=KEY
)
SEEN = "it began"

EVIDENCE: list[tuple[Evidence, str]] = [
    (NeverBegan(), "carry on"),
    (StillRuns(), "carry on"),
    (Askable(SEEN), "carry on"),
    (Ended(done("posted")), "tool_succeeded"),
    (Vanished(SEEN), "outcome_unknown"),
    (Unseen(), "outcome_unknown"),
    (FilesBefore(), "outcome_unknown"),
    (FilesAfter(), "outcome_unknown"),
    (FilesOther("a.txt", None), "outcome_unknown"),
]


@pytest.mark.parametrize(("evidence", "expected"), EVIDENCE, ids=[type(row[0]).__name__ for row in EVIDENCE])
def test_only_evidence_of_its_own_lets_it_go_on(evidence: Evidence, expected: str) -> None:
    for attempt in (1, MAX_ATTEMPTS, 9):
        settled = settle(DEPLOY, attempt, evidence)
        assert (settled.outcome.kind if isinstance(settled, Finish) else "carry on") == expected


@pytest.mark.parametrize("evidence", [row[0] for row in EVIDENCE])
def test_arguments_that_held_a_secret_are_never_sent_from_the_log(evidence: Evidence) -> None:
    marked = DEPLOY.model_copy(update={"arguments": '{"token": "[redacted:0123abcd]"}'})
    settled = settle(marked, 1, evidence)
    assert isinstance(settled, Finish) and settled.outcome.kind == "outcome_unknown"


@pytest.mark.parametrize(
    ("answer", "lost", "attempt", "expected"),
    [
        (Found("posted"), True, 1, "tool_succeeded"),
        (Found("posted"), False, 9, "tool_succeeded"),
        (NotDone(), True, 1, "attempt_lost"),
        (NotDone(), True, MAX_ATTEMPTS, "tool_failed"),
        (NotDone(), False, 1, "tool_failed"),
        (CannotTell("nobody answers"), True, 1, "outcome_unknown"),
        (CannotTell("nobody answers"), False, 1, "outcome_unknown"),
    ],
)
def test_the_answer_decides(answer: Answer, lost: bool, attempt: int, expected: str) -> None:
    assert settle_answer(DEPLOY, attempt, SEEN, answer, lost=lost).kind == expected


def test_what_is_unknown_is_told_with_all_that_is_known() -> None:
    told = settle_answer(DEPLOY, 1, SEEN, CannotTell("nobody answers"), lost=True)
    assert all(part in told.model_dump_json() for part in (SEEN, "nobody answers", KEY))


def test_the_result_that_was_found_is_the_results_own_text() -> None:
    told = settle_answer(DEPLOY, 1, SEEN, Found("posted as number 7"), lost=True)
    assert told == ToolSucceeded(text="posted as number 7", wrote=True, recovered=True)


@dataclass(slots=True)
class DeployPlanner(PlainPlanner):
    def plan_tool(self, state: State, call: PendingCall) -> Plan:
        return Start(DEPLOY)

    def writes(self, tool: str) -> bool:
        return True


CALLED = fold_bodies([started("c1_1", DEPLOY)], asked_for("deploy"))
"""A call was begun, and the process that began it is gone."""


def carry_on(outside: ScriptedOutside, attempt: int = 1) -> tuple[State, list[Body]]:
    """What is decided once the other side was asked about a call that vanished."""
    bodies, (intent,) = settle_all(CALLED, lambda call_id, item: Askable(SEEN))
    assert bodies == [] and isinstance(intent.effect, RunTool)
    answer = asyncio.run(outside.find(intent.effect.tool, intent.effect.key))
    outcome = settle_answer(intent.effect, attempt, SEEN, answer, lost=True)
    return go_on(fold_bodies([finished("c1_1", outcome)], CALLED), DeployPlanner())


def begun(bodies: list[Body]) -> list[EffectStarted]:
    return [body for body in bodies if isinstance(body, EffectStarted) and isinstance(body.effect, RunTool)]


def test_what_the_other_side_has_done_is_not_begun_again() -> None:
    outside = ScriptedOutside({KEY: "posted as number 7"})
    state, decided = carry_on(outside)
    assert begun(decided) == [] and outside.asked == [("deploy", KEY)]
    assert [message.text for message in state.messages if message.role == "tool"] == ["posted as number 7"]


def test_what_it_has_not_done_is_begun_again_under_the_same_key() -> None:
    _, decided = carry_on(ScriptedOutside({"another key": "posted"}))
    (again,) = begun(decided)
    assert (again.call_id, again.attempt, again.effect) == ("c1_1", 2, DEPLOY)


def test_what_it_cannot_tell_of_is_not_begun_again() -> None:
    state, decided = carry_on(ScriptedOutside({KEY: "posted"}, dumb="nobody answers"))
    assert begun(decided) == []
    assert "Unknown outcome" in state.messages[-1].text and "nobody answers" in state.messages[-1].text


def test_a_world_that_saw_nothing_does_not_carry_it_on() -> None:
    bodies, unfinished = ScriptedWorld(lambda intent: None).settle(CALLED)
    (body,) = bodies
    assert unfinished == [] and isinstance(body, EffectFinished) and body.outcome.kind == "outcome_unknown"


def test_a_lost_call_that_is_interrupted_is_not_told_as_one_that_never_began() -> None:
    lost = settle_answer(DEPLOY, 1, SEEN, NotDone(), lost=True)
    _, decided = go_on(fold_bodies([interrupted(), finished("c1_1", lost)], CALLED), DeployPlanner())
    (rejection,) = [body for body in decided if isinstance(body, CallRejected)]
    assert rejection.text.startswith("It began, and may have run")
