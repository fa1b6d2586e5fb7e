"""The actor in which a session runs: a warm process that hosts one session at a time, and is restarted when it dies.

Nothing is retried by Ray: a session whose process died is taken up again from its log, by whoever hosts it next."""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

import orjson
import ray
from ray.actor import ActorClass

from actors.hosting import Hosted, decode_request
from actors.refusals import refusal_of
from actors.warming import become_worker, describe_process
from configs.places import daemon_place
from eventlog.database import load_engine


class SessionWorker:
    """Plain: values cross as JSON, and an error as a value, so that no traceback crosses at all."""

    def __init__(self, state_folder: str) -> None:
        self._place = daemon_place(Path(state_folder))
        self._hosted: Hosted | None = None
        """Also while it is being opened, so that nobody takes this worker for idle."""
        load_engine()
        become_worker(self._place)

    async def host(self, request: bytes, variables: bytes) -> bytes:
        """Open a session: {"head": …, "standing": …} once its door is, or what refused it. A gateway that asks again,
        not knowing that it was asked before, gets the same answer."""
        try:
            wanted = decode_request(request)
            if self._hosted is None or self._hosted.over.is_set():
                self._hosted = Hosted(self._place, wanted, orjson.loads(variables))
                self._opening = asyncio.create_task(self._hosted.start())
            elif self._hosted.request.session != wanted.session:
                return orjson.dumps({"kinds": ["WorkerBusy"], "text": "This worker hosts another session."})
            await asyncio.shield(self._opening)
        except Exception as error:  # any of them has to become a sentence on another side
            self._hosted = None
            return orjson.dumps(refusal_of(error, self._place.log))
        standing = self._hosted.standing
        assert standing is not None
        return orjson.dumps({"head": self._hosted.head, "standing": standing.model_dump(mode="json")})

    async def wait_over(self, session: str) -> None:
        """Until the session's log is closed. Returns at once where it is not hosted."""
        hosted = self._hosted
        if hosted is not None and hosted.request.session == session:
            await hosted.over.wait()
            self._hosted = None

    async def describe(self) -> bytes:
        session = self._hosted.request.session if self._hosted is not None else None
        return orjson.dumps({**describe_process(), "session": session})

    async def export(self, file: str) -> bool:
        """The session's log as Parquet; False where none is open."""
        return self._hosted is not None and await self._hosted.export(Path(file))

    async def list_modules(self) -> Mapping[str, str]:
        """Where each imported module came from."""
        return {name: str(file) for name, module in sys.modules.items() if (file := getattr(module, "__file__", None))}


SessionWorkerActor: ActorClass[SessionWorker] = ray.remote(SessionWorker)
