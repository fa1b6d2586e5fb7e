"""What each agent of a session's fan-outs is, now or at its end, from one pass over the log. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from agent.apply import apply, rewind
from agent.fans import SETTLED, Branch, Fan, Stage
from agent.state import State
from eventlog.effects import CallModel, RetireAgents, RunTool
from eventlog.events import EffectFinished, Event, Forked, Rewound
from eventlog.ids import MAIN, AgentId, CallId, Commit
from eventlog.outcomes import AgentsRetired


@dataclass(frozen=True, slots=True)
class AgentLine:
    agent: AgentId
    task: str
    stage: Stage
    """`stopped`, too, where its fan-out ended before it did."""
    round: int
    """The latest that began; 0: none."""
    doing: RunTool | CallModel | None
    """What it began last of what has no outcome yet, while it works."""
    since_us: int | None
    """Time of its last own event, in microseconds since 1970; None where it has none."""
    cost_usd: float | None
    """In all its rounds, also of one that is not over; None where a price is not known."""
    worktree: str | None
    """None before it is made and once it was given back."""
    commit: Commit | None
    """What it made, of the latest round that ended with something."""


def list_agents(events: Iterable[Event]) -> tuple[AgentLine, ...]:
    """In the order of the fan-outs and of their tasks. `events` begin with the log's first; none of them is kept."""
    roster = _Roster()
    for event in events:
        roster.take(event)
    return roster.lines()


class _Roster:
    def __init__(self) -> None:
        self._main = State()
        self._fans: dict[CallId, Fan] = {}
        """Each as it was last."""
        self._own: dict[AgentId, State] = {}
        self._last_us: dict[AgentId, int] = {}
        self._without: set[AgentId] = set()
        """Whose worktree was given back, or is another session's."""

    def take(self, event: Event) -> None:
        if event.actor != MAIN:
            self._own[event.actor] = apply(self._own.get(event.actor, State()), event.body)
            self._last_us[event.actor] = event.ts_us
            return
        match event.body:
            case Rewound() as body:
                # The state it goes back to would have to be kept; of fan-outs nothing is under way in that either.
                self._main = rewind(self._main, self._main, body)
            case Forked() as body:
                self._without |= self._own.keys()
                self._main = apply(self._main, body)
            case EffectFinished(outcome=AgentsRetired() as retired) as body:
                self._note_retired(body.call_id, retired)
                self._main = apply(self._main, body)
            case body:
                self._main = apply(self._main, body)
        if self._main.fan is not None:
            self._fans[self._main.fan.id] = self._main.fan

    def _note_retired(self, call_id: CallId, retired: AgentsRetired) -> None:
        started = self._main.open.get(call_id)
        if started is None or not isinstance(started.effect, RetireAgents):
            return
        for agent in started.effect.agents:
            path = _worktree(self._own.get(agent))
            if not any(name.startswith(f"{path} (") for name in retired.kept):
                self._without.add(agent)

    def lines(self) -> tuple[AgentLine, ...]:
        now = self._main.fan.id if self._main.fan is not None else None
        return tuple(self._line(branch, fan.id == now) for fan in self._fans.values() for branch in fan.branches)

    def _line(self, branch: Branch, under_way: bool) -> AgentLine:
        own = self._own.get(branch.agent, State())
        stage = branch.stage if under_way or branch.stage in SETTLED else "stopped"
        return AgentLine(
            agent=branch.agent,
            task=branch.task,
            stage=stage,
            round=branch.round,
            doing=_latest(own) if stage == "working" else None,
            since_us=self._last_us.get(branch.agent),
            # Of an attempt whose process died its session may know more: what was on its way is charged.
            cost_usd=None if own.unpriced else max(own.spent_usd, branch.spent_usd),
            worktree=None if branch.agent in self._without else _worktree(own),
            commit=branch.work,
        )


def _latest(state: State) -> RunTool | CallModel | None:
    begun = [item.effect for item in state.open.values() if isinstance(item.effect, RunTool | CallModel)]
    return begun[-1] if begun else None


def _worktree(state: State | None) -> str | None:
    return state.worktree.path if state is not None and state.worktree is not None else None
