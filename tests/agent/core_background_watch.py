"""What background agents may do and what becomes of what they say, told from a session's events alone."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.background import MAX_LOST
from agent.state import State
from agent.waking import MAX_ENDS
from eventlog.effects import (
    AskAgent,
    CallModel,
    Effect,
    TakeSnapshot,
    WakeAgent,
)
from eventlog.events import (
    AgentReported,
    BackgroundAgent,
    EffectFinished,
    EffectStarted,
)
from eventlog.ids import AgentId, CallId, Commit
from eventlog.messages import AssistantMessage, Message, ToolMessage
from eventlog.outcomes import (
    AgentEnded,
    AttemptLost,
    Ending,
    Priority,
    Report,
)
from tests.agent.core_bodies import (
    BASE,
)


@dataclass(slots=True)
class Watch:
    """What may begin, told from what began and ended before; knows of the State only what the files are."""

    chosen: dict[AgentId, BackgroundAgent] = field(default_factory=dict)
    budget: float | None = None
    spent: float = 0.0
    rounds: Counter[AgentId] = field(default_factory=Counter)
    at_work: dict[AgentId, WakeAgent] = field(default_factory=dict)
    lost: dict[CallId, tuple[int, WakeAgent]] = field(default_factory=dict)
    """Attempts that died, of wake-ups whose next one may begin."""
    asked: dict[CallId, AgentId] = field(default_factory=dict)
    """Questions without an outcome."""
    calls: dict[CallId, float] = field(default_factory=dict)
    """Of the model, with what each may cost."""
    waiting: dict[tuple[AgentId, int], Priority] = field(default_factory=dict)
    """Reports that were not told yet."""
    looked: dict[AgentId, Commit] = field(default_factory=dict)
    """What each looked at last, to the end."""
    ends: dict[AgentId, list[Commit]] = field(default_factory=dict)
    """What each was woken on for the end of this turn."""
    heard: set[str] = field(default_factory=set)
    """Ids of the words that ended a wake-up."""

    def begin(self, body: EffectStarted, state: State) -> None:
        """`state`: as it was before."""
        match body.effect:
            case WakeAgent() as wake:
                self._begin_wake(body.call_id, body.attempt, wake, state)
            case AskAgent(agent=name):
                assert name in self.chosen
                self.asked[body.call_id] = name
            case CallModel(reserved_usd=usd):
                assert not self.calls
                self.calls[body.call_id] = usd
                self._check_money()
            case _:
                pass

    def _begin_wake(self, call_id: CallId, attempt: int, wake: WakeAgent, state: State) -> None:
        name = wake.agent
        assert name in self.chosen and name not in self.at_work, "it looks at one thing at a time"
        if attempt > 1:
            assert self.lost.pop(call_id) == (attempt - 1, wake) and attempt <= MAX_LOST, "the same again"
        else:
            self.lost = {key: item for key, item in self.lost.items() if item[1].agent != name}
            self.rounds[name] += 1
            assert wake.round == self.rounds[name]
            assert (wake.base, state.written, state.is_open(TakeSnapshot)) == (state.snapshot, "no", False)
            assert state.fan is None and state.worktree is not None
            self._check_reasons(wake, bool(self.calls or state.calls))
        self.at_work[name] = wake
        self._check_money()

    def _check_reasons(self, wake: WakeAgent, under_way: bool) -> None:
        own = set(wake.reasons) - {"question"}
        assert wake.reasons and own <= set(self.chosen[wake.agent].wakes_on)
        assert bool(wake.asked) == ("question" in wake.reasons)
        assert all(self.asked[call_id] == wake.agent for call_id in wake.asked)
        if "turn_end" in own:
            self.ends.setdefault(wake.agent, []).append(wake.base)
            assert len(self.ends[wake.agent]) <= MAX_ENDS
        assert under_way == ("turn_end" not in own), "a turn that ends wakes nobody else"

    def _check_money(self) -> None:
        if self.budget is not None:
            reserved = sum(wake.budget_usd or 0.0 for wake in self.at_work.values()) + sum(self.calls.values())
            assert self.spent + reserved <= self.budget + 1e-9

    def end(self, effect: Effect, body: EffectFinished) -> None:
        outcome = body.outcome
        match effect:
            case WakeAgent(agent=name) as wake:
                del self.at_work[name]
                if isinstance(outcome, AttemptLost):
                    self.lost[body.call_id] = (body.attempt, wake)
                if isinstance(outcome, AgentEnded) and outcome.ending in ("done", "withheld"):
                    self.looked[name] = wake.base
                answered = any(call_id in self.asked for call_id in wake.asked)
                if isinstance(outcome, AgentEnded) and isinstance(outcome.said, Report) and not answered:
                    self.waiting[name, wake.round] = outcome.said.priority
            case AskAgent():
                del self.asked[body.call_id]
            case CallModel():
                del self.calls[body.call_id]
            case _:
                pass

    def tell(self, body: AgentReported) -> None:
        """A report is told once, and none before one that is more urgent."""
        rank = ("high", "normal", "low").index
        mine = {key: priority for key, priority in self.waiting.items() if key[0] in self.chosen}
        assert rank(mine[body.agent, body.round]) == min(map(rank, mine.values()))
        del self.waiting[body.agent, body.round]

    def end_turn(self, ending: Ending, state: State) -> None:
        assert not self.at_work and not self.asked and not self.calls
        if ending in ("done", "withheld"):
            mine = [priority for (name, _), priority in self.waiting.items() if name in self.chosen]
            assert set(mine) <= {"low"}, "what matters is told before the turn ends"
            for one in self.chosen.values():
                free = self.budget is None and one.budget_usd_per_hour is None
                assert not free or "turn_end" not in one.wakes_on or self._has_seen(one.agent, state)
        self.ends.clear()

    def _has_seen(self, name: AgentId, state: State) -> bool:
        ends = self.ends.get(name, [])
        return state.snapshot in (self.looked.get(name, BASE), *ends) or len(ends) == MAX_ENDS

    def cut(self) -> None:
        """The session was taken back or forked."""
        self.at_work, self.asked, self.calls, self.lost = {}, {}, {}, {}
        self.ends.clear()


def check_messages(messages: Sequence[Message]) -> None:
    """Any provider takes them: each call has its result straight after its reply, and nothing is empty."""
    wanted: list[CallId] = []
    for message in messages:
        match message:
            case ToolMessage(call_id=call_id, text=text):
                assert call_id == wanted.pop(0) and text
            case AssistantMessage(parts=parts, tool_calls=calls):
                assert not wanted and parts
                wanted = [call.id for call in calls]
            case _:
                assert not wanted and message.text
    # Those of the last reply are on their way.
