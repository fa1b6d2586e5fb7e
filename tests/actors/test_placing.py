"""Which node an agent is given: one that is alive, has what it wants, and is least at work; or a sentence at once."""

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.placing import Node, NoNode, place

OWN = "n0"
LABELS = st.dictionaries(st.sampled_from(["zone", "gpu", "disk"]), st.sampled_from(["a", "b"]), max_size=2)


@st.composite
def clusters(draw: st.DrawFn) -> list[Node]:
    """Of one node or more; the own one is among them, dead or alive."""
    return [
        Node(
            f"n{number}",
            draw(LABELS),
            draw(st.integers(0, 8)),
            draw(st.integers(0, 12)),
            draw(st.booleans()),
        )
        for number in range(draw(st.integers(1, 6)))
    ]


def fits(node: Node, wanted: dict[str, str]) -> bool:
    return node.alive and wanted.items() <= dict(node.labels).items()


def chosen_of(nodes: Sequence[Node], wanted: dict[str, str]) -> Node | None:
    try:
        name = place(nodes, OWN, wanted)
    except NoNode:
        return None
    return next(node for node in nodes if node.id == name)


@given(clusters(), LABELS)
def test_the_node_is_alive_and_has_all_labels_and_there_is_one_unless_none_has(
    nodes: list[Node], wanted: dict[str, str]
) -> None:
    chosen = chosen_of(nodes, wanted)
    if chosen is None:
        assert not any(fits(node, wanted) for node in nodes)
    else:
        assert fits(chosen, wanted)


@given(clusters(), LABELS)
def test_the_sessions_own_node_is_taken_while_it_has_a_free_core(nodes: list[Node], wanted: dict[str, str]) -> None:
    own = nodes[0]
    if fits(own, wanted) and own.agents < own.cores:
        assert chosen_of(nodes, wanted) == own


@given(clusters(), LABELS)
def test_no_other_node_that_would_do_is_less_at_work(nodes: list[Node], wanted: dict[str, str]) -> None:
    chosen = chosen_of(nodes, wanted)
    if chosen is not None and not (chosen.id == OWN and chosen.agents < chosen.cores):
        assert chosen.load == min(node.load for node in nodes if fits(node, wanted))


@given(clusters(), LABELS, st.randoms(use_true_random=False))
def test_the_order_in_which_nodes_are_told_changes_nothing(
    nodes: list[Node], wanted: dict[str, str], random: Random
) -> None:
    before = chosen_of(nodes, wanted)
    random.shuffle(nodes)
    assert chosen_of(nodes, wanted) == before


@given(st.lists(st.integers(1, 8), min_size=1, max_size=5), st.integers(0, 60))
def test_many_agents_one_after_the_other_fill_the_own_cores_and_then_spread(cores: list[int], agents: int) -> None:
    nodes = [Node(f"n{number}", {}, count) for number, count in enumerate(cores)]
    for _ in range(agents):
        name = place(nodes, OWN, {})
        nodes = [replace(node, agents=node.agents + 1) if node.id == name else node for node in nodes]
    if agents <= cores[0]:
        assert nodes[0].agents == agents
    for node in nodes[1:]:
        # Each was the least loaded one when it got its last.
        assert all((node.agents - 1) / node.cores <= other.load for other in nodes)


@pytest.mark.parametrize(
    "nodes, wanted, text",
    [
        (
            [Node(OWN), Node("n1", {"zone": "a"})],
            {"zone": "b", "gpu": "yes"},
            "No node has gpu=yes,zone=b; add one with `thalia node ADDRESS --labels gpu=yes,zone=b`, or ask for less.",
        ),
        (
            [Node(OWN), Node("n1", {"zone": "b"}, alive=False)],
            {"zone": "b"},
            "No node with zone=b is alive; start `thalia node` there again, or ask for less.",
        ),
        ([Node(OWN, alive=False)], {}, "No node is alive; `thalia status` shows what became of them."),
    ],
)
def test_a_wish_that_no_node_can_meet_is_refused_with_a_sentence(
    nodes: list[Node], wanted: dict[str, str], text: str
) -> None:
    with pytest.raises(NoNode) as refused:
        place(nodes, OWN, wanted)
    assert str(refused.value) == text
