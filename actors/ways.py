"""The way from a node to the doors of sessions that live on another one: both of its ends, made where there are none.

  agent — RemoteLog — socket at place.door(session) — near_door.py ═ Ray ═ far_door.py — the session's door

To be used in a process of the sessions' node that has joined Ray."""

import asyncio
import contextlib
from functools import partial
from pathlib import Path
from typing import Any, Literal

import orjson

from actors import detached
from actors.detached import Handle, WorkerLost, ask

Seen = Literal["answers", "silent", "nobody"]
"""Of a node: its near side answers, or does not, or is not there."""
PING_S = 3.0
ANSWER_S = 30.0
"""For an actor that may have to be started first."""


class NoWay(Exception):
    """One sentence: agents of a node cannot reach their session."""


async def open_way(session: str, node: str, node_folder: Path | None, state_folder: Path) -> None:
    """From its return on, agents on that node reach the session at their own place's door. `node`: Ray's id;
    `node_folder`: the state folder to be used there, None: the node's own; `state_folder`: of the sessions' node, which
    is this one. May be repeated. Raises NoWay, WorkerLost."""
    from actors.far_door import FarDoorActor
    from actors.near_door import FAR, NEAR, NearDoorActor

    await _find_or_create(FarDoorActor, FAR, state_folder, None)
    near = await _find_or_create(NearDoorActor, NEAR + node, node_folder, node)
    told = orjson.loads(await ask(near.serve.remote(session), ANSWER_S))
    if "text" in told:
        raise NoWay(told["text"])


async def close_way(session: str, node: str) -> None:
    """Nobody connects on that node any more; who is connected stays so. Raises WorkerLost."""
    from actors.near_door import NEAR

    try:
        near = await detached.find(NEAR + node)
    except ValueError:
        return
    await ask(near.leave.remote(session), ANSWER_S)


async def look_at(node: str) -> Seen:
    from actors.near_door import NEAR

    try:
        near = await detached.find(NEAR + node)
        await ask(near.describe.remote(), PING_S)
    except ValueError:
        return "nobody"
    except WorkerLost:
        return "silent"
    return "answers"


async def _find_or_create(actor_class: Any, name: str, folder: Path | None, node: str | None) -> Handle:
    """One that comes back by itself when its process dies."""
    with contextlib.suppress(ValueError):
        return await detached.find(name)
    # Another session may make it at the same time.
    with contextlib.suppress(ValueError):
        await asyncio.to_thread(
            partial(detached.create, actor_class, name, folder, max_restarts=-1, node=node),
        )
    return await detached.find(name)
