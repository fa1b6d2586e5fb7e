"""What the model reads of an outcome. Rejected, failed, cancelled and unknown never sound alike."""

from typing import Literal, assert_never

from eventlog.effects import Effect, RunTool
from eventlog.outcomes import Cancelled, Conflicted, Outcome, OutcomeUnknown, ToolFailed, ToolSucceeded

ToolOutcome = ToolSucceeded | ToolFailed | Conflicted | Cancelled | OutcomeUnknown
Written = Literal["no", "edits", "more"]
"""To the files: nothing, what the intents of edits say, or anything."""


def wrote(effect: Effect, outcome: Outcome) -> Written:
    """As far as anybody knows."""
    match outcome:
        case ToolSucceeded(wrote=True) if isinstance(effect, RunTool) and effect.effect_class == "edit":
            return "edits"
        case OutcomeUnknown() | Conflicted():
            return "more"
        case ToolSucceeded(wrote=True) | ToolFailed(wrote=True) | Cancelled(wrote=True):
            return "more"
        case _:
            return "no"


def text_for_model(outcome: ToolOutcome) -> str:
    """Never empty: some providers refuse an empty result."""
    match outcome:
        case ToolSucceeded():
            return outcome.text or "(no output)"
        case ToolFailed():
            return outcome.text or f"It failed with exit code {outcome.exit_code} and no output."
        case Conflicted():
            return f"Not applied: {outcome.text}"
        case Cancelled():
            before = "The user interrupted this call while it ran." if outcome.started else "Interrupted before it ran."
            return f"{before}\n{outcome.text}".strip()
        case OutcomeUnknown():
            return (
                "Unknown outcome: the session stopped during this call and it may have run, in part or in whole. "
                f"It was not run again. Check its effects before you go on. Evidence: {outcome.evidence}"
            )
        case _:
            assert_never(outcome)
