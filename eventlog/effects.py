"""What may be done to the world, as data. An effect names its class: what recovery may do without its outcome."""

from typing import Annotated, Literal, assert_never

from pydantic import Field

from eventlog.ids import AgentId, CallId, Commit, Digest
from eventlog.values import Value

EffectClass = Literal[
    "read", "model", "edit", "command", "external", "approval", "snapshot", "commit", "merge", "spawn"
]


class CallModel(Value):
    """Send one request. It is not stored: the builder makes it again from the fold, and its hash must agree."""

    kind: Literal["call_model"] = "call_model"
    model: str
    builder: str
    """Which request builder, with its version: `chat/1`. Old builders stay."""
    request_hash: Digest
    """sha256 of the body's bytes."""
    request_bytes: int
    messages: int
    """How many messages of the conversation the request holds."""
    max_output_tokens: int | None = None
    reserved_usd: float = 0.0
    """Estimate of the input plus the output bound; what a lost attempt is charged."""
    delay_ms: int = 0
    """How long to wait before sending, after a failed attempt."""


class FileChange(Value):
    """One file before and after an edit. `None` is no file."""

    path: str
    """Relative to the worktree."""
    before: Digest | None
    after: Digest | None
    mode: int | None = None
    """Permission bits after the edit."""


class RunTool(Value):
    kind: Literal["run_tool"] = "run_tool"
    tool: str
    arguments: str
    """JSON, exactly what will be run."""
    effect_class: EffectClass
    allowed_by: str
    """The decision that let it through, in words: a mode, a rule, an approval."""
    changes: tuple[FileChange, ...] = ()
    """Class edit: the pre- and post-images."""
    snapshot: Commit | None = None
    """Class command and commit: the worktree as it is before the effect."""
    confined: bool = False
    read_only: bool = False
    """Confined, and even the worktree cannot be written."""
    restore_first: bool = False
    """A recovery attempt: the worktree is set back to `snapshot` before the command runs."""
    at_s: int = 0
    """Class commit: the time in the commit, so that doing it again makes the same one. Seconds since 1970."""
    program: tuple[str, ...] = ()
    """Class external: the user's program with its first words; it gets the arguments on its input."""
    key: str = ""
    """Class external: what the other side knows this call by, the same in each attempt and in no other call."""

    @property
    def may_write(self) -> bool:
        """More than the files that it names."""
        return self.effect_class in ("command", "external")


class AskUser(Value):
    kind: Literal["ask_user"] = "ask_user"
    about: CallId
    tool: str
    arguments: str
    reason: str
    binding: Digest
    """Over the exact arguments, folder, agent and pre-images: what an approval is good for, and nothing else."""


class MakeWorktree(Value):
    kind: Literal["make_worktree"] = "make_worktree"
    repository: str
    head: Commit
    """The commit whose files it starts with."""
    carry_dirty: bool
    """Add what is uncommitted in the user's checkout."""
    base: Commit | None = None
    """What a merge compares with, where that is not `head`: a fork, a session whose worktree was given back."""
    at_s: int
    in_place: bool = False


class TakeSnapshot(Value):
    kind: Literal["take_snapshot"] = "take_snapshot"
    parent: Commit
    at_s: int
    """With the tree and the parent it decides the commit's id: a repeated snapshot is the same one."""
    reason: str


class RestoreTree(Value):
    """Set the worktree to a commit. What was there is saved before."""

    kind: Literal["restore_tree"] = "restore_tree"
    commit: Commit
    kept_as: str = ""
    """Where the files may be what the commit says: how the ref below the session's is called that keeps those that are
    not. Empty: whoever wrote the intent has saved them."""
    rested_us: int = 0
    """With `kept_as`: nothing of the session wrote after this time, in microseconds since 1970. Files that all changed
    later are a person's and stay. 0: something was under way."""
    at_s: int = 0
    """Time in the commit that keeps them. Seconds since 1970."""


class MergeWork(Value):
    """Bring the session's result to the user's checkout."""

    kind: Literal["merge_work"] = "merge_work"
    checkout: str
    base: Commit
    result: Commit
    head: Commit
    """The checkout's HEAD when this was decided."""
    at_s: int


class Task(Value):
    """One part of a fan-out."""

    agent: AgentId
    text: str


class FanOut(Value):
    """Give each task to an agent of its own and merge what they make, one after the other, onto one branch. What that
    takes are effects of their own; this one ends when they have ended."""

    kind: Literal["fan_out"] = "fan_out"
    tasks: tuple[Task, ...]
    base: Commit
    """What each agent begins with: the worktree as it was."""
    jobs: int
    """Agents at work at the same time."""
    check: str = ""
    """A command that must succeed on the merged files before the branch moves; empty: none."""
    budget_usd: float | None = None
    """What each agent may spend."""
    labels: tuple[str, ...] = ()
    """NAME=VALUE of nodes on which its agents are to work; none: on any."""
    allowed_by: str


class SpawnAgent(Value):
    """Have an agent do its task to the end, or go on with it. One that began already is adopted."""

    kind: Literal["spawn_agent"] = "spawn_agent"
    agent: AgentId
    round: int
    """From 1; from 2 on it goes on with what could not be merged."""
    base: Commit
    """What its worktree is set to."""
    text: str
    """What it is told."""
    labels: tuple[str, ...] = ()
    """As its fan-out's."""
    budget_usd: float | None = None
    at_s: int


class PrepareMerge(Value):
    """Make the commit that would merge an agent's work. No reference moves."""

    kind: Literal["prepare_merge"] = "prepare_merge"
    agent: AgentId
    work: Commit
    onto: Commit
    conflicted: tuple[str, ...] = ()
    """Files in which its agent had conflicts to resolve: markers that are left there are a conflict."""
    at_s: int


class CheckMerge(Value):
    """Run the check on the files of a merge, in a worktree for this alone."""

    kind: Literal["check_merge"] = "check_merge"
    agent: AgentId
    commit: Commit
    command: str
    confined: bool


class AdvanceBranch(Value):
    """Move the branch of a fan-out to a merge, if nobody moved it meanwhile."""

    kind: Literal["advance_branch"] = "advance_branch"
    agent: AgentId
    fan: CallId
    onto: Commit
    commit: Commit


class RetireAgents(Value):
    """Give back the worktrees of a fan-out. What is in none of its references is saved first."""

    kind: Literal["retire_agents"] = "retire_agents"
    fan: CallId
    agents: tuple[AgentId, ...]
    at_s: int


Wake = Literal["start", "edit", "command", "commit", "turn_end", "question"]
"""Why a background agent looks: the session began, files were edited, a command that may write ran, a commit was made,
the session's turn is about to end, somebody asks."""


class WakeAgent(Value):
    """Have a background agent look at what has happened, and say what matters or why nothing does. One that looks
    already is adopted."""

    kind: Literal["wake_agent"] = "wake_agent"
    agent: AgentId
    round: int
    """Its wake-ups, from 1."""
    reasons: tuple[Wake, ...]
    base: Commit
    """The session's files as they are; its worktree is set to them."""
    text: str
    """What it is told."""
    asked: tuple[CallId, ...] = ()
    """The questions that it is to answer."""
    budget_usd: float | None = None
    """What it may spend on this; reserved for it until it rests."""
    at_s: int


class AskAgent(Value):
    """Put a question to a background agent. It is woken with it; this ends with its answer."""

    kind: Literal["ask_agent"] = "ask_agent"
    agent: AgentId
    question: str
    allowed_by: str


PartOfFan = SpawnAgent | PrepareMerge | CheckMerge | AdvanceBranch | RetireAgents
Effect = Annotated[
    CallModel
    | RunTool
    | AskUser
    | MakeWorktree
    | TakeSnapshot
    | RestoreTree
    | MergeWork
    | FanOut
    | SpawnAgent
    | PrepareMerge
    | CheckMerge
    | AdvanceBranch
    | RetireAgents
    | WakeAgent
    | AskAgent,
    Field(discriminator="kind"),
]


def effect_class(effect: Effect) -> EffectClass:
    match effect:
        case CallModel():
            return "model"
        case RunTool():
            return effect.effect_class
        case AskUser():
            return "approval"
        case MakeWorktree() | FanOut() | SpawnAgent() | RetireAgents() | WakeAgent() | AskAgent():
            return "spawn"
        case CheckMerge():
            return "command"
        case PrepareMerge() | AdvanceBranch():
            return "merge"
        case TakeSnapshot() | RestoreTree():
            return "snapshot"
        case MergeWork():
            return "merge"
        case _:
            assert_never(effect)
