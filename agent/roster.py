"""What each of a session's other agents is, now or at its end, from one pass over the log. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from agent.apply import apply
from agent.background import Background
from agent.fans import SETTLED, Branch, Fan, Stage
from agent.folding import rewind
from agent.state import State
from eventlog.effects import CallModel, RetireAgents, RunTool, WakeAgent
from eventlog.events import EffectFinished, Event, Forked, LeaseGranted, Rewound
from eventlog.ids import MAIN, AgentId, CallId, Commit
from eventlog.outcomes import AgentsRetired, Report, Silence


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
    began_us: int | None = None
    """When its first round began, and when it was settled or its fan-out ended; as `since_us`."""
    ended_us: int | None = None
    host: str = ""
    """The machine on which its worktree is; empty: its session's own."""


@dataclass(frozen=True, slots=True)
class BackgroundLine:
    agent: AgentId
    description: str
    at_work: WakeAgent | None
    """None while it rests."""
    round: int
    """Wake-ups that began."""
    doing: RunTool | CallModel | None
    since_us: int | None
    cost_usd: float | None
    """These three as of an AgentLine."""
    worktree: str | None
    said: Report | Silence | None
    """Of its latest wake-up that has ended."""


def list_agents(events: Iterable[Event]) -> tuple[AgentLine, ...]:
    """In the order of the fan-outs and of their tasks. `events` begin with the log's first; none of them is kept."""
    roster = Roster()
    for event in events:
        roster.take(event)
    return roster.lines()


_NOTHING = State()
"""What is known of an agent that has not begun."""


class Roster:
    """Given one event after the other, from the first of a log or from where no fan-out is under way. None of them is
    kept."""

    def __init__(self) -> None:
        self._main = State()
        self._fans: dict[CallId, Fan] = {}
        """Each as it was last."""
        self._fan: Fan | None = None
        """The one that was under way after the event before."""
        self._began_us: dict[AgentId, int] = {}
        self._ended_us: dict[AgentId, int] = {}
        self._own: dict[AgentId, State] = {}
        self._last_us: dict[AgentId, int] = {}
        self._hosts: dict[AgentId, str] = {}
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
            case LeaseGranted(agent=agent, host=host):
                self._hosts[agent] = host
            case body:
                self._main = apply(self._main, body)
        self._note_fan(event.ts_us)

    def _note_fan(self, ts_us: int) -> None:
        before, self._fan = self._fan, self._main.fan
        if self._fan is before:
            return
        if self._fan is not None:
            self._fans[self._fan.id] = self._fan
        last = self._fan or before
        for branch in last.branches if last is not None else ():
            if branch.round > 0:
                self._began_us.setdefault(branch.agent, ts_us)
            if self._fan is None or branch.stage in SETTLED:
                self._ended_us.setdefault(branch.agent, ts_us)

    def _note_retired(self, call_id: CallId, retired: AgentsRetired) -> None:
        started = self._main.open.get(call_id)
        if started is None or not isinstance(started.effect, RetireAgents):
            return
        for agent in started.effect.agents:
            path = _worktree(self._own.get(agent))
            if not any(name.startswith(f"{path} (") for name in retired.kept):
                self._without.add(agent)

    @property
    def under_way(self) -> CallId | None:
        """The fan-out whose agents are not at their end."""
        return self._main.fan.id if self._main.fan is not None else None

    def lines(self, only: CallId | None = None) -> tuple[AgentLine, ...]:
        """Of all fan-outs in their order, or of one."""
        fans = self._fans.values() if only is None else (self._fans[only],)
        return tuple(self._line(branch, fan.id == self.under_way) for fan in fans for branch in fan.branches)

    def background(self) -> tuple[BackgroundLine, ...]:
        """In the order in which they were chosen."""
        return tuple(self._background_line(one) for one in self._main.crew)

    def _background_line(self, one: Background) -> BackgroundLine:
        own = self._own.get(one.agent, State())
        return BackgroundLine(
            agent=one.agent,
            description=one.chosen.description,
            at_work=one.at_work,
            round=one.round,
            doing=_latest(own) if one.at_work is not None else None,
            since_us=self._last_us.get(one.agent),
            cost_usd=None if own.unpriced else max(own.spent_usd, one.spent_usd),
            worktree=_worktree(own),
            said=one.said,
        )

    def _line(self, branch: Branch, under_way: bool) -> AgentLine:
        own = self._own.get(branch.agent, _NOTHING)
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
            began_us=self._began_us.get(branch.agent),
            ended_us=self._ended_us.get(branch.agent),
            host=self._hosts.get(branch.agent, ""),
        )


def _latest(state: State) -> RunTool | CallModel | None:
    begun = [item.effect for item in state.open.values() if isinstance(item.effect, RunTool | CallModel)]
    return begun[-1] if begun else None


def _worktree(state: State | None) -> str | None:
    return state.worktree.path if state is not None and state.worktree is not None else None
