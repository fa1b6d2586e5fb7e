"""A session with agents in the background, in few words."""

from collections.abc import Sequence
from dataclasses import dataclass

from agent.background import Background
from agent.decide import Plan, Start
from agent.state import PendingCall, State
from eventlog.effects import AskAgent, CallModel, FileChange, TakeSnapshot, Wake, WakeAgent
from eventlog.events import AgentReported, AgentsChosen, BackgroundAgent, Body, EffectStarted, LimitsSet
from eventlog.ids import AgentId, CommandId, Commit
from eventlog.outcomes import AgentEnded, Ending, Outcome, Priority, Report, Silence
from tests.agent.core_bodies import CONTEXT, MAKE, done, finished, mode, ready, replied, said, started, taken, tool
from tests.agent.core_fans import FanPlanner, Room

NOW = 1_800_000_000
QUESTION = "Where is it?"
EVERY: tuple[Wake, ...] = ("start", "edit", "command", "commit", "turn_end")


@dataclass(slots=True)
class CrewPlanner(FanPlanner):
    """Plans each call of `ask_NAME` as a question to NAME. Each edit changes `b.txt`."""

    now: int = NOW

    def plan_tool(self, state: State, call: PendingCall) -> Plan:
        name = call.call.name.removeprefix("ask_")
        if name != call.call.name:
            return Start(AskAgent(agent=AgentId(name), question=QUESTION, allowed_by="a test"))
        plan = FanPlanner.plan_tool(self, state, call)
        if name == "edit" and isinstance(plan, Start):
            return Start(tool("edit", changes=(FileChange(path="b.txt", before=None, after=None),)))
        return plan

    def writes(self, tool: str) -> bool:
        return tool.startswith("ask_") or FanPlanner.writes(self, tool)

    def now_s(self) -> int:
        return self.now


class House(Room):
    """A session with `agents`, in which a turn has begun; `made`: whether its worktree is there."""

    def __init__(
        self,
        *agents: BackgroundAgent,
        planner: CrewPlanner | None = None,
        bodies: Sequence[Body] = (),
        made: bool = True,
    ) -> None:
        super().__init__(planner or CrewPlanner())
        worktree = [started("w1", MAKE), *([finished("w1", ready())] if made else [])]
        self.put(CONTEXT, mode(), AgentsChosen(agents=agents), *bodies, *worktree, said("Do it."))

    def reply(self, *tools: str, text: str = "", cost: float = 0.0) -> list[str]:
        """To the call of the model that is open; what begins then."""
        return self.end(self.call, replied(*tools, call=self.call, text=text, cost=cost))

    @property
    def call(self) -> str:
        """Of the model, that is open."""
        (found,) = [call for call, item in self.state.open.items() if isinstance(item.effect, CallModel)]
        return found

    def snap(self, digit: str) -> list[str]:
        """The snapshot that is being taken is there."""
        (call,) = [call for call, item in self.state.open.items() if isinstance(item.effect, TakeSnapshot)]
        return self.end(call, taken(digit))

    def act(self, tool: str, outcome: Outcome | None = None) -> list[str]:
        """The model calls one tool, which writes if it can; what begins when it has ended."""
        self.reply(tool)
        (call,) = [item.call.id for item in self.state.calls]
        writes = self.planner.writes(tool) and tool != "commit"
        return self.end(call, outcome or done(wrote=writes))

    def edit(self, digit: str) -> list[str]:
        """An edit, and the snapshot that is taken while the model is asked; what begins then."""
        self.act("edit")
        return self.snap(digit)

    def wake(self, agent: str = "scout") -> WakeAgent:
        """In which it is."""
        (found,) = [wake for wake in self.at_work if wake.agent == agent]
        return found

    def rest(self, outcome: Outcome, agent: str = "scout") -> list[str]:
        """Its wake-up ends; what begins then."""
        return self.end(f"{agent}_w{self.wake(agent).round}", outcome)

    def one(self, agent: str = "scout") -> Background:
        (found,) = [one for one in self.state.crew if one.agent == agent]
        return found

    def silence(self, agent: str = "scout") -> str:
        """Why it said nothing."""
        word = self.one(agent).said
        assert isinstance(word, Silence), word
        return word.reason

    @property
    def at_work(self) -> list[WakeAgent]:
        return [item.effect for item in self.state.open.values() if isinstance(item.effect, WakeAgent)]

    @property
    def wakes(self) -> list[tuple[str, tuple[Wake, ...], Commit]]:
        """Who was woken, why and on which files, each wake-up once."""
        begun = [body for body in self.story if isinstance(body, EffectStarted) and body.attempt == 1]
        effects = [body.effect for body in begun if isinstance(body.effect, WakeAgent)]
        return [(wake.agent, wake.reasons, wake.base) for wake in effects]

    @property
    def told(self) -> list[str]:
        """The reports that the main agent was given."""
        return [body.text for body in self.story if isinstance(body, AgentReported)]

    @property
    def ending(self) -> Ending | None:
        return self.state.ending.ending if self.state.ending else None


def agent(*wakes_on: Wake, name: str = "scout", budget: float | None = None) -> BackgroundAgent:
    return BackgroundAgent(
        agent=AgentId(name),
        description="It looks.",
        defined_in="a test",
        wakes_on=wakes_on,
        budget_usd_per_hour=budget,
        context=CONTEXT,
    )


def house(*wakes_on: Wake, budget: float | None = None, session_budget: float | None = None) -> House:
    """With a scout that has been woken at the start where that is one of its reasons."""
    limits = LimitsSet(id=CommandId("l"), max_budget_usd=session_budget)
    return House(agent(*wakes_on, budget=budget), bodies=(limits,))


def quiet(reason: str = "Nothing new.", usd: float = 0.0) -> AgentEnded:
    """`usd`: over all its wake-ups."""
    return AgentEnded(ending="done", text="", said=Silence(reason=reason), spent_usd=usd)


def report(
    text: str = "Look out.", priority: Priority = "normal", *evidence: str, work: Commit | None = None, usd: float = 0.0
) -> AgentEnded:
    said = Report(text=text, priority=priority, evidence=evidence)
    return AgentEnded(ending="done", text="", said=said, work=work, spent_usd=usd)


def early(ending: Ending = "interrupted", text: str = "Interrupted.", usd: float = 0.0) -> AgentEnded:
    return AgentEnded(ending=ending, text=text, spent_usd=usd)
