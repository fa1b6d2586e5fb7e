"""The state of an agent from its events, over rewinds."""

from collections import deque
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from agent import background
from agent.apply import apply
from agent.calls import close_all
from agent.state import State, replace
from eventlog.events import Event, Forked, Rewound
from eventlog.fold import fold
from eventlog.ids import MAIN, AgentId


def fold_events(events: Sequence[Event], state: State | None = None, actor: AgentId = MAIN) -> State:
    """The state of one agent after `events`, which begin at seq 1 where one of them is Rewound."""
    own = [event for event in events if concerns(event, actor)]
    return fold(step_through(rewound_to(own)), state or State(), own)


def concerns(event: Event, actor: AgentId) -> bool:
    """Whether it is the agent's own, or closes what each agent had open."""
    return event.actor == actor or isinstance(event.body, Forked)


def rewound_to(events: Sequence[Event]) -> AbstractSet[int]:
    """The seqs to which some of these events go back."""
    return {event.body.to_seq for event in events if isinstance(event.body, Rewound)}


def step_through(back_to: AbstractSet[int]) -> Callable[[State, Event], State]:
    """`apply` for each event of an agent in turn, Rewound too, where `back_to` are the seqs that those go back to. One
    pass, however often was rewound: states are never changed, so such a one is kept when it is passed."""
    wanted = deque(sorted(back_to))
    passed: dict[int, State] = {}

    def step(state: State, event: Event) -> State:
        while wanted and wanted[0] < event.seq:
            passed[wanted.popleft()] = state
        body = event.body
        return rewind(passed.get(body.to_seq, state), state, body) if isinstance(body, Rewound) else apply(state, body)

    return step


def rewind(target: State, present: State, body: Rewound) -> State:
    """Conversation and tree of `target`; money, approvals, counters and merges of `present`."""
    return replace(
        close_all(target),
        epoch=present.epoch,
        boot=present.boot,
        torn=present.torn,
        mode=present.mode,
        limits=present.limits,
        fallback=present.fallback,
        worktree=present.worktree,
        snapshot=body.restored or target.snapshot,
        written="no",
        edited=(),
        queued=(),
        model_calls=present.model_calls,
        snapshots=present.snapshots,
        setups=present.setups,
        fans=present.fans,
        agents=background.closed(present.agents),
        set_up=present.set_up,
        usage=present.usage,
        spent_usd=present.spent_usd,
        unpriced=present.unpriced,
        merged=present.merged,
        commands=present.commands,
    )
