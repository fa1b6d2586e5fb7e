"""Detached actors of ours: made, found, asked, ended. What Ray raises becomes one of two errors.

Ray is imported where it is first needed: the gateway answers before it has joined."""

import asyncio
import contextlib
import secrets
from pathlib import Path
from typing import Any

from eventlog.errors import CannotTakeOver
from eventlog.lock import Holder
from eventlog.taking_over import end_process

Handle = Any
"""ray.actor.ActorHandle, whose methods no type checker knows."""


class WorkerLost(Exception):
    """Its process died."""


class WorkerHung(WorkerLost):
    """It does not answer."""


def create(
    actor_class: Any, name: str, state_folder: Path | None, *, max_restarts: int, node: str | None = None
) -> Handle:
    """`actor_class`: a ray.actor.ActorClass that takes the state folder. `node`: Ray's id of the one on which it is to
    be, and on no other; this one if left out. `state_folder`: None for that node's own, of which nothing is known here.
    Returns before its process runs. Blocks."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    # Here the sessions' folders and their worktrees are.
    chosen = node if node is not None else ray.get_runtime_context().get_node_id()
    options: Any = actor_class.options(
        name=name,
        lifetime="detached",
        num_cpus=0,
        max_restarts=max_restarts,
        max_task_retries=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(chosen, soft=False),
    )
    return options.remote(str(state_folder or ""))


def new_name(prefix: str) -> str:
    return prefix + secrets.token_hex(4)


async def list_names(prefix: str) -> list[str]:
    import ray

    return [name for name in await asyncio.to_thread(ray.util.list_named_actors) if name.startswith(prefix)]


async def find(name: str) -> Handle:
    """Raises ValueError where it ended meanwhile."""
    import ray

    return await asyncio.to_thread(ray.get_actor, name)


async def ask(reference: Any, limit_s: float | None) -> Any:
    """What a call of an actor's method comes to. Raises WorkerLost."""
    from ray.exceptions import RayError

    try:
        async with asyncio.timeout(limit_s):
            return await reference
    except TimeoutError as error:
        raise WorkerHung(f"did not answer for {limit_s:g} s") from error
    except RayError as error:
        raise WorkerLost(type(error).__name__) from error


async def end(actor: Handle, process: Holder | None) -> None:
    """Its process is gone after this, even one that is stopped: Ray would ask it first, and it does not listen."""
    import ray

    if process is not None:
        with contextlib.suppress(CannotTakeOver):
            await asyncio.to_thread(end_process, process)
    # On a cluster that is gone nothing is left to be ended.
    with contextlib.suppress(Exception):
        await asyncio.to_thread(ray.kill, actor, no_restart=True)
