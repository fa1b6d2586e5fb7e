"""A world without files, servers or processes: effects end as a script says. For tests and what-if runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from agent.external import Answer, CannotTell, Found, NotDone
from agent.recovery import Evidence, NeverBegan, Unseen, settle_all
from agent.state import OpenEffect, State
from eventlog.effects import AskUser, effect_class
from eventlog.events import Body, EffectFinished, EffectStarted
from eventlog.ids import CallId
from eventlog.outcomes import Cancelled, Outcome


@dataclass(slots=True)
class ScriptedWorld:
    """A World. `outcome_of` gives the outcome of an intent at once; None leaves it open until `finish` or an interrupt.

    `evidence`: what `settle` finds of the effects that an earlier process left open. Where none is given they never
    began, but for what happens outside: that was not seen."""

    outcome_of: Callable[[EffectStarted], Outcome | None]
    evidence: Mapping[CallId, Evidence] = field(default_factory=dict)
    started: list[EffectStarted] = field(default_factory=list)
    """Every effect that began, in order."""
    interrupted: list[CallId] = field(default_factory=list)
    _open: dict[CallId, tuple[EffectStarted, Callable[[Body | Exception], None]]] = field(default_factory=dict)

    def start(self, intent: EffectStarted, state: State, put: Callable[[Body | Exception], None]) -> None:
        if isinstance(intent.effect, AskUser):
            return
        self.started.append(intent)
        self._open[intent.call_id] = (intent, put)
        if (outcome := self.outcome_of(intent)) is not None:
            self.finish(intent.call_id, outcome)

    def finish(self, call_id: CallId, outcome: Outcome) -> None:
        """Raises KeyError where nothing of that name is open."""
        intent, put = self._open.pop(call_id)
        put(EffectFinished(call_id=call_id, attempt=intent.attempt, outcome=outcome))

    def interrupt(self, call_id: CallId) -> None:
        self.interrupted.append(call_id)
        if call_id in self._open:
            self.finish(call_id, Cancelled(text="", started=True))

    def settle(self, state: State) -> tuple[Sequence[Body], Sequence[EffectStarted]]:
        return settle_all(state, lambda call_id, item: self.evidence.get(call_id) or _nothing_seen(item))


@dataclass(slots=True)
class ScriptedOutside:
    """An Outside that knows the calls in `done`, by key with their results, and no others; `dumb` says why it cannot
    tell of any."""

    done: Mapping[str, str] = field(default_factory=dict)
    dumb: str = ""
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Tool and key of each question, in order."""

    async def find(self, tool: str, key: str) -> Answer:
        self.asked.append((tool, key))
        if self.dumb:
            return CannotTell(self.dumb)
        return Found(self.done[key]) if key in self.done else NotDone()


def _nothing_seen(item: OpenEffect) -> Evidence:
    return Unseen() if effect_class(item.effect) == "external" else NeverBegan()
