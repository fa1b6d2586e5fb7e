"""What a fan-out does next. Pure but for the planner's clock."""

from collections.abc import Sequence
from typing import Protocol

from agent.fans import IN_MERGE, Branch, Fan, ending_of, next_to_merge, report
from agent.state import State
from eventlog.effects import (
    AdvanceBranch,
    CheckMerge,
    FanOut,
    PrepareMerge,
    RestoreTree,
    RetireAgents,
    SpawnAgent,
    Task,
)
from eventlog.events import Body, EffectFinished, EffectStarted, TurnEnded
from eventlog.ids import CallId, agent_of, part_id
from eventlog.outcomes import Cancelled, ToolFailed, ToolSucceeded

MAX_JOBS = 8
"""Agents at work at the same time, where nobody said how many."""


class FanPlanner(Protocol):
    def now_s(self) -> int: ...

    def confines(self, state: State) -> bool:
        """Whether commands run inside the sandbox."""
        ...


def make_fan(
    state: State, call_id: CallId, tasks: Sequence[str], jobs: int | None, check: str, allowed_by: str
) -> FanOut:
    """What is left of the session's budget is shared out equally. `state` has a snapshot of the worktree as it is."""
    assert state.snapshot is not None
    budget = state.limits.max_budget_usd
    left = None if budget is None else max(budget - state.spent_usd - state.reserved_usd, 0.0)
    return FanOut(
        tasks=tuple(Task(agent=agent_of(call_id, index), text=text) for index, text in enumerate(tasks, 1)),
        base=state.snapshot,
        jobs=min(jobs if jobs is not None and jobs > 0 else MAX_JOBS, len(tasks)),
        check=check,
        budget_usd=None if left is None else left / len(tasks),
        allowed_by=allowed_by,
    )


def decide_fan(state: State, fan: Fan, planner: FanPlanner) -> Sequence[Body]:
    """The parts to begin now; empty: wait for one. At its end what was merged becomes the session's own tree."""
    if state.worktree is None:
        # It is being made anew, after somebody deleted it.
        return ()
    if not fan.settled:
        return [*_spawn(fan, planner), *_merge_next(state, fan, planner)]
    if not fan.retired:
        return _retire(state, fan, planner)
    if state.snapshot != fan.tip:
        if state.is_open(RestoreTree):
            return ()
        return (EffectStarted(call_id=CallId(f"{fan.id}_tree"), attempt=1, effect=RestoreTree(commit=fan.tip)),)
    outcome = ToolSucceeded(text=report(fan))
    return (EffectFinished(call_id=fan.id, attempt=fan.attempt, outcome=outcome),)


def end_early(state: State, fan: Fan, planner: FanPlanner, why: str, *, interrupted: bool) -> Sequence[Body]:
    """Once its parts have ended: what is merged stays on its branch, and the session's tree stays as it is."""
    if any(call_id != fan.id for call_id in state.open):
        return ()
    if not fan.retired:
        return _retire(state, fan, planner)
    text = f"{why}\n{report(fan)}"
    if fan.tip not in (fan.effect.base, state.snapshot):
        text += f"\nWhat was merged is commit {fan.tip}; the session's worktree is as it was before."
    outcome = Cancelled(text=text, started=True) if interrupted else ToolFailed(text=text)
    return (EffectFinished(call_id=fan.id, attempt=fan.attempt, outcome=outcome),)


def end_turn(fan: Fan) -> TurnEnded:
    """Of a fan-out that a person asked for."""
    return TurnEnded(ending=ending_of(fan), text=report(fan))


def _spawn(fan: Fan, planner: FanPlanner) -> list[Body]:
    working = sum(branch.stage == "working" for branch in fan.branches)
    # Who has to mend goes first: others wait for the merge.
    waiting = sorted((one for one in fan.branches if one.stage == "waiting"), key=lambda one: one.round == 0)
    return [_spawn_one(fan, branch, planner) for branch in waiting[: max(fan.effect.jobs - working, 0)]]


def _spawn_one(fan: Fan, branch: Branch, planner: FanPlanner) -> EffectStarted:
    effect = SpawnAgent(
        agent=branch.agent,
        round=branch.round + 1,
        base=branch.base,
        text=branch.told,
        labels=fan.effect.labels,
        budget_usd=fan.effect.budget_usd,
        at_s=planner.now_s(),
    )
    call_id = part_id(branch.agent, "r", branch.round + 1)
    return EffectStarted(call_id=call_id, attempt=branch.lost + 1, effect=effect)


def _merge_next(state: State, fan: Fan, planner: FanPlanner) -> list[Body]:
    """One at a time: each is merged onto the one before."""
    current = next((branch for branch in fan.branches if branch.stage in IN_MERGE), None)
    if current is None:
        waiting = next_to_merge(fan)
        return [_prepare(fan, waiting, planner)] if waiting is not None else []
    assert current.stage in ("merging", "checking", "advancing") or current.merge is not None
    match current.stage:
        case "prepared" if fan.effect.check and current.merge is not None:
            check = CheckMerge(
                agent=current.agent,
                commit=current.merge,
                command=fan.effect.check,
                confined=planner.confines(state),
            )
            call_id = part_id(current.agent, "k", current.round)
            return [EffectStarted(call_id=call_id, attempt=current.checks + 1, effect=check)]
        case "prepared" | "green" if current.merge is not None:
            move = AdvanceBranch(agent=current.agent, fan=fan.id, onto=fan.tip, commit=current.merge)
            return [EffectStarted(call_id=part_id(current.agent, "a", current.round), attempt=1, effect=move)]
        case _:
            return []


def _prepare(fan: Fan, branch: Branch, planner: FanPlanner) -> EffectStarted:
    assert branch.work is not None
    effect = PrepareMerge(
        agent=branch.agent, work=branch.work, onto=fan.tip, conflicted=branch.conflicted, at_s=planner.now_s()
    )
    return EffectStarted(call_id=part_id(branch.agent, "m", branch.merges + 1), attempt=1, effect=effect)


def _retire(state: State, fan: Fan, planner: FanPlanner) -> Sequence[Body]:
    if state.is_open(RetireAgents):
        return ()
    agents = tuple(branch.agent for branch in fan.branches if branch.round > 0 or branch.lost > 0)
    effect = RetireAgents(fan=fan.id, agents=agents, at_s=planner.now_s())
    return (EffectStarted(call_id=CallId(f"{fan.id}_end"), attempt=1, effect=effect),)
