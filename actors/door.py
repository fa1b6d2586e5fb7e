"""The coordinator's door: a Unix socket on which agents append, frontends send commands, and whoever likes watches.

One connection carries many requests; each is answered by its `id`, in any order. In the coordinator's loop.

  request  {"op":"append","id":1,"agent":"scout","lease":2,"actor_seq":7,"bodies":[{…},…],"causes":[null,…]}
  answer   {"id":1,"events":[{…},…]}       durable, as stored; of what was sent before, what was stored then
  request  {"op":"command","id":2,"command":{"kind":"user_said","id":"…",…}}
  answer   {"id":2,"ok":true}              it is in the log; repeated ones change nothing
  request  {"op":"attach","id":3,"after":0}
  answers  {"id":3,"event":{…}}, {"id":3,"deltas":[{"kind":"text","text":"…"},…]}, {"id":3,"NAME":VALUE} as published
  request  {"op":"detach","id":3}          ends that stream; answer {"id":3,"detached":true}
  request  {"op":"ping","id":4}
  answer   {"id":4,"ok":true,"session":"…","epoch":1,"head":12}
  request  {"op":"renew","id":5,"agent":"scout","lease":2}
  answer   {"id":5,"ok":true}              this incarnation is the agent's present one
  request  {"op":"deliver","id":6,"agent":"scout","lease":2,"bundle":"<sha256>","moves":{"main":{"old":…,"new":…}}}
  answer   {"id":6,"ok":true}              the references hold it, durable; what they held already changes nothing

A refusal is {"id":…,"error":"LeaseSuperseded","text":"one sentence"}. What cannot be understood is answered
with the error BadRequest, and the connection is closed. Names of errors are those of eventlog/errors.py."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Self, assert_never

from actors.coordinator import Coordinator
from actors.door_requests import (
    OF_THE_WRITER,
    Append,
    Attach,
    BadRequest,
    Deliver,
    Detach,
    Ping,
    Renew,
    Request,
    Send,
    parse,
)
from actors.feed import Feed
from actors.frames import FrameError, enclose, encode, read_payload
from actors.receiving import NotStored, take_delivered
from actors.sockets import listen
from agent.models.client import Delta
from configs.crash import reached
from eventlog.errors import LeaseSuperseded, LogError
from eventlog.events import Command, Draft, Event
from eventlog.ids import MAIN, AgentId, CommandId
from eventlog.leases import NONE
from eventlog.seams import Prepared
from worktrees.git import GitError

PENDING = 64
"""Requests of one connection under way at a time; the next ones stay in the socket."""
PARTING_S = 1.0
"""For the last words to those who read them."""
_FAULT = "The coordinator made a mistake; ask again, and nothing is stored twice."


class Ending(Exception):
    """One sentence: the session is over but for its last words."""


class Door:
    """The owner of the session runs the coordinator's loop whenever it was `spoken_to`."""

    def __init__(self, coordinator: Coordinator, path: Path) -> None:
        self.coordinator, self.path = coordinator, path
        self.log = coordinator.opened.log
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="door")
        self.feed = Feed(self.log, self._threads)
        self._server: asyncio.Server | None = None
        self._inode = 0
        self._connections: set[asyncio.Task[None]] = set()
        self._streams: set[asyncio.Task[None]] = set()
        self._appends: set[asyncio.Task[None]] = set()
        self._awaited: dict[CommandId, asyncio.Future[None]] = {}
        """Commands on their way into the log."""
        self._renewed: dict[AgentId, float] = {}
        self._opened = time.monotonic()
        self._spoken = asyncio.Event()
        self.deaf = False
        self.taking = asyncio.Lock()
        """Held while references are moved for an agent, and by whoever grants its next lease."""

    async def open(self) -> None:
        """Raises CannotListen."""
        listener = listen(self.path)
        self._inode = self.path.stat().st_ino
        self.coordinator.listeners.append(self._on_event)
        self._server = await asyncio.start_unix_server(self._welcome, sock=listener, backlog=256)

    async def close(self) -> None:
        """What agents appended until now is stored first, and acknowledged to those who read; who is attached gets all
        that was published. Who does not read holds it up for some seconds. May be repeated."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        with contextlib.suppress(FileNotFoundError):
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        if self._appends:
            await asyncio.wait(self._appends)
        self.feed.end()
        if self._streams:
            await asyncio.wait(self._streams, timeout=PARTING_S)
        for _ in range(2):
            # The first time a connection still sends what it has; one whose other side is stuck is cut the second time.
            for connection in self._connections:
                connection.cancel()
            if self._connections:
                await asyncio.wait(self._connections, timeout=PARTING_S)
        if self._appends:
            await asyncio.wait(self._appends)
        self.coordinator.listeners.remove(self._on_event)
        # Nothing reads the log any more once this is over, so that it can be closed.
        await asyncio.to_thread(self._threads.shutdown)

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def stop_listening(self) -> None:
        """Commands are refused from here on, as `Ending`."""
        self.deaf = True

    async def spoken_to(self) -> None:
        """Until something is in the inbox; at once where something is."""
        while self.coordinator.loop.inbox.empty():
            self._spoken.clear()
            await self._spoken.wait()

    def publish(self, message: Mapping[str, object]) -> None:
        """Tell all who are attached each name and its value; the last of each name is told to those who come later."""
        self.feed.publish(message)

    def on_delta(self, delta: Delta) -> None:
        self.feed.add_delta(delta)

    def prepare(self, request: Append) -> list[Prepared]:
        """Raises BadRequest."""
        bodies = request.bodies
        causes = request.causes or (None,) * len(bodies)
        if request.agent == MAIN or len(causes) != len(bodies) or any(isinstance(b, OF_THE_WRITER) for b in bodies):
            raise BadRequest("That is not an agent's to append.", request.id)
        return [
            self.log.prepare(
                Draft(body=body, actor=request.agent, lease=request.lease, actor_seq=number, causation=causation)
            )
            for number, (body, causation) in enumerate(zip(bodies, causes, strict=True), request.actor_seq)
        ]

    def append(self, request: Append, answer: Callable[[Sequence[Event] | LogError], None]) -> None:
        """Begin to store it, and answer later. It goes on when its connection is gone: what is stored is published.
        Called in the order in which an agent sends. Raises BadRequest."""
        _start(self._appends, self._append(request, self.prepare(request), answer))

    async def _append(
        self, request: Append, prepared: list[Prepared], answer: Callable[[Sequence[Event] | LogError], None]
    ) -> None:
        try:
            events = await self.coordinator.append(prepared)
            if len(events) < len(prepared):
                numbers = range(request.actor_seq, request.actor_seq + len(prepared))
                loop = asyncio.get_running_loop()
                events = await loop.run_in_executor(
                    self._threads, self.log.find_sent, request.agent, request.lease, numbers
                )
        except LogError as error:
            answer(error)
        except Exception:
            answer(LogError(_FAULT))
            raise
        else:
            answer(events)

    def send(self, request: Send) -> asyncio.Future[None] | None:
        """Done once the command is in the log; None where it is there already. Raises BadRequest."""
        command = request.command
        if command.id in self.coordinator.state.commands:
            return None
        stored = self.log.prepare(Draft(body=command)).draft.body
        if not isinstance(stored, Command) or stored.id != command.id:
            raise BadRequest("The id of this command would not be stored as it is; choose another one.", request.id)
        waiting = self._awaited.get(command.id)
        if waiting is None:
            waiting = self._awaited[command.id] = asyncio.get_running_loop().create_future()
            self.coordinator.send(command)
            self._spoken.set()
        return waiting

    def renew(self, request: Renew) -> None:
        """Raises LeaseSuperseded."""
        self.check_lease(request)
        self._renewed[request.agent] = time.monotonic()

    def check_lease(self, request: Renew | Deliver) -> None:
        """Raises LeaseSuperseded."""
        if self.log.leases.get(request.agent, NONE).number != request.lease:
            raise LeaseSuperseded(request.agent, request.lease)

    def lease_left(self, agent: AgentId, seconds: float) -> float:
        """For how long an incarnation on another node may still act, at most, once it was superseded: seconds. What a
        door before this one confirmed is not known, but it did so before this one was there."""
        return max(self._renewed.get(agent, self._opened) + seconds - time.monotonic(), 0.0)

    async def deliver(self, request: Deliver) -> None:
        """What an agent made on another node is taken, while its lease is the present one. Raises LeaseSuperseded,
        GitError, OSError."""
        async with self.taking:
            self.check_lease(request)
            files = self.coordinator.files.of_agent(request.agent)
            await asyncio.to_thread(take_delivered, files, self.log.folder, request.bundle, request.moves)

    def stream(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return _start(self._streams, work)

    def _on_event(self, event: Event) -> None:
        self.feed.add_event(event)
        if self._awaited and isinstance(event.body, Command) and event.actor == MAIN:
            waiting = self._awaited.pop(event.body.id, None)
            if waiting is not None:
                waiting.set_result(None)

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _start(self._connections, _Connection(self, reader, writer).serve())


def _start(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(partial(_over, tasks))
    return task


def _over(tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
    tasks.discard(task)
    if not task.cancelled() and (defect := task.exception()) is not None:
        # Now, and not when the collector comes by the task.
        message = {"message": "A mistake at the door of a session.", "exception": defect}
        task.get_loop().call_exception_handler(message)


class _Connection:
    def __init__(self, door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._door, self._reader, self._writer = door, reader, writer
        self._slots = asyncio.Semaphore(PENDING)
        self._tasks: set[asyncio.Task[None]] = set()
        self._attached: dict[int, asyncio.Task[None]] = {}

    async def serve(self) -> None:
        """Until the other side is gone, or says what cannot be understood."""
        try:
            while (payload := await read_payload(self._reader)) is not None:
                await self._take(parse(payload))
                # Who does not read the answers is not asked for more.
                await self._writer.drain()
        except BadRequest as error:
            self._refuse(error.id, error)
        except FrameError as error:
            self._refuse(None, BadRequest(str(error)))
        except OSError:
            pass
        finally:
            for task in (*self._tasks, *self._attached.values()):
                task.cancel()
            self._writer.close()
            try:
                with contextlib.suppress(OSError):
                    await self._writer.wait_closed()
            finally:
                self._writer.transport.abort()

    async def _take(self, request: Request) -> None:
        match request:
            case Append(id=id):
                await self._slots.acquire()
                self._door.append(request, lambda outcome: self._answer_append(id, outcome))
            case Send(id=id) if self._door.deaf:
                self._refuse(id, Ending("The session is about to end; say it again when it has."))
            case Send(id=id):
                waiting = self._door.send(request)
                if waiting is None:
                    self._send({"id": id, "ok": True})
                    return
                await self._slots.acquire()
                _start(self._tasks, self._answer_send(id, waiting))
            case Attach():
                self._begin(request)
            case Detach(id=id):
                task = self._attached.pop(id, None)
                if task is None:
                    raise BadRequest("Nothing is attached under this id.", id)
                task.cancel()
                self._send({"id": id, "detached": True})
            case Ping(id=id):
                log = self._door.log
                self._send({"id": id, "ok": True, "session": log.session, "epoch": log.epoch, "head": log.head.seq})
            case Renew(id=id):
                try:
                    self._door.renew(request)
                except LeaseSuperseded as error:
                    self._refuse(id, error)
                else:
                    self._send({"id": id, "ok": True})
            case Deliver():
                await self._slots.acquire()
                _start(self._tasks, self._answer_deliver(request))
            case _:
                assert_never(request)

    def _begin(self, request: Attach) -> None:
        if request.id in self._attached or len(self._attached) >= PENDING:
            raise BadRequest("This id is attached already, or too many are; detach first.", request.id)
        if request.after > self._door.log.head.seq:
            raise BadRequest(
                f"The log ends at event {self._door.log.head.seq}; attach after that or before.", request.id
            )
        self._attached[request.id] = self._door.stream(self._stream(request))

    async def _stream(self, request: Attach) -> None:
        follower = self._door.feed.follow(request.after)
        head = b'{"id":%d,' % request.id
        try:
            while rests := await follower.take():
                reached("before_door_events")
                self._writer.write(b"".join([enclose(head, rest) for rest in rests]))
                await self._writer.drain()
                reached("after_door_events")
        except (LogError, FrameError) as error:
            self._refuse(request.id, error)
        except OSError:
            pass
        except Exception:
            self._refuse(request.id, LogError(_FAULT))
            raise
        finally:
            follower.close()

    async def _answer_send(self, id: int, waiting: asyncio.Future[None]) -> None:
        try:
            # The same command may be awaited on several connections, and any of them may go.
            await asyncio.shield(waiting)
            reached("before_door_answer")
            self._send({"id": id, "ok": True})
            reached("after_door_answer")
        finally:
            self._slots.release()

    async def _answer_deliver(self, request: Deliver) -> None:
        try:
            # Who asked may go; what is half taken is better whole.
            await asyncio.shield(self._door.stream(self._door.deliver(request)))
        except (LogError, GitError) as error:
            self._refuse(request.id, error)
        except OSError as error:
            self._refuse(request.id, NotStored(error.strerror or type(error).__name__))
        else:
            self._send({"id": request.id, "ok": True})
        finally:
            self._slots.release()

    def _answer_append(self, id: int, outcome: Sequence[Event] | LogError) -> None:
        self._slots.release()
        if isinstance(outcome, LogError):
            self._refuse(id, outcome)
            return
        events = b",".join([event.model_dump_json().encode() for event in outcome])
        self._write(enclose(b'{"id":%d,"events":[' % id, events, b"]}"))

    def _refuse(self, id: int | None, error: Exception) -> None:
        self._send({"id": id, "error": type(error).__name__, "text": str(error)})

    def _send(self, message: Mapping[str, object]) -> None:
        self._write(encode(message))

    def _write(self, frame: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame)
