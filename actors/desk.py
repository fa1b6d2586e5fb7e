"""Which sessions the daemon hosts, and who hosts each: kept going until they are over, whatever dies meanwhile.

What is to go on stands in one file a session, so that the next gateway, or the next daemon, knows it too."""

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import orjson
from pydantic import ValidationError

from actors.detached import WorkerHung, WorkerLost
from actors.heartbeat import wait_silent
from actors.hosting import RunRequest, decode_request, encode_request
from actors.pool import Pool, Worker
from actors.refusals import refusal_of
from actors.relay import DoorGone, ask
from actors.vault import Vault
from configs.crash import reached
from configs.places import MARK, RUN_MARK, WARM_WORKERS, DaemonPlace, append_line
from eventlog.blobs import write_durably
from eventlog.checking import LOCK
from eventlog.ids import SessionId
from eventlog.lock import read_holder
from eventlog.taking_over import end_writer
from processes.tree import carriers, end_carriers

State = Literal["waiting", "open", "over"]
MANY_DEATHS = 5
"""A session whose processes die so often without having been steady for a while is left to a person."""
_STEADY_S = 60.0
_DOOR_S = 5.0
_END_S = 5.0


class NoRay(Exception):
    """One sentence: Ray does not start, so nobody can host the session."""


@dataclass(slots=True)
class Entry:
    request: RunRequest
    state: State = "waiting"
    head: int = 0
    """seq of the last event before it was opened this time."""
    standing: dict[str, Any] | None = None
    """Where it stood then."""
    refusal: dict[str, Any] | None = None
    """Why it is over, where it did not end by itself."""
    worker: Worker | None = None
    task: "asyncio.Task[None] | None" = None
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Replaced and set at each change of `state`."""

    def turn(self, state: State) -> None:
        self.state = state
        self._changed.set()
        self._changed = asyncio.Event()

    async def wait_for(self, *states: State) -> None:
        while self.state not in states:
            await self._changed.wait()


class Desk:
    def __init__(self, place: DaemonPlace, vault: Vault, hung_s: float) -> None:
        """`hung_s`: how long a session's process may say nothing until another takes its place."""
        self.entries: dict[SessionId, Entry] = {}
        self.ray: dict[str, str] = {"state": "starting"}
        self._ray_changed = asyncio.Event()
        self._place, self._vault, self._hung_s = place, vault, hung_s
        self._pool: asyncio.Future[Pool] = asyncio.get_running_loop().create_future()
        self._found: dict[str, Worker] = {}

    def hear(self, ray: dict[str, str]) -> None:
        """What the supervisor says of Ray."""
        self.ray = ray
        self._ray_changed.set()
        self._ray_changed = asyncio.Event()

    async def use(self, pool: Pool) -> None:
        """Ray is there: who waits for a worker gets one, and who has one is known again."""
        self._found = await pool.find()
        self._pool.set_result(pool)
        pool.fill(WARM_WORKERS)

    @property
    def joined(self) -> bool:
        """Whether this gateway is a driver of Ray already."""
        return self._pool.done()

    def take_up(self) -> None:
        """What an earlier gateway hosted."""
        for path in sorted(self._place.hosted.glob("*.json")):
            try:
                request = decode_request(path.read_bytes())
            except (OSError, ValidationError):
                append_line(
                    self._place.log, f"{path.name} cannot be read; `thalia resume {path.stem}` goes on with it."
                )
                path.unlink(missing_ok=True)
                continue
            self._begin(request)

    def host(self, request: RunRequest, variables: Mapping[str, str]) -> Entry:
        """A session that is hosted already stays with the one that hosts it."""
        entry = self.entries.get(request.session)
        if entry is None:
            reached("before_request")
            # First, so that whoever finds the request does not run it with the variables of somebody else.
            self._vault.keep(request.session, variables)
            reached("after_variables")
            write_durably(self._place.request(request.session), encode_request(request))
            reached("after_request")
            entry = self._begin(request)
        return entry

    async def settle(self, entry: Entry) -> None:
        """Until it is open or over. Raises NoRay where that cannot come about."""
        settled = asyncio.ensure_future(entry.wait_for("open", "over"))
        try:
            while not settled.done():
                if self.ray["state"] == "failed":
                    raise NoRay(self.ray["text"])
                changed = asyncio.ensure_future(self._ray_changed.wait())
                await asyncio.wait([settled, changed], return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
        finally:
            settled.cancel()

    async def take_over(self, session: SessionId) -> None:
        """End the process that writes the session, whoever began it. One that is hosted goes on in another process.
        Raises CannotTakeOver."""
        ended = await asyncio.to_thread(end_writer, self._place.state_folder / "sessions" / session)
        if ended is not None:
            append_line(self._place.log, f"Process {ended.pid}, which wrote session {session}, was ended on demand.")

    async def cut(self, entry: Entry, kind: str, text: str) -> None:
        """End a session that does not end by itself: its process, its commands; its log says the rest."""
        reached("before_cut")
        entry.refusal = {"kinds": [kind], "text": text}
        if entry.task is not None:
            entry.task.cancel()
            await asyncio.wait([entry.task])
        if entry.worker is not None and self._pool.done():
            await self._pool.result().drop(entry.worker)
        await asyncio.to_thread(end_carriers, RUN_MARK, entry.request.session, _END_S)
        reached("after_cut")

    async def export_all(self, folder: Path) -> dict[str, Path]:
        """The logs of the sessions that run, as Parquet, by id. One whose process is being replaced is left out."""
        exports: dict[str, Path] = {}
        for session, entry in list(self.entries.items()):
            if entry.state == "open" and entry.worker is not None:
                with contextlib.suppress(WorkerLost):
                    if await entry.worker.export(folder / session):
                        exports[session] = folder / session
        return exports

    def _begin(self, request: RunRequest) -> Entry:
        entry = self.entries[request.session] = Entry(request)
        entry.task = asyncio.get_running_loop().create_task(self._keep(entry))
        return entry

    async def _keep(self, entry: Entry) -> None:
        session = entry.request.session
        try:
            await self._keep_going(entry)
        except asyncio.CancelledError:
            if entry.refusal is None:
                # Only this gateway ends; the session goes on, and the next one has to know it.
                raise
        reached("before_forget")
        self._place.request(session).unlink(missing_ok=True)
        self._vault.forget(session)
        reached("after_forget")
        self.entries.pop(session, None)
        entry.turn("over")

    async def _keep_going(self, entry: Entry) -> None:
        session, deaths = entry.request.session, 0
        loop = asyncio.get_running_loop()
        if await self._answers(session):
            # Hosted since before this gateway; who hosts it is known once Ray is.
            entry.turn("open")
        while deaths < MANY_DEATHS:
            pool = await asyncio.shield(self._pool)
            began, entry.worker = loop.time(), self._found.pop(session, None)
            try:
                entry.worker = entry.worker or await pool.take()
                await self._see_through(entry, entry.worker)
                reached("before_give_back")
                await pool.give_back(entry.worker)
                return
            except Exception as error:  # a session is given up for its own reasons only, after some tries
                why = str(error) if isinstance(error, WorkerLost) else refusal_of(error, self._place.log)["kinds"]
                append_line(self._place.log, f"The process of session {session} was lost ({why}).")
                entry.turn("waiting")
                if entry.worker is not None:
                    await pool.replace(entry.worker, error)
                deaths = 1 if loop.time() - began > _STEADY_S else deaths + 1
        text = f"The process of session {session} died {deaths} times in a row; see {self._place.log}."
        entry.refusal = {"kinds": ["SessionDied"], "text": text}

    async def _see_through(self, entry: Entry, worker: Worker) -> None:
        """Until the session is over. Raises WorkerLost; WorkerHung where its process stays silent for too long."""
        session = entry.request.session
        hosting = asyncio.ensure_future(self._host(entry, worker))
        silent = asyncio.ensure_future(wait_silent(lambda: self._ping(session, worker), self._hung_s))
        try:
            await asyncio.wait([hosting, silent], return_when=asyncio.FIRST_COMPLETED)
            if not hosting.done():
                await silent
                raise WorkerHung(f"no answer in {self._hung_s:g} s")
            await hosting
        finally:
            for task in (hosting, silent):
                task.cancel()
            await asyncio.gather(hosting, silent, return_exceptions=True)

    async def _host(self, entry: Entry, worker: Worker) -> None:
        if await self._open(entry, worker):
            await worker.wait_over(entry.request.session)

    async def _ping(self, session: str, worker: Worker) -> None:
        """Waits for an answer of the loop in which the session runs."""
        try:
            await ask(self._place.door(session), {"op": "ping"})
        except DoorGone:
            # It is just being opened or closed; and of a death the call that hosts it tells.
            with contextlib.suppress(WorkerLost):
                await worker.describe(None)

    async def _open(self, entry: Entry, worker: Worker) -> bool:
        """False where it was refused. Raises WorkerLost."""
        session = entry.request.session
        variables = orjson.dumps(dict(self._vault.variables_of(session)))
        reached("before_give")
        answer = await worker.host(encode_request(entry.request), variables)
        reached("after_give")
        if "kinds" in answer:
            if answer["kinds"][0] == "LogBusy" and await asyncio.to_thread(self._end_stray, session):
                raise WorkerLost("another process of this daemon had its log")
            entry.refusal = answer
            return False
        entry.head, entry.standing = answer["head"], answer["standing"]
        entry.turn("open")
        return True

    def _end_stray(self, session: str) -> bool:
        """End a worker that nobody counts any more and that still has the session's log: it hung when this gateway
        looked for workers. Whether there was one. Raises CannotTakeOver."""
        folder = self._place.state_folder / "sessions" / session
        holder = read_holder(folder / LOCK)
        if holder is None or holder.pid not in carriers(MARK, str(self._place.folder)):
            return False
        return end_writer(folder) is not None

    async def _answers(self, session: str) -> bool:
        with contextlib.suppress(DoorGone, TimeoutError):
            async with asyncio.timeout(_DOOR_S):
                await ask(self._place.door(session), {"op": "ping"})
            return True
        return False
