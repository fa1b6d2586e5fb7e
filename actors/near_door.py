"""The near side of doors on another node: an actor on each node that runs agents of sessions that live elsewhere.

It listens where a session's door would be here, so that agents need not know where they are, and carries what they say
to the far side (far_door.py) through Ray and back. Each direction has one call under way at a time, in which all that
came meanwhile goes together: alone, an append is one round trip.

Nothing is asked twice. Where the fate of a call is unknown, and where the far side is silent, all connections are cut:
an agent then connects again and sends again what was not acknowledged (remote_log.py)."""

import asyncio
import os
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import orjson
import ray
from ray.actor import ActorClass

from actors import detached
from actors.channels import Channels, LinkBroken, Streams
from actors.detached import Handle, WorkerLost, ask
from actors.gpu import without_gpu
from actors.heartbeat import wait_silent
from actors.sockets import CannotListen, listen
from actors.warming import describe_process
from configs.places import append_line, hung_limit_s, place_of, read_variables

FAR = "far-door"
NEAR = "near-door-"
"""With the node's id behind it."""


class NearDoor:
    """Plain: values cross as JSON, and an error as a value."""

    def __init__(self, state_folder: str) -> None:
        """`state_folder`: empty for the node's own."""
        os.umask(0o077)
        without_gpu()
        self._place = place_of(state_folder)
        self._place.make()
        self._silent_s = hung_limit_s(read_variables())
        """A far side of which nothing is heard for so long is given up."""
        self._servers: dict[str, asyncio.Server] = {}
        self._listening = asyncio.Lock()
        self._link: _Link | None = None
        self._linking = asyncio.Lock()
        self._keeping: set[asyncio.Task[None]] = set()
        self._beginning = asyncio.create_task(self._begin())

    async def serve(self, session: str) -> bytes:
        """Listen for its agents: {} once they can connect, or {"text": …}, one sentence. May be repeated."""
        await self._beginning
        try:
            await self._serve(session)
        except CannotListen as error:
            return orjson.dumps({"text": str(error)})
        return b"{}"

    async def leave(self, session: str) -> None:
        """Listen for its agents no more; connections go on to their ends. May be repeated."""
        server = self._servers.pop(session, None)
        if server is not None:
            server.close()
            self._place.door(session).unlink(missing_ok=True)

    async def describe(self) -> bytes:
        """`sessions`: of those that are served the ids; `connections`: how many there are."""
        connections = self._link.channels.count if self._link is not None else 0
        return orjson.dumps({**describe_process(), "sessions": sorted(self._servers), "connections": connections})

    async def _begin(self) -> None:
        """What the process before this one served stands in the folder: its sockets, at which nobody answers."""
        for path in list(self._place.doors.iterdir()):
            if not ray.get_runtime_context().was_current_actor_reconstructed:
                path.unlink()
            elif not path.name.startswith("."):
                with suppress(CannotListen):
                    await self._serve(path.name)

    async def _serve(self, session: str) -> None:
        """Raises CannotListen."""

        async def welcome(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._welcome(session, (reader, writer))

        async with self._listening:
            if session not in self._servers:
                listener = listen(self._place.door(session))
                self._servers[session] = await asyncio.start_unix_server(welcome, sock=listener, backlog=256)

    async def _welcome(self, session: str, streams: Streams) -> None:
        link = await self._find_link()
        if link is None:
            streams[1].transport.abort()
        else:
            link.channels.open(session.encode(), streams)

    async def _find_link(self) -> "_Link | None":
        """None where the far side cannot be reached."""
        async with self._linking:
            if self._link is None or self._link.channels.closed:
                self._link = await self._make_link()
            return self._link

    async def _make_link(self) -> "_Link | None":
        node = ray.get_runtime_context().get_node_id()
        try:
            far = await detached.find(FAR)
            name = await ask(far.open.remote(node), self._silent_s)
        except (WorkerLost, ValueError):
            return None
        link = _Link(far, name)
        keeping = asyncio.create_task(self._keep(link))
        self._keeping.add(keeping)
        keeping.add_done_callback(self._keeping.discard)
        return link

    async def _keep(self, link: "_Link") -> None:
        why = await link.carry(self._silent_s)
        append_line(self._place.log, f"The way to the sessions' node was lost ({why}); agents connect again.")


class _Link:
    def __init__(self, far: Handle, name: str) -> None:
        self.channels = Channels()
        self._far, self._name = far, name

    async def carry(self, silent_s: float) -> str:
        """Until the far side is gone or silent; then every connection is cut. Why it ended."""
        ways: list[Coroutine[Any, Any, str]] = [self._send(), self._receive(), self._listen(silent_s)]
        tasks = [asyncio.ensure_future(way) for way in ways]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        except WorkerLost as error:
            return str(error)
        finally:
            for task in tasks:
                task.cancel()
            await self.channels.close()
            await asyncio.gather(*tasks, return_exceptions=True)
            # Of no use to one that is gone, and one that is only silent hears it when it is not.
            self._far.close.remote(self._name)

    async def _send(self) -> str:
        """Raises WorkerLost."""
        number = 0
        while True:
            batch = await self.channels.give()
            number += 1
            if not await ask(self._far.send.remote(self._name, number, batch), None):
                return "it does not know this link any more"

    async def _receive(self) -> str:
        """Raises WorkerLost."""
        number = 0
        while True:
            number += 1
            batch = await ask(self._far.receive.remote(self._name, number), None)
            if not batch:
                return "it does not know this link any more"
            try:
                self.channels.take(batch)
            except LinkBroken as error:
                return str(error)

    async def _listen(self, silent_s: float) -> str:
        """Raises WorkerLost."""
        await wait_silent(self._ping, silent_s)
        return f"nothing was heard of it for {silent_s:g} s"

    async def _ping(self) -> None:
        """Raises WorkerLost."""
        if not await ask(self._far.ping.remote(self._name), None):
            raise WorkerLost("it does not know this link any more")


NearDoorActor: ActorClass[NearDoor] = ray.remote(NearDoor)
