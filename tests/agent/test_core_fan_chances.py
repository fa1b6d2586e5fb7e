"""However the parts of a fan-out end and whatever comes between: it ends, and all that began was allowed to begin."""

from dataclasses import dataclass, field
from random import Random

import pytest

from agent.fans import MAX_LOST, MAX_ROUNDS
from agent.folding import fold_events
from agent.recovery import Ended, Evidence, NeverBegan, StillRuns, Unseen, Vanished, settle_all
from agent.state import OpenEffect, State
from eventlog.effects import (
    AdvanceBranch,
    CallModel,
    CheckMerge,
    Effect,
    PrepareMerge,
    RestoreTree,
    RetireAgents,
    SpawnAgent,
)
from eventlog.events import Body, EffectFinished, EffectStarted, FanOutAsked, Interrupted, SessionOpened, TurnEnded
from eventlog.ids import AgentId, CallId, CommandId, Commit
from eventlog.messages import Usage
from eventlog.outcomes import (
    AgentEnded,
    AgentsRetired,
    AttemptLost,
    BranchAdvanced,
    Cancelled,
    Ending,
    MergeConflicted,
    MergePrepared,
    Outcome,
    OutcomeUnknown,
    Refused,
    SnapshotTaken,
    ToolFailed,
    ToolSucceeded,
)
from tests.agent.core_bodies import (
    BASE,
    done,
    finished,
    fold_bodies,
    interrupted,
    limits,
    replied,
    said,
    started,
    stored,
)
from tests.agent.core_fans import (
    AT_REST,
    CHECK,
    CUT,
    FanPlanner,
    Room,
    asked,
    by_person,
    commit,
    conflicted,
    red,
    worked,
)


@dataclass(slots=True)
class Watch:
    """What may begin, told from what began and ended before; knows nothing of State."""

    jobs: int
    check: str
    waiting: set[AgentId]
    bases: dict[AgentId, Commit]
    tip: Commit = BASE
    begun: set[tuple[CallId, int]] = field(default_factory=set)
    lost: set[tuple[CallId, int]] = field(default_factory=set)
    agents: set[AgentId] = field(default_factory=set)
    """That ever began."""
    rounds: dict[AgentId, int] = field(default_factory=dict)
    working: set[AgentId] = field(default_factory=set)
    ready: list[AgentId] = field(default_factory=list)
    works: dict[AgentId, Commit] = field(default_factory=dict)
    held: dict[AgentId, Commit] = field(default_factory=dict)
    """What was merged when one was found to conflict while another was being mended."""
    merging: AgentId | None = None
    part_open: bool = False
    """Of the merge."""
    prepared: Commit | None = None
    green: Commit | None = None
    fates: dict[AgentId, str] = field(default_factory=dict)
    backs: dict[AgentId, str] = field(default_factory=dict)
    """Why it was given back."""
    spent: dict[AgentId, float] = field(default_factory=dict)
    retired: bool = False
    interrupted: bool = False

    def begin(self, body: EffectStarted) -> None:
        assert (body.call_id, body.attempt) not in self.begun, "an attempt begins once"
        self.begun.add((body.call_id, body.attempt))
        assert body.attempt == 1 or (body.call_id, body.attempt - 1) in self.lost
        match body.effect:
            case SpawnAgent(agent=agent, round=round, base=base):
                assert round == self.rounds.get(agent, 0) + 1 <= MAX_ROUNDS and base == self.bases[agent]
                assert body.attempt <= MAX_LOST
                self.rounds[agent] = round
                self.agents.add(agent)
                self.waiting.remove(agent)
                self.working.add(agent)
                assert len(self.working) <= self.jobs and not self.interrupted
            case PrepareMerge(agent=agent, work=work, onto=onto):
                assert self.merging is None and agent == self.next_to_merge()
                self.ready.remove(agent)
                self.held.pop(agent, None)
                assert (onto, work) == (self.tip, self.works[agent]) and not self.interrupted
                self.merging, self.part_open = agent, True
            case CheckMerge(agent=agent, commit=merge, command=command):
                assert (agent, merge, command) == (self.merging, self.prepared, self.check) and not self.part_open
                self.part_open = True
            case AdvanceBranch(agent=agent, onto=onto, commit=merge):
                assert (agent, merge, onto) == (self.merging, self.prepared, self.tip) and not self.part_open
                assert merge == self.green or not self.check
                self.part_open = True
            case RetireAgents(agents=agents):
                assert not self.working and not self.part_open and not self.retired
                assert set(agents) == self.agents
            case RestoreTree(commit=tip):
                assert self.retired and not self.interrupted and tip == self.tip
            case _:
                pass

    def end(self, effect: Effect, body: EffectFinished) -> None:
        outcome = body.outcome
        if isinstance(outcome, AttemptLost):
            self.lost.add((body.call_id, body.attempt))
        match effect:
            case SpawnAgent(agent=agent):
                self.working.remove(agent)
                self._end_work(agent, outcome)
                if isinstance(outcome, AttemptLost) and body.attempt < MAX_LOST:
                    self.waiting.add(agent)
                    self.rounds[agent] -= 1
            case PrepareMerge(agent=agent):
                self.part_open, self.green = False, None
                if isinstance(outcome, MergePrepared):
                    self.prepared = outcome.commit
                    return
                if isinstance(outcome, MergeConflicted) and self.mended(agent):
                    # One mends at a time; whoever conflicts meanwhile waits until something has changed.
                    self.merging, self.held[agent] = None, self.tip
                    self.ready.append(agent)
                    return
                self._leave(agent, outcome.commit if isinstance(outcome, MergeConflicted) else None, "conflicted")
            case CheckMerge(agent=agent):
                self.part_open = False
                if isinstance(outcome, ToolSucceeded):
                    self.green = effect.commit
                elif not isinstance(outcome, AttemptLost):
                    failed = isinstance(outcome, ToolFailed) and outcome.exit_code is not None
                    self._leave(agent, effect.commit if failed else None, "red")
            case AdvanceBranch(agent=agent):
                self.part_open, self.merging = False, None
                moved = isinstance(outcome, BranchAdvanced)
                self.fates[agent] = "merged" if moved else "stopped"
                self.tip = outcome.commit if moved else self.tip
            case RetireAgents():
                self.retired = True
            case _:
                pass

    def _end_work(self, agent: AgentId, outcome: Outcome) -> None:
        self.fates[agent] = "stopped"
        if not isinstance(outcome, AgentEnded):
            return
        self.spent[agent] = outcome.spent_usd
        if outcome.ending in ("done", "withheld") and outcome.work is not None:
            self.works[agent] = outcome.work
            self.ready.append(agent)
        elif outcome.ending in ("done", "withheld"):
            self.fates[agent] = "unchanged" if self.rounds[agent] == 1 else self.backs[agent]

    def _leave(self, agent: AgentId, base: Commit | None, fate: str) -> None:
        """The merge is not made; with a base the agent is to go on from there."""
        self.merging, self.fates[agent] = None, fate if base else "stopped"
        if base and self.rounds[agent] < MAX_ROUNDS:
            self.backs[agent] = fate
            self.waiting.add(agent)
            self.bases[agent] = base

    def check_nothing_is_left_lying(self) -> None:
        """While a fan-out is under way, all that may be done is being done."""
        assert len(self.working) == min(self.jobs, len(self.working) + len(self.waiting))
        assert self.next_to_merge() is None or self.merging
        assert not self.merging or self.part_open

    def mended(self, but: AgentId) -> bool:
        """Whether another agent has work back, or is about to get it, that is not merged yet."""
        begun = {*self.working, *self.ready, *({self.merging} if self.merging else ())}
        given = [agent for agent in begun if self.rounds[agent] > 1]
        given += [agent for agent in self.waiting if self.rounds.get(agent, 0) > 0]
        return any(agent != but and self.held.get(agent) != self.tip for agent in given)

    def next_to_merge(self) -> AgentId | None:
        return next((one for one in self.ready if self.held.get(one) != self.tip or not self.mended(one)), None)

    @property
    def ending(self) -> Ending:
        fates = set(self.fates.values()) - {"merged", "unchanged"}
        return "done" if not fates else "check_failed" if fates == {"red"} else "blocked"


class Simulation(Room):
    """All is drawn from `seed`: who asked for it, how much of it, how each effect ends and when, what comes between."""

    def __init__(self, seed: int) -> None:
        random = self.random = Random(seed)
        self.of_model, self.numbers = random.random() < 0.5, 0
        tasks = tuple(f"task {number}" for number in range(1, random.randint(1, 5) + 1))
        jobs, check = random.randint(1, 4), random.choice(("", CHECK))
        super().__init__(FanPlanner(tasks=tasks, jobs=jobs, check=check, confined=random.random() < 0.7))
        self.fan_id = CallId("c1_1" if self.of_model else "f1")
        agents = [AgentId(f"{self.fan_id}-{number}") for number in range(1, len(tasks) + 1)]
        self.watch = Watch(min(jobs, len(tasks)), check, set(agents), dict.fromkeys(agents, BASE))
        opening = (*AT_REST, limits(max_budget_usd=random.choice((None, 100.0))))
        if self.of_model:
            self.put(*opening, said("Do it."))
            self.put(finished("c1", replied("fan_out", cost=0.0)))
        else:
            self.put(*opening, asked(*tasks, jobs=jobs, check=check))

    def run(self) -> None:
        """Until the session rests. Raises AssertionError where it never does."""
        for _ in range(2000):
            if not self.state.active:
                return
            self._go_on()
            if self.state.fan is not None and not self.watch.interrupted and not self.state.fan.settled:
                self.watch.check_nothing_is_left_lying()
        raise AssertionError(f"It does not end: {list(self.state.open)}")

    def take(self, body: Body) -> None:
        match body:
            case EffectStarted():
                self.watch.begin(body)
            case EffectFinished() if (item := self.state.open.get(body.call_id)) and item.attempt == body.attempt:
                self.watch.end(item.effect, body)
            case Interrupted():
                self.watch.interrupted = True
            case _:
                pass
        Room.take(self, body)

    def _go_on(self) -> None:
        chance, parts = self.random.random(), self.parts
        assert parts, "what is under way waits for something"
        if chance < 0.06:
            self._restart()
        elif chance < 0.08 and self.state.fan is not None:
            self.put(interrupted(f"i{self.number()}"))
        elif chance < 0.10:
            self.put(said("And be quick.", f"q{self.number()}"))
        else:
            ending = self.random.sample(parts, self.random.randint(1, min(2, len(parts))))
            self.put(*[finished(call, self._outcome(call), self.state.open[CallId(call)].attempt) for call in ending])

    def _restart(self) -> None:
        """Whoever comes next knows the log alone."""
        assert fold_events(stored(self.story)) == self.state
        was_open = set(self.parts)
        bodies, unfinished = settle_all(self.state, self._evidence)
        left = {intent.call_id for intent in unfinished}
        assert left.isdisjoint(ended := {body.call_id for body in bodies if isinstance(body, EffectFinished)})
        assert all(isinstance(self.effect(call), CheckMerge | CallModel) for call in ended), "the others are adopted"
        assert left | ended == was_open, "each part is carried on or has ended; the fan-out waits for them"
        epoch = self.state.epoch + 1
        self.put(SessionOpened(epoch=epoch, version="0", pid=1, host="h", boot=self.random.choice("ab")), *bodies)

    def _evidence(self, call: CallId, item: OpenEffect) -> Evidence:
        if not isinstance(item.effect, CheckMerge):
            return NeverBegan()
        seen = (NeverBegan(), StillRuns(), Vanished("it is gone"), Unseen(), Ended(self._outcome(call)))
        return self.random.choice(seen)

    def _outcome(self, call: str) -> Outcome:
        match self.effect(call):
            case SpawnAgent(agent=agent):
                return self._work(agent)
            case PrepareMerge():
                both = MergeConflicted(commit=self._commit(), files=("a.txt",), text="patch")
                return self._one_of((65, MergePrepared(commit=self._commit())), (30, both), (5, Refused(text="No.")))
            case CheckMerge():
                lost, unknown = AttemptLost(evidence="gone"), OutcomeUnknown(evidence="gone")
                bad = ((50, red()), (5, lost), (2, unknown), (2, ToolFailed(text="No shell.")))
                return CUT if self.watch.interrupted else self._one_of((40, done()), *bad)
            case AdvanceBranch(commit=merge):
                return self._one_of((92, BranchAdvanced(commit=merge)), (8, Refused(text="It was moved.")))
            case RetireAgents():
                return self._one_of((9, AgentsRetired()), (1, Refused(text="Busy.")))
            case RestoreTree(commit=tip):
                return self._one_of((9, SnapshotTaken(commit=tip, changed=True)), (1, Refused(text="Disk full.")))
            case CallModel():
                return replied(text="Well.", call=call, cost=0.0)
            case effect:
                raise AssertionError(f"Nobody asked for {effect.kind}.")

    def _work(self, agent: AgentId) -> Outcome:
        spent = self.watch.spent.get(agent, 0.0) + self.random.randint(0, 3)
        fields = {"spent_usd": spent, "usage": Usage(input=int(spent))}
        work = AgentEnded(ending="done", text="Did it.", work=self._commit(), **fields)
        endings: tuple[Ending, ...] = ("withheld", "out_of_turns", "out_of_budget", "model_unavailable", "failed")
        early = work.model_copy(
            update={"ending": self.random.choice(endings), "work": self.random.choice((None, self._commit()))}
        )
        if self.watch.interrupted:
            return self._one_of((2, early.model_copy(update={"ending": "interrupted"})), (1, work))
        idle, lost = work.model_copy(update={"work": None}), AttemptLost(evidence="Its process is gone.")
        return self._one_of((70, work), (8, idle), (8, early), (10, lost), (4, Refused(text="It could not begin.")))

    def _one_of(self, *weighed: tuple[int, Outcome]) -> Outcome:
        return self.random.choices([one for _, one in weighed], [weight for weight, _ in weighed])[0]

    def _commit(self) -> Commit:
        return Commit(f"{self.number():040x}")

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    def turn_end(self) -> TurnEnded:
        """Of the turn in which it was."""
        return next(body for body in self.story if isinstance(body, TurnEnded))

    def folds(self) -> list[State]:
        """At once, in two parts, and body by body."""
        events, cut = stored(self.story), self.random.randint(0, len(self.story))
        return [fold_events(events), fold_events(events[cut:], fold_events(events[:cut])), fold_bodies(self.story)]


@pytest.mark.parametrize("seed", range(200))
def test_however_its_parts_end_it_ends_and_all_that_began_was_allowed_to(seed: int) -> None:
    world = Simulation(seed)
    world.run()
    state, watch = world.state, world.watch
    assert (state.open, state.fan, state.active, watch.retired) == ({}, None, False, True)
    assert world.folds() == [state] * 3
    assert state.spent_usd == sum(watch.spent.values())
    outcome, end = world.outcome(world.fan_id), world.turn_end()
    assert f"{list(watch.fates.values()).count('merged')} of " in outcome.model_dump()["text"]
    match outcome:
        case ToolSucceeded():
            assert state.snapshot == watch.tip and (world.of_model or end.ending in (watch.ending, "interrupted"))
        case Cancelled():
            assert watch.interrupted and end.ending == "interrupted"
        case _:
            assert isinstance(outcome, ToolFailed) and end.ending == "failed" and state.snapshot == BASE


@pytest.mark.parametrize("confined", [True, False], ids=["confined", "not confined"])
def test_whoever_opens_the_log_next_carries_its_parts_on_and_makes_a_lost_check_again(confined: bool) -> None:
    room = Room(FanPlanner(check=CHECK, confined=confined))
    room.put(*AT_REST, asked("one", "two", check=CHECK))
    room.prepare("f1-1", "5")
    attempts = 1
    while "f1-1_k1" in room.parts and attempts < 9:
        bodies, unfinished = settle_all(
            room.state, lambda call, item: Vanished("gone") if isinstance(item.effect, CheckMerge) else NeverBegan()
        )
        assert [intent.call_id for intent in unfinished] == ["f1-2_r1"] and "f1" in room.state.open
        attempts += started("f1-1_k1", room.effect("f1-1_k1"), attempts + 1) in room.put(*bodies)
    assert attempts == (3 if confined else 1), "outside the sandbox it may have changed anything"
    assert room.state.fan is not None and "unknown: gone" in room.state.fan.branches[0].why


def test_of_several_that_conflict_one_mends_at_a_time_and_the_others_meet_what_it_made() -> None:
    room = by_person("one", "two", "three", "four")
    room.merge("f1-1", "1")
    for number in (2, 3, 4):
        room.end(f"f1-{number}_r1", worked(str(number)))
    assert room.parts == ["f1-2_m1"]
    assert room.end("f1-2_m1", conflicted("5")) == ["f1-2_r2", "f1-3_m1"]
    assert room.end("f1-3_m1", conflicted("6")) == ["f1-4_m1"], "it waits"
    assert room.end("f1-4_m1", conflicted("7")) == []
    assert room.end("f1-2_r2", worked("8")) == ["f1-2_m2"], "before those that wait for it"
    room.end("f1-2_m2", MergePrepared(commit=commit("9")))
    assert room.end("f1-2_a2", BranchAdvanced(commit=commit("9"))) == ["f1-3_m2"]
    assert room.end("f1-3_m2", MergePrepared(commit=commit("a"))) == ["f1-3_a1"], "what the other made suits it"
    assert room.end("f1-3_a1", BranchAdvanced(commit=commit("a"))) == ["f1-4_m2"]
    assert room.end("f1-4_m2", conflicted("7")) == ["f1-4_r2"]


def test_whoever_asks_for_nothing_or_for_less_than_one_at_a_time_gets_an_end() -> None:
    room = Room(FanPlanner())
    room.put(*AT_REST, FanOutAsked(id=CommandId("f"), tasks=(), jobs=1))
    assert room.state.ending is not None and room.state.ending.ending == "failed" and room.state.open == {}
    few = by_person("one", "two", jobs=-1)
    assert few.parts == ["f1-1_r1", "f1-2_r1"]
