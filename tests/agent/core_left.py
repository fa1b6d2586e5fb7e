"""The log of an agent that works on one machine after the other, in few words."""

from dataclasses import dataclass, field

from agent.left_over import LeftOver, left_behind
from eventlog.effects import Effect, MakeWorktree
from eventlog.events import Body, Event, LeaseGranted
from eventlog.ids import MAIN, AgentId, Commit, SessionId
from eventlog.outcomes import Outcome, ToolSucceeded, WorktreeReady
from tests.agent.core_bodies import BASE, finished, started

AGENT = AgentId("a")
ONE = Commit("1" * 40)
WORKTREE = MakeWorktree(repository="/r", head=BASE, carry_dirty=False, at_s=0)
READY = WorktreeReady(path="/w", base=BASE)
WROTE = ToolSucceeded(text="", wrote=True)
Files = dict[str, int]


@dataclass(slots=True)
class Log:
    events: list[Event] = field(default_factory=list)
    lease: int = 0

    def put(self, *bodies: Body, actor: AgentId = AGENT) -> "Log":
        for body in bodies:
            seq = len(self.events) + 1
            common = {"session": SessionId("s"), "epoch": 1, "actor_seq": None, "causation": None, "version": 1}
            self.events.append(Event(seq=seq, ts_us=seq, actor=actor, lease=self.lease, body=body, **common))
        return self

    def grant(self, node: str, agent: AgentId = AGENT) -> "Log":
        self.lease += 1
        return self.put(LeaseGranted(agent=agent, lease=self.lease, node=node), actor=MAIN)

    def do(self, call: str, effect: Effect, outcome: Outcome, attempt: int = 1) -> "Log":
        return self.put(started(call, effect, attempt), finished(call, outcome, attempt))

    @property
    def left(self) -> LeftOver | None:
        return left_behind(self.events, AGENT)


def on(node: str) -> Log:
    """An agent with a worktree there."""
    return Log().grant(node).do("w1", WORKTREE, READY)
