"""GPU workers on nodes that only claim to have GPUs: Ray hands those out as it does real ones."""

from collections.abc import Iterator
from typing import Any

import pytest

from actors.gpu import HOPPER, refuse
from actors.head import Head, HeadSize
from tests.actors.ray_arena import drive, module_head

HOPPERS = HeadSize(gpus=2, resources={"accelerator_type:H200": 1}, labels={"ray.io/accelerator-type": "H200"})


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with module_head(HOPPERS) as running:
        yield running


def test_each_worker_gets_one_hopper_gpu_and_the_one_too_many_is_told_within_two_seconds(head: Head) -> None:
    found = drive(head, "seat", *HOPPER)
    first, second, again = found["seats"]
    assert {first[1], second[1]} == {"0", "1"}
    assert again[1] == first[1], "the seat that was given back"
    assert all(labels["ray.io/accelerator-type"] == "H200" for _, _, labels in found["seats"])
    kind, text = found["told"]
    assert kind == "GpuBusy"
    assert text == "No H100 or H200 GPU became free within 1.5 s; try again when other work ended."
    assert found["waited"] < 2


def test_a_gpu_that_no_node_has_is_refused_at_once(head: Head) -> None:
    found = drive(head, "seat", "H100")
    assert found["seats"] == []
    assert found["told"] == [
        "NoSuchGpu",
        "No node has an H100 GPU, only H200; add a node that has one, or search without a GPU.",
    ]
    assert found["waited"] < 0.5


def test_a_worker_never_sits_on_a_gpu_of_another_kind(head: Head) -> None:
    assert not drive(head, "sits_within_a_second", "H100")


def test_an_actor_that_asked_for_no_gpu_sees_none(head: Head) -> None:
    assert drive(head, "what_is_visible") == ""


@pytest.mark.parametrize(
    "nodes, text",
    [
        ([], "No node has a GPU; add one with an H100 or H200, or search without a GPU."),
        ([{"Alive": False, "Resources": {"GPU": 1.0}, "Labels": {"ray.io/accelerator-type": "H100"}}], "No node has a"),
        ([{"Alive": True, "Resources": {}, "Labels": {"ray.io/accelerator-type": "H100"}}], "No node has a GPU;"),
        (
            [{"Alive": True, "Resources": {"GPU": 1.0}, "Labels": {}}],
            "No node has an H100 or H200 GPU, only an unnamed",
        ),
        ([{"Alive": True, "Resources": {"GPU": 1.0}, "Labels": {"ray.io/accelerator-type": "H200"}}], None),
    ],
)
def test_only_a_living_hopper_node_with_a_gpu_can_seat_a_worker(nodes: list[dict[str, Any]], text: str | None) -> None:
    refusal = refuse(HOPPER, nodes)
    assert refusal is None if text is None else refusal is not None and refusal.startswith(text)
