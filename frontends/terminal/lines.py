"""Events as lines of text. Pure: an event and what is known so far in, lines out."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

from eventlog.effects import (
    AdvanceBranch,
    AskAgent,
    AskUser,
    CallModel,
    CheckMerge,
    FanOut,
    MakeWorktree,
    MergeWork,
    PrepareMerge,
    RestoreTree,
    RetireAgents,
    RunTool,
    SpawnAgent,
    TakeSnapshot,
    WakeAgent,
)
from eventlog.events import (
    AgentReported,
    AgentsChosen,
    Approved,
    Body,
    CallRejected,
    ContextSet,
    Continued,
    ConversationCut,
    DamageAccepted,
    Denied,
    EffectFinished,
    EffectStarted,
    Event,
    FallbackSet,
    FanOutAsked,
    Forked,
    Interrupted,
    LeaseGranted,
    LimitsSet,
    ModeChosen,
    ModelRoute,
    Rewound,
    SessionOpened,
    TurnEnded,
    UserSaid,
)
from eventlog.ids import MAIN, AgentId, CallId
from eventlog.outcomes import (
    AgentEnded,
    AgentsRetired,
    AttemptLost,
    BranchAdvanced,
    Cancelled,
    Conflicted,
    MergeConflicted,
    Merged,
    MergePrepared,
    ModelFailed,
    ModelReplied,
    OutcomeUnknown,
    PartOutcome,
    Refused,
    Report,
    Silence,
    SnapshotTaken,
    ToolFailed,
    ToolSucceeded,
    WorktreeReady,
)
from frontends.terminal.escape import safe, safe_line, shorten

WIDTH = 100
TORN_LINE = "! The machine was started anew; what commands had written shortly before may be missing or incomplete."
KEPT_LINE = "! The machine was started anew; files that were not as the log says were set back and are kept in {ref}"


@dataclass(slots=True)
class Seen:
    """What a line may refer to: who asked, since when, how full the context is."""

    window: int = 0
    spent: float = 0.0
    started: dict[CallId, EffectStarted] = field(default_factory=dict)
    began_us: dict[CallId, int] = field(default_factory=dict)


def lines_of(event: Event, seen: Seen, actor: AgentId = MAIN) -> list[str]:
    """The lines that a person reads who follows `actor`; most events have none."""
    if event.actor != actor:
        return _lines_of_agent(event) if actor == MAIN else []
    body = event.body
    match body:
        case UserSaid():
            return [f"> {safe(body.text)}"]
        case ContextSet():
            seen.window = body.window
            return [*_context_lines(body), *warning_lines(body)]
        case FallbackSet(route=route):
            return [f"fallback {safe_line(route.model)}" if route else "no fallback model", *warning_lines(body)]
        case EffectStarted():
            seen.started[body.call_id] = body
            seen.began_us[body.call_id] = event.ts_us
            return _started(body)
        case EffectFinished():
            return _ended(body, event.ts_us, seen)
        case CallRejected():
            return [f"  ✗ {body.why}: {safe(body.text)}"]
        case TurnEnded():
            return _turn_lines(body)
        case Interrupted(agent=agent):
            return ["■ interrupting"] if agent is None else []
        case Rewound(to_seq=seq):
            return [f"↩ back to event {seq}"]
        case DamageAccepted():
            return [f"! events {body.first_lost} to {body.last_lost} are lost; the damaged files are in {body.kept_at}"]
        case SessionOpened():
            return _opened_lines(body)
        case FanOutAsked():
            return [f"> {safe(task)}" for task in body.tasks]
        case AgentsChosen():
            return _chosen_lines(body)
        case Approved() | Denied() | ModeChosen() | LimitsSet() | Forked() | Continued() | LeaseGranted():
            return []
        case AgentReported() | ConversationCut():
            # A report was shown when it was made.
            return []
        case _:
            assert_never(body)


def _ended(body: EffectFinished, ts_us: int, seen: Seen) -> list[str]:
    start = seen.started.pop(body.call_id, None)
    # The clock may have been set back meanwhile.
    took = max(ts_us - seen.began_us.pop(body.call_id, ts_us), 0) / 1e6
    return _finished(body, start, took, seen)


def _opened_lines(body: SessionOpened) -> list[str]:
    resumed = [f"resumed after event {body.recovered_from}"] if body.recovered_from else []
    return [*resumed, *([TORN_LINE] if body.torn else [])]


def _chosen_lines(body: AgentsChosen) -> list[str]:
    names = ", ".join(f"{safe_line(one.agent)} ({safe_line(one.defined_in)})" for one in body.agents)
    return [f"in the background: {names or 'nobody'}"]


def _turn_lines(body: TurnEnded) -> list[str]:
    return [] if body.ending in ("done", "withheld") else [f"■ {body.ending.replace('_', ' ')}: {safe(body.text)}"]


def _lines_of_agent(event: Event) -> list[str]:
    """Of an agent's own doings a person reads which tools it uses; the rest comes when it has ended."""
    match event.body:
        case EffectStarted(effect=RunTool(tool=tool)) as body if tool not in ("report", "stay_silent"):
            return [f"  {safe_line(event.actor)} {line}" for line in _started(body)]
        case _:
            return []


def warning_lines(body: Body) -> list[str]:
    """What a person must know before a model is used, whatever they read of the rest."""
    match body:
        case ContextSet(warning=warning) | FallbackSet(route=ModelRoute(warning=warning)) if warning:
            return [f"! {safe_line(warning)}"]
        case _:
            return []


def _context_lines(body: ContextSet) -> list[str]:
    model = safe_line(body.model)
    if body.instead_of is None:
        return [f"model {model}"]
    return [f"! {safe_line(body.instead_of)} gives no reply; {model} answers for the rest of this turn."]


def _started(body: EffectStarted) -> list[str]:
    effect = body.effect
    match effect:
        case CallModel():
            if body.attempt > 1:
                wait = f" in {effect.delay_ms / 1000:.1f} s" if effect.delay_ms else ""
                return [f"… trying the model again{wait} (attempt {body.attempt})"]
            return []
        case RunTool():
            again = " (run again from its snapshot)" if effect.restore_first else ""
            return [f"● {call_line(effect.tool, effect.arguments)}{again}"]
        case AskUser():
            return question_lines(effect)
        case MergeWork():
            return [f"● merge into {safe_line(effect.checkout)}"]
        case FanOut():
            check = f", each merge checked by `{safe_line(effect.check)}`" if effect.check else ""
            return [f"● fan out: {len(effect.tasks)} agents, at most {effect.jobs} at work{check}"]
        case SpawnAgent():
            again = f" (round {effect.round})" if effect.round > 1 else ""
            return [f"● agent {safe_line(effect.agent)}{again}: {shorten(safe_line(effect.text), 100)}"]
        case WakeAgent():
            return [f"◌ {safe_line(effect.agent)} looks ({', '.join(effect.reasons)})"]
        case AskAgent():
            return [f"● ask {safe_line(effect.agent)}: {shorten(safe_line(effect.question), 100)}"]
        case CheckMerge():
            return [f"● check the work of {safe_line(effect.agent)}: {safe_line(effect.command)}"]
        case MakeWorktree() | TakeSnapshot() | RestoreTree() | PrepareMerge() | AdvanceBranch() | RetireAgents():
            return []
        case _:
            assert_never(effect)


def question_lines(question: AskUser) -> list[str]:
    """All of what is to be decided, never shortened."""
    shown = json.dumps(json.loads(question.arguments), ensure_ascii=False, indent=2)
    return [
        f"? {safe_line(question.tool)} wants to run; {safe(question.reason)}",
        *(f"    {safe(line)}" for line in shown.split("\n")),
    ]


def _finished(body: EffectFinished, start: EffectStarted | None, took: float, seen: Seen) -> list[str]:
    outcome = body.outcome
    match outcome:
        case ModelReplied():
            return _reply(outcome, seen)
        case ModelFailed():
            return [f"… model: {safe_line(outcome.text)}"]
        case ToolSucceeded() | ToolFailed() | Cancelled() if start is not None and isinstance(start.effect, FanOut):
            return [f"  {safe_line(line)}" for line in outcome.text.splitlines()]
        case ToolSucceeded():
            return [*_shown(outcome.display or "", 40), f"  ✓ {_size(outcome.text, outcome.exit_code)} · {took:.1f} s"]
        case ToolFailed():
            code = f" (exit code {outcome.exit_code})" if outcome.exit_code is not None else ""
            return [*_shown(_tail(outcome.text, 12), 12), f"  ✗ failed{code} · {took:.1f} s"]
        case Conflicted():
            return [f"  ✗ conflict: {safe_line(outcome.text)}"]
        case Cancelled():
            return ["  ■ interrupted"] if start is None or isinstance(start.effect, RunTool) else []
        case OutcomeUnknown():
            return [f"  ? outcome unknown: {safe_line(outcome.evidence)}"]
        case AttemptLost():
            return [f"  ↻ {safe_line(outcome.evidence)}"]
        case WorktreeReady():
            return [f"worktree {safe_line(outcome.path)}"]
        case SnapshotTaken():
            kept = [KEPT_LINE.format(ref=safe_line(outcome.kept_at))] if outcome.kept_at else []
            return [*kept, *(f"! not in the snapshot, too large: {safe_line(name)}" for name in outcome.left_out)]
        case Merged():
            return [f"  ✓ {safe_line(name)}" for name in outcome.files] or ["  nothing to merge"]
        case Refused():
            return [f"  ✗ {safe(outcome.text)}", *(f"    {safe_line(name)}" for name in outcome.files)]
        case AgentEnded() if start is not None and isinstance(start.effect, WakeAgent):
            return _rested(outcome, start.effect, took)
        case AgentEnded() | MergePrepared() | MergeConflicted() | BranchAdvanced() | AgentsRetired():
            return _part_finished(outcome, start, took)
        case _:
            assert_never(outcome)


def _rested(outcome: AgentEnded, wake: WakeAgent, took: float) -> list[str]:
    agent = safe_line(wake.agent)
    match outcome.said:
        case Report(text=text, priority=priority, evidence=evidence):
            shown = safe(text).split("\n")
            return [
                f"◆ {agent} reports ({priority}) · {took:.1f} s",
                *(f"  │ {line}" for line in shown),
                *(f"  │ - {safe_line(item)}" for item in evidence),
            ]
        case Silence(reason=reason):
            return [f"◌ {agent} has nothing to report: {shorten(safe_line(reason), 100)} · {took:.1f} s"]
        case None:
            return [f"◌ {agent} said neither whether it reports nor why not ({outcome.ending}) · {took:.1f} s"]
        case _:
            assert_never(outcome.said)


def _part_finished(outcome: PartOutcome, start: EffectStarted | None, took: float) -> list[str]:
    agent = safe_line(getattr(start.effect, "agent", "")) if start else ""
    match outcome:
        case AgentEnded(ending="done"):
            return [f"  ✓ {agent}: {safe_line(outcome.text.partition(chr(10))[0])} · {took:.1f} s"]
        case AgentEnded():
            return [f"  ✗ {agent} ended early ({outcome.ending}): {safe_line(outcome.text)}"]
        case MergeConflicted():
            return [f"  ✗ the work of {agent} conflicts with what is merged: {safe_line(', '.join(outcome.files))}"]
        case BranchAdvanced():
            return [f"  ✓ merged the work of {agent}"]
        case AgentsRetired():
            return [f"! kept: {safe_line(name)}" for name in outcome.kept]
        case MergePrepared():
            return []
        case _:
            assert_never(outcome)


def _reply(outcome: ModelReplied, seen: Seen) -> list[str]:
    text = safe(outcome.message.text.strip())
    usage = outcome.usage
    seen.spent += outcome.cost_usd or 0.0
    share = f" · context {100 * (usage.input + usage.output) / seen.window:.0f} %" if seen.window else ""
    cost = f" · ${seen.spent:.4f}" if outcome.cost_usd is not None else ""
    line = f"  {usage.input + usage.output:,} tokens{share}{cost} · {outcome.total_ms / 1000:.1f} s"
    return [*([text] if text else []), line]


def call_line(tool: str, arguments: str) -> str:
    """One line for a call: its name and what it is about."""
    try:
        tree = json.loads(arguments)
    except ValueError:
        tree = {}
    if not isinstance(tree, Mapping):
        tree = {}
    about = next((tree[key] for key in ("command", "path", "pattern", "message", "patch") if key in tree), "")
    return shorten(safe_line(f"{tool} {about}".strip()), WIDTH)


def _size(text: str, exit_code: int | None) -> str:
    count = text.count("\n") + bool(text)
    code = f"exit code {exit_code}, " if exit_code else ""
    return f"{code}{count} line{'' if count == 1 else 's'}"


def _tail(text: str, count: int) -> str:
    return "\n".join(text.rstrip("\n").split("\n")[-count:])


def _shown(text: str, most: int) -> list[str]:
    if not text.strip():
        return []
    lines = safe(text).rstrip("\n").split("\n")
    more = [f"  │ … {len(lines) - most} more lines"] if len(lines) > most else []
    return [f"  │ {shorten(line, WIDTH)}" for line in lines[:most]] + more
