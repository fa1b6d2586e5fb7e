"""What the gateway answers.

  GET  /status?nodes=1                what the daemon is and hosts; on demand its nodes, actors.membership.Member each
  POST /sessions                      {"request": RunRequest, "variables": {…}}: open a session, or speak to one that is
                                      open; {"head": seq of the last event before, "standing": then or null}
  GET  /sessions                      all sessions of the state folder
  GET  /sessions/ID                   {"head": seq of its last event}
  GET  /sessions/ID/events?after=SEQ  a stream of event, deltas, standing, rested, said, failed, finished, and at last
                                      `over`, with a refusal where it did not end by itself; SEQ below 0 counts back
  POST /sessions/ID/commands          a command (eventlog.events.Command); answered once it is in the log
  POST /sessions/ID/stop              interrupt, and wait until the session is over; one that does not end is cut off
  POST /sql                           {"query": …} over all sessions
  POST /down                          stop all sessions and end the daemon; {"idle": PID}: only the gateway of this
                                      pid, and only if it hosts nothing

A refusal is {"kinds": [names of the error's classes], "text": one sentence}, with status 4xx or 5xx."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import orjson
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from actors.daemon import abandon
from actors.desk import Desk, Entry, NoRay
from actors.hosting import RunRequest, decode_request
from actors.membership import as_rows, list_members
from actors.relay import DoorGone, ask, follow
from configs import crash
from configs.crash import reached
from configs.places import DaemonPlace
from configs.version import VERSION, new_command_name
from eventlog.errors import LogError
from eventlog.ids import SessionId
from eventlog.seams import SystemClock

_STOP_S = 8.0
_AGAIN_S = 0.02


class Refused(Exception):
    """One sentence, and the name of what it is."""

    def __init__(self, status: int, kind: str, text: str) -> None:
        self.status, self.kind = status, kind
        super().__init__(text)


class Answers:
    def __init__(self, place: DaemonPlace, desk: Desk, end: Callable[[], None]) -> None:
        self.asked_at = time.monotonic()
        self.busy = 0
        """Streams and queries under way."""
        self._place, self._desk, self._end = place, desk, end

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
        return Starlette(routes=routes, exception_handlers={Refused: _answer_refusal})

    async def status(self, request: Request) -> Response:
        self.asked_at = time.monotonic()
        hosted = {
            session: {"state": entry.state, "worker": entry.worker.name if entry.worker else None}
            for session, entry in self._desk.entries.items()
        }
        found = {"version": VERSION, "pid": os.getpid(), "ray": self._desk.ray, "hosted": hosted}
        return _json(found | ({"nodes": await self._nodes()} if "nodes" in request.query_params else {}))

    async def _nodes(self) -> list[dict[str, Any]]:
        """None before Ray is there. Raises Refused."""
        if not self._desk.joined or self._desk.ray["state"] != "up":
            return []
        from ray.exceptions import RayError

        try:
            return as_rows(await asyncio.to_thread(list_members, SystemClock().now_us()))
        except RayError as error:
            raise Refused(503, "NoRay", f"Ray's head does not answer ({type(error).__name__}); ask again.") from error

    async def host(self, request: Request) -> Response:
        asked = await _body(request)
        try:
            wanted, variables = decode_request(orjson.dumps(asked["request"])), asked["variables"]
        except (ValidationError, KeyError, TypeError) as error:
            raise Refused(
                400, "BadRequest", f"This is no request to run a session ({type(error).__name__})."
            ) from error
        if wanted.options.take_over:
            wanted = await self._take_over(wanted)
        while (known := self._desk.entries.get(wanted.session)) is not None:
            opened = await self._speak(known, wanted)
            if opened is not None:
                return _json(opened)
        if self._desk.ray["state"] == "failed":
            raise Refused(503, "NoRay", self._desk.ray["text"])
        entry = self._desk.host(wanted, variables)
        try:
            await self._desk.settle(entry)
        except NoRay as error:
            # Whoever asked runs it elsewhere.
            await self._desk.cut(entry, "NoRay", str(error))
        reached("before_host_answer")
        if entry.refusal is not None:
            return _json(entry.refusal, 409)
        return _json(_opened(entry), then="after_host_answer")

    async def _take_over(self, wanted: RunRequest) -> RunRequest:
        """The same request without it: whoever hosts the session again some time ends nobody. Raises Refused."""
        known = self._desk.entries.get(wanted.session)
        if known is None or not (wanted.changes or wanted.command_id == known.request.command_id):
            try:
                await self._desk.take_over(wanted.session)
            except LogError as error:
                raise Refused(409, type(error).__name__, str(error)) from error
        return replace(wanted, options=replace(wanted.options, take_over=False))

    async def _speak(self, entry: Entry, wanted: RunRequest) -> dict[str, Any] | None:
        """To a session that is hosted: the answer; None where it ended before. Raises Refused."""
        if wanted.command_id == entry.request.command_id:
            # The same request once more: its answer was lost.
            await self._settle(entry)
            return _opened(entry) if entry.refusal is None else None
        if wanted.changes:
            text = f"Session {wanted.session} is running: stop it first, then {wanted.changes} can be chosen anew."
            raise Refused(409, "SessionRuns", text)
        await self._settle(entry)
        with contextlib.suppress(DoorGone):
            head = await self._head(entry)
            if wanted.prompt is None or await self._say(entry, wanted.said):
                return {"head": head, "standing": None}
        await asyncio.sleep(_AGAIN_S)
        return None

    async def _settle(self, entry: Entry) -> None:
        """Raises Refused. The session stays hosted: Ray may still come."""
        try:
            await self._desk.settle(entry)
        except NoRay as error:
            raise Refused(503, "NoRay", str(error)) from error

    async def _head(self, entry: Entry) -> int:
        """Raises DoorGone."""
        return (await ask(self._place.door(entry.request.session), {"op": "ping"}))["head"]

    async def sessions(self, request: Request) -> Response:
        from eventlog.catalogue import list_sessions

        listed = await asyncio.to_thread(list_sessions, self._place.state_folder / "sessions")
        rows = [
            {
                "id": one.folder.name,
                "live": one.live,
                "summary": one.summary.model_dump(mode="json") if one.summary else None,
                "trouble": one.trouble,
            }
            for one in listed
        ]
        return _json({"sessions": rows})

    def _entry(self, request: Request) -> Entry:
        """Raises Refused."""
        session = SessionId(request.path_params["session"])
        entry = self._desk.entries.get(session)
        if entry is None:
            raise Refused(404, "NotHosted", f"Session {session} is not running; `thalia resume {session}` goes on.")
        return entry

    async def session(self, request: Request) -> Response:
        entry = self._entry(request)
        try:
            return _json({"head": await self._head(entry)})
        except DoorGone as error:
            text = f"Session {entry.request.session} is just being opened or closed; ask again."
            raise Refused(404, "NotHosted", text) from error

    async def events(self, request: Request) -> Response:
        entry = self._entry(request)
        try:
            after = int(request.query_params.get("after", "0"))
        except ValueError as error:
            raise Refused(400, "BadRequest", "`after` is the number of an event.") from error
        return StreamingResponse(self._stream(entry, after), media_type="text/event-stream")

    async def _stream(self, entry: Entry, after: int) -> AsyncIterator[bytes]:
        """Through deaths of the session's process: each event once, in order."""
        self.busy += 1
        try:
            while True:
                try:
                    await self._desk.settle(entry)
                except NoRay as error:
                    yield _event("over", orjson.dumps({"kinds": ["NoRay"], "text": str(error)}))
                    return
                if entry.state == "over":
                    yield _event("over", orjson.dumps(entry.refusal or {}))
                    return
                with contextlib.suppress(DoorGone):
                    if after < 0:
                        after = max(await self._head(entry) + after, 0)
                    async for payload in follow(self._place.door(entry.request.session), after):
                        kind, seq = _kind(payload)
                        after = seq or after
                        reached("before_stream")
                        yield _event(kind, payload, seq)
                        reached("after_stream")
                        if kind == "error":
                            return
                # Over, or dead: the worker's end says which, in some milliseconds.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await entry.wait_for("waiting", "over")
        finally:
            self.busy -= 1

    async def command(self, request: Request) -> Response:
        entry, command = self._entry(request), await _body(request)
        if await self._say(entry, command):
            reached("before_command_answer")
            return _json({"ok": True}, then="after_command_answer")
        session = entry.request.session
        raise Refused(404, "NotHosted", f"Session {session} has ended; `thalia resume {session}` goes on.")

    async def _say(self, entry: Entry, command: dict[str, Any]) -> bool:
        """Whether the command is in the log; False where the session ended before. Raises Refused."""
        while True:
            await self._settle(entry)
            if entry.state == "over":
                return False
            try:
                reached("before_say")
                answer = await ask(self._place.door(entry.request.session), {"op": "command", "command": command})
                reached("after_say")
            except DoorGone:
                # Sent again with its id when the session is back; what was logged is not logged twice.
                await asyncio.sleep(_AGAIN_S)
                continue
            if answer.get("error") == "Ending":
                await entry.wait_for("waiting", "over")
            elif "error" in answer:
                raise Refused(400, answer["error"], answer["text"])
            else:
                return True

    async def stop(self, request: Request) -> Response:
        entry = self._entry(request)
        return _json({"stopped": entry.request.session, "cut": not await self._stop(entry)})

    async def _stop(self, entry: Entry) -> bool:
        """Whether it ended by itself."""
        reached("before_stop")
        session = entry.request.session
        command = {"kind": "interrupted", "id": new_command_name()}
        telling = asyncio.create_task(self._say(entry, command))
        try:
            async with asyncio.timeout(_STOP_S):
                await entry.wait_for("over")
            return True
        except TimeoutError:
            text = f"Session {session} was cut off, since it did not end; `thalia resume {session}` settles it."
            await self._desk.cut(entry, "CutOff", text)
            return False
        finally:
            telling.cancel()
            await asyncio.gather(telling, return_exceptions=True)
            reached("after_stop")

    async def sql(self, request: Request) -> Response:
        """In a process of its own: a query may take all the memory that it gets, and ends with who asked for it."""
        query = (await _body(request)).get("query")
        if not isinstance(query, str):
            raise Refused(400, "BadRequest", "`query` is one SELECT.")
        self.busy += 1
        try:
            running = asyncio.create_task(self._run_query(query))
            gone = asyncio.create_task(_wait_gone(request))
            await asyncio.wait([running, gone], return_when=asyncio.FIRST_COMPLETED)
            gone.cancel()
            if not running.done():
                running.cancel()
                await asyncio.wait([running])
                return _json({})
            return Response(running.result(), media_type="application/json")
        finally:
            self.busy -= 1

    async def _run_query(self, query: str) -> bytes:
        """Raises Refused."""
        with TemporaryDirectory(dir=self._place.folder, prefix="sql-") as folder:
            exports = await self._desk.export_all(Path(folder))
            asked = {
                "sessions": str(self._place.state_folder / "sessions"),
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
            raise Refused(500, "QueryFailed", f"The query's process ended ({process.returncode}); ask for less.")
        return out

    async def down(self, request: Request) -> Response:
        idle = orjson.loads(await request.body() or b"{}").get("idle")
        if idle is not None and (idle != os.getpid() or self._desk.entries):
            raise Refused(409, "NotIdle", "The daemon is in use.")
        names = sorted(self._desk.entries)
        await asyncio.gather(*(self._stop(entry) for entry in list(self._desk.entries.values())))
        reached("before_abandon")
        await asyncio.to_thread(abandon, self._place)
        reached("after_abandon")
        asyncio.get_running_loop().call_later(0.05, self._end)
        reached("before_down_answer")
        return _json({"stopped": names}, then="after_down_answer")


def _opened(entry: Entry) -> dict[str, Any]:
    return {"head": entry.head, "standing": entry.standing}


async def _body(request: Request) -> dict[str, Any]:
    """Raises Refused."""
    try:
        value = orjson.loads(await request.body())
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise Refused(400, "BadRequest", "The body is no JSON object.")
    return value


async def _wait_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _kind(payload: bytes) -> tuple[str, int]:
    """What a message of a door tells, and the seq of an event."""
    message: dict[str, Any] = orjson.loads(payload)
    if "event" in message:
        return "event", message["event"]["seq"]
    return next(name for name in message if name != "id"), 0


def _event(kind: str, data: bytes, seq: int = 0) -> bytes:
    number = b"id: %d\n" % seq if seq else b""
    return b"%bevent: %b\ndata: %b\n\n" % (number, kind.encode(), data)


def _json(value: object, status: int = 200, then: str | None = None) -> Response:
    """`then` is the crash point behind the answer."""
    sent = BackgroundTask(_reached, then) if crash.ACTIVE and then is not None else None
    return Response(orjson.dumps(value), status, media_type="application/json", background=sent)


async def _reached(point: str) -> None:
    reached(point)


async def _answer_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)
    return _json({"kinds": [error.kind], "text": str(error)}, error.status)
