"""What to do next, from what is known. Pure but for the planner, which looks at files before an intent is written.

A new feature is a new branch here, an effect or an event; the loop does not grow."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

from agent import fanning, waking
from agent.background import text_of
from agent.state import PendingCall, State, last_reply
from eventlog.effects import AskAgent, AskUser, CallModel, FanOut, MakeWorktree, RestoreTree, RunTool, TakeSnapshot
from eventlog.events import Body, CallRejected, ContextSet, EffectStarted, FanOutAsked, TurnEnded
from eventlog.ids import SETUP, CallId, Commit, ask_id, fan_id, model_call_id, snapshot_id
from eventlog.messages import AssistantMessage
from eventlog.outcomes import AttemptLost, Ending, Refused

LOST_ATTEMPTS_TEXT = "The model could not be reached"


@dataclass(frozen=True, slots=True)
class Start:
    effect: RunTool | FanOut | AskAgent


@dataclass(frozen=True, slots=True)
class Ask:
    question: AskUser


@dataclass(frozen=True, slots=True)
class Reject:
    rejection: CallRejected


Plan = Start | Ask | Reject


class Planner(Protocol):
    """Looks, never acts: judges a call against the rules and the files as they are now."""

    def plan_tool(self, state: State, call: PendingCall) -> Plan: ...

    def plan_model(self, state: State, call_id: CallId) -> CallModel:
        """The next request: its hash and what it may cost. `delay_ms` is filled in by decide."""
        ...

    def plan_setup(self, state: State) -> RunTool:
        """The setup command of the user's settings, as an effect."""
        ...

    def writes(self, tool: str) -> bool:
        """Whether the tool may change the worktree; such calls run one at a time, in the order of the reply."""
        ...

    def now_s(self) -> int:
        """Seconds since 1970, for what carries a time in its content."""
        ...

    def confines(self, state: State) -> bool:
        """Whether commands run inside the sandbox."""
        ...

    def changed_between(self, before: Commit, after: Commit) -> Sequence[str]:
        """Paths that differ, sorted; empty also where it cannot be found out."""
        ...


def decide(state: State, planner: Planner) -> Sequence[Body]:
    """The bodies to append now. Empty: wait for an outcome or a person."""
    if not state.active:
        return ()
    if state.interrupting:
        return _decide_interrupt(state, planner)
    if state.refused is not None:
        return _decide_refused(state, planner, state.refused)
    if wakes := waking.decide_wakes(state, planner):
        return wakes
    if state.fan is not None:
        return fanning.decide_fan(state, state.fan, planner)
    if state.asked_fan is not None:
        return _decide_asked_fan(state, planner, state.asked_fan)
    if state.calls:
        return _decide_calls(state, planner)
    if state.is_open(CallModel):
        return _decide_snapshot(state, planner, "after the last writes")
    return _decide_turn(state, planner)


def _decide_interrupt(state: State, planner: Planner) -> Sequence[Body]:
    if rejections := _reject_unstarted(state, "the user interrupted the turn"):
        return rejections
    if asked := waking.stop_asking(state, "The user interrupted the turn."):
        return asked
    if state.fan is not None:
        return fanning.end_early(state, state.fan, planner, "The user interrupted the turn.", interrupted=True)
    if state.refused is None and (snapshot := _decide_snapshot(state, planner, "at an interrupt")):
        return snapshot
    return () if state.open else (TurnEnded(ending="interrupted", text=_with_report(state, "Interrupted.")),)


def _decide_refused(state: State, planner: Planner, refused: Refused) -> Sequence[Body]:
    if rejections := _reject_unstarted(state, refused.text.rstrip(".")):
        return rejections
    if asked := waking.stop_asking(state, refused.text):
        return asked
    if wakes := waking.end_wakes(state):
        return wakes
    if state.fan is not None:
        return fanning.end_early(state, state.fan, planner, refused.text, interrupted=False)
    return () if state.open else (TurnEnded(ending="failed", text=_with_report(state, refused.text)),)


def _with_report(state: State, text: str) -> str:
    """After a fan-out that a person asked for, what became of it: nobody else tells them."""
    return f"{text}\n{fanning.report(state.ended_fan)}" if state.ended_fan is not None else text


def _decide_asked_fan(state: State, planner: Planner, asked: FanOutAsked) -> Sequence[Body]:
    """Begin it once the worktree is as its agents are to find it, and end the turn when it has ended."""
    if state.ended_fan is not None:
        return () if state.open else (fanning.end_turn(state.ended_fan),)
    if not asked.tasks:
        return () if state.open else (TurnEnded(ending="failed", text="No task was named, so no agent was begun."),)
    if state.worktree is None or state.snapshot is None or state.context is None or not state.context.snapshots:
        text = "Agents need snapshots and a worktree, which this session does without; nothing was begun."
        return () if state.open else (TurnEnded(ending="failed", text=text),)
    if state.written != "no" or state.open:
        return _decide_snapshot(state, planner, "before a fan-out")
    call_id = fan_id(state.fans + 1)
    fan = fanning.make_fan(state, call_id, asked.tasks, asked.jobs, asked.check, "the user")
    effect = fan.model_copy(update={"labels": asked.labels})
    return (EffectStarted(call_id=call_id, attempt=1, effect=effect),)


def _reject_unstarted(state: State, why: str) -> Sequence[Body]:
    rejections: list[Body] = []
    for item in state.calls:
        if item.status in ("waiting", "asked", "approved"):
            text = f"Not started: {why}."
            if item.lost is not None and item.lost.may_write:
                text = f"It began, and may have run in part or in whole; it was not run again: {why}."
            rejections.append(CallRejected(call_id=item.call.id, why="interrupted", text=text))
    return rejections


def _decide_calls(state: State, planner: Planner) -> Sequence[Body]:
    """Start what may start: calls in order, a writing one alone, reads beside each other until the first writer."""
    if state.worktree is None:
        return () if state.is_open(MakeWorktree) else _reject_unstarted(state, "this session has no worktree")
    if state.is_open(RestoreTree):
        return ()
    if not state.set_up:
        # Its failure is told to the person and does not stop the agent, who meets what is missing by itself.
        effect = planner.plan_setup(state)
        return () if SETUP in state.open else (EffectStarted(call_id=SETUP, attempt=state.setups + 1, effect=effect),)
    unsettled = False
    for item in state.calls:
        writes = planner.writes(item.call.name)
        if item.status in ("waiting", "approved"):
            if writes and (unsettled or state.is_open(TakeSnapshot)):
                return ()
            return _start_call(state, planner, item)
        unsettled = unsettled or item.status != "settled"
        if writes and unsettled:
            return ()
    return ()


def _start_call(state: State, planner: Planner, item: PendingCall) -> Sequence[Body]:
    plan = planner.plan_tool(state, item)
    match plan:
        case Start(effect):
            if _wants_snapshot(state, effect) and (
                first := _decide_snapshot(state, planner, "before a call that writes")
            ):
                return first
            return (EffectStarted(call_id=item.call.id, attempt=item.attempts + 1, effect=effect),)
        case Ask(question):
            # A second question about the same call: the first was answered for files that have changed since.
            return (EffectStarted(call_id=ask_id(item.call.id), attempt=item.asks + 1, effect=question),)
        case Reject(rejection):
            return (rejection,)
        case _:
            assert_never(plan)


def _wants_snapshot(state: State, effect: RunTool | FanOut | AskAgent) -> bool:
    """Whether it may be undone one day, or is made of the files as they are; what cannot write needs none. What is
    not undone wants one after a command, so that the tree at each event is a snapshot and the edits after it."""
    if isinstance(effect, FanOut | AskAgent):
        return True
    match effect.effect_class:
        case "commit":
            return True
        case "command":
            return not (effect.confined and effect.read_only)
        case "edit" | "external":
            return state.written == "more"
        case _:
            return False


def _decide_snapshot(state: State, planner: Planner, reason: str) -> Sequence[Body]:
    wanted = state.context is not None and state.context.snapshots and state.worktree is not None
    if not wanted or state.written == "no" or state.is_open(TakeSnapshot) or state.snapshot is None:
        return ()
    effect = TakeSnapshot(parent=state.snapshot, at_s=planner.now_s(), reason=reason)
    return (EffectStarted(call_id=snapshot_id(state.snapshots + 1), attempt=1, effect=effect),)


def _decide_turn(state: State, planner: Planner) -> Sequence[Body]:
    """No call is pending and no reply is awaited: ask the model, or end. A paused reply goes back as it is."""
    reply = last_reply(state)
    if reply is not None and not state.paused:
        if snapshot := _decide_snapshot(state, planner, "at the end of the turn"):
            return snapshot
        if not state.is_open(TakeSnapshot) and (before := waking.decide_end(state, planner)) is not None:
            return before
        if state.open:
            return ()
        ending: Ending = "withheld" if state.withheld else "done"
        return (TurnEnded(ending=ending, text=_last_words(state)),)
    if state.failed is not None:
        return _decide_retry(state, planner)
    if state.said is not None:
        return _end_when_quiet(state, planner, TurnEnded(ending="done", text=text_of(state.said)))
    if state.limits.max_turns is not None and state.turn_calls >= state.limits.max_turns:
        text = (
            f"Stopped after {state.turn_calls} model calls, the limit of a turn; `thalia resume --max-turns N` goes on."
        )
        return _end_when_quiet(state, planner, TurnEnded(ending="out_of_turns", text=text))
    if state.chosen is not None and not state.fell_back:
        return (state.chosen,)
    if reply is None and (reports := waking.deliver(state, planner)):
        return reports
    return _call_model(state, planner, model_call_id(state.model_calls + 1), 1, 0)


def _last_words(state: State) -> str:
    """Of the last reply; replies that follow each other are one with pauses in it."""
    said: list[str] = []
    for message in reversed(state.messages):
        if not isinstance(message, AssistantMessage):
            break
        said.append(message.text)
    return "".join(reversed(said))


def _decide_retry(state: State, planner: Planner) -> Sequence[Body]:
    assert state.failed is not None
    call_id, attempt, outcome = state.failed.call_id, state.failed.attempt, state.failed.outcome
    if isinstance(outcome, AttemptLost):
        return _call_model(state, planner, call_id, attempt + 1, 0)
    if outcome.retry and attempt < state.limits.max_attempts:
        return _call_model(state, planner, call_id, attempt + 1, outcome.wait_ms)
    if (other := _fallback(state)) is not None:
        return (other,)
    text = outcome.text
    if outcome.retry:
        text = f"{LOST_ATTEMPTS_TEXT} in {attempt} attempts: {text.rstrip('.')}. `thalia resume` tries again."
    return _end_when_quiet(state, planner, TurnEnded(ending="model_unavailable", text=text))


def _fallback(state: State) -> ContextSet | None:
    """What the same conversation goes to next, where the model has failed for good: once in a turn."""
    context, route = state.context, state.fallback
    if context is None or route is None or state.fell_back or route.model == context.model:
        return None
    return context.model_copy(update={**route.model_dump(), "instead_of": context.model})


def _call_model(state: State, planner: Planner, call_id: CallId, attempt: int, delay_ms: int) -> Sequence[Body]:
    effect = planner.plan_model(state, call_id)
    budget = state.limits.max_budget_usd
    if budget is not None and state.spent_usd + state.reserved_usd + effect.reserved_usd > budget:
        text = (
            f"Stopped before a call that could pass the budget: spent ${state.spent_usd:.4f} of ${budget:.4f}, "
            f"the next may cost ${effect.reserved_usd:.4f}; `thalia resume --max-budget-usd N` goes on."
        )
        return _end_when_quiet(state, planner, TurnEnded(ending="out_of_budget", text=text))
    effect = effect.model_copy(update={"delay_ms": delay_ms})
    return (EffectStarted(call_id=call_id, attempt=attempt, effect=effect),)


def _end_when_quiet(state: State, planner: Planner, end: TurnEnded) -> Sequence[Body]:
    if snapshot := _decide_snapshot(state, planner, "at the end of the turn"):
        return snapshot
    return waking.end_wakes(state) or (() if state.open else (end,))
