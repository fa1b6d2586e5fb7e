"""The gateway: HTTP and server-sent events on a Unix socket, for frontends that import neither Ray nor DuckDB.

It is the only driver of Ray, and it listens before Ray is there. What it answers stands in actors/answers.py."""

import asyncio
import os
import socket
import sys
import time
from pathlib import Path

import orjson
import uvicorn

from actors.answers import Answers
from actors.daemon import RAY_LOST, STOPPED
from actors.desk import Desk
from actors.pool import Pool
from actors.vault import Vault
from configs.crash import reached
from configs.places import DaemonPlace, append_line, daemon_place, hung_limit_s, idle_limit_s, read_variables

FAILED = 4
"""Exit code, beside those of actors.daemon: Ray is there, and this gateway could not use it."""


class Gateway:
    def __init__(self, place: DaemonPlace, memory: int, channel: socket.socket) -> None:
        self.place = place
        self.hung_s = hung_limit_s(read_variables())
        self.desk = Desk(place, Vault(memory), self.hung_s)
        self.answers = Answers(place, self.desk, lambda: self.end(STOPPED))
        self.code = RAY_LOST
        self._channel = channel
        self._ended = asyncio.Event()

    async def run(self, listener: socket.socket) -> int:
        """The exit code. The supervisor starts another gateway unless it is STOPPED."""
        config = uvicorn.Config(
            self.answers.application(), log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        tasks = [asyncio.create_task(task) for task in (self._hear_supervisor(), self._watch_idleness())]
        for task in tasks:
            task.add_done_callback(self._lost)
        reached("before_take_up")
        self.desk.take_up()
        reached("after_take_up")
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        ended = asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait([serving, ended], return_when=asyncio.FIRST_COMPLETED)
            server.should_exit = True
            # Whoever waits for an answer asks the next gateway, and gets it sooner than this one's streams end.
            server.force_exit = self.code == RAY_LOST
            await serving
        finally:
            for task in (*tasks, ended):
                task.cancel()
            await asyncio.wait([*tasks, ended])
        return self.code

    def end(self, code: int) -> None:
        self.code = code
        self._ended.set()

    def _lost(self, task: "asyncio.Task[None]") -> None:
        """Without what these tasks do it would only look as if it worked; the next gateway may fare better."""
        if not task.cancelled() and (error := task.exception()) is not None:
            append_line(self.place.log, f"The gateway failed ({type(error).__name__}) and is replaced.")
            self.end(FAILED)

    async def _hear_supervisor(self) -> None:
        reader, writer = await asyncio.open_connection(sock=self._channel)
        self._beating = asyncio.create_task(self._beat(writer))
        while line := await reader.readline():
            before = self.desk.ray
            self.desk.hear(orjson.loads(line))
            match self.desk.ray["state"]:
                case "up":
                    # Beside this: it takes long to find out that a Ray which just died does not answer.
                    self._joining = asyncio.create_task(self._join(self.desk.ray))
                    self._joining.add_done_callback(self._lost)
                case _ if before["state"] == "up":
                    # A driver cannot change its cluster; the next gateway joins the next one.
                    break
        self.end(RAY_LOST)

    async def _beat(self, supervisor: asyncio.StreamWriter) -> None:
        """By this the supervisor knows that this loop moves."""
        while True:
            supervisor.write(b".")
            await asyncio.sleep(self.hung_s / 10)

    async def _join(self, ray: dict[str, str]) -> None:
        from actors.head import NAMESPACE, connect
        from actors.membership import announce
        from actors.ray_command import HeadFiles

        reached("before_join")
        # On a head that many use each daemon has its own, which its next gateway finds again.
        own = f"{NAMESPACE}-{socket.gethostname()}-{self.place.folder.name}"
        mode = ray.get("mode", "alone")
        namespace, clustered = own if mode == "node" else NAMESPACE, mode != "alone"
        await asyncio.to_thread(connect, ray["address"], HeadFiles(self.place.ray), namespace, clustered)
        if clustered:
            await asyncio.to_thread(announce)
        await self.desk.use(Pool(self.place.state_folder, self.hung_s))
        reached("after_join")

    async def _watch_idleness(self) -> None:
        idle_s = idle_limit_s(read_variables())
        while True:
            await asyncio.sleep(min(idle_s / 4, 30.0))
            # A head that ended would end the nodes with it.
            if self.desk.entries or self.answers.busy or "cluster" in self.desk.ray:
                self.answers.asked_at = time.monotonic()
            elif time.monotonic() - self.answers.asked_at > idle_s:
                self.end(STOPPED)


def main() -> None:
    os.umask(0o077)
    state_folder, listening, memory, channel = sys.argv[1:]
    listener, supervisor = socket.socket(fileno=int(listening)), socket.socket(fileno=int(channel))
    for inherited in (int(listening), int(memory), int(channel)):
        os.set_inheritable(inherited, False)
    import uvloop

    async def run() -> None:
        code = await Gateway(daemon_place(Path(state_folder)), int(memory), supervisor).run(listener)
        # Not behind the runner: threads that still wait for Ray, and its own handlers, have nothing to say any more.
        os._exit(code)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


if __name__ == "__main__":
    main()
