"""The GPU workers' seat: an actor on one Hopper GPU of its own, or a sentence why there is none."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import ray
from ray.actor import ActorClass, ActorHandle, ActorProxy
from ray.exceptions import RayActorError

Hopper = Literal["H100", "H200"]
HOPPER: tuple[Hopper, ...] = ("H100", "H200")
LABEL = "ray.io/accelerator-type"
"""Ray gives it to each node that has GPUs, from the name of the first."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
PATIENCE_S = 1.5
"""How long a taken seat is waited for."""
START_S = 15.0
"""How long a worker may take to start where a GPU is free; 0.6 s are usual."""


class NoSeat(Exception):
    """No GPU worker was started; the text is one sentence for a person.

    NoSeat
        NoSuchGpu   no node has such a GPU: waiting is of no use
        GpuBusy     all such GPUs are taken
    """


class NoSuchGpu(NoSeat):
    pass


class GpuBusy(NoSeat):
    pass


@dataclass(frozen=True, slots=True)
class GpuSeat:
    node: str
    """Ray's id of it."""
    visible: str
    """CUDA_VISIBLE_DEVICES: one GPU, by its number or UUID on the node."""
    labels: Mapping[str, str]
    """Of the node; LABEL says which GPU it is."""


class GpuWorker:
    @ray.method
    def describe(self) -> GpuSeat:
        context = ray.get_runtime_context()
        # Annotated otherwise by Ray, a label has one value.
        labels = cast(Mapping[str, str], context.get_node_labels())
        return GpuSeat(context.get_node_id(), os.environ.get(VISIBLE, ""), labels)


@dataclass(frozen=True, slots=True)
class Seated:
    worker: "ActorProxy[GpuWorker]"
    """Ends with its driver, or by end()."""
    seat: GpuSeat


def without_gpu() -> None:
    """To be called first by an actor that holds no GPU: none is visible from here on, to its children neither.

    Workers of our own head are started like that; those of another cluster are not. Asking for it as a runtime
    environment would cost a cold worker, 0.5 s.
    """
    os.environ[VISIBLE] = ""


async def seat_gpu_worker(
    kinds: Sequence[Hopper] = HOPPER, patience_s: float = PATIENCE_S, start_s: float = START_S
) -> Seated:
    """A worker on one GPU of these kinds. Raises NoSuchGpu at once, GpuBusy after `patience_s`.

    Where a GPU seemed to be free and no worker came within `start_s`, it is GpuBusy as well."""
    refusal = refuse(kinds, ray.nodes())
    if refusal is not None:
        raise NoSuchGpu(refusal)
    free = ray.available_resources().get("GPU", 0) >= 1
    wait_s = start_s if free else patience_s
    worker = ask(kinds)
    try:
        seat = await asyncio.wait_for(asyncio.wrap_future(worker.describe.remote().future()), wait_s)
    except TimeoutError:
        end(worker)
        raise GpuBusy(
            f"No {name(kinds)} GPU became free within {wait_s:g} s; try again when other work ended."
        ) from None
    except RayActorError as error:
        raise NoSeat(f"The GPU worker ended as it started: {error}") from error
    except BaseException:
        end(worker)
        raise
    return Seated(worker, seat)


def end(worker: "ActorProxy[GpuWorker]") -> None:
    """Its GPU is free again some milliseconds later."""
    ray.kill(cast("ActorHandle[GpuWorker]", worker))


def ask(kinds: Sequence[Hopper]) -> "ActorProxy[GpuWorker]":
    """A worker that waits, silently and for ever, until such a GPU is free."""
    options = GpuWorkerActor.options(
        num_cpus=0, num_gpus=1, max_restarts=0, max_task_retries=0, label_selector={LABEL: f"in({','.join(kinds)})"}
    )
    return options.remote()


def name(kinds: Sequence[Hopper]) -> str:
    return " or ".join(kinds)


def refuse(kinds: Sequence[Hopper], nodes: Sequence[Mapping[str, Any]]) -> str | None:
    """Why no node of ray.nodes() can ever seat a worker, in a sentence; None where one can."""
    alive = [node for node in nodes if node["Alive"]]
    having = [node for node in alive if node["Resources"].get("GPU", 0) >= 1]
    if any(node["Labels"].get(LABEL) in kinds for node in having):
        return None
    if having:
        found = ", ".join(sorted({node["Labels"].get(LABEL, "an unnamed kind") for node in having}))
        return f"No node has an {name(kinds)} GPU, only {found}; add a node that has one, or search without a GPU."
    return f"No node has a GPU; add one with an {name(kinds)}, or search without a GPU."


GpuWorkerActor: ActorClass[GpuWorker] = ray.remote(GpuWorker)
