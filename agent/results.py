"""What the model reads of an outcome. Rejected, failed, cancelled and unknown never sound alike."""

from typing import assert_never

from eventlog.outcomes import Cancelled, Conflicted, OutcomeUnknown, ToolFailed, ToolSucceeded

ToolOutcome = ToolSucceeded | ToolFailed | Conflicted | Cancelled | OutcomeUnknown


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
