"""Where a session stands: the small part of its state that a frontend shows, and the exit code that follows from it."""

from collections.abc import Mapping

from agent.state import State, ended
from eventlog.effects import AskUser
from eventlog.ids import CallId
from eventlog.messages import Usage
from eventlog.outcomes import Ending
from eventlog.values import Value

EXIT_CODES: Mapping[Ending, int] = {
    "done": 0,
    "blocked": 10,
    "check_failed": 14,
    "withheld": 11,
    "out_of_turns": 12,
    "out_of_budget": 12,
    "model_unavailable": 13,
    "interrupted": 130,
    "failed": 1,
}
BLOCKED, CHECK_FAILED = EXIT_CODES["blocked"], EXIT_CODES["check_failed"]


class Standing(Value):
    active: bool = False
    """A turn is under way."""
    fanning: bool = False
    """And a fan-out in it."""
    attended: bool = False
    """Somebody said that they would answer."""
    asks: Mapping[CallId, AskUser] = {}
    """Questions that wait for a person."""
    ending: Ending | None = None
    """Of the last turn."""
    result: str = ""
    """What the last turn ended with."""
    turn_calls: int = 0
    model_calls: int = 0
    usage: Usage = Usage()
    spent_usd: float = 0.0
    unpriced: bool = False
    context_tokens: int = 0
    window: int = 0
    worktree: str | None = None
    commit: str | None = None
    """The latest commit of the agent's own, else the latest snapshot."""
    merged: bool = False

    @property
    def exit_code(self) -> int:
        if self.asks:
            return BLOCKED
        return EXIT_CODES[self.ending] if self.ending else EXIT_CODES["interrupted"]


def standing_of(state: State) -> Standing:
    return Standing(
        active=state.active,
        fanning=state.fan is not None,
        attended=state.mode.attended,
        asks=dict(state.asks),
        ending=ended(state),
        result=state.ending.text if state.ending else "",
        turn_calls=state.turn_calls,
        model_calls=state.model_calls,
        usage=state.usage,
        spent_usd=state.spent_usd,
        unpriced=state.unpriced,
        context_tokens=state.context_tokens,
        window=state.context.window if state.context else 0,
        worktree=state.worktree.path if state.worktree else None,
        commit=state.work or state.snapshot,
        merged=state.merged is not None,
    )
