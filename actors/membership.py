"""Which nodes there are, as Ray's head knows them, and what of ours runs on each. Belongs to a driver."""

import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from actors.greeting import KEY, SPACE
from actors.placing import Node
from configs.cluster import NODE_LABEL
from configs.version import VERSION

LOST_S = 3600.0
"""A node that ended is shown for so long."""
_ANSWER_S = 5
_AGENT, _SESSION = "agent-", "worker-"


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    """Ray's."""
    address: str
    host: str
    state: Literal["alive", "left", "lost"]
    """Left: it said so. Lost: it died, or nothing was heard of it."""
    own: bool
    """The node of this daemon: sessions and their worktrees are there."""
    ours: bool
    """Agents can be there: it is the own one, or a `thalia node` of this version."""
    labels: Mapping[str, str]
    cores: int
    gpus: int
    agents: int
    """Processes for agents, also those that wait for work."""
    workers: int
    """Processes for sessions, also those."""
    since_us: int
    """Of its joining, by the clock of that machine."""
    ended_us: int | None
    """When its end was noticed."""

    def as_node(self) -> Node:
        return Node(self.id, self.labels, self.cores, self.agents, self.state == "alive" and self.ours)


def announce() -> None:
    """By this a node knows that a daemon is there, and of which version. Blocks."""
    client: Any = _client()
    client.internal_kv_put(KEY, VERSION.encode(), True, SPACE, timeout=_ANSWER_S)


def list_members(now_us: int, *, count: bool = True) -> list[Member]:
    """The own one first, then by the time of joining. `count`: what of ours runs on each, which takes longer. Blocks.
    Raises RayError where the head does not answer."""
    import ray

    own, runs = ray.get_runtime_context().get_node_id(), _count_processes() if count else Counter()
    found = [_member(info, own, runs) for info in _client().get_all_node_info(timeout=_ANSWER_S).values()]
    shown = [one for one in found if one.ended_us is None or now_us - one.ended_us < LOST_S * 1_000_000]
    return sorted(shown, key=lambda one: (not one.own, one.since_us, one.id))


def as_rows(members: Sequence[Member]) -> list[dict[str, Any]]:
    return [asdict(member) for member in members]


def _member(info: Any, own: str, runs: Mapping[tuple[str, str], int]) -> Member:
    """`info`: a GcsNodeInfo of Ray's."""
    name, alive = info.node_id.hex(), info.state == 0
    mine = name == own
    # 1: it was told to end, and reported it.
    state = "alive" if alive else "left" if info.death_info.reason == 1 else "lost"
    return Member(
        id=name,
        address=info.node_manager_address,
        host=socket.gethostname() if mine else info.node_manager_hostname,
        state=state,
        own=mine,
        ours=mine or info.labels.get(NODE_LABEL) == VERSION,
        labels={key: value for key, value in info.labels.items() if key not in ("ray.io/node-id", NODE_LABEL)},
        # To Ray the own node names something else, see HeadSize.
        cores=os.cpu_count() or 1 if mine else int(info.resources_total.get("CPU", 0)),
        gpus=int(info.resources_total.get("GPU", 0)),
        agents=runs[name, _AGENT] if alive else 0,
        workers=runs[name, _SESSION] if alive else 0,
        since_us=info.start_time_ms * 1000,
        ended_us=None if alive else info.end_time_ms * 1000,
    )


def _count_processes() -> Counter[tuple[str, str]]:
    """Of our detached actors, by (node, prefix of their names)."""
    import ray
    from ray._private.state import actors

    names = set(ray.util.list_named_actors())
    table: Mapping[str, Mapping[str, Any]] = actors(None, None, "ALIVE")
    return Counter(
        (actor["Address"]["NodeID"], prefix)
        for actor in table.values()
        if actor["Name"] in names
        for prefix in (_AGENT, _SESSION)
        if actor["Name"].startswith(prefix)
    )


def _client() -> Any:
    from ray.experimental.internal_kv import internal_kv_get_gcs_client

    return internal_kv_get_gcs_client()
