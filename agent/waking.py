"""When background agents are woken, what they are told, and when the main agent hears of it. Pure but for the planner,
which looks at what has changed."""

from collections.abc import Sequence
from typing import Protocol

from agent.background import HOUR_S, Background, Heard, end_id, evidence_lines, text_of
from agent.state import State, last_reply
from eventlog.effects import AskAgent, CallModel, Wake, WakeAgent
from eventlog.events import AgentReported, Body, EffectFinished, EffectStarted, Interrupted
from eventlog.ids import CallId, Commit, wake_id
from eventlog.messages import AssistantMessage, UserMessage
from eventlog.outcomes import Cancelled, Outcome, ToolFailed

MAX_ENDS = 3
"""How often an agent is woken for the end of one turn: each report of it makes the turn go on."""
SHARE = 0.1
"""Of what is left of the session's budget, the part that one wake-up may spend."""
GOAL = 4_000
"""Characters of what the user said that a background agent is shown."""
NAMES = 40
"""Changed files that are named, in a report or to an agent that is woken."""

FULL = 0.5
"""Of its window, what a background agent's conversation may fill before it begins anew with its notes."""
SAY_ONE = (
    "You ended without a word. Call `report` if something changes what the main agent does next, else `stay_silent` "
    "with the reason."
)

QUESTION: Wake = "question"
_REPORT = "[Report of the background agent "
_HAPPENED: dict[Wake, str] = {
    "start": "The session begins.",
    "edit": "The main agent edited files.",
    "command": "The main agent ran commands that may have changed files.",
    "commit": "The main agent made a commit.",
    "turn_end": "The main agent says that it is done; its turn ends unless you report.",
    "question": "The main agent asks you. Answer with `report`; the evidence is where you looked.",
}


class WakePlanner(Protocol):
    def now_s(self) -> int: ...

    def changed_between(self, before: Commit, after: Commit) -> Sequence[str]:
        """Paths that differ, sorted; empty also where it cannot be found out."""
        ...


def decide_wakes(state: State, planner: WakePlanner) -> list[Body]:
    """The wake-ups that begin now, and the answers that have come."""
    if not state.agents:
        return []
    answered: list[Body] = [_finish(state, call_id, answer) for one in state.agents for call_id, answer in one.answers]
    if answered or (answered := _dismiss(state)):
        return answered
    under_way = bool(state.calls) or state.is_open(CallModel)
    if again := _go_on_all(state) if under_way or last_reply(state) is None else []:
        return again
    # A turn that is about to end wakes nobody whom it would have to end at once.
    if not under_way or not can_wake(state):
        return []
    woken: list[Body] = []
    for one in state.crew:
        asked = _questions(state, one)
        reasons = one.due if not asked else (*one.due, QUESTION)
        if one.at_work is None and reasons:
            woken += _wake(state, one, reasons, asked, planner, len(woken))
    return woken


def can_wake(state: State) -> bool:
    """Whether the session's files stand still in a snapshot, so that there is something to look at."""
    ready = state.worktree is not None and state.snapshot is not None and state.written == "no"
    return ready and state.fan is None and state.asked_fan is None


def _dismiss(state: State) -> list[Body]:
    """Ends what those do that the session goes on without, and what they are asked."""
    gone = [one for one in state.agents if not one.stays]
    ended: list[Body] = [_end_word(one.at_work) for one in gone if one.at_work and not is_ended(state, one.at_work)]
    names = {one.agent for one in gone}
    text = "The session goes on without this agent; go on without its answer."
    return ended + [
        _finish(state, call_id, ToolFailed(text=text))
        for call_id, item in state.open.items()
        if isinstance(item.effect, AskAgent) and item.effect.agent in names
    ]


def decide_end(state: State, planner: WakePlanner) -> list[Body] | None:
    """When the main agent has said its last word and its files are in a snapshot: what stands between that and the end
    of the turn. Empty: wait; None: nothing."""
    for one in state.crew:
        if one.at_work is None and (woken := _wake_at_end(state, one, planner)):
            return woken
    # Whatever such a one was woken for: ended now, it would be woken again at once, and look at the same.
    if any(one.at_work is not None and "turn_end" in one.chosen.wakes_on for one in state.crew):
        return []
    if any(heard.report.priority != "low" for one in state.crew for heard in one.reports):
        return list(deliver(state, planner))
    return end_wakes(state) or None


def end_wakes(state: State) -> list[Body]:
    """For a turn that ends: what the others look at matters no more now, and they go on from there when they are woken
    next."""
    begun = [one.at_work for one in state.agents if one.at_work is not None]
    return [_end_word(wake) for wake in begun if not is_ended(state, wake)]


def deliver(state: State, planner: WakePlanner) -> Sequence[Body]:
    """The reports that the main agent does not know yet, the most urgent first."""
    rank = ("high", "normal", "low").index
    waiting = [(one, heard) for one in state.crew for heard in one.reports]
    waiting.sort(key=lambda item: rank(item[1].report.priority))
    return [
        AgentReported(agent=one.agent, round=heard.round, text=_told(state, one, heard, planner))
        for one, heard in waiting
    ]


def stop_asking(state: State, why: str) -> list[Body]:
    """For a turn that stops: nobody waits for answers any more."""
    return [
        _finish(state, call_id, Cancelled(text=why, started=True))
        for call_id, item in state.open.items()
        if isinstance(item.effect, AskAgent)
    ]


def is_ended(state: State, wake: WakeAgent) -> bool:
    """Whether its turn ended without it, by a word that it may not have heard."""
    return end_id(wake) in state.commands


def _finish(state: State, call_id: CallId, outcome: Outcome) -> EffectFinished:
    return EffectFinished(call_id=call_id, attempt=state.open[call_id].attempt, outcome=outcome)


def notes_of(state: State) -> str:
    """What a background agent's conversation goes on with when it begins anew."""
    said = f"What you said last: {text_of(state.said)}" if state.said is not None else ""
    noted = f"Your notes:\n{state.notes}" if state.notes else "You made no notes."
    return "\n\n".join(filter(None, ["(You were woken before; what was said then has grown too long.)", noted, said]))


def _end_word(wake: WakeAgent) -> Interrupted:
    return Interrupted(id=end_id(wake), agent=wake.agent)


def _questions(state: State, one: Background) -> tuple[CallId, ...]:
    return tuple(
        call_id
        for call_id, item in state.open.items()
        if isinstance(item.effect, AskAgent) and item.effect.agent == one.agent
    )


def _wake_at_end(state: State, one: Background, planner: WakePlanner) -> list[Body]:
    """Only where there is something that it has not seen."""
    if one.again is not None and "turn_end" in one.again.reasons:
        return [_go_on(one, one.again)]
    if "turn_end" not in one.chosen.wakes_on or not can_wake(state):
        return []
    assert state.worktree is not None
    old = (one.seen or state.worktree.start or state.worktree.base, *one.ends)
    if state.snapshot in old or len(one.ends) >= MAX_ENDS:
        return []
    return _wake(state, one, ("turn_end",), (), planner)


def _wake(
    state: State,
    one: Background,
    reasons: Sequence[Wake],
    asked: tuple[CallId, ...],
    planner: WakePlanner,
    others: int = 0,
) -> list[Body]:
    """Nothing where it has no money left; then its questions end with that. `others`: begun in the same moment."""
    now_s = planner.now_s()
    budget = allowance(state, one, now_s, others)
    if budget == 0.0:
        text = f"{one.agent} has spent its budget of this hour, or the session's is spent; go on without it."
        return [_finish(state, call_id, ToolFailed(text=text)) for call_id in asked]
    assert state.snapshot is not None
    effect = WakeAgent(
        agent=one.agent,
        round=one.round + 1,
        reasons=tuple(reasons),
        base=state.snapshot,
        text=_woken(state, one, reasons, asked, planner),
        asked=asked,
        budget_usd=budget,
        at_s=now_s,
    )
    return [EffectStarted(call_id=wake_id(one.agent, effect.round), attempt=1, effect=effect)]


def _go_on_all(state: State) -> list[Body]:
    return [_go_on(one, one.again) for one in state.crew if one.again is not None]


def _go_on(one: Background, wake: WakeAgent) -> EffectStarted:
    """After its process died: it may have been told already what it is told here, so nothing of it may be other."""
    return EffectStarted(call_id=wake_id(wake.agent, wake.round), attempt=one.lost + 1, effect=wake)


def allowance(state: State, one: Background, now_s: int, others: int) -> float | None:
    """USD that a wake-up may spend: what is left of its hour, and no more than a share of what is left of the session's
    budget and reserved for nobody. None: no bound."""
    bounds: list[float] = []
    if one.chosen.budget_usd_per_hour is not None:
        bounds.append(one.chosen.budget_usd_per_hour - one.spent_since(now_s - HOUR_S))
    if state.limits.max_budget_usd is not None:
        calls = [item.effect.reserved_usd for item in state.open.values() if isinstance(item.effect, CallModel)]
        left = state.limits.max_budget_usd - state.spent_usd - state.reserved_usd - sum(calls)
        bounds.append(left * SHARE / (others + 1))
    return max(min(bounds), 0.0) if bounds else None


def _woken(
    state: State, one: Background, reasons: Sequence[Wake], asked: Sequence[CallId], planner: WakePlanner
) -> str:
    assert state.snapshot is not None and state.worktree is not None
    parts = [f"You are woken. {' '.join(_HAPPENED[reason] for reason in reasons)}"]
    start = state.worktree.start or state.worktree.base
    parts.append(
        f"Your worktree holds the session's files as they are now, commit {state.snapshot}. The session began with "
        f"commit {start}."
    )
    since = one.seen or start
    if since != state.snapshot:
        parts.append(f"Changed since {'you looked last' if one.seen else 'then'} (commit {since}): "
                     f"{_list(planner.changed_between(since, state.snapshot))}.")  # fmt: skip
    if said := [text for text in _told_by_user(state) if not text.startswith(_REPORT)]:
        parts.append(f"What the session was asked for:\n{said[0][:GOAL]}")
        if len(said) > 1:
            parts.append(f"What it was told last:\n{said[-1][:GOAL]}")
    if "turn_end" in reasons and isinstance(last := state.messages[-1], AssistantMessage):
        parts.append(f"The main agent's last words:\n{last.text[:GOAL]}")
    for call_id in asked:
        effect = state.open[call_id].effect
        if isinstance(effect, AskAgent):
            parts.append(f"The question:\n{effect.question}")
    return "\n\n".join(parts)


def _told_by_user(state: State) -> list[str]:
    return [message.text for message in state.messages if isinstance(message, UserMessage)]


def _told(state: State, one: Background, heard: Heard, planner: WakePlanner) -> str:
    """With what has changed since: a report may be late."""
    report = heard.report
    moved = state.snapshot is not None and state.snapshot != heard.base
    changed = planner.changed_between(heard.base, state.snapshot) if moved and state.snapshot else ()
    changed = tuple(dict.fromkeys((*changed, *state.edited)))
    since = f"since then you changed {_list(changed)}" if moved or changed else "nothing has changed since then"
    if state.written == "more":
        since += ", and a command ran that may have changed more"
    lines = [
        f"{_REPORT}{one.agent}, priority {report.priority}, on commit {heard.base}; {since}. "
        "The user did not write this.]",
        report.text,
        *evidence_lines(report),
    ]
    if heard.work is not None:
        lines.append(f"It changed files in its own worktree; `git diff {heard.base} {heard.work}` shows them.")
    return "\n".join(lines)


def _list(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
    return f"{', '.join(names[:NAMES])}{more}" or "nothing that git can name"
