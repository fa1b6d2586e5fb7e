"""How an effect ended. Failed, cancelled and unknown are different shapes: what may have run is never called failed."""

from typing import Annotated, Literal

from pydantic import Field

from eventlog.ids import Commit, Digest
from eventlog.messages import AssistantMessage, Usage
from eventlog.values import Value

StopReason = Literal["stop", "tool_calls", "length", "content_filter", "refusal", "pause"]
ModelFault = Literal[
    "rate_limited", "overloaded", "server", "network", "timeout", "cut", "malformed", "context_too_long", "refused"
]

Ending = Literal[
    "done",
    "blocked",
    "check_failed",
    "withheld",
    "out_of_turns",
    "out_of_budget",
    "model_unavailable",
    "interrupted",
    "failed",
]


class ModelReplied(Value):
    kind: Literal["model_replied"] = "model_replied"
    message: AssistantMessage
    stop: StopReason
    usage: Usage
    cost_usd: float | None
    """None where no price is known; a missing price is never called free."""
    model: str
    """As the provider reported it."""
    first_byte_ms: int
    total_ms: int


class ModelFailed(Value):
    kind: Literal["model_failed"] = "model_failed"
    fault: ModelFault
    text: str
    status: int | None = None
    retry: bool
    wait_ms: int = 0
    """How long to wait before the next attempt: told by the server, or drawn."""
    charged_usd: float = 0.0
    """Estimate, where the provider may have worked: a cut or silent stream."""


class FileSeen(Value):
    """What the agent knows of a file: a later write of the whole file is refused when it has changed since."""

    path: str
    digest: Digest


class ToolSucceeded(Value):
    kind: Literal["tool_succeeded"] = "tool_succeeded"
    text: str
    """What the model reads."""
    display: str | None = None
    """What a person reads, where that differs: a diff."""
    exit_code: int | None = None
    wrote: bool = False
    """The worktree may have changed."""
    spill: str | None = None
    """Where the whole output lies, when the text is only its head and tail."""
    commit: Commit | None = None
    seen: tuple[FileSeen, ...] = ()
    recovered: bool = False
    """Found done after a restart, not done again."""


class ToolFailed(Value):
    """It ran, or tried to, and says what went wrong; the worktree is as it was unless `wrote`."""

    kind: Literal["tool_failed"] = "tool_failed"
    text: str
    exit_code: int | None = None
    wrote: bool = False
    spill: str | None = None
    recovered: bool = False


class Conflicted(Value):
    """An edit found the file neither before nor after its own change."""

    kind: Literal["conflicted"] = "conflicted"
    text: str
    found: Digest | None


class Cancelled(Value):
    kind: Literal["cancelled"] = "cancelled"
    text: str
    started: bool
    wrote: bool = False


class OutcomeUnknown(Value):
    """It may have run. Told with the evidence, never repeated."""

    kind: Literal["outcome_unknown"] = "outcome_unknown"
    evidence: str


class AttemptLost(Value):
    """The process ended during this attempt, and it is safe to make another."""

    kind: Literal["attempt_lost"] = "attempt_lost"
    evidence: str
    charged_usd: float = 0.0


class WorktreeReady(Value):
    kind: Literal["worktree_ready"] = "worktree_ready"
    path: str
    base: Commit
    """The user's files at the start, the dirty state included: what a merge compares with."""
    start: Commit | None = None
    """The tree the agent starts from, where it is not `base`."""
    branch: str | None = None


class SnapshotTaken(Value):
    kind: Literal["snapshot_taken"] = "snapshot_taken"
    commit: Commit
    changed: bool
    left_out: tuple[str, ...] = ()
    """Files too big to keep."""
    kept_at: str = ""
    """After a restore: the ref that holds what was there, where that was something else."""


class Merged(Value):
    kind: Literal["merged"] = "merged"
    files: tuple[str, ...]
    saved: Commit | None
    """The checkout's uncommitted state just before, kept under the session's refs."""
    left_out: tuple[str, ...] = ()


class Refused(Value):
    """Our own effect could not be done; nothing was changed."""

    kind: Literal["refused"] = "refused"
    text: str
    files: tuple[str, ...] = ()


Priority = Literal["low", "normal", "high"]


class Report(Value):
    """What a background agent thinks the main agent must know."""

    kind: Literal["report"] = "report"
    text: str
    priority: Priority
    evidence: tuple[str, ...]
    """What shows it: `path:line`, a command and what it printed."""
    notes: str = ""
    """What it wants to know itself when it is woken next."""


class Silence(Value):
    """That it has nothing to report, and why."""

    kind: Literal["silence"] = "silence"
    reason: str
    notes: str = ""


class AgentEnded(Value):
    """What an agent's turn came to."""

    kind: Literal["agent_ended"] = "agent_ended"
    ending: Ending
    text: str
    """Its last words."""
    work: Commit | None = None
    """Its files, on top of what it began with; None where it changed nothing."""
    usage: Usage = Usage()
    """In all its rounds, as `spent_usd`."""
    spent_usd: float = 0.0
    unpriced: bool = False
    said: Annotated[Report | Silence, Field(discriminator="kind")] | None = None
    """Of a background agent; None where it came to neither."""


class MergePrepared(Value):
    kind: Literal["merge_prepared"] = "merge_prepared"
    commit: Commit


class MergeConflicted(Value):
    """Nothing was merged."""

    kind: Literal["merge_conflicted"] = "merge_conflicted"
    commit: Commit
    """Both sides, with markers where they meet: what the agent goes on from."""
    files: tuple[str, ...]
    text: str
    """What the other side did to these files, as a patch."""


class BranchAdvanced(Value):
    kind: Literal["branch_advanced"] = "branch_advanced"
    commit: Commit


class AgentsRetired(Value):
    kind: Literal["agents_retired"] = "agents_retired"
    kept: tuple[str, ...] = ()
    """References that hold what was in no other, and folders that could not be given back, with the reason."""


PartOutcome = AgentEnded | MergePrepared | MergeConflicted | BranchAdvanced | AgentsRetired
"""What parts of a fan-out alone come to."""
Outcome = Annotated[
    ModelReplied
    | ModelFailed
    | ToolSucceeded
    | ToolFailed
    | Conflicted
    | Cancelled
    | OutcomeUnknown
    | AttemptLost
    | WorktreeReady
    | SnapshotTaken
    | Merged
    | Refused
    | AgentEnded
    | MergePrepared
    | MergeConflicted
    | BranchAdvanced
    | AgentsRetired,
    Field(discriminator="kind"),
]
