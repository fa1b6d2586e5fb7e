"""A model whose server runs only while somebody needs it: started by the first call, ended by `close`."""

import asyncio
import contextlib
from collections.abc import Callable

from agent.models.client import ModelError, ModelRequest, OnDelta
from agent.models.http import HttpModel
from agent.models.local import LocalServer
from eventlog.outcomes import ModelFailed, ModelReplied


class OnDemand:
    """A ModelClient. A server that died is started again by the next call; `close` leaves no process."""

    def __init__(self, start: Callable[[], LocalServer], connect: Callable[[str], HttpModel]) -> None:
        """`start` blocks until the server answers, and raises ModelError where it never will; `connect` makes the
        client for its base URL."""
        self._start, self._connect = start, connect
        self._starting: asyncio.Task[LocalServer] | None = None
        self._client: HttpModel | None = None

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> ModelReplied | ModelFailed:
        try:
            client = await self._open()
        except ModelError as error:
            return ModelFailed(fault="refused", text=str(error), retry=False)
        return await client.complete(request, on_delta)

    async def close(self) -> None:
        await self._hang_up()
        if self._starting is not None:
            with contextlib.suppress(ModelError):
                server = await self._starting
                await asyncio.to_thread(server.close)
            self._starting = None

    async def _open(self) -> HttpModel:
        if self._starting is not None and _is_over(self._starting):
            await self.close()
        if self._starting is None:
            self._starting = asyncio.create_task(asyncio.to_thread(self._start))
        # Shielded: a call that is cancelled while the server starts leaves it to the next one, or to `close`.
        server = await asyncio.shield(self._starting)
        if self._client is None:
            self._client = self._connect(server.base_url)
        return self._client

    async def _hang_up(self) -> None:
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()


def _is_over(starting: "asyncio.Task[LocalServer]") -> bool:
    """The server could not be started, or has ended since."""
    if not starting.done():
        return False
    return starting.cancelled() or starting.exception() is not None or starting.result().process.poll() is not None
