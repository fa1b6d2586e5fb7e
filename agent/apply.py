"""The fold: each event makes a new state of the one before. Knows nothing of files, servers or time."""

from typing import assert_never

from pyrsistent import pmap, pvector

from agent import background, fans
from agent.calls import answer_call, close_all, settle_call, update_call
from agent.results import ToolOutcome, Written, text_for_model, wrote
from agent.state import FailedAttempt, OpenEffect, PendingCall, State, replace
from eventlog.effects import (
    AskAgent,
    AskUser,
    CallModel,
    Effect,
    FanOut,
    MakeWorktree,
    MergeWork,
    PartOfFan,
    RestoreTree,
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
    Command,
    ContextSet,
    Continued,
    ConversationCut,
    DamageAccepted,
    Denied,
    EffectFinished,
    EffectStarted,
    FallbackSet,
    FanOutAsked,
    Forked,
    Interrupted,
    LeaseGranted,
    LimitsSet,
    ModeChosen,
    Rewound,
    SessionOpened,
    TurnEnded,
    UserSaid,
)
from eventlog.ids import SETUP, CallId
from eventlog.messages import UserMessage
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
    Outcome,
    OutcomeUnknown,
    Refused,
    SnapshotTaken,
    ToolFailed,
    ToolSucceeded,
    WorktreeReady,
)

TORN_TEXT = (
    "The machine was started anew. Files that commands had written shortly before may be missing or incomplete: look "
    "at them before you build on them."
)


def apply(state: State, body: Body) -> State:
    match body:
        # First, because they are most of a log.
        case EffectStarted():
            return _apply_start(state, body)
        case EffectFinished():
            return _apply_outcome(state, body)
        case (
            UserSaid()
            | Approved()
            | Denied()
            | Interrupted()
            | Continued()
            | ModeChosen()
            | LimitsSet()
            | FanOutAsked()
        ):
            if body.id in state.commands:
                return state
            return _apply_command(replace(state, commands=state.commands.set(body.id, True)), body)
        case SessionOpened():
            return _apply_opening(state, body)
        case ContextSet():
            return _apply_context(state, body)
        case FallbackSet():
            return replace(state, fallback=body.route)
        case AgentsChosen():
            return replace(state, agents=background.choose(state.agents, body.agents))
        case AgentReported():
            agents = background.note_delivered(state.agents, body.agent, body.round)
            return replace(state, agents=agents, messages=state.messages.append(UserMessage(text=body.text)))
        case ConversationCut():
            cut = pvector([UserMessage(text=body.text)])
            return replace(state, messages=cut, context_tokens=0, seen=pmap({}))
        case CallRejected():
            return _apply_rejection(state, body)
        case TurnEnded():
            ended = replace(state, active=False, interrupting=False, failed=None, ending=body, refused=None)
            return _next_turn(replace(ended, asked_fan=None, ended_fan=None))
        case Forked():
            agents = background.closed(state.agents)
            return replace(close_all(state), worktree=None, written="no", edited=(), agents=agents)
        case DamageAccepted() | LeaseGranted() | Rewound():
            # Rewound needs the events before it: step_through sees to it.
            return state
        case _:
            assert_never(body)


def is_other_boot(state: State, boot: str) -> bool:
    """Whether the machine was started anew since the log was last opened. An old log does not know."""
    return state.boot not in ("", boot) and boot != ""


def _apply_opening(state: State, body: SessionOpened) -> State:
    """After another boot the log and what it names are whole, and the worktree may not be: nobody syncs what commands
    write."""
    opened = replace(state, epoch=body.epoch, boot=body.boot or state.boot)
    if body.torn and TORN_TEXT not in state.queued:
        opened = replace(opened, queued=(*state.queued, TORN_TEXT))
    if not is_other_boot(state, body.boot):
        return opened
    shaken = {call: OpenEffect(item.effect, item.attempt, shaken=True) for call, item in state.open.items()}
    return replace(opened, open=shaken, torn=state.worktree is not None)


def _apply_context(state: State, body: ContextSet) -> State:
    if body.instead_of is None:
        return replace(state, context=body, chosen=None)
    # The call that had no reply is made again under another id, and counts once in the turn.
    calls = max(state.turn_calls - 1, 0)
    chosen = state.chosen or state.context
    return replace(state, context=body, chosen=chosen, fell_back=True, failed=None, turn_calls=calls)


def _apply_command(state: State, body: Command) -> State:
    match body:
        case UserSaid():
            queued = replace(state, queued=(*state.queued, body.text))
            return queued if state.active else _next_turn(queued)
        case Approved():
            return answer_call(state, body.ask, "approved", body.binding, None)
        case Denied():
            reason = f" They said: {body.reason}" if body.reason else ""
            return answer_call(
                state, body.ask, "settled", None, f"The user did not allow this call; it did not run.{reason}"
            )
        case Interrupted():
            return replace(state, interrupting=state.active) if body.agent is None else state
        case Continued():
            if state.active or not state.messages:
                return state
            return _begin_turn(state)
        case ModeChosen():
            return replace(state, mode=body)
        case LimitsSet():
            return replace(state, limits=body)
        case FanOutAsked():
            # One that is asked for while a turn is under way is refused at the door.
            return state if state.active else replace(_begin_turn(state), asked_fan=body, merged=None)
        case _:
            assert_never(body)


def _apply_start(state: State, body: EffectStarted) -> State:
    state = replace(state, open={**state.open, body.call_id: OpenEffect(body.effect, body.attempt)})
    if isinstance(body.effect, PartOfFan):
        return replace(state, fan=fans.note_start(state.fan, body.effect)) if state.fan else state
    match body.effect:
        case CallModel():
            first = body.attempt == 1
            return replace(
                state, model_calls=state.model_calls + first, turn_calls=state.turn_calls + first, failed=None
            )
        case RunTool():
            state = replace(state, setups=body.attempt) if body.call_id == SETUP else state
            return update_call(state, body.call_id, status="running", attempts=body.attempt, binding=None)
        case AskUser():
            return update_call(state, body.effect.about, status="asked", asks=body.attempt)
        case MakeWorktree():
            return replace(state, worktree=None, refused=None)
        case TakeSnapshot():
            return replace(state, snapshots=state.snapshots + 1)
        case RestoreTree() | MergeWork():
            return replace(state, refused=None)
        case FanOut() as effect:
            begun = replace(state, fan=fans.begin(body.call_id, body.attempt, effect))
            if state.asked_fan is not None:
                return replace(begun, fans=state.fans + 1)
            return update_call(begun, body.call_id, status="running", attempts=body.attempt, binding=None)
        case WakeAgent() as effect:
            return replace(state, agents=background.note_wake(state.agents, effect))
        case AskAgent():
            return update_call(state, body.call_id, status="running", attempts=body.attempt, binding=None)
        case _:
            assert_never(body.effect)


def _apply_outcome(state: State, body: EffectFinished) -> State:
    started = state.open.get(body.call_id)
    if started is None or started.attempt != body.attempt:
        return state
    state = replace(state, open={key: value for key, value in state.open.items() if key != body.call_id})
    effect = started.effect
    if isinstance(effect, PartOfFan):
        return _apply_part(state, effect, body.outcome)
    if isinstance(effect, WakeAgent):
        return _apply_rest(state, effect, body.outcome)
    if isinstance(effect, AskAgent):
        state = replace(state, agents=background.note_answered(state.agents, body.call_id))
    if isinstance(effect, FanOut):
        state = _end_fan(state, effect)
    match body.outcome:
        case ModelReplied() as reply:
            return _apply_reply(state, reply)
        case ModelFailed() as failed:
            return _charge(replace(state, failed=FailedAttempt(body.call_id, body.attempt, failed)), failed.charged_usd)
        case Cancelled() if isinstance(started.effect, CallModel):
            return _charge(state, started.effect.reserved_usd)
        case AttemptLost() as lost:
            return _lose_attempt(state, body, effect, lost)
        case WorktreeReady() as ready:
            state = replace(state, worktree=ready, snapshot=ready.start or ready.base, written="no", edited=())
            return replace(state, torn=False, set_up=not (state.context and state.context.setup))
        case SnapshotTaken() as taken:
            # Nothing that writes starts while a snapshot is taken.
            return replace(state, snapshot=taken.commit, written="no", edited=(), torn=False)
        case Merged() as merged:
            return replace(state, merged=merged)
        case Refused() as refused:
            return replace(state, refused=refused)
        case ToolSucceeded() | ToolFailed() | Conflicted() | Cancelled() | OutcomeUnknown() as outcome:
            state = replace(state, set_up=True) if body.call_id == SETUP else state
            return _apply_tool_result(state, body.call_id, started.effect, outcome)
        case AgentEnded() | MergePrepared() | MergeConflicted() | BranchAdvanced() | AgentsRetired():
            # Each belongs to a part of a fan-out.
            return state
        case _:
            assert_never(body.outcome)


def _lose_attempt(state: State, body: EffectFinished, effect: Effect, lost: AttemptLost) -> State:
    state = _charge(state, lost.charged_usd)
    if isinstance(effect, RunTool):
        return update_call(state, body.call_id, status="waiting", lost=effect)
    return replace(state, failed=FailedAttempt(body.call_id, body.attempt, lost))


def _end_fan(state: State, effect: FanOut) -> State:
    changed = state.snapshot != effect.base
    agents = background.happened(state.agents, "edit") if changed else state.agents
    return replace(state, agents=agents, fan=None, ended_fan=state.fan if state.asked_fan else None)


def _apply_part(state: State, part: PartOfFan, outcome: Outcome) -> State:
    """What an agent used counts as the session's: for each round, what is more than it had used before."""
    fan = state.fan
    if fan is None:
        return state
    if isinstance(part, SpawnAgent) and isinstance(outcome, AttemptLost):
        state = _charge(state, max(outcome.charged_usd - fan.branch(part.agent).spent_usd, 0.0))
    if isinstance(part, SpawnAgent) and isinstance(outcome, AgentEnded):
        before = fan.branch(part.agent)
        state = _charge(state, max(outcome.spent_usd - before.spent_usd, 0.0))
        unpriced = state.unpriced or outcome.unpriced
        state = replace(state, usage=state.usage + outcome.usage - before.usage, unpriced=unpriced)
    return replace(state, fan=fans.note_end(fan, part, outcome))


def _apply_rest(state: State, wake: WakeAgent, outcome: Outcome) -> State:
    before = next(one for one in state.agents if one.agent == wake.agent)
    if isinstance(outcome, AgentEnded):
        state = _charge(state, max(outcome.spent_usd - before.spent_usd, 0.0))
        unpriced = state.unpriced or outcome.unpriced
        state = replace(state, usage=state.usage + outcome.usage - before.usage, unpriced=unpriced)
    ended = background.end_id(wake) in state.commands
    return replace(state, agents=background.note_rest(state.agents, wake, outcome, state.open, ended=ended))


def _apply_reply(state: State, reply: ModelReplied) -> State:
    state = replace(
        state,
        messages=state.messages.append(reply.message),
        calls=tuple(PendingCall(call) for call in reply.message.tool_calls),
        usage=state.usage + reply.usage,
        context_tokens=reply.usage.input + reply.usage.output,
        unpriced=state.unpriced or reply.cost_usd is None,
        failed=None,
        paused=reply.stop == "pause",
    )
    return _charge(state, reply.cost_usd or 0.0)


def _apply_rejection(state: State, body: CallRejected) -> State:
    """The question about the call goes with it. One whose lost run nobody undid may have written."""
    lost = {item.call.id for item in state.calls if item.lost is not None and item.lost.may_write}
    asks = [key for key, question in state.asks.items() if question.about == body.call_id]
    still = {key: value for key, value in state.open.items() if key not in asks}
    state = replace(state, open=still, withheld=state.withheld + (body.why == "withheld"))
    return settle_call(_write(state, "more") if body.call_id in lost else state, body.call_id, body.text)


def _apply_tool_result(state: State, call_id: CallId, effect: Effect, outcome: ToolOutcome) -> State:
    seen = state.seen
    if isinstance(outcome, ToolSucceeded):
        for file in outcome.seen:
            seen = seen.set(file.path, file.digest)
        if isinstance(effect, RunTool):
            for change in effect.changes:
                seen = seen.set(change.path, change.after) if change.after else seen.discard(change.path)
    how = wrote(effect, outcome)
    if isinstance(effect, RunTool):
        state = _note_run(state, effect, outcome, how != "no")
    work = outcome.commit if isinstance(outcome, ToolSucceeded) and outcome.commit else state.work
    state = _write(replace(state, seen=seen, work=work), how)
    return settle_call(state, call_id, text_for_model(outcome))


def _note_run(state: State, effect: RunTool, outcome: ToolOutcome, wrote: bool) -> State:
    """What background agents wake on, and what one says itself."""
    changes = tuple(change.path for change in effect.changes)
    if changes and wrote:
        state = replace(state, edited=tuple(dict.fromkeys((*state.edited, *changes))))
    if state.agents:
        state = replace(state, agents=background.happened_by(state.agents, effect, outcome))
    said = background.read_said(effect) if isinstance(outcome, ToolSucceeded) else None
    return state if said is None else replace(state, said=said, notes=said.notes or state.notes)


def _write(state: State, how: Written) -> State:
    return replace(state, written=max(state.written, how, key=("no", "edits", "more").index))


def _next_turn(state: State) -> State:
    """What the user said meanwhile opens the next turn; what we have to say ourselves waits for one."""
    if not any(text != TORN_TEXT for text in state.queued):
        return state
    messages = state.messages.extend(UserMessage(text=text) for text in state.queued)
    return replace(_begin_turn(state), messages=messages, queued=(), merged=None)


def _begin_turn(state: State) -> State:
    fresh = replace(state, active=True, ending=None, turn_calls=0, withheld=0, failed=None, refused=None)
    return replace(fresh, fell_back=False, said=None, agents=background.begin_turn(state.agents))


def _charge(state: State, usd: float) -> State:
    return replace(state, spent_usd=state.spent_usd + usd) if usd else state
