"""Where the agents of a hosted session work: on its own node, or far from it, with all that they need there."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from actors.agent_work import Workshop
from actors.agents import Assignment
from actors.detached import Handle, WorkerLost, ask
from actors.elsewhere import Elsewhere, encode_mirror
from actors.membership import Member, list_members
from actors.placing import place
from actors.ways import Seen, close_way, look_at, open_way
from configs.cluster import parse_labels
from configs.crash import reached_in
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
ListMembers = Callable[[], Awaitable[list[Member]]]
"""The nodes that there are. Raises WorkerLost where the cluster does not answer."""
Look = Callable[[str], Awaitable[Seen]]


class Choosing:
    """Which node each agent of a session gets."""

    def __init__(self, list_all: ListMembers, look: Look) -> None:
        self._list_all, self._look = list_all, look
        self._choosing = asyncio.Lock()
        self._taken: dict[AgentId, str] = {}
        """Where the session's agents that are at work are; empty: on the own node."""

    async def choose(self, effect: Assignment, before: Lease, others: Callable[[], Awaitable[Counter[str]]]) -> Site:
        """For a round of an agent that had the lease `before`; until `release` it counts as at work there. It stays
        where it was, if that node lives. `others`: agents of other sessions at work, by node. Raises NoNode, and
        WorkerLost where the cluster does not answer."""
        if not before.node and (before.number or not isinstance(effect, SpawnAgent)):
            self._taken[effect.agent] = OWN.node
            return OWN
        async with self._choosing:
            members = await self._list_members(before.node)
            chosen = await self._choose(effect, before, members, others)
            site = OWN if chosen.own else Site(chosen.id, chosen.host)
            self._taken[effect.agent] = site.node
        return site

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
        busy = Counter(node or own.id for node in self._taken.values()) + await others()
        nodes = [replace(member.as_node(), agents=busy[member.id]) for member in members]
        return known[place(nodes, own.id, parse_labels(",".join(effect.labels)))]

    def release(self, agent: AgentId) -> None:
        self._taken.pop(agent, None)

    async def _list_members(self, node: str) -> list[Member]:
        """`node`: one that may have been lost just now, of which the cluster need not know yet; it answers, or is not
        alive. Raises WorkerLost."""
        while True:
            members = await self._list_all()
            if not any(member.id == node and member.as_node().alive for member in members):
                return members
            match await self._look(node):
                case "answers":
                    return members
                case "nobody":
                    # Nobody was there yet, or who was there went with the node: then the cluster knows by now.
                    return await self._list_all()
                case "silent":
                    await asyncio.sleep(_LOOK_S)


class Sites(Choosing):
    def __init__(self, shop: Workshop, settings: Settings, state_folder: Path) -> None:
        super().__init__(_list_all, look_at)
        self._shop, self._settings, self._state_folder = shop, settings, state_folder
        self._reached: set[str] = set()
        """Nodes to which a way is open."""
        self._locks: dict[str, asyncio.Lock] = {}
        """By node: what one agent was sent, the next need not be."""

    def describe(self, site: Site, effect: Assignment, refs: Mapping[str, str]) -> Elsewhere:
        """`refs`: the agent's own, see own_refs. Blocks. Raises GitError."""
        return Elsewhere(
            node=site.node,
            mirror=mirror_settings(self._shop.files.repository, self._shop.room.variables),
            settings=self._settings,
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
                bundle = await asyncio.to_thread(make_bundle, repository, base, have, reached=reached_in("bundle_out"))
                await ask(worker.take_base.remote(root, mirror, given.base_ref, bundle), BROUGHT_S)
        return await asyncio.to_thread(
            make_bundle, repository, given.wanted, [*have, given.base], reached=reached_in("bundle_out")
        )

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


async def _list_all() -> list[Member]:
    from ray.exceptions import RayError

    try:
        return await asyncio.to_thread(list_members, 0, count=False)
    except RayError as error:
        raise WorkerLost(f"the cluster does not answer ({type(error).__name__})") from error
