"""The second fence: a lease number counts the incarnations of an agent, as the epoch counts those of the writer.

An agent that appends through somebody else's log sends its lease and the number of the append. A repeated number is
dropped, a superseded lease is refused: an agent that was replaced while it was away cannot write any more. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from eventlog.errors import LeaseSuperseded
from eventlog.events import Draft, Event, LeaseGranted
from eventlog.ids import AgentId


@dataclass(frozen=True, slots=True)
class Lease:
    number: int
    """From 1; 0 before the first was granted."""
    last: int
    """The highest `actor_seq` that was stored under it; 0 before the first."""
    node: str = ""
    """Where its incarnation works; empty: on the session's own node."""


Leases = Mapping[AgentId, Lease]
Admission = Literal["fresh", "repeated", "superseded"]
NONE = Lease(0, 0)


def admit(leases: Leases, draft: Draft) -> Admission:
    """The writer's own drafts carry no `actor_seq` and are always fresh."""
    if draft.actor_seq is None:
        return "fresh"
    lease = leases.get(draft.actor, NONE)
    if draft.lease != lease.number:
        return "superseded"
    return "repeated" if draft.actor_seq <= lease.last else "fresh"


def note(leases: dict[AgentId, Lease], draft: Draft) -> None:
    """In place, after a draft was stored."""
    match draft.body:
        case LeaseGranted(agent=agent, lease=number, node=node):
            leases[agent] = Lease(number, 0, node)
        case _ if draft.actor_seq is not None:
            node = leases.get(draft.actor, NONE).node
            leases[draft.actor] = Lease(draft.lease, draft.actor_seq, node)
        case _:
            pass


def admit_all(leases: Leases, drafts: Sequence[Draft]) -> tuple[Leases, list[bool]]:
    """The leases after these drafts, and for each whether it is to be stored. Raises LeaseSuperseded: none is."""
    fresh: list[bool] = []
    # One copy for all: with thousands of agents one for each event costs as much as storing it.
    after = dict(leases)
    for draft in drafts:
        admission = admit(after, draft)
        if admission == "superseded":
            raise LeaseSuperseded(draft.actor, draft.lease)
        fresh.append(admission == "fresh")
        if admission == "fresh":
            note(after, draft)
    return after, fresh


def next_lease(leases: Leases, agent: AgentId, node: str = "", host: str = "") -> LeaseGranted:
    """The event that gives an agent a new lease, and takes it from the incarnation before."""
    return LeaseGranted(agent=agent, lease=leases.get(agent, NONE).number + 1, node=node, host=host)


def note_stored(leases: dict[AgentId, Lease], event: Event) -> None:
    """`note`, in place, for an event that is read again: a log holds many, and most change nothing."""
    if isinstance(event.body, LeaseGranted):
        leases[event.body.agent] = Lease(event.body.lease, 0, event.body.node)
    elif event.actor_seq is not None:
        node = leases.get(event.actor, NONE).node
        leases[event.actor] = Lease(event.lease, event.actor_seq, node)
