"""What a session knows, as a fold of its events. Knows nothing of files, servers or time.

`apply` is the only thing that changes a state, and a state is never changed: a new one takes its place."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeVar

from pyrsistent import PMap, PVector, pmap, pvector

from agent.background import Crew, reserved_usd
from agent.fans import Fan
from agent.results import Written
from eventlog.effects import AskAgent, AskUser, Effect, RunTool, WakeAgent
from eventlog.events import (
    ContextSet,
    FanOutAsked,
    LimitsSet,
    ModeChosen,
    ModelRoute,
    TurnEnded,
)
from eventlog.ids import CallId, CommandId, Commit, Digest
from eventlog.messages import AssistantMessage, Message, ToolCall, Usage
from eventlog.outcomes import (
    AttemptLost,
    Ending,
    Merged,
    ModelFailed,
    Refused,
    Report,
    Silence,
    WorktreeReady,
)

CallStatus = Literal["waiting", "asked", "approved", "running", "settled"]


@dataclass(frozen=True)
class PendingCall:
    """A tool call of the last reply, on its way to a result."""

    call: ToolCall
    status: CallStatus = "waiting"
    attempts: int = 0
    asks: int = 0
    binding: Digest | None = None
    """What the user approved."""
    lost: RunTool | None = None
    """The effect of an attempt that a crash took."""
    result: str | None = None


@dataclass(frozen=True, slots=True)
class OpenEffect:
    """Started, no outcome yet."""

    effect: Effect
    attempt: int
    shaken: bool = False
    """The machine was started anew since: what it did may be gone again, though it says that it ended."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    call_id: CallId
    attempt: int
    outcome: ModelFailed | AttemptLost


@dataclass(frozen=True)
class State:
    epoch: int = 0
    boot: str = ""
    context: ContextSet | None = None
    chosen: ContextSet | None = None
    """What the next turn begins with again, where `context` is the fallback's."""
    fallback: ModelRoute | None = None
    fell_back: bool = False
    """In this turn; it happens once."""
    mode: ModeChosen = field(
        default_factory=lambda: ModeChosen(id=CommandId(""), mode="ask", sandbox="workspace-write", attended=False)
    )
    limits: LimitsSet = field(default_factory=lambda: LimitsSet(id=CommandId("")))
    messages: PVector[Message] = field(default_factory=pvector)
    calls: tuple[PendingCall, ...] = ()
    open: Mapping[CallId, OpenEffect] = field(default_factory=dict)
    worktree: WorktreeReady | None = None
    snapshot: Commit | None = None
    written: Written = "no"
    """How the worktree may differ from `snapshot`: by edits, which can be made again, or by more."""
    torn: bool = False
    """The machine was started anew, and nobody has read all files of the worktree since."""
    work: Commit | None = None
    """The latest commit that the tool `commit` made."""
    edited: tuple[str, ...] = ()
    """Files that edits changed since `snapshot`."""
    seen: PMap[str, Digest] = field(default_factory=lambda: pmap({}))
    """Files as the agent last saw them."""
    queued: tuple[str, ...] = ()
    """What the user said while a turn was under way."""
    active: bool = False
    ending: TurnEnded | None = None
    interrupting: bool = False
    refused: Refused | None = None
    """An effect of our own that could not be done; ends the turn."""
    model_calls: int = 0
    snapshots: int = 0
    setups: int = 0
    """Attempts at the setup command, over all worktrees of the session."""
    set_up: bool = False
    """It ended in this worktree, well or not."""
    turn_calls: int = 0
    failed: FailedAttempt | None = None
    paused: bool = False
    """The latest reply is not at its end: the provider goes on with it when the conversation is sent again."""
    withheld: int = 0
    """Calls in this turn that wanted a permission which nobody was there to give."""
    usage: Usage = field(default_factory=Usage)
    spent_usd: float = 0.0
    unpriced: bool = False
    """A call had no known price, so that `spent_usd` is too low."""
    context_tokens: int = 0
    """Size of the conversation as the provider last counted it."""
    merged: Merged | None = None
    fan: Fan | None = None
    """A fan-out that is under way."""
    asked_fan: FanOutAsked | None = None
    """What a person wants one of, until it ends with its turn."""
    ended_fan: Fan | None = None
    """That one, when all its agents have ended."""
    fans: int = 0
    """Fan-outs that a person asked for and that began."""
    agents: Crew = ()
    """The background agents that it has, and those that it had."""
    said: Report | Silence | None = None
    """Where this is a background agent: what it came to in this turn, which ends with it."""
    notes: str = ""
    """And what it wanted to know in the next."""
    commands: PMap[CommandId, bool] = field(default_factory=lambda: pmap({}))

    @property
    def resting(self) -> bool:
        """Nothing runs and nothing will start by itself; what background agents do meanwhile keeps no question from
        its person."""
        if self.asks:
            return all(isinstance(item.effect, AskUser | WakeAgent | AskAgent) for item in self.open.values())
        return not self.open and not self.active

    @property
    def crew(self) -> Crew:
        """The background agents that it has."""
        return tuple(one for one in self.agents if one.stays)

    @property
    def reserved_usd(self) -> float:
        """What its background agents may still spend."""
        return reserved_usd(self.agents)

    def is_open(self, kind: type[Effect]) -> bool:
        """Whether an effect of this kind was started and has no outcome yet."""
        return any(isinstance(item.effect, kind) for item in self.open.values())

    @property
    def asks(self) -> Mapping[CallId, AskUser]:
        return {call: item.effect for call, item in self.open.items() if isinstance(item.effect, AskUser)}


Known = TypeVar("Known", State, PendingCall)


def replace(known: Known, **changes: object) -> Known:
    """dataclasses.replace, which calls the constructor with all thirty fields, takes ten times as long: a fold of a
    hundred thousand events is mostly this."""
    new = object.__new__(type(known))
    new.__dict__.update(known.__dict__, **changes)
    return new


def last_reply(state: State) -> AssistantMessage | None:
    """The latest reply that ends the conversation, if it does."""
    last = state.messages[-1] if state.messages else None
    return last if isinstance(last, AssistantMessage) else None


def ended(state: State) -> Ending | None:
    return state.ending.ending if state.ending else None
