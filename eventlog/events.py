"""Every fact that a session can hold. An event is an envelope around one body; the union of bodies is closed."""

from typing import Annotated, Literal

from pydantic import Field

from eventlog.effects import Effect, Wake
from eventlog.ids import MAIN, AgentId, CallId, CommandId, Commit, Digest, SessionId
from eventlog.outcomes import Ending, Outcome
from eventlog.values import Value

SCHEMA_VERSION = 1

Mode = Literal["plan", "ask", "auto", "bypass"]
Sandbox = Literal["read-only", "workspace-write", "off"]


class UserSaid(Value):
    kind: Literal["user_said"] = "user_said"
    id: CommandId
    text: str


class Approved(Value):
    """Good for one call with exactly these arguments; used up when that call starts."""

    kind: Literal["approved"] = "approved"
    id: CommandId
    ask: CallId
    binding: Digest


class Denied(Value):
    kind: Literal["denied"] = "denied"
    id: CommandId
    ask: CallId
    reason: str = ""


class Interrupted(Value):
    """The turn stops: what runs is ended, what waits is never started."""

    kind: Literal["interrupted"] = "interrupted"
    id: CommandId
    agent: AgentId | None = None
    """Only this one of a fan-out stops; the others and the turn go on."""


class Continued(Value):
    """Go on with a turn that ended early: a limit was raised, a server is back."""

    kind: Literal["continued"] = "continued"
    id: CommandId


class ModeChosen(Value):
    kind: Literal["mode_chosen"] = "mode_chosen"
    id: CommandId
    mode: Mode
    sandbox: Sandbox
    attended: bool
    """Somebody can answer a question."""


class LimitsSet(Value):
    """Bounds of the turns to come. None is no bound."""

    kind: Literal["limits_set"] = "limits_set"
    id: CommandId
    max_turns: int | None = None
    """Model calls in one turn."""
    max_budget_usd: float | None = None
    """Money over the whole session."""
    max_attempts: int = 6
    """Tries of one model call."""


class FanOutAsked(Value):
    """Give each of these to an agent of its own; a turn without a model of its own, that ends when they have."""

    kind: Literal["fan_out_asked"] = "fan_out_asked"
    id: CommandId
    tasks: tuple[str, ...]
    jobs: int
    """Agents at work at the same time; 0 and less: as many as usual."""
    check: str = ""
    labels: tuple[str, ...] = ()
    """NAME=VALUE of nodes on which they are to work; none: on any."""


class SessionOpened(Value):
    """A writer took the log. The first event of each epoch."""

    kind: Literal["session_opened"] = "session_opened"
    epoch: int
    version: str
    pid: int
    host: str
    recovered_from: int | None = None
    """Head of the log when this epoch began."""
    boot: str = ""
    """Of the machine. After another one, what was not synced may be gone; empty where it is not known."""
    torn: bool = False
    """After another boot, where files that a command wrote are in no snapshot: nobody can say what they were."""


class ContextSet(Value):
    """All that a request is made of besides the conversation."""

    kind: Literal["context_set"] = "context_set"
    builder: str
    model: str
    """`provider/name` as chosen."""
    wire_model: str
    """As the provider's API wants it."""
    system: str
    tools: str
    """JSON: the tool schemas, in order."""
    parameters: str
    """JSON: sampling and the like."""
    window: int
    """Tokens the model can hold."""
    input_usd: float | None = None
    """Money per million tokens, with the next two: kept here so that a cost never changes afterwards."""
    cached_usd: float | None = None
    output_usd: float | None = None
    cache_write_usd: float | None = None
    """Of input that is written to the provider's cache; None is what any input costs."""
    token_bound: int | None = None
    """Output tokens a call may use, where the request bounds them."""
    snapshots: bool = True
    setup: str = ""
    """Command that runs once in each new worktree before any call does; from the user's own settings."""
    warning: str = ""
    """What a person must know before the model is used."""
    instead_of: str | None = None
    """The chosen model, which gave no reply: this one answers for the rest of the turn."""


class ModelRoute(Value):
    """What of a ContextSet depends on the model; the fields mean the same."""

    builder: str
    model: str
    wire_model: str
    parameters: str
    window: int
    input_usd: float | None = None
    cached_usd: float | None = None
    output_usd: float | None = None
    cache_write_usd: float | None = None
    warning: str = ""


class BackgroundAgent(Value):
    """One that stays as long as the session, as its definition says."""

    agent: AgentId
    description: str
    """One line: what it is for."""
    defined_in: str
    """The file, for people."""
    wakes_on: tuple[Wake, ...]
    budget_usd_per_hour: float | None = None
    context: ContextSet
    """All that its requests are made of besides its conversation."""


class AgentsChosen(Value):
    """The background agents of the session from here on. Who was there before and is named again stays as it is."""

    kind: Literal["agents_chosen"] = "agents_chosen"
    agents: tuple[BackgroundAgent, ...]


class AgentReported(Value):
    """A report as the main agent reads it, with what has changed since it was made."""

    kind: Literal["agent_reported"] = "agent_reported"
    agent: AgentId
    round: int
    text: str


class ConversationCut(Value):
    """What was said before is left out from here on: it has grown too long, and `text` says what matters of it."""

    kind: Literal["conversation_cut"] = "conversation_cut"
    text: str


class FallbackSet(Value):
    """Who answers for the rest of a turn in which the chosen model fails for good. None: nobody, the turn ends."""

    kind: Literal["fallback_set"] = "fallback_set"
    route: ModelRoute | None


class EffectStarted(Value):
    """The intent. Durable before the effect begins."""

    kind: Literal["effect_started"] = "effect_started"
    call_id: CallId
    attempt: int
    effect: Effect


class EffectFinished(Value):
    """The one terminal outcome of an attempt."""

    kind: Literal["effect_finished"] = "effect_finished"
    call_id: CallId
    attempt: int
    outcome: Outcome


class CallRejected(Value):
    """A tool call that was never started, and why. The model reads the text."""

    kind: Literal["call_rejected"] = "call_rejected"
    call_id: CallId
    why: Literal["denied", "withheld", "invalid", "interrupted"]
    text: str


class TurnEnded(Value):
    kind: Literal["turn_ended"] = "turn_ended"
    ending: Ending
    text: str


class LeaseGranted(Value):
    """An incarnation of an agent may append from here on; what an earlier one sends is refused."""

    kind: Literal["lease_granted"] = "lease_granted"
    agent: AgentId
    lease: int
    node: str = ""
    """Where it works: Ray's id of a node of the cluster; empty: on the session's own."""
    host: str = ""
    """What that machine is called."""


class Rewound(Value):
    """Conversation and tree go back to what they were after `to_seq`; money, approvals and merges do not."""

    kind: Literal["rewound"] = "rewound"
    to_seq: int
    saved: Commit | None
    """The tree as it was before going back."""
    restored: Commit | None


class Forked(Value):
    """First body of a fork after the copied events: from where it came."""

    kind: Literal["forked"] = "forked"
    session: SessionId
    seq: int


class DamageAccepted(Value):
    """Acknowledged events are gone and the user chose to go on."""

    kind: Literal["damage_accepted"] = "damage_accepted"
    first_lost: int
    last_lost: int
    kept_at: str
    """Where the damaged files were copied."""


Command = UserSaid | Approved | Denied | Interrupted | Continued | ModeChosen | LimitsSet | FanOutAsked
Body = Annotated[
    UserSaid
    | Approved
    | Denied
    | Interrupted
    | Continued
    | ModeChosen
    | LimitsSet
    | FanOutAsked
    | SessionOpened
    | ContextSet
    | AgentsChosen
    | AgentReported
    | ConversationCut
    | FallbackSet
    | EffectStarted
    | EffectFinished
    | CallRejected
    | TurnEnded
    | LeaseGranted
    | Rewound
    | Forked
    | DamageAccepted,
    Field(discriminator="kind"),
]


class Draft(Value):
    """A body on its way to the log, and who sends it."""

    body: Body
    actor: AgentId = MAIN
    lease: int = 1
    actor_seq: int | None = None
    """Counts an agent's own appends; a repeated one is dropped. None where the writer is its own sender."""
    causation: int | None = None
    """seq of the event this follows from."""


class Event(Value):
    """A body as it stands in the log."""

    seq: int
    ts_us: int
    """Microseconds since 1970, UTC, by the writer's clock."""
    session: SessionId
    epoch: int
    actor: AgentId
    lease: int
    actor_seq: int | None
    causation: int | None
    version: int
    body: Body
