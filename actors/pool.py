"""The gateway's side of the workers: a few kept warm, one taken for each session, given back after it."""

import asyncio
import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from actors import detached
from actors.detached import Handle, WorkerHung, WorkerLost, ask
from configs.places import WARM_WORKERS, append_line, daemon_place
from eventlog.lock import Holder

SESSIONS_A_WORKER = 32
"""After so many its process is replaced: what a library leaks is bounded."""
_PREFIX = "worker-"
_ANSWER_S = 20.0
_RETRY_S = 1.0


@dataclass(slots=True)
class Worker:
    name: str
    actor: Handle
    sessions: int = 0
    process: Holder | None = None
    """As it last described itself. Ray starts another when this one dies."""

    async def host(self, request: bytes, variables: bytes) -> dict[str, Any]:
        """As long as it takes: a long log is read whole. Raises WorkerLost; then the session may be open or not."""
        self.sessions += 1
        return orjson.loads(await ask(self.actor.host.remote(request, variables), None))

    async def wait_over(self, session: str) -> None:
        """Raises WorkerLost."""
        await ask(self.actor.wait_over.remote(session), None)

    async def export(self, file: Path) -> bool:
        """Raises WorkerLost."""
        return await ask(self.actor.export.remote(str(file)), _ANSWER_S)

    async def describe(self, limit_s: float | None = _ANSWER_S) -> dict[str, Any]:
        """Raises WorkerLost."""
        found = orjson.loads(await ask(self.actor.describe.remote(), limit_s))
        self.process = Holder(found["pid"], found["started"])
        return found


class Pool:
    """Belongs to a driver that has joined Ray. All calls are from one event loop."""

    def __init__(self, state_folder: Path, hung_s: float) -> None:
        """`hung_s`: how long a worker that is at work may say nothing."""
        self._state_folder, self._hung_s = state_folder, hung_s
        self._idle: asyncio.Queue[Worker] = asyncio.Queue()
        self._making: set[asyncio.Task[None]] = set()
        self._waiting = 0

    async def find(self) -> dict[str, Worker]:
        """Workers of an earlier gateway: those that host a session, by its id. The idle ones are kept for use."""
        found: dict[str, Worker] = {}
        # At once: the ones that answer are not kept waiting for one that does not.
        await asyncio.gather(*(self._look(name, found) for name in await detached.list_names(_PREFIX)))
        return found

    async def _look(self, name: str, found: dict[str, Worker]) -> None:
        # ValueError: it died meanwhile.
        with contextlib.suppress(ValueError):
            worker = Worker(name, await detached.find(name))
            try:
                session = (await worker.describe(self._hung_s))["session"]
            except WorkerLost:
                await self.drop(worker)
                return
            if session is None:
                self._idle.put_nowait(worker)
            else:
                found[session] = worker

    def fill(self, wanted: int = 1) -> None:
        """Begin to make what is missing of so many idle ones, and for those who wait. One is enough while others are
        at work: they come back, and to make another just then would take its time from them."""
        for _ in range(max(wanted, self._waiting) - self._idle.qsize() - len(self._making)):
            task = asyncio.get_running_loop().create_task(self._make())
            self._making.add(task)
            task.add_done_callback(self._made)

    async def take(self) -> Worker:
        """An idle one that answers; waits where all are still being made."""
        self._waiting += 1
        try:
            while True:
                self.fill()
                worker = await self._idle.get()
                try:
                    await worker.describe()
                except WorkerLost:
                    await self.drop(worker)
                    continue
                return worker
        finally:
            self._waiting -= 1
            self.fill()

    async def give_back(self, worker: Worker) -> None:
        """After its session is over."""
        if worker.sessions >= SESSIONS_A_WORKER or self._idle.qsize() >= WARM_WORKERS:
            await self.drop(worker)
        else:
            self._idle.put_nowait(worker)

    async def replace(self, worker: Worker, error: Exception) -> None:
        """After it was lost: one that died is started anew by Ray, as empty as it was; one that hangs is ended."""
        if isinstance(error, WorkerLost) and not isinstance(error, WorkerHung):
            await self.give_back(worker)
        else:
            await self.drop(worker)

    async def drop(self, worker: Worker) -> None:
        """Its process is gone after this."""
        await detached.end(worker.actor, worker.process)

    async def _make(self) -> None:
        from actors.worker import SessionWorkerActor

        name = detached.new_name(_PREFIX)
        folder = self._state_folder
        actor = await asyncio.to_thread(detached.create, SessionWorkerActor, name, folder, max_restarts=-1)
        worker = Worker(name, actor)
        try:
            await worker.describe()
        except WorkerLost:
            await self.drop(worker)
            raise
        self._idle.put_nowait(worker)

    def _made(self, task: "asyncio.Task[None]") -> None:
        self._making.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log = daemon_place(self._state_folder).log
            append_line(log, f"A worker could not be made ({type(error).__name__}); see Ray's own logs.")
            asyncio.get_running_loop().call_later(_RETRY_S, self.fill)
