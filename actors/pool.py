"""The gateway's side of the workers: a few kept warm, one taken for each session, given back after it."""

import asyncio
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

WARM = 2
SESSIONS_A_WORKER = 32
"""After so many its process is replaced: what a library leaks is bounded."""
_PREFIX = "worker-"
_ANSWER_S = 20.0


class WorkerLost(Exception):
    """Its process died, or does not answer."""


@dataclass(slots=True)
class Worker:
    name: str
    actor: Any
    """ray.actor.ActorHandle, whose methods no type checker knows."""
    sessions: int = 0

    async def host(self, request: bytes, variables: bytes) -> dict[str, Any]:
        """Raises WorkerLost; then the session may be open or not: its lock tells."""
        self.sessions += 1
        return orjson.loads(await _answer(self.actor.host.remote(request, variables)))

    async def wait_over(self) -> None:
        """Raises WorkerLost."""
        await _answer(self.actor.wait_over.remote(), None)

    async def export(self, file: Path) -> bool:
        """Raises WorkerLost."""
        return await _answer(self.actor.export.remote(str(file)))

    async def describe(self) -> dict[str, Any]:
        """Raises WorkerLost."""
        return orjson.loads(await _answer(self.actor.describe.remote()))


class Pool:
    """Belongs to a driver that has joined Ray. All calls are from one event loop."""

    def __init__(self, state_folder: Path) -> None:
        self._state_folder = state_folder
        self._idle: asyncio.Queue[Worker] = asyncio.Queue()
        self._making: set[asyncio.Task[None]] = set()

    async def find(self) -> dict[str, Worker]:
        """Workers of an earlier gateway: those that host a session, by its id. The idle ones are kept for use."""
        import ray

        found: dict[str, Worker] = {}
        for name in await asyncio.to_thread(ray.util.list_named_actors):
            if not name.startswith(_PREFIX):
                continue
            worker = Worker(name, await asyncio.to_thread(ray.get_actor, name))
            try:
                session = (await worker.describe())["session"]
            except WorkerLost:
                await self._drop(worker)
                continue
            if session is None:
                self._idle.put_nowait(worker)
            else:
                found[session] = worker
        return found

    def fill(self) -> None:
        """Begin to make what is missing of the warm ones."""
        for _ in range(WARM - self._idle.qsize() - len(self._making)):
            task = asyncio.get_running_loop().create_task(self._make())
            self._making.add(task)
            task.add_done_callback(self._making.discard)

    async def take(self) -> Worker:
        """An idle one that answers; waits where all are still being made."""
        while True:
            self.fill()
            worker = await self._idle.get()
            try:
                await worker.describe()
            except WorkerLost:
                await self._drop(worker)
                continue
            self.fill()
            return worker

    async def give_back(self, worker: Worker) -> None:
        """After its session is over, or its process died: Ray starts that anew, as empty as it was."""
        if worker.sessions >= SESSIONS_A_WORKER or self._idle.qsize() >= WARM:
            await self._drop(worker)
        else:
            self._idle.put_nowait(worker)

    async def _make(self) -> None:
        name = _PREFIX + secrets.token_hex(4)
        worker = Worker(name, await asyncio.to_thread(_create, name, self._state_folder))
        try:
            await worker.describe()
        except WorkerLost:
            await self._drop(worker)
        else:
            self._idle.put_nowait(worker)

    async def _drop(self, worker: Worker) -> None:
        import ray

        await asyncio.to_thread(ray.kill, worker.actor, no_restart=True)


def _create(name: str, state_folder: Path) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from actors.worker import SessionWorkerActor

    here = ray.get_runtime_context().get_node_id()
    options: Any = SessionWorkerActor.options(
        name=name,
        lifetime="detached",
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=0,
        # The session's folder is on this node.
        scheduling_strategy=NodeAffinitySchedulingStrategy(here, soft=False),
    )
    return options.remote(str(state_folder))


async def _answer(reference: Any, limit_s: float | None = _ANSWER_S) -> Any:
    from ray.exceptions import RayError

    try:
        async with asyncio.timeout(limit_s):
            return await reference
    except (RayError, TimeoutError) as error:
        raise WorkerLost(type(error).__name__) from error
