"""The gateway: HTTP and server-sent events on a Unix socket, for frontends that import neither Ray nor DuckDB.

  GET  /status                        what the daemon is and hosts
  POST /sessions                      {"request": RunRequest, "variables": {…}}: open a session, or find it open
  GET  /sessions                      all sessions of the state folder
  GET  /sessions/ID                   {"head": seq of its last event}
  GET  /sessions/ID/events?after=SEQ  a stream: event, deltas, rested, said, failed, finished; `over` ends it
  POST /sessions/ID/commands          a command (eventlog.events.Command); answered once it is in the log
  POST /sessions/ID/stop              interrupt, and wait until the session is over
  POST /sql                           {"query": …} over all sessions
  POST /down                          stop all sessions and end the daemon

A refusal is {"kinds": [names of the error's classes], "text": one sentence}, with status 4xx or 5xx. It is the only
driver of Ray, and it listens before Ray is there."""

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from actors.daemon import abandon
from actors.desk import Desk, Entry
from actors.hosting import decode_request
from actors.pool import Pool
from actors.relay import DoorGone, ask, follow
from actors.vault import Vault
from configs.places import DaemonPlace, append_line, daemon_place, idle_limit_s, read_variables
from configs.version import VERSION
from eventlog.ids import SessionId

STOPPED, RAY_LOST = 0, 3
_STOP_S = 5.0
_HEARTBEAT_S = 15.0
"""A comment line, so that a dead client is noticed."""


class Refused(Exception):
    """A session's own sentence."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        super().__init__(text)


class Gateway:
    def __init__(self, place: DaemonPlace, memory: int, channel: socket.socket) -> None:
        self.place = place
        self.vault = Vault(memory)
        self.ray: dict[str, str] = {"state": "starting"}
        self.code: int | None = None
        self._channel = channel
        self._streams = 0
        self._busy_at = time.monotonic()
        self._ray_changed = asyncio.Event()

    async def run(self, listener: socket.socket) -> int:
        """The exit code. The supervisor starts another unless it is STOPPED."""
        self.desk = Desk(self.place, self.vault)
        config = uvicorn.Config(
            self.application(), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        self.server = uvicorn.Server(config)
        tasks = [asyncio.create_task(task) for task in (self._hear_supervisor(), self._watch_idleness())]
        self.desk.take_up()
        try:
            await self.server.serve(sockets=[listener])
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return RAY_LOST if self.code is None else self.code

    def end(self, code: int) -> None:
        self.code = code
        self.server.should_exit = True

    async def _hear_supervisor(self) -> None:
        reader, _ = await asyncio.open_connection(sock=self._channel)
        while line := await reader.readline():
            before, self.ray = self.ray, orjson.loads(line)
            self._ray_changed.set()
            self._ray_changed = asyncio.Event()
            match self.ray["state"]:
                case "up":
                    await self._join(self.ray)
                case _ if before["state"] == "up":
                    # A driver cannot change its cluster; the next gateway joins the next one.
                    self.end(RAY_LOST)
        self.end(RAY_LOST)

    async def _join(self, ray: dict[str, str]) -> None:
        from actors.head import HeadError, HeadFiles, connect

        try:
            await asyncio.to_thread(connect, ray["address"], HeadFiles(self.place.ray))
        except HeadError as error:
            append_line(self.place.log, str(error))
            self.end(RAY_LOST)
            return
        await self.desk.use(Pool(self.place.state_folder))

    async def _watch_idleness(self) -> None:
        idle_s = idle_limit_s(read_variables())
        while True:
            await asyncio.sleep(min(idle_s / 4, 30.0))
            if self.desk.entries or self._streams:
                self._busy_at = time.monotonic()
            elif time.monotonic() - self._busy_at > idle_s:
                self.end(STOPPED)

    def application(self) -> Starlette:
        routes = [
            Route("/status", self.status),
            Route("/sessions", self.host, methods=["POST"]),
            Route("/sessions", self.sessions),
            Route("/sessions/{session}", self.session),
            Route("/sessions/{session}/events", self.events),
            Route("/sessions/{session}/commands", self.command, methods=["POST"]),
            Route("/sessions/{session}/stop", self.stop, methods=["POST"]),
            Route("/sql", self.sql, methods=["POST"]),
            Route("/down", self.down, methods=["POST"]),
        ]
        return Starlette(routes=routes)

    async def status(self, request: Request) -> Response:
        self._busy_at = time.monotonic()
        hosted = {
            session: {"state": entry.state, "worker": entry.worker.name if entry.worker else None}
            for session, entry in self.desk.entries.items()
        }
        return _json({"version": VERSION, "pid": os.getpid(), "ray": self.ray, "hosted": hosted})

    async def host(self, request: Request) -> Response:
        try:
            asked = orjson.loads(await request.body())
            wanted = decode_request(orjson.dumps(asked["request"]))
        except (orjson.JSONDecodeError, ValidationError, KeyError) as error:
            return _refuse(400, "BadRequest", f"This is no request to run a session ({type(error).__name__}).")
        while (known := self.desk.entries.get(wanted.session)) is not None:
            if wanted.changes:
                text = f"Session {wanted.session} is running: stop it first, then {wanted.changes} can be chosen anew."
                return _refuse(409, "SessionRuns", text)
            if wanted.prompt is None or await self._say(known, wanted.said):
                return _json({"known": True})
        if self.ray["state"] == "failed":
            return _refuse(503, "NoRay", self.ray["text"])
        entry = self.desk.host(wanted, asked["variables"])
        await self._wait_open(entry)
        return _json({"known": False}) if entry.refusal is None else _json(entry.refusal, 409)

    async def _wait_open(self, entry: Entry) -> None:
        """Until it is open, refused, or Ray turns out not to start."""
        opened = asyncio.ensure_future(entry.wait_for("open", "over"))
        while not opened.done() and self.ray["state"] != "failed":
            changed = asyncio.ensure_future(self._ray_changed.wait())
            await asyncio.wait([opened, changed], return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
        if not opened.done():
            opened.cancel()
            assert entry.task is not None
            entry.refusal = {"kinds": ["NoRay"], "text": self.ray["text"]}
            entry.task.cancel()

    async def sessions(self, request: Request) -> Response:
        from eventlog.catalogue import list_sessions

        listed = await asyncio.to_thread(list_sessions, self.place.state_folder / "sessions")
        rows = [
            {
                "id": one.folder.name,
                "live": one.live,
                "hosted": one.folder.name in self.desk.entries,
                "summary": one.summary.model_dump(mode="json") if one.summary else None,
                "trouble": one.trouble,
            }
            for one in listed
        ]
        return _json({"sessions": rows})

    async def session(self, request: Request) -> Response:
        session = SessionId(request.path_params["session"])
        entry = self.desk.entries.get(session)
        if entry is not None:
            await self._wait_open(entry)
            with contextlib.suppress(DoorGone):
                return _json({"head": (await ask(self.place.door(session), {"op": "ping"}))["head"]})
        return _refuse(404, "NotHosted", f"Session {session} is not running.")

    async def events(self, request: Request) -> Response:
        session, after = SessionId(request.path_params["session"]), int(request.query_params.get("after", "0"))
        entry = self.desk.entries.get(session)
        if entry is None:
            return _refuse(404, "NotHosted", f"Session {session} is not running; `thalia resume {session}` goes on.")
        return StreamingResponse(self._stream(entry, after), media_type="text/event-stream")

    async def _stream(self, entry: Entry, after: int) -> AsyncIterator[bytes]:
        """Through deaths of the session's process: each event once, in order."""
        self._streams += 1
        door = self.place.door(entry.request.session)
        try:
            while True:
                await entry.wait_for("open", "over")
                if entry.state == "over":
                    yield _event("over", orjson.dumps(entry.refusal or {}))
                    return
                with contextlib.suppress(DoorGone):
                    if after < 0:
                        head = (await ask(door, {"op": "ping"}))["head"]
                        after = max(head + after, 0)
                    async for payload in follow(door, after):
                        kind, seq = _kind(payload)
                        after = seq or after
                        yield _event(kind, payload, seq)
                # Over, or dead: the worker's end says which, in some milliseconds.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await entry.wait_for("waiting", "over")
        finally:
            self._streams -= 1

    async def command(self, request: Request) -> Response:
        session = SessionId(request.path_params["session"])
        entry = self.desk.entries.get(session)
        if entry is None:
            return _refuse(404, "NotHosted", f"Session {session} is not running; `thalia resume {session}` goes on.")
        try:
            if await self._say(entry, orjson.loads(await request.body())):
                return _json({"ok": True})
        except Refused as refused:
            return _refuse(400, refused.kind, str(refused))
        return _refuse(404, "NotHosted", f"Session {session} has ended; `thalia resume {session}` goes on.")

    async def _say(self, entry: Entry, command: dict[str, Any]) -> bool:
        """Whether the command is in the log; False where the session ended before. Raises Refused."""
        while True:
            await entry.wait_for("open", "over")
            if entry.state == "over":
                return False
            try:
                door = self.place.door(entry.request.session)
                answer = await ask(door, {"op": "command", "command": command})
            except DoorGone:
                # Sent again with its id when the session is back; what was logged is not logged twice.
                await asyncio.sleep(0.02)
                continue
            if "error" in answer:
                raise Refused(answer["error"], answer["text"])
            return True

    async def stop(self, request: Request) -> Response:
        session = SessionId(request.path_params["session"])
        entry = self.desk.entries.get(session)
        if entry is None:
            return _refuse(404, "NotHosted", f"Session {session} is not running.")
        await self._stop(entry)
        return _json({"stopped": session})

    async def _stop(self, entry: Entry) -> None:
        session = entry.request.session
        try:
            async with asyncio.timeout(_STOP_S):
                while entry.state != "over":
                    command = {"kind": "interrupted", "id": os.urandom(8).hex()}
                    with contextlib.suppress(DoorGone):
                        await ask(self.place.door(session), {"op": "command", "command": command})
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.5):
                            await entry.wait_for("over")
        except TimeoutError:
            append_line(self.place.log, f"Session {session} did not end within {_STOP_S:.0f} s and was cut off.")

    async def sql(self, request: Request) -> Response:
        """In a process of its own: a query may take all the memory that it gets."""
        query = orjson.loads(await request.body())["query"]
        with TemporaryDirectory(dir=self.place.folder, prefix="sql-") as folder:
            exports = await self.desk.export_all(Path(folder))
            asked = {
                "sessions": str(self.place.state_folder / "sessions"),
                "query": query,
                "exports": {name: str(file) for name, file in exports.items()},
            }
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", "-m", "eventlog.querying"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                cwd=folder,
            )
            try:
                out, _ = await process.communicate(orjson.dumps(asked))
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()
        if process.returncode != 0:
            return _refuse(500, "QueryFailed", f"The query's process ended ({process.returncode}); ask for less.")
        return Response(out, media_type="application/json")

    async def down(self, request: Request) -> Response:
        names = sorted(self.desk.entries)
        await asyncio.gather(*(self._stop(entry) for entry in list(self.desk.entries.values())))
        await asyncio.to_thread(abandon, self.place)
        asyncio.get_running_loop().call_later(0.05, self.end, STOPPED)
        return _json({"stopped": names})


def _kind(payload: bytes) -> tuple[str, int]:
    """What a message of a door tells, and the seq of an event."""
    message: dict[str, Any] = orjson.loads(payload)
    if "event" in message:
        return "event", message["event"]["seq"]
    return next(name for name in message if name != "id"), 0


def _event(kind: str, data: bytes, seq: int = 0) -> bytes:
    number = b"id: %d\n" % seq if seq else b""
    return b"%bevent: %b\ndata: %b\n\n" % (number, kind.encode(), data)


def _json(value: object, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


def _refuse(status: int, kind: str, text: str) -> Response:
    return _json({"kinds": [kind], "text": text}, status)


def main() -> None:
    os.umask(0o077)
    state_folder, listening, memory, channel = sys.argv[1:]
    listener, supervisor = socket.socket(fileno=int(listening)), socket.socket(fileno=int(channel))
    for inherited in (int(listening), int(memory), int(channel)):
        os.set_inheritable(inherited, False)
    import uvloop

    gateway = Gateway(daemon_place(Path(state_folder)), int(memory), supervisor)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(gateway.run(listener))
    # Ray's own threads and handlers have nothing to say any more.
    os._exit(code)


if __name__ == "__main__":
    main()
