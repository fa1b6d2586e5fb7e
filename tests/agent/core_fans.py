"""A session with a fan-out, in few words."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.apply import apply
from agent.decide import Plan, Start, decide
from agent.fanning import make_fan
from agent.state import PendingCall, State
from eventlog.effects import Effect, FanOut
from eventlog.events import Body, EffectFinished, EffectStarted, FanOutAsked, TurnEnded
from eventlog.ids import CallId, CommandId, Commit
from eventlog.messages import ToolMessage
from eventlog.outcomes import (
    AgentEnded,
    AgentsRetired,
    BranchAdvanced,
    Cancelled,
    Ending,
    MergeConflicted,
    MergePrepared,
    Outcome,
    ToolFailed,
)
from tests.agent.core_bodies import OPENING, PlainPlanner, done, finished, model_call, replied, started, taken

CHECK = "make test"
CUT = Cancelled(text="", started=True)
AT_REST: tuple[Body, ...] = OPENING[:-1]
"""A session with a worktree in which nobody has said anything."""


@dataclass(slots=True)
class FanPlanner(PlainPlanner):
    """Plans each call of `fan_out` as a fan-out of `tasks`."""

    tasks: tuple[str, ...] = ("one", "two")
    jobs: int | None = None
    check: str = ""
    confined: bool = True

    def plan_tool(self, state: State, call: PendingCall) -> Plan:
        if call.call.name != "fan_out":
            return PlainPlanner.plan_tool(self, state, call)
        return Start(make_fan(state, call.call.id, self.tasks, self.jobs, self.check, "a test"))

    def writes(self, tool: str) -> bool:
        return tool == "fan_out" or PlainPlanner.writes(self, tool)

    def confines(self, state: State) -> bool:
        return self.confined


@dataclass(slots=True)
class Room:
    """A session, and all that its log holds."""

    planner: FanPlanner
    state: State = field(default_factory=State)
    story: list[Body] = field(default_factory=list)

    def put(self, *bodies: Body) -> list[Body]:
        """One transaction: these and what is decided on them, which it gives back."""
        waiting, decided = list(bodies), list[Body]()
        while waiting:
            for body in waiting:
                self.take(body)
            waiting = list(decide(self.state, self.planner))
            decided += waiting
            assert len(decided) < 100, "it begins something again and again"
        return decided

    def take(self, body: Body) -> None:
        self.story.append(body)
        self.state = apply(self.state, body)

    def end(self, call: str, outcome: Outcome) -> list[str]:
        """The ids of what begins then."""
        decided = self.put(finished(call, outcome, self.state.open[CallId(call)].attempt))
        return [body.call_id for body in decided if isinstance(body, EffectStarted)]

    def effect(self, call: str) -> Effect:
        return self.state.open[CallId(call)].effect

    def outcome(self, call: str) -> Outcome:
        (found,) = [one.outcome for one in self.story if isinstance(one, EffectFinished) and one.call_id == call]
        return found

    def prepare(self, agent: str, merge: str, round: int = 1) -> list[str]:
        """The agent ends with work, which becomes this merge; what begins then."""
        self.end(f"{agent}_r{round}", worked(str(round)))
        return self.end(f"{agent}_m{round}", MergePrepared(commit=commit(merge)))

    def merge(self, agent: str, merge: str, round: int = 1) -> list[str]:
        """And the branch moves to it."""
        self.prepare(agent, merge, round)
        if self.planner.check:
            self.end(f"{agent}_k{round}", done())
        return self.end(f"{agent}_a{round}", BranchAdvanced(commit=commit(merge)))

    def close(self, tree: str | None = None) -> TurnEnded:
        """How the turn of a person's fan-out ends, all of whose agents have; `tree`: what was merged."""
        self.end("f1_end", AgentsRetired())
        if tree:
            self.end("f1_tree", taken(tree))
        assert self.state.open == {} and self.state.fan is None and self.state.ending is not None
        return self.state.ending

    @property
    def result(self) -> str:
        """Of the model's call."""
        (text,) = [one.text for one in self.state.messages if isinstance(one, ToolMessage) and one.call_id == "c1_1"]
        return text

    @property
    def parts(self) -> list[str]:
        """What is open besides the fan-out."""
        return [call for call, item in self.state.open.items() if not isinstance(item.effect, FanOut)]


def commit(digit: str) -> Commit:
    return Commit(digit * 40)


def worked(digit: str | None, ending: Ending = "done", text: str = "I did it.", **values: object) -> AgentEnded:
    work = commit(digit) if digit else None
    return AgentEnded.model_validate({"ending": ending, "text": text, "work": work, **values})


def conflicted(digit: str, *files: str) -> MergeConflicted:
    return MergeConflicted(commit=commit(digit), files=files or ("a.txt",), text="-mine\n+theirs")


def red(text: str = "1 test failed") -> ToolFailed:
    return ToolFailed(text=text, exit_code=1)


def asked(*tasks: str, jobs: int = 0, check: str = "", id: str = "f") -> FanOutAsked:
    """`jobs` 0: nobody said how many."""
    return FanOutAsked(id=CommandId(id), tasks=tasks or ("one", "two"), jobs=jobs, check=check)


def by_person(*tasks: str, jobs: int = 0, check: str = "", opening: Sequence[Body] = AT_REST) -> Room:
    """Its id is f1."""
    room = Room(FanPlanner(check=check))
    room.put(*opening, asked(*tasks, jobs=jobs, check=check))
    return room


def by_model(*tools: str, planner: FanPlanner | None = None, opening: Sequence[Body] = OPENING) -> Room:
    """Its id is c1_1, if no other tool is named before it."""
    room = Room(planner or FanPlanner())
    room.put(*opening, started("c1", model_call()), finished("c1", replied(*(tools or ("fan_out",)), cost=0.0)))
    return room
