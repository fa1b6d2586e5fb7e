"""What must hold of a session however it was killed. Each check names what broke; none of them mends anything."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pydantic import BaseModel

from actors.fan_files import CHECK
from actors.files import AGENT_MARK
from actors.history import verify
from actors.past import Past
from agent.apply import apply
from agent.folding import fold_events
from agent.state import State
from eventlog.anchor import Head, read_anchor
from eventlog.checking import open_copy
from eventlog.codec import GENESIS
from eventlog.effects import (
    AdvanceBranch,
    AskUser,
    CheckMerge,
    MakeWorktree,
    RestoreTree,
    RunTool,
    SpawnAgent,
    WakeAgent,
)
from eventlog.events import (
    AgentReported,
    Approved,
    CallRejected,
    Denied,
    EffectFinished,
    EffectStarted,
    Event,
    LeaseGranted,
    Rewound,
    SessionOpened,
)
from eventlog.ids import MAIN, AgentId, CallId, Digest
from eventlog.lock import is_held
from eventlog.outcomes import (
    AgentEnded,
    AttemptLost,
    BranchAdvanced,
    Conflicted,
    ModelFailed,
    Outcome,
    OutcomeUnknown,
    Report,
    ToolFailed,
)
from tests.actors.playing import check_conversation, check_replay

SHARED_MEMORY = Path("/dev/shm")
OF_A_WORKTREE = (".json", ".index", ".index.note")
"""What lies beside it in its pool."""


def check_session(events: Sequence[Event]) -> None:
    """All that the log alone can tell."""
    check_order(events)
    check_leases(events)
    check_spawned(events)
    check_reports(events)
    check_replay(events)
    for actor in dict.fromkeys(event.actor for event in events):
        own = [event for event in events if event.actor == actor]
        check_outcomes(own)
        check_approvals(own)
        check_one_state(own, actor)
        check_conversation(fold_events(own, actor=actor))


def check_order(events: Sequence[Event]) -> None:
    """No gap, and each epoch begins once, one higher than the last, with the event that says so."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    epochs = [event.body.epoch for event in events if isinstance(event.body, SessionOpened)]
    assert epochs == list(range(1, len(epochs) + 1))
    now = 0
    for event in events:
        now = event.body.epoch if isinstance(event.body, SessionOpened) else now
        assert event.epoch == now, f"event {event.seq} was written by epoch {event.epoch} in epoch {now}"


def check_leases(events: Sequence[Event]) -> None:
    """Each lease of an agent is one higher than its last, and all that an agent appends stands under the one that was
    granted last, counted without a gap."""
    granted, counted = Counter[AgentId](), Counter[AgentId]()
    for event in events:
        if isinstance(event.body, LeaseGranted):
            granted[event.body.agent] += 1
            counted[event.body.agent] = 0
            assert event.body.lease == granted[event.body.agent], (
                f"event {event.seq} grants another lease than the next"
            )
        elif event.actor != MAIN:
            where = f"event {event.seq} of {event.actor} stands under lease {event.lease}"
            assert event.lease == granted[event.actor], f"{where}, and {granted[event.actor]} was granted before it"
            counted[event.actor] += 1
            # A fork has the events of its source as its own.
            assert event.actor_seq in (None, counted[event.actor]), f"{where}, and is not the next of its agent"


def check_spawned(events: Sequence[Event]) -> None:
    """An agent beside the main one gets a lease, and does anything, only while its session has begun a round of it."""
    begun: dict[tuple[CallId, int], AgentId] = {}
    at_work = Counter[AgentId]()
    fans = {event.actor for event in events if event.actor != MAIN}
    for event in events:
        match event.body:
            case EffectStarted(call_id=call, attempt=attempt, effect=SpawnAgent(agent=agent) | WakeAgent(agent=agent)):
                begun[call, attempt] = agent
                at_work[agent] += 1
            case EffectFinished(call_id=call, attempt=attempt) if event.actor == MAIN and (call, attempt) in begun:
                at_work[begun[call, attempt]] -= 1
            case LeaseGranted(agent=agent) if agent in fans:
                assert at_work[agent], f"event {event.seq} gives {agent} a lease, and no round of it was begun"
            case _:
                assert event.actor == MAIN or at_work[event.actor], f"event {event.seq} of {event.actor} is of no round"
    assert set(at_work.values()) <= {0, 1}


def check_reports(events: Sequence[Event]) -> None:
    """A background agent comes to one word in each wake-up, and its report reaches the main agent once at most."""
    begun = Counter[tuple[AgentId, int]]()
    rounds: dict[CallId, WakeAgent] = {}
    said, told = Counter[tuple[AgentId, int]](), Counter[tuple[AgentId, int]]()
    for event in events:
        match event.body:
            case EffectStarted(call_id=call, attempt=attempt, effect=WakeAgent() as wake):
                begun[wake.agent, wake.round] += attempt == 1
                rounds[call] = wake
            case EffectFinished(call_id=call, outcome=AgentEnded(said=Report())) if call in rounds:
                said[rounds[call].agent, rounds[call].round] += 1
            case AgentReported(agent=agent, round=number):
                told[agent, number] += 1
            case _:
                pass
    assert set(begun.values()) <= {1} and set(said.values()) <= {1} and set(told.values()) <= {1}, (begun, said, told)
    assert told.keys() <= said.keys(), f"{told.keys() - said.keys()} were told and never made"


def check_outcomes(events: Sequence[Event]) -> None:
    """Each attempt begins once, ends once and in this order; each call has one outcome that counts: an attempt that was
    lost is none, nor is a failed one of a model call that was tried again. A question ends with its answer."""
    begun, ended, failed = Counter[tuple[CallId, int]](), Counter[tuple[CallId, int]](), Counter[tuple[CallId, int]]()
    outcomes = Counter[CallId]()
    for event in events:
        match event.body:
            case EffectStarted(call_id=call, attempt=attempt):
                begun[call, attempt] += 1
            case EffectFinished(call_id=call, attempt=attempt, outcome=outcome):
                assert (call, attempt) in begun, f"{call}.{attempt} ended before it began"
                ended[call, attempt] += 1
                outcomes[call] += not isinstance(outcome, AttemptLost)
                failed[call, attempt] += isinstance(outcome, ModelFailed)
            case Approved(ask=call) | Denied(ask=call):
                ended[call, 1] += 1
                outcomes[call] += 1
            case CallRejected(call_id=call):
                outcomes[call] += 1
            case _:
                pass
    assert begun == ended, f"begun and not ended, or the reverse: {(begun - ended) + (ended - begun)}"
    assert set(begun.values()) == {1}
    for call, attempt in +failed:
        outcomes[call] -= (call, attempt + 1) in begun
    assert set(outcomes.values()) == {1}, f"not one outcome: {[c for c, n in outcomes.items() if n != 1]}"


def check_approvals(events: Sequence[Event]) -> None:
    """Whatever was begun because a person allowed it was allowed in exactly these words, before, for this call."""
    asked: dict[CallId, AskUser] = {}
    allowed: dict[CallId, tuple[str, str, Digest]] = {}
    for event in events:
        match event.body:
            case EffectStarted(call_id=call, effect=AskUser() as ask):
                asked[call] = ask
            case Approved(ask=call, binding=binding):
                ask = asked[call]
                assert binding == ask.binding
                allowed[ask.about] = (ask.tool, ask.arguments, binding)
            case EffectStarted(call_id=call, effect=RunTool() as effect) if "approved by" in effect.allowed_by:
                assert call in allowed, f"{call} was begun as approved, and nobody had approved it"
                assert allowed[call][:2] == (effect.tool, effect.arguments), f"{call} was approved for something else"
            case _:
                pass


def check_one_state(events: Sequence[Event], actor: AgentId = MAIN) -> None:
    """Two replays, at once and event by event, have one state."""
    whole = state_hash(fold_events(events, actor=actor))
    if not any(isinstance(event.body, Rewound) for event in events):
        state = State()
        for event in events:
            state = apply(state, event.body)
        assert state_hash(state) == whole
    assert state_hash(fold_events(events, actor=actor)) == whole
    assert verify(events) == verify(events)


def check_past(folder: Path, events: Sequence[Event]) -> None:
    """What is gathered while the log is read is what a fold of all its events gives."""
    past, made = Past.of(folder), [e.body.effect for e in events if isinstance(e.body, EffectStarted)]
    assert state_hash(past.state) == state_hash(fold_events(events))
    assert past.made == next((effect for effect in made if isinstance(effect, MakeWorktree)), None)


def state_hash(state: State) -> str:
    """sha256 of the state as JSON, its names in order."""
    return hashlib.sha256(json.dumps(_plain(state), sort_keys=True).encode()).hexdigest()


def _plain(value: object) -> object:
    match value:
        case BaseModel():
            return value.model_dump(mode="json")
        case Mapping():
            return {str(name): _plain(item) for name, item in value.items()}
        case Sequence() if not isinstance(value, str):
            return [_plain(item) for item in value]
        case _ if is_dataclass(value):
            return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
        case _:
            return value


def acknowledged(folder: Path) -> Head:
    """The latest event of which a session may have told anybody: what its anchor says. At 0 there was none."""
    reading = read_anchor(folder / "head")
    return reading.head if reading is not None and reading.head is not None else Head(0, GENESIS)


def check_acknowledged(heads: Iterable[Head], hashes: Mapping[int, str]) -> None:
    """What was acknowledged at each kill is there as it was. `hashes`: row_hashes()."""
    for head in heads:
        assert head.seq == 0 or hashes.get(head.seq) == head.hash, f"event {head.seq} was acknowledged and is not there"


def check_shown(shown: Iterable[Mapping[str, object]], events: Sequence[Event]) -> None:
    """What a program has printed stands in the log as it was printed."""
    stored = {event.seq: event.model_dump(mode="json") for event in events}
    for event in shown:
        assert stored[int(str(event["seq"]))] == event


def announcers(events: Sequence[Event], owner: str) -> list[Event]:
    """The events of those whose work may stand in a worktree. `owner`: of the worktree, as the pool knows it."""
    agent = owner.partition(AGENT_MARK)[2]
    effects = [event.body.effect for event in events if isinstance(event.body, EffectStarted)]
    rounds = max((e.round for e in effects if isinstance(e, SpawnAgent) and e.agent == agent), default=0)
    joined = any(isinstance(effect, RestoreTree) for effect in effects) if not agent else rounds != 1
    # What is merged is of all.
    return [event for event in events if joined or event.actor in (MAIN, agent)]


def check_worktrees(owners: Iterable[str], events: Sequence[Event]) -> None:
    """Each worktree of an agent was announced by that agent, and the one for checks by its session."""
    for owner in owners:
        agent = owner.partition(AGENT_MARK)[2]
        wanted = CheckMerge if agent == CHECK else MakeWorktree
        actor = MAIN if agent in ("", CHECK) else agent
        made = [e for e in events if isinstance(e.body, EffectStarted) and isinstance(e.body.effect, wanted)]
        assert any(event.actor == actor for event in made), f"{owner} has a worktree, and the log does not announce it"


def check_branches(held: Mapping[str, str], events: Sequence[Event]) -> None:
    """The branch of a fan-out stands where the log has it, or where a move that is under way begins or brings it.
    `held`: what each holds, by the id of its fan-out."""
    wanted: dict[str, set[str]] = {}
    moves: dict[CallId, AdvanceBranch] = {}
    for event in events:
        match event.body:
            case EffectStarted(call_id=call, effect=AdvanceBranch() as move):
                moves[call] = move
                wanted[move.fan] = {move.onto, move.commit}
            case EffectFinished(call_id=call, outcome=BranchAdvanced(commit=commit)):
                wanted[moves[call].fan] = {commit}
            case _:
                pass
    for fan, commit in held.items():
        assert commit in wanted.get(fan, ()), f"the branch of {fan} stands at {commit}, and the log does not say so"


def announced(events: Sequence[Event], words: str) -> bool:
    """Whether an intent names it in its arguments."""
    tools = [event.body.effect for event in events if isinstance(event.body, EffectStarted)]
    return any(isinstance(effect, RunTool) and words in effect.arguments for effect in tools)


def check_announced(found: Iterable[str], events: Sequence[Event]) -> None:
    """Of each trace in the world, a word of an intent that the log holds already."""
    for words in found:
        assert announced(events, words), f"{words!r} was done, and the log does not announce it"


def told(events: Sequence[Event]) -> list[CallId]:
    """Calls of which the log says that they did not do what was asked, or that nobody knows. A check that is red has
    done it."""
    bodies = [(event.actor, event.body) for event in events]
    begun = {(actor, b.call_id): b.effect for actor, b in bodies if isinstance(b, EffectStarted)}
    return [
        b.call_id
        for actor, b in bodies
        if isinstance(b, EffectFinished)
        and isinstance(b.outcome, OutcomeUnknown | Conflicted | ToolFailed)
        and not (isinstance(begun.get((actor, b.call_id)), CheckMerge) and _is_red(b.outcome))
    ]


def _is_red(outcome: Outcome) -> bool:
    return isinstance(outcome, ToolFailed) and outcome.exit_code is not None


def check_ledger(done: Sequence[str], wanted: Sequence[str], events: Sequence[Event]) -> None:
    """As counted outside: never twice, and of one that is missing the log tells."""
    twice = [number for number, times in Counter(done).items() if times > 1]
    assert not twice, f"done twice: {twice}"
    missing = set(wanted) - set(done)
    assert len(missing) <= len(told(events)), f"missing, and nobody was told: {missing}"


def check_secrets(folders: Iterable[Path], secrets: Sequence[str]) -> None:
    """In no file of the session; a worktree is the user's own."""
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink() and "worktrees" not in path.relative_to(folder).parts:
                held = path.read_bytes()
                assert not any(secret.encode() in held for secret in secrets), f"a secret is in {path}"


def row_hashes(folder: Path) -> dict[int, str]:
    """Hash of each row of a session's log, by seq; read from a copy."""
    with TemporaryDirectory() as copy:
        database = open_copy(folder, Path(copy))
        try:
            _, rows = database.query("SELECT seq, hash FROM events")
        finally:
            database.close()
    return {int(str(seq)): str(digest) for seq, digest in rows}


def check_nothing_left(home: Path, repository: Path, survivors: Sequence[int]) -> None:
    """No process, no lock, no half-made file, no worktree of nobody."""
    assert survivors == []
    assert [path for path in home.glob("sessions/*/writer.lock") if is_held(path)] == []
    half = [
        *home.rglob(".thalia-*"),
        *repository.rglob(".thalia-*"),
        *home.rglob("blobs/**/.*"),
        *home.glob("**/*.new"),
        *home.glob("sessions/*/merge-*"),
        *home.glob("sessions/*/calls/*.input"),
        *home.glob("sessions/*/agents/*/calls/*.input"),
        *home.glob("sessions/*/*.before"),
    ]
    assert half == []
    locks = list((repository / ".git").rglob("*.lock"))
    assert locks == []
    made = {path.name for path in (repository / ".git" / "worktrees").glob("*")}
    known = {path.stem for path in home.glob("worktrees/*/*.json")}
    assert made <= known, f"worktrees that nobody owns: {made - known}"
    of_pools = {"pool.lock", "trash", *(f"{name}{end}" for name in known for end in ("", *OF_A_WORKTREE))}
    strays = [path for path in home.glob("worktrees/*/*") if path.name not in of_pools]
    assert strays == [], f"in the pool, and of no worktree: {strays}"


def check_no_agents_left(home: Path) -> None:
    """No worktree of an agent, no lease that somebody holds. Of an agent that has ended stay its events, its call
    folders, the file of its lease, and its references."""
    left = [owner for owner in owners(home).values() if AGENT_MARK in owner]
    assert left == [], f"worktrees of agents: {left}"
    assert [path for path in home.glob("sessions/*/leases/*") if is_held(path)] == []


def owners(home: Path) -> dict[Path, str]:
    """Each worktree that somebody has, and who that is."""
    records = [json.loads(path.read_text()) for path in home.glob("worktrees/*/*.json")]
    return {Path(record["path"]): record["key"] for record in records if record["state"] in ("ready", "kept")}


def shared_memory() -> frozenset[str]:
    """Segments of this machine."""
    return frozenset(path.name for path in SHARED_MEMORY.iterdir()) if SHARED_MEMORY.exists() else frozenset()
