"""The far side of doors that agents on other nodes use: an actor on the sessions' node, one for all sessions.

It connects to the same sockets as everybody on its node, so it outlives the sessions' processes and knows nothing of
what is said. What crosses, and in which order, is counted: nothing is ever asked of it twice, and where the fate of a
call is unknown the link is given up with all its connections."""

import asyncio
import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import ray
from ray.actor import ActorClass

from actors.channels import Channels, LinkBroken, Streams
from actors.gpu import without_gpu
from actors.receiving import store_bundle
from actors.warming import describe_process
from configs.places import append_line, daemon_place

SILENT_S = 30.0
"""A link of whose other side nothing is heard is given up. Longer than that one would wait for this side."""


class FarDoor:
    """Plain. Answers are values; a link that is none any more is told by an empty one."""

    def __init__(self, state_folder: str) -> None:
        os.umask(0o077)
        without_gpu()
        self._place = daemon_place(Path(state_folder))
        self._links: dict[str, _Link] = {}

    async def open(self, node: str) -> str:
        """The name of a new link. The one which that node had before is given up: its process was replaced."""
        for name, link in list(self._links.items()):
            if link.node == node:
                await self.close(name)
        name = secrets.token_hex(8)
        self._links[name] = link = _Link(node, Channels(self._connect))
        link.watch = asyncio.create_task(self._give_up_silent(name, link))
        return name

    async def send(self, name: str, number: int, batch: bytes) -> bool:
        """The `number`th batch of the other side, from 1."""
        link = self._links.get(name)
        if link is None:
            return False
        link.heard_at = time.monotonic()
        link.taken += 1
        try:
            if number != link.taken:
                raise LinkBroken(f"Batch {number} came as the {link.taken}th.")
            link.channels.take(batch)
        except LinkBroken as error:
            append_line(self._place.log, f"The link of node {link.node} was given up: {error}")
            await self.close(name)
            return False
        return True

    async def receive(self, name: str, number: int) -> bytes:
        """The `number`th batch for the other side, from 1, once there is anything."""
        link = self._links.get(name)
        if link is None:
            return b""
        link.given += 1
        if number != link.given:
            append_line(self._place.log, f"The link of node {link.node} was given up: {number} was asked for twice.")
            await self.close(name)
            return b""
        return await link.channels.give()

    async def ping(self, name: str) -> bool:
        link = self._links.get(name)
        if link is not None:
            link.heard_at = time.monotonic()
        return link is not None

    async def store(self, session: str, name: str, bundle: bytes) -> bool:
        """For the session to take when it is asked to at its door, see receiving.py. May be repeated. False where it
        cannot be stored."""
        try:
            folder = self._place.state_folder / "sessions" / _plain(session)
            await asyncio.to_thread(store_bundle, folder, _plain(name), bundle)
        except OSError as error:
            append_line(self._place.log, f"A bundle for session {session} cannot be stored: {error.strerror}.")
            return False
        return True

    async def close(self, name: str) -> None:
        link = self._links.pop(name, None)
        if link is not None:
            if link.watch is not None:
                link.watch.cancel()
            await link.channels.close()

    async def describe(self) -> bytes:
        """`links`: the nodes that have one, and how many connections each."""
        links = {link.node: link.channels.count for link in self._links.values()}
        return orjson.dumps({**describe_process(), "links": links})

    async def _connect(self, word: bytes) -> Streams:
        """`word`: a session's id. Raises OSError."""
        return await asyncio.open_unix_connection(str(self._place.door(_plain(word.decode()))))

    async def _give_up_silent(self, name: str, link: "_Link") -> None:
        left_s = SILENT_S
        while left_s > 0:
            await asyncio.sleep(left_s)
            left_s = link.heard_at + SILENT_S - time.monotonic()
        del self._links[name]
        await link.channels.close()


def _plain(name: str) -> str:
    """Raises FileNotFoundError for what would lead elsewhere."""
    if Path(name).name != name:
        raise FileNotFoundError(2, "no such name")
    return name


@dataclass(slots=True)
class _Link:
    node: str
    channels: Channels
    taken: int = 0
    given: int = 0
    """Batches."""
    heard_at: float = field(default_factory=time.monotonic)
    watch: asyncio.Task[None] | None = None


FarDoorActor: ActorClass[FarDoor] = ray.remote(FarDoor)
