"""However background agents end and whatever comes between: each turn ends, and all that began was allowed to begin."""

from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest

from agent.folding import fold_events
from agent.recovery import NeverBegan, settle_all
from eventlog.effects import (
    AdvanceBranch,
    AskAgent,
    AskUser,
    CallModel,
    Effect,
    FanOut,
    MakeWorktree,
    PrepareMerge,
    RestoreTree,
    RetireAgents,
    RunTool,
    SpawnAgent,
    TakeSnapshot,
    Wake,
    WakeAgent,
)
from eventlog.events import (
    AgentReported,
    AgentsChosen,
    Approved,
    BackgroundAgent,
    Body,
    Denied,
    EffectFinished,
    EffectStarted,
    Forked,
    Interrupted,
    Rewound,
    SessionOpened,
    TurnEnded,
)
from eventlog.ids import AgentId, CallId, CommandId, Commit, SessionId
from eventlog.messages import Usage
from eventlog.outcomes import (
    AgentEnded,
    AgentsRetired,
    AttemptLost,
    BranchAdvanced,
    Ending,
    MergePrepared,
    ModelFailed,
    Outcome,
    Priority,
    Refused,
    Report,
    Silence,
    SnapshotTaken,
    ToolFailed,
)
from tests.agent.core_background import EVERY, CrewPlanner, House, agent
from tests.agent.core_background_watch import Watch, check_messages
from tests.agent.core_bodies import (
    MAKE,
    done,
    finished,
    interrupted,
    limits,
    ready,
    replied,
    said,
    started,
    stored,
)
from tests.agent.core_fans import CUT

NAMES = ("one", "two", "three")
MAX_REPLIES = 10
"""In one turn, before the model says its last word."""
GONE = "It is gone."
READY = ready().model_dump()


class Simulation(House):
    """All is drawn from `seed`: who is there, what the model does, how each effect ends, what comes between."""

    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.numbers = self.replies = 0
        self.watch = Watch(budget=random.choice((None, None, 20.0, 5.0)))
        self.stopping = False
        self.spent: dict[AgentId, float] = {}
        """By each agent, whether the session knows of it or not."""
        planner = CrewPlanner(tasks=("a task",), asks=frozenset(random.choice(((), ("commit",)))))
        bodies = (limits(max_budget_usd=self.watch.budget, max_turns=random.choice((None, None, 6))),)
        super().__init__(*self._crew(), planner=planner, bodies=bodies, made=random.random() < 0.8)

    def _crew(self) -> Sequence[BackgroundAgent]:
        chance = self.random
        names = chance.sample(NAMES, chance.choice((1, 2, 3, 3)))
        budgets = (None, None, 1.0) if self.watch.budget is None else (None, 0.5, 1.0)
        return [agent(*self._wakes(), name=name, budget=chance.choice(budgets)) for name in names]

    def _wakes(self) -> list[Wake]:
        return [wake for wake in EVERY if self.random.random() < 0.5]

    def run(self) -> None:
        """Some turns. Raises AssertionError where one never ends."""
        for turn in range(4):
            for _ in range(1500):
                if not self.state.active:
                    break
                self._go_on()
            assert not self.state.active, f"It does not end: {list(self.state.open)}"
            assert self.state.open == {} and self.state.resting
            if turn < 3:
                self._between()
                self.put(said("More.", f"t{self.number()}"))

    def take(self, body: Body) -> None:
        match body:
            case EffectStarted():
                self.watch.begin(body, self.state)
            case EffectFinished() if (item := self.state.open.get(body.call_id)) and item.attempt == body.attempt:
                self.watch.end(item.effect, body)
            case AgentsChosen():
                self.watch.chosen = {one.agent: one for one in body.agents}
            case AgentReported():
                self.watch.tell(body)
            case TurnEnded(ending=ending):
                self.watch.end_turn(ending, self.state)
                self.replies, self.stopping = 0, False
            case Interrupted(id=id, agent=name):
                assert name is None or id not in self.watch.heard, "it is told once"
                self.watch.heard.add(id)
                self.stopping = self.stopping or name is None
            case Forked() | Rewound():
                self.watch.cut()
                self.replies, self.stopping = 0, False
            case _:
                pass
        House.take(self, body)
        if isinstance(body, Rewound):
            self.state = fold_events(stored(self.story))
        self.watch.spent = self.state.spent_usd
        for one in self.state.agents:
            assert not isinstance(one.said, Silence) or one.said.reason
        check_messages(self.state.messages)

    def _go_on(self) -> None:
        chance = self.random.random()
        self.planner.reserved_usd = 0.0 if self.watch.budget is None else self.random.choice((0.1, 0.5, 1.5))
        assert isinstance(self.planner, CrewPlanner)
        self.planner.now += self.random.randint(0, 1200)
        if chance < 0.05:
            self._restart()
        elif chance < 0.07:
            self.put(interrupted(f"i{self.number()}"))
        elif chance < 0.09:
            self.put(said("And be quick.", f"q{self.number()}"))
        elif chance < 0.10:
            self._fork()
        else:
            waits = [call for call, item in self.state.open.items() if not isinstance(item.effect, FanOut | AskAgent)]
            assert waits, "what is under way waits for something"
            chosen = self.random.sample(waits, self.random.randint(1, min(2, len(waits))))
            self.put(*[self._end(call) for call in chosen])

    def _fork(self) -> None:
        self.put(
            Forked(session=SessionId("t"), seq=1),
            started(f"w{self.number() + 1}", MAKE),
            said("Go on.", f"g{self.number()}"),
        )

    def _between(self) -> None:
        """Where the session rests."""
        chance = self.random.random()
        made = [at for at, body in enumerate(self.story, 1) if body.model_dump().get("outcome") == READY]
        if chance < 0.2 and made:
            self.put(Rewound(to_seq=self.random.randint(made[0], len(self.story)), saved=None, restored=None))
        elif chance < 0.3:
            self.put(AgentsChosen(agents=tuple(self._crew())))

    def _restart(self) -> None:
        """Whoever comes next knows the log alone, and may have been told to go on with other agents."""
        assert fold_events(stored(self.story)) == self.state
        bodies, unfinished = settle_all(self.state, lambda call, item: NeverBegan())
        left = {intent.call_id for intent in unfinished if isinstance(intent.effect, WakeAgent)}
        assert left == {call for call, item in self.state.open.items() if isinstance(item.effect, WakeAgent)}
        chosen = [AgentsChosen(agents=tuple(self._crew()))] if self.random.random() < 0.2 else []
        self.put(SessionOpened(epoch=self.state.epoch + 1, version="0", pid=1, host="h"), *chosen, *bodies)

    def _end(self, call: CallId) -> Body:
        item = self.state.open[call]
        if isinstance(item.effect, AskUser):
            id = CommandId(f"a{self.number()}")
            if self.random.random() < 0.5:
                return Denied(id=id, ask=call)
            return Approved(id=id, ask=call, binding=item.effect.binding)
        return finished(call, self._outcome(call, item.effect), item.attempt)

    def _outcome(self, call: CallId, effect: Effect) -> Outcome:
        match effect:
            case CallModel():
                return self._reply(call, effect.reserved_usd)
            case WakeAgent():
                return self._rest(effect)
            case RunTool():
                writes = effect.effect_class in ("edit", "command")
                return self._one_of((8, done(wrote=writes)), (2, ToolFailed(text="No.", wrote=effect.tool == "shell")))
            case MakeWorktree():
                return ready()
            case TakeSnapshot():
                return self._one_of((15, self._taken()), (1, Refused(text="The disk is full.")))
            case SpawnAgent(budget_usd=budget):
                usd = 0.0 if budget is None else budget * self.random.random()
                return AgentEnded(
                    ending="done", text="Did it.", work=self.random.choice((None, self._commit())), spent_usd=usd
                )
            case PrepareMerge():
                return MergePrepared(commit=self._commit())
            case AdvanceBranch(commit=merge):
                return self._one_of((9, BranchAdvanced(commit=merge)), (1, Refused(text="It was moved.")))
            case RetireAgents():
                return AgentsRetired()
            case RestoreTree(commit=tip):
                return SnapshotTaken(commit=tip, changed=True)
            case _:
                raise AssertionError(f"Nobody asked for {effect.kind}.")

    def _reply(self, call: CallId, reserved: float) -> Outcome:
        cost, chance = reserved * self.random.random(), self.random.random()
        if self.stopping:
            return CUT
        if chance < 0.08:
            return ModelFailed(fault="overloaded", text="Busy.", retry=True, charged_usd=cost)
        self.replies += 1
        if chance < 0.2 or self.replies > MAX_REPLIES:
            return replied(call=call, text="Well.", cost=cost)
        if chance < 0.26:
            return replied(call=call, text="I am ", cost=cost).model_copy(update={"stop": "pause"})
        asks = [f"ask_{name}" for name in self.watch.chosen]
        tools = self.random.choices(
            ["read", "edit", "shell", "commit", "fan_out", *asks], [4, 4, 2, 2, 0.5, *[1] * len(asks)], k=3
        )
        if "fan_out" in tools:
            tools = ["fan_out"]
        return replied(*tools[: self.random.randint(1, 3)], call=call, cost=cost)

    def _rest(self, wake: WakeAgent) -> Outcome:
        name = wake.agent
        known = next(one.spent_usd for one in self.state.agents if one.agent == name)
        usd = 0.2 if wake.budget_usd is None else max(known + wake.budget_usd - self.spent.get(name, 0.0), 0.0)
        self.spent[name] = self.spent.get(name, 0.0) + usd * self.random.random()
        fields = {"spent_usd": self.spent[name], "usage": Usage(input=len(self.story))}
        if self.stopping or f"{name}_w{wake.round}-end" in self.watch.heard:
            cut = self._ended("interrupted", fields)
            return self._one_of((8, cut), (1, self._word(fields)), (1, AttemptLost(evidence=GONE)))
        early: Ending = self.random.choice(("out_of_budget", "out_of_turns", "model_unavailable", "failed", "withheld"))
        rare = ((2, AttemptLost(evidence=GONE)), (1, Refused(text="No place.")), (1, CUT))
        return self._one_of((12, self._word(fields)), (2, self._ended(early, fields)), *rare)

    def _word(self, fields: dict[str, object]) -> AgentEnded:
        priority: Priority = self.random.choice(("low", "normal", "high"))
        word = self.random.choice(
            (None, Silence(reason="Nothing."), Report(text="Look.", priority=priority, evidence=()))
        )
        return self._ended("done", fields).model_copy(update={"said": word})

    def _ended(self, ending: Ending, fields: dict[str, object]) -> AgentEnded:
        return AgentEnded.model_validate({"ending": ending, "text": "So.", **fields})

    def _one_of(self, *weighed: tuple[float, Outcome]) -> Outcome:
        return self.random.choices([one for _, one in weighed], [weight for weight, _ in weighed])[0]

    def _taken(self) -> SnapshotTaken:
        return SnapshotTaken(commit=self._commit(), changed=True)

    def _commit(self) -> Commit:
        return Commit(f"{self.number():040x}")

    def number(self) -> int:
        self.numbers += 1
        return self.numbers


@pytest.mark.parametrize("seed", range(200))
def test_however_they_end_each_turn_ends_and_all_that_began_was_allowed_to(seed: int) -> None:
    world = Simulation(seed)
    world.run()
    state, events = world.state, stored(world.story)
    cut = world.random.randint(0, len(events))
    assert fold_events(events) == state
    if not any(isinstance(body, Rewound) for body in world.story):
        assert fold_events(events[cut:], fold_events(events[:cut])) == state
    outcomes = Counter(body.call_id for body in world.story if isinstance(body, EffectFinished))
    asked = [
        body.call_id for body in world.story if isinstance(body, EffectStarted) and isinstance(body.effect, AskAgent)
    ]
    assert all(outcomes[call] <= 1 for call in asked)


def test_the_worlds_have_in_them_what_they_are_drawn_for() -> None:
    found: Counter[str] = Counter()
    for seed in range(30):
        world = Simulation(seed)
        world.run()
        for body in world.story:
            match body:
                case EffectStarted(attempt=attempt, effect=WakeAgent() as wake):
                    found.update(wake.reasons if attempt == 1 else ["again"])
                case EffectStarted(effect=FanOut()):
                    found["fan_out"] += 1
                case TurnEnded(ending=ending):
                    found[ending] += 1
                case _:
                    found[body.kind] += 1
    wanted = (*EVERY, "question", "again", "fan_out", "done", "interrupted", "out_of_budget", "out_of_turns", "failed")
    kinds = ("agent_reported", "agents_chosen", "session_opened", "forked", "rewound", "approved", "denied")
    assert {name: found[name] for name in (*wanted, *kinds) if found[name] < 5} == {}
