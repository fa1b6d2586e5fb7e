"""A fan-out as its session knows it: how far each agent is, and what is merged. Pure.

An agent's branch goes round: it works, its work waits in the queue, is merged onto what is merged already, checked, and
the branch of the fan-out moves. What cannot be merged, or is red, goes back to the agent that made it, with both sides
in its worktree, and at last to a person."""

from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import Literal, assert_never

from eventlog.effects import (
    AdvanceBranch,
    CheckMerge,
    FanOut,
    PartOfFan,
    PrepareMerge,
    RetireAgents,
    SpawnAgent,
)
from eventlog.ids import AgentId, CallId, Commit
from eventlog.messages import Usage
from eventlog.outcomes import (
    AgentEnded,
    AttemptLost,
    BranchAdvanced,
    Cancelled,
    Ending,
    MergeConflicted,
    MergePrepared,
    Outcome,
    OutcomeUnknown,
    Refused,
    ToolFailed,
    ToolSucceeded,
)

Stage = Literal[
    "waiting",
    "working",
    "ready",
    "merging",
    "prepared",
    "checking",
    "green",
    "advancing",
    "merged",
    "unchanged",
    "conflicted",
    "red",
    "stopped",
]
SETTLED: tuple[Stage, ...] = ("merged", "unchanged", "conflicted", "red", "stopped")
IN_MERGE: tuple[Stage, ...] = ("merging", "prepared", "checking", "green", "advancing")
MAX_LOST = 3
"""Attempts at one round: what kills its process would kill the next one too."""
MAX_ROUNDS = 3
"""The first, and two in which it mends what could not be merged."""
OUTPUT_TAIL = 8_000
"""Characters of a failed check that its agent is shown."""


@dataclass(frozen=True, slots=True)
class Branch:
    agent: AgentId
    task: str
    base: Commit
    """What its next round begins with, and `told` what it is told then."""
    told: str
    stage: Stage = "waiting"
    round: int = 0
    """The latest that began."""
    work: Commit | None = None
    merge: Commit | None = None
    """Its work with what was merged before."""
    conflicted: tuple[str, ...] = ()
    """Files that it had to resolve."""
    merges: int = 0
    """How often a merge was prepared."""
    held: Commit | None = None
    """What was merged when this one was found to conflict while another was being mended: no use to try it again."""
    lost: int = 0
    """Attempts at this round whose process died."""
    checks: int = 0
    """Attempts at the check of this round."""
    back: Stage = "stopped"
    """How it ends where its agent does not mend it."""
    summary: str = ""
    why: str = ""
    """Where it was not merged."""
    usage: Usage = field(default_factory=Usage)
    spent_usd: float = 0.0


@dataclass(frozen=True, slots=True)
class Fan:
    id: CallId
    attempt: int
    effect: FanOut
    tip: Commit
    """What is merged so far."""
    branches: tuple[Branch, ...]
    queue: tuple[AgentId, ...] = ()
    """Whose work waits to be merged, in the order in which it was ready."""
    retired: bool = False

    @property
    def settled(self) -> bool:
        return all(branch.stage in SETTLED for branch in self.branches)

    def branch(self, agent: AgentId) -> Branch:
        return next(branch for branch in self.branches if branch.agent == agent)


def begin(call_id: CallId, attempt: int, effect: FanOut) -> Fan:
    branches = [Branch(task.agent, task.text, base=effect.base, told=task.text) for task in effect.tasks]
    return Fan(call_id, attempt, effect, effect.base, tuple(branches))


def note_start(fan: Fan, effect: PartOfFan) -> Fan:
    match effect:
        case SpawnAgent():
            return _put(fan, effect.agent, stage="working", round=effect.round, checks=0)
        case PrepareMerge():
            queue = tuple(agent for agent in fan.queue if agent != effect.agent)
            merges = fan.branch(effect.agent).merges + 1
            return _put(changed(fan, queue=queue), effect.agent, stage="merging", merges=merges, held=None)
        case CheckMerge():
            return _put(fan, effect.agent, stage="checking", checks=fan.branch(effect.agent).checks + 1)
        case AdvanceBranch():
            return _put(fan, effect.agent, stage="advancing")
        case RetireAgents():
            return fan
        case _:
            assert_never(effect)


def note_end(fan: Fan, effect: PartOfFan, outcome: Outcome) -> Fan:
    match effect:
        case SpawnAgent():
            return _end_work(fan, effect, outcome)
        case PrepareMerge():
            return _end_merge(fan, effect, outcome)
        case CheckMerge():
            return _end_check(fan, effect, outcome)
        case AdvanceBranch():
            if isinstance(outcome, BranchAdvanced):
                return _put(changed(fan, tip=outcome.commit), effect.agent, stage="merged")
            return _stop(fan, effect.agent, outcome)
        case RetireAgents():
            return changed(fan, retired=True)
        case _:
            assert_never(effect)


def _end_work(fan: Fan, effect: SpawnAgent, outcome: Outcome) -> Fan:
    branch = fan.branch(effect.agent)
    if isinstance(outcome, AttemptLost):
        # The same round again, under the next attempt: the log knows how far it was.
        spent = max(outcome.charged_usd, branch.spent_usd)
        fan = _put(fan, effect.agent, stage="waiting", round=branch.round - 1, lost=branch.lost + 1, spent_usd=spent)
        return fan if branch.lost + 1 < MAX_LOST else _put(fan, effect.agent, stage="stopped", why=outcome.evidence)
    if not isinstance(outcome, AgentEnded):
        return _stop(fan, effect.agent, outcome)
    summary = outcome.text or branch.summary
    work = outcome.work or branch.work
    fan = _put(fan, effect.agent, summary=summary, work=work, usage=outcome.usage, spent_usd=outcome.spent_usd)
    if outcome.ending not in ("done", "withheld"):
        # A call that was withheld ends no work: its agent found another way, and says so.
        return _put(fan, effect.agent, stage="stopped", why=f"It ended early ({outcome.ending}): {outcome.text}")
    if outcome.work is None and effect.round > 1:
        return _put(fan, effect.agent, stage=branch.back, why=f"{branch.why} Its agent changed nothing about it.")
    if outcome.work is None:
        return _put(fan, effect.agent, stage="unchanged")
    return changed(_put(fan, effect.agent, stage="ready"), queue=(*fan.queue, effect.agent))


def _end_merge(fan: Fan, effect: PrepareMerge, outcome: Outcome) -> Fan:
    match outcome:
        case MergePrepared(commit=commit):
            return _put(fan, effect.agent, stage="prepared", merge=commit)
        case MergeConflicted() if _is_mended(fan, effect.agent):
            # Several that resolve the same conflict at the same time would meet again, and again.
            fan = changed(fan, queue=(*fan.queue, effect.agent))
            return _put(fan, effect.agent, stage="ready", held=fan.tip)
        case MergeConflicted(commit=commit, files=files, text=patch):
            named = ", ".join(files)
            told = (
                f"Your work could not be merged: others changed {named} meanwhile. Your worktree now holds what was "
                f"merged before and your work, with conflict markers in {named}. Resolve them so that both purposes "
                f"are kept, then end your turn. What the others did to these files:\n\n{patch}"
            )
            why = f"It conflicts with what was merged before in {named}."
            fan = _put(fan, effect.agent, conflicted=files)
            return _give_back(fan, effect.agent, "conflicted", why, commit, told)
        case _:
            return _stop(fan, effect.agent, outcome)


def next_to_merge(fan: Fan) -> Branch | None:
    """The first that waits; one that conflicts only once what is merged has changed, or nothing is mended any more."""
    waiting = (fan.branch(agent) for agent in fan.queue)
    return next((one for one in waiting if one.held != fan.tip or not _is_mended(fan, one.agent)), None)


def _is_mended(fan: Fan, but: AgentId) -> bool:
    """Whether work of another agent was given back and is not merged yet. One that waits for such itself is none."""
    return any(
        one.agent != but and one.held != fan.tip and one.stage not in SETTLED and one.round > (one.stage != "waiting")
        for one in fan.branches
    )


def _end_check(fan: Fan, effect: CheckMerge, outcome: Outcome) -> Fan:
    match outcome:
        case ToolSucceeded():
            return _put(fan, effect.agent, stage="green")
        case AttemptLost():
            return _put(fan, effect.agent, stage="prepared")
        case ToolFailed(text=text, exit_code=code) if code is not None:
            told = (
                f"Your work was merged with what others did meanwhile, and there the check `{effect.command}` fails. "
                f"Your worktree now holds that merge. Mend it, then end your turn. The check said:\n\n"
                f"{text[-OUTPUT_TAIL:]}"
            )
            why = f"The check `{effect.command}` fails on it (exit code {code}): {_last_line(text)}"
            return _give_back(fan, effect.agent, "red", why, effect.commit, told)
        case _:
            return _stop(fan, effect.agent, outcome)


def _give_back(fan: Fan, agent: AgentId, stage: Stage, why: str, base: Commit, told: str) -> Fan:
    """To the agent that made it, or, after two rounds of mending, to a person."""
    if fan.branch(agent).round < MAX_ROUNDS:
        return _put(fan, agent, stage="waiting", base=base, told=told, why=why, back=stage, lost=0)
    return _put(fan, agent, stage=stage, why=why)


def _stop(fan: Fan, agent: AgentId, outcome: Outcome) -> Fan:
    match outcome:
        case Refused(text=text) | ToolFailed(text=text) | Cancelled(text=text):
            why = text
        case OutcomeUnknown(evidence=text):
            why = f"Whether its check ended is unknown: {text}"
        case _:
            why = f"It ended as {outcome.kind}, which nobody expected."
    return _put(fan, agent, stage="stopped", why=why)


def _put(fan: Fan, agent: AgentId, **fields: object) -> Fan:
    branches = [changed(one, **fields) if one.agent == agent else one for one in fan.branches]
    return changed(fan, branches=tuple(branches))


def ending_of(fan: Fan) -> Ending:
    stages = {branch.stage for branch in fan.branches}
    if stages <= {"merged", "unchanged"}:
        return "done"
    return "check_failed" if stages <= {"merged", "unchanged", "red"} else "blocked"


def report(fan: Fan) -> str:
    """What became of each task, for the model and for a person."""
    merged = sum(branch.stage == "merged" for branch in fan.branches)
    lines = [f"{merged} of {len(fan.branches)} merged."]
    for number, branch in enumerate(fan.branches, 1):
        lines.append(f"{number}. {_first_line(branch.task)}: {_told(fan, branch)}")
    return "\n".join(lines)


def _told(fan: Fan, branch: Branch) -> str:
    said = _first_line(branch.summary)
    match branch.stage:
        case "merged":
            checked = ", checked" if fan.effect.check else ""
            again = f" in round {branch.round}" if branch.round > 1 else ""
            return f"merged{checked}{again}. {said}"
        case "unchanged":
            return f"nothing changed. {said}"
        case _:
            kept = f" Its work is kept: `git merge {branch.work}` where you want it." if branch.work else ""
            return f"not merged ({branch.stage}). {branch.why or 'It did not begin.'}{kept}"


def _last_line(text: str) -> str:
    """What a command said last; its exit code, which is told by itself, left out."""
    lines = [line for line in text.strip().splitlines() if not line.startswith("[exit code ")]
    return lines[-1][:200] if lines else "it said nothing"


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:200]
