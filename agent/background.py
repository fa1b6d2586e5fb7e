"""The background agents of a session as it knows them: what each was woken for, what it said, what it costs. Pure.

A background agent stays for the session and rests until something that its definition names has happened. Then it is
woken with the session's files as they are, looks as long as it likes, and at the end reports, or says why it does
not. What it knows stays in its own conversation."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed

from agent.results import ToolOutcome
from agent.tools.schemas import SAYING, ReportArguments, SilenceArguments, parse_arguments
from eventlog.effects import RunTool, Wake, WakeAgent
from eventlog.events import BackgroundAgent
from eventlog.ids import AgentId, CallId, CommandId, Commit, wake_id
from eventlog.messages import Usage
from eventlog.outcomes import (
    AgentEnded,
    AttemptLost,
    Cancelled,
    Outcome,
    Refused,
    Report,
    Silence,
    ToolFailed,
    ToolSucceeded,
)

MAX_LOST = 3
"""Attempts at one wake-up: what kills its process would kill the next one too."""
HOUR_S = 3600
OF_THE_MOMENT: tuple[Wake, ...] = ("turn_end", "question")
"""Reasons that do not outlast the turn in which they come up."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A report that the main agent does not know yet."""

    round: int
    base: Commit
    """The files that it was made on."""
    report: Report
    work: Commit | None
    """What the agent changed in its own worktree."""


@dataclass(frozen=True, slots=True)
class Background:
    chosen: BackgroundAgent
    stays: bool = True
    """False once the session was told to go on without it; what it costs and which wake-ups it had stay known."""
    round: int = 0
    """Wake-ups that began."""
    at_work: WakeAgent | None = None
    reasons: tuple[Wake, ...] = ("start",)
    """What has happened since it was woken last, of what it wakes on."""
    lost: int = 0
    """Attempts at its wake-up whose process died."""
    again: WakeAgent | None = None
    """The wake-up whose attempt died last, until the next attempt begins."""
    seen: Commit | None = None
    """The files that it looked at last, to the end."""
    ends: tuple[Commit, ...] = ()
    """The files on which it was woken for the end of this turn."""
    reports: tuple[Heard, ...] = ()
    answers: tuple[tuple[CallId, ToolSucceeded | ToolFailed], ...] = ()
    """To questions that are still open."""
    said: Report | Silence | None = None
    """The latest."""
    spending: tuple[tuple[int, float], ...] = ()
    """When a wake-up began, in seconds since 1970, and its USD; what is older than an hour is dropped."""
    usage: Usage = field(default_factory=Usage)
    spent_usd: float = 0.0

    @property
    def agent(self) -> AgentId:
        return self.chosen.agent

    @property
    def due(self) -> tuple[Wake, ...]:
        return tuple(reason for reason in self.reasons if reason in self.chosen.wakes_on)

    def spent_since(self, at_s: int) -> float:
        return sum(usd for began_s, usd in self.spending if began_s > at_s)


Crew = tuple[Background, ...]


def choose(crew: Crew, agents: Sequence[BackgroundAgent]) -> Crew:
    """Who was there stays as it is, with its definition as it is now; who is named no more, too, should it come
    back: its own log goes on from there."""
    known = {one.agent: one for one in crew}
    chosen = [changed(known.pop(one.agent, None) or Background(one), chosen=one, stays=True) for one in agents]
    return (*chosen, *(changed(one, stays=False) for one in known.values()))


def happened(crew: Crew, *reasons: Wake) -> Crew:
    return tuple(changed(one, reasons=_joined(one.reasons, reasons)) for one in crew)


def happened_by(crew: Crew, effect: RunTool, outcome: ToolOutcome) -> Crew:
    """After a tool of the main agent ran. What failed half-way may have written, too."""
    match effect.effect_class:
        case "edit" if isinstance(outcome, ToolSucceeded):
            return happened(crew, "edit")
        case "command" | "external" if not effect.read_only:
            return happened(crew, "command")
        case "commit" if isinstance(outcome, ToolSucceeded):
            return happened(crew, "commit")
        case _:
            return crew


def begin_turn(crew: Crew) -> Crew:
    return tuple(changed(_cut(one), ends=()) for one in crew) if crew else crew


def note_wake(crew: Crew, effect: WakeAgent) -> Crew:
    return _put(crew, effect.agent, lambda one: _begin(one, effect))


def note_rest(
    crew: Crew, effect: WakeAgent, outcome: Outcome, waiting: Container[CallId], *, ended: bool = False
) -> Crew:
    """`waiting`: the calls that are open; a question that was given up gets no answer. `ended`: whether it was told to
    end."""
    if ended and isinstance(outcome, AttemptLost):
        return _put(crew, effect.agent, lambda one: changed(_cut(one), said=_said(outcome)))
    return _put(crew, effect.agent, lambda one: _rest(one, effect, outcome, waiting))


def note_delivered(crew: Crew, agent: AgentId, round: int) -> Crew:
    return _put(crew, agent, lambda one: changed(
        one, reports=tuple(heard for heard in one.reports if heard.round != round)
    ))  # fmt: skip


def note_answered(crew: Crew, call_id: CallId) -> Crew:
    return tuple(changed(one, answers=tuple(answer for answer in one.answers if answer[0] != call_id)) for one in crew)


def end_id(wake: WakeAgent) -> CommandId:
    """Of the word that ends it with its turn."""
    return CommandId(f"{wake_id(wake.agent, wake.round)}-end")


def reserved_usd(crew: Crew) -> float:
    """What those at work, and those that are about to go on, may still spend."""
    begun = [one.at_work or one.again for one in crew]
    return sum(wake.budget_usd or 0.0 for wake in begun if wake is not None)


def closed(crew: Crew) -> Crew:
    """Of a session that was taken back or forked: nothing is under way, and nobody waits for an answer."""
    return tuple(changed(_cut(one), answers=()) for one in crew)


def _cut(one: Background) -> Background:
    """A wake-up of which nobody waits for the end: what it was for is to be looked at in another one."""
    cut = one.at_work or one.again
    if cut is None:
        return one
    lasting: list[Wake] = [reason for reason in cut.reasons if reason not in OF_THE_MOMENT]
    return changed(one, at_work=None, again=None, reasons=_joined(lasting, one.reasons))


def _begin(one: Background, effect: WakeAgent) -> Background:
    if one.again is not None and one.again.round == effect.round:
        # Its next attempt. What has happened since the first is for the next wake-up.
        return changed(one, at_work=effect, again=None)
    ends = (*one.ends, effect.base) if "turn_end" in effect.reasons else one.ends
    return changed(one, round=effect.round, at_work=effect, again=None, lost=0, reasons=(), ends=ends)


def _rest(one: Background, effect: WakeAgent, outcome: Outcome, waiting: Container[CallId]) -> Background:
    said = _said(outcome)
    rested = changed(one, at_work=None, said=said)
    if isinstance(outcome, AttemptLost) and one.lost + 1 < MAX_LOST:
        # The same wake-up again, under the next attempt and on the same files: the log knows how far it was.
        return changed(rested, again=effect, lost=one.lost + 1)
    if isinstance(outcome, AgentEnded):
        usd = max(outcome.spent_usd - one.spent_usd, 0.0)
        recent = [entry for entry in one.spending if entry[0] > effect.at_s - HOUR_S]
        rested = changed(
            rested,
            seen=effect.base if outcome.ending in ("done", "withheld") else one.seen,
            usage=outcome.usage,
            spent_usd=max(outcome.spent_usd, one.spent_usd),
            spending=(*recent, (effect.at_s, usd)),
        )
    if asked := [call_id for call_id in effect.asked if call_id in waiting]:
        answer = _answer(one.agent, said, isinstance(outcome, AgentEnded))
        return changed(rested, answers=(*one.answers, *((call_id, answer) for call_id in asked)))
    if isinstance(said, Report):
        work = outcome.work if isinstance(outcome, AgentEnded) else None
        return changed(rested, reports=(*one.reports, Heard(effect.round, effect.base, said, work)))
    return rested


def _said(outcome: Outcome) -> Report | Silence:
    """Each silence has a reason, also where the agent gave none."""
    match outcome:
        case AgentEnded(said=said) if said is not None:
            return said
        case AgentEnded(ending="done", text=text):
            return Silence(reason=f"It said neither whether it reports nor why not. Its last words: {text}")
        case AgentEnded(ending=ending, text=text):
            return Silence(reason=f"Its turn ended early ({ending}): {text}")
        case AttemptLost(evidence=text):
            return Silence(reason=f"Its process died: {text}")
        case Refused(text=text) | Cancelled(text=text) | ToolFailed(text=text):
            return Silence(reason=text or "It was ended, and nobody said why.")
        case _:
            return Silence(reason=f"It ended as {outcome.kind}, which nobody expected.")


def _answer(agent: AgentId, said: Report | Silence, ended: bool) -> ToolSucceeded | ToolFailed:
    if isinstance(said, Report):
        return ToolSucceeded(text="\n".join([said.text, *evidence_lines(said)]))
    text = f"{agent} gave no answer: {said.reason}"
    return ToolSucceeded(text=text) if ended else ToolFailed(text=text)


def read_said(effect: RunTool) -> Report | Silence | None:
    """What a background agent came to, by the tool that it says it with."""
    if effect.tool not in SAYING:
        return None
    match parse_arguments(effect.tool, effect.arguments):
        case ReportArguments() as said:
            return Report(text=said.text, priority=said.priority, evidence=said.evidence, notes=said.notes or "")
        case SilenceArguments() as said:
            return Silence(reason=said.reason, notes=said.notes or "")
        case _:
            return None


def text_of(said: Report | Silence) -> str:
    return said.text if isinstance(said, Report) else said.reason


def evidence_lines(report: Report) -> list[str]:
    return ["Evidence:", *(f"- {item}" for item in report.evidence)] if report.evidence else []


def _joined(first: Sequence[Wake], second: Sequence[Wake]) -> tuple[Wake, ...]:
    return tuple(dict.fromkeys((*first, *second)))


def _put(crew: Crew, agent: AgentId, change: Callable[[Background], Background]) -> Crew:
    return tuple(change(one) if one.agent == agent else one for one in crew)
