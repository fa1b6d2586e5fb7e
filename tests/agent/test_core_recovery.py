"""What becomes of an effect without an outcome: the table of classes and evidence, cell by cell."""

import pytest

from agent.recovery import (
    MAX_ATTEMPTS,
    CarryOn,
    Ended,
    Evidence,
    FilesAfter,
    FilesBefore,
    FilesOther,
    Finish,
    LeaveOpen,
    NeverBegan,
    StillRuns,
    Vanished,
    settle,
    vanish,
)
from eventlog.effects import Effect, MergeWork, RestoreTree, TakeSnapshot
from eventlog.ids import Digest
from eventlog.outcomes import AttemptLost, ToolFailed
from tests.agent.core_bodies import BASE, MAKE, model_call, question, tool

READ, EDIT, COMMIT = tool("read"), tool("edit"), tool("commit")
CONFINED = tool("shell", confined=True, snapshot=BASE)
READING = tool("shell", confined=True, read_only=True)
UNRESTORABLE = tool("shell", confined=True)
FREE = tool("shell", snapshot=BASE)
SNAPSHOT = TakeSnapshot(parent=BASE, at_s=0, reason="r")
MERGE = MergeWork(checkout="/r", base=BASE, result=BASE, head=BASE, at_s=0)
GONE, OTHER = Vanished("it began"), FilesOther("a.txt", Digest("d" * 64))
RESULT = ToolFailed(text="exit 3", exit_code=3)

TABLE: list[tuple[str, Effect, Evidence, str]] = [
    ("model", model_call(reserved_usd=0.5), NeverBegan(), "attempt_lost"),
    ("read", READ, NeverBegan(), "attempt_lost"),
    ("edit before", EDIT, FilesBefore(), "carry on"),
    ("edit after", EDIT, FilesAfter(), "tool_succeeded"),
    ("edit neither", EDIT, OTHER, "conflicted"),
    ("command never began", CONFINED, NeverBegan(), "carry on"),
    ("command runs", CONFINED, StillRuns(), "carry on"),
    ("command ended", CONFINED, Ended(RESULT), "tool_failed"),
    ("confined command gone", CONFINED, GONE, "attempt_lost"),
    ("reading command gone", READING, GONE, "attempt_lost"),
    ("confined command without a snapshot gone", UNRESTORABLE, GONE, "outcome_unknown"),
    ("free command never began", FREE, NeverBegan(), "carry on"),
    ("free command runs", FREE, StillRuns(), "carry on"),
    ("free command ended", FREE, Ended(RESULT), "tool_failed"),
    ("free command gone", FREE, GONE, "outcome_unknown"),
    ("commit", COMMIT, NeverBegan(), "carry on"),
    ("approval", question("c1_1"), NeverBegan(), "leave open"),
    ("worktree", MAKE, NeverBegan(), "carry on"),
    ("snapshot", SNAPSHOT, NeverBegan(), "carry on"),
    ("restore", RestoreTree(commit=BASE), NeverBegan(), "carry on"),
    ("merge", MERGE, NeverBegan(), "carry on"),
]


def word(effect: Effect, evidence: Evidence, attempt: int = 1) -> str:
    match settle(effect, attempt, evidence):
        case Finish(outcome):
            return outcome.kind
        case CarryOn():
            return "carry on"
        case LeaveOpen():
            return "leave open"


@pytest.mark.parametrize(("effect", "evidence", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_class_and_the_evidence_decide(effect: Effect, evidence: Evidence, expected: str) -> None:
    assert word(effect, evidence) == expected


def test_a_lost_model_call_is_charged_what_was_reserved() -> None:
    settled = settle(model_call(reserved_usd=0.5), 1, NeverBegan())
    assert isinstance(settled, Finish) and isinstance(settled.outcome, AttemptLost)
    assert settled.outcome.charged_usd == 0.5


def test_a_result_that_was_left_is_taken_as_it_is() -> None:
    assert settle(CONFINED, 1, Ended(RESULT)) == Finish(RESULT)


@pytest.mark.parametrize("effect", [CONFINED, READING], ids=["restored", "reading"])
def test_a_command_that_is_lost_each_time_is_not_run_for_ever(effect: Effect) -> None:
    words = [word(effect, GONE, attempt) for attempt in range(1, MAX_ATTEMPTS + 1)]
    assert words == ["attempt_lost"] * (MAX_ATTEMPTS - 1) + ["outcome_unknown"]


@pytest.mark.parametrize("evidence", [NeverBegan(), StillRuns(), GONE, FilesBefore(), FilesAfter()])
@pytest.mark.parametrize("name", ["edit", "shell"])
def test_what_held_a_secret_is_never_run_from_the_log(name: str, evidence: Evidence) -> None:
    effect = tool(name, arguments='{"command": "use [redacted:0123abcd]"}', confined=True, snapshot=BASE)
    assert word(effect, evidence) == "outcome_unknown"


def test_the_evidence_is_told() -> None:
    assert "it began" in vanish(FREE, 1, "it began").evidence
    assert "it began" in vanish(CONFINED, 1, "it began").evidence
