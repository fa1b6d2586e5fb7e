"""Which node an agent is to work on. Pure; the nodes are those of actors/membership.py."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


class NoNode(Exception):
    """One sentence: no living node has what the agent wants. Ray would wait for one, silently and for ever."""


@dataclass(frozen=True, slots=True)
class Node:
    id: str
    labels: Mapping[str, str] = field(default_factory=dict)
    cores: int = 1
    agents: int = 0
    """At work there."""
    alive: bool = True

    @property
    def load(self) -> float:
        return self.agents / max(self.cores, 1)


def place(nodes: Sequence[Node], own: str, wanted: Mapping[str, str]) -> str:
    """The id of a living node that has all labels `wanted`: `own`, where the session's folder is, while it has a free
    core; then the one with the least agents a core. The order of the nodes does not matter. Raises NoNode."""
    fit = [node for node in nodes if node.alive and _has(node, wanted)]
    if not fit:
        raise NoNode(_refuse(nodes, wanted))
    return min(
        fit, key=lambda node: (node.id != own or node.agents >= node.cores, node.load, node.id != own, node.id)
    ).id


def _has(node: Node, wanted: Mapping[str, str]) -> bool:
    return all(node.labels.get(name) == value for name, value in wanted.items())


def _refuse(nodes: Sequence[Node], wanted: Mapping[str, str]) -> str:
    if not any(node.alive for node in nodes):
        return "No node is alive; `thalia status` shows what became of them."
    what = ",".join(f"{name}={value}" for name, value in sorted(wanted.items()))
    if any(_has(node, wanted) for node in nodes):
        return f"No node with {what} is alive; start `thalia node` there again, or ask for less."
    return f"No node has {what}; add one with `thalia node ADDRESS --labels {what}`, or ask for less."
