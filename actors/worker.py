"""The actor in which a session runs: a warm process that hosts one session at a time, and is restarted when it dies.

Nothing is retried by Ray: a session whose process died is taken up again from its log, by whoever hosts it next."""

import gc
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import orjson
import ray
from ray.actor import ActorClass

from actors.gpu import without_gpu
from actors.hosting import Hosted, decode_request, refusal_of
from configs.places import daemon_place
from eventlog.database import load_engine


class SessionWorker:
    """Plain: values cross as JSON, and an error as a value, so that no traceback crosses at all."""

    def __init__(self, state_folder: str) -> None:
        os.umask(0o077)
        without_gpu()
        self._place = daemon_place(Path(state_folder))
        self._hosted: Hosted | None = None
        self._warm()

    def _warm(self) -> None:
        """What the first session would wait for."""
        load_engine()
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)

    async def host(self, request: bytes, variables: bytes) -> bytes:
        """Open a session: `{}` once its door is, or what refused it."""
        try:
            hosted = Hosted(self._place, decode_request(request), orjson.loads(variables))
            await hosted.start()
        except Exception as error:  # any of them has to become a sentence on another side
            return orjson.dumps(refusal_of(error, self._place.log))
        self._hosted = hosted
        return b"{}"

    async def wait_over(self) -> None:
        """Until the session's log is closed. Returns at once where none is hosted."""
        if self._hosted is not None:
            await self._hosted.over.wait()
            self._hosted = None

    async def describe(self) -> bytes:
        session = self._hosted.request.session if self._hosted is not None else None
        return orjson.dumps({"pid": os.getpid(), "session": session})

    async def export(self, file: str) -> bool:
        """The session's log as Parquet; False where none is open."""
        return self._hosted is not None and await self._hosted.export(Path(file))

    async def list_modules(self) -> Mapping[str, str]:
        """Where each imported module came from."""
        return {name: str(file) for name, module in sys.modules.items() if (file := getattr(module, "__file__", None))}


SessionWorkerActor: ActorClass[SessionWorker] = ray.remote(SessionWorker)
