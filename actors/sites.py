"""Where the agents of a hosted session work: on its own node, or far from it, with all that they need there."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.agent_work import Workshop
from actors.agents import Assignment
from actors.detached import Handle, WorkerLost, ask
from actors.elsewhere import Elsewhere, encode_mirror
from actors.membership import Member, list_members
from actors.placing import Node, place
from actors.ways import close_way, is_reached, open_way
from configs.cluster import parse_labels
from configs.crash import reached
from configs.settings import Settings
from eventlog.effects import RetireAgents, SpawnAgent
from eventlog.ids import AgentId, Commit
from eventlog.leases import Lease
from worktrees.bundle import make_bundle, refs_below
from worktrees.mirror import mirror_settings

HELD_S = 60.0
"""For a node to say what it has: it may have to make a mirror first."""
_LOOK_S = 0.5
"""Between looks at a node that does not answer, and is not told to be lost."""
BROUGHT_S = 900.0
"""For a whole repository to cross."""


@dataclass(frozen=True, slots=True)
class Site:
    """`node`: Ray's id, empty for the session's own node."""

    node: str = ""
    host: str = ""


OWN = Site()


class Sites:
    def __init__(self, shop: Workshop, settings: Settings, state_folder: Path) -> None:
        self._shop, self._settings, self._state_folder = shop, settings, state_folder
        self._reached: set[str] = set()
        """Nodes to which a way is open."""
        self._locks: dict[str, asyncio.Lock] = {}
        """By node: what one agent was sent, the next need not be."""
        self._choosing = asyncio.Lock()
        self._taken: dict[AgentId, str] = {}
        """Where the session's agents that are at work are, also the own node."""

    async def choose(self, effect: Assignment, before: Lease, others: Callable[[], Awaitable[Counter[str]]]) -> Site:
        """For a round of an agent that had the lease `before`; until `release` it counts as at work there. It stays
        where it was, if that node lives. `others`: agents of other sessions at work, by node. Raises NoNode, and
        WorkerLost where the cluster does not answer."""
        if before.number and not before.node:
            return OWN
        async with self._choosing:
            members = await _list_members(before.node)
            chosen = await self._choose(effect, before, members, others)
            self._taken[effect.agent] = chosen.id
        return OWN if chosen.own else Site(chosen.id, chosen.host)

    async def _choose(
        self,
        effect: Assignment,
        before: Lease,
        members: Sequence[Member],
        others: Callable[[], Awaitable[Counter[str]]],
    ) -> Member:
        known = {member.id: member for member in members if member.as_node().alive}
        own = next(member for member in members if member.own)
        if before.node in known:
            return known[before.node]
        if not isinstance(effect, SpawnAgent) or (len(known) == 1 and not effect.labels):
            return own
        busy = Counter(self._taken.values()) + await others()
        nodes = [_as_node(member, busy) for member in members]
        return known[place(nodes, own.id, parse_labels(",".join(effect.labels)))]

    def release(self, agent: AgentId) -> None:
        self._taken.pop(agent, None)

    def describe(self, site: Site, effect: Assignment, refs: Mapping[str, str]) -> Elsewhere:
        """`refs`: the agent's own, see own_refs. Blocks. Raises GitError."""
        return Elsewhere(
            node=site.node,
            mirror=mirror_settings(self._shop.files.repository, self._shop.room.variables),
            settings=self._settings,
            lease_s=self._shop.lease_s,
            base=effect.base,
            refs={ref: Commit(commit) for ref, commit in refs.items()},
        )

    def own_refs(self, effect: Assignment) -> dict[str, str]:
        """Blocks. Raises GitError."""
        files = self._shop.files.of_agent(effect.agent)
        return refs_below(files.repository, files.refs)

    async def reach(self, session: str, site: Site) -> None:
        """Raises NoWay, WorkerLost."""
        await open_way(session, site.node, None, self._state_folder)
        self._reached.add(site.node)

    async def pack(self, worker: Handle, given: Elsewhere) -> bytes:
        """What that worker's node lacks of the agent's own; what its round begins with is brought there before. Raises
        GitError, WorkerLost."""
        repository, mirror = self._shop.files.repository, encode_mirror(given.mirror)
        root = str(repository.root)
        async with self._locks.setdefault(given.node, asyncio.Lock()):
            have = [*await ask(worker.list_held.remote(root, mirror), HELD_S)]
            if given.base not in have:
                base = {given.base_ref: given.base}
                bundle = await asyncio.to_thread(make_bundle, repository, base, have, reached=_point)
                await ask(worker.take_base.remote(root, mirror, given.base_ref, bundle), BROUGHT_S)
        return await asyncio.to_thread(make_bundle, repository, given.wanted, [*have, given.base], reached=_point)

    async def retire(self, worker: Handle, session: str, effect: RetireAgents) -> list[str]:
        """On that worker's node. Raises WorkerLost."""
        repository = self._shop.files.repository
        mirror = encode_mirror(mirror_settings(repository, self._shop.room.variables))
        encoded = effect.model_dump_json().encode()
        return await ask(worker.retire.remote(session, str(repository.root), mirror, encoded), HELD_S)

    async def leave(self, session: str) -> None:
        """No agent of it connects out there any more."""
        for node in self._reached:
            try:
                await close_way(session, node)
            except WorkerLost:
                # With its node gone there is no way to be closed.
                continue
        self._reached.clear()


async def _list_members(node: str = "") -> list[Member]:
    """`node`: one that may have been lost just now, of which the cluster need not know yet; it answers, or is not
    alive. Raises WorkerLost."""
    from ray.exceptions import RayError

    while True:
        try:
            members = await asyncio.to_thread(list_members, 0, count=False)
        except RayError as error:
            raise WorkerLost(f"the cluster does not answer ({type(error).__name__})") from error
        if not any(member.id == node and member.as_node().alive for member in members) or await is_reached(node):
            return members
        await asyncio.sleep(_LOOK_S)


def _as_node(member: Member, busy: Counter[str]) -> Node:
    return Node(member.id, member.labels, member.cores, busy[member.id], member.as_node().alive)


def _point(name: str) -> None:
    reached(f"bundle_out_{name}")
