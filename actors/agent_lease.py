"""The lease of one incarnation of an agent: what lets it act, and what stops it when it was replaced.

A process that was stopped may wake up behind any check of a clock. So nothing rests on one: the log refuses its appends
(eventlog/leases.py), and its own node refuses its effects (processes/fence.py): edits, snapshots, restores and refs in
LocalWorld, the start of each command in the command's own process. Time decides only when commands end that nobody
looks after: the process around each ends it when the lease is no longer renewed.

Around a loop over a RemoteLog:

    lease = AgentLease(agent, number, lease_file(folder, agent))      number: of the LeaseGranted that the log holds
    world = LocalWorld(..., performing=lease.performing)              and CommandRoom(..., lease=lease.of_commands)
    state = await lease.hold(loop.run)                                raises LeaseSuperseded, LeaseRanOut

Replacing: append the next LeaseGranted, and begin another process with its number. It waits for nobody: `hold` takes
the fence before the loop looks at what was left open, and what still runs is found by its call folder and waited for.
That holds on the node of the worktree; elsewhere an agent has another worktree, and waits until the lease has run
out (remote_lease.py)."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, ParamSpec, TypeVar
from urllib.parse import quote

from actors.remote_log import PATIENCE_S
from configs.crash import reached
from eventlog.errors import LeaseSuperseded, LogError
from eventlog.ids import AgentId
from processes import fence
from processes.commands import Lease

LEASE_S = 2 * PATIENCE_S
"""Longer than a coordinator may be away: its recovery ends no command."""
P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class LeaseRanOut(LogError):
    def __init__(self, agent: str, seconds: float) -> None:
        super().__init__(
            f"Agent {agent} could not renew its lease for {seconds:g} s, so its commands were ended; this incarnation "
            "has to stop."
        )


def fenced(performing: Callable[[], AbstractContextManager[object]], call: Callable[P, T]) -> Callable[P, T]:
    """`call` within `performing`, which raises where it must not be carried out any more."""

    def within(*args: P.args, **kwargs: P.kwargs) -> T:
        with performing():
            return call(*args, **kwargs)

    return within


def lease_file(session_folder: Path, agent: AgentId) -> Path:
    return session_folder / "leases" / f"{quote(agent, safe='')}.lease"


@dataclass(frozen=True, slots=True)
class AgentLease:
    agent: AgentId
    number: int
    path: Path
    """One file for all incarnations of the agent, on the node of its worktree."""
    seconds: float = LEASE_S

    @property
    def of_commands(self) -> Lease:
        return Lease(self.path, self.seconds, self.number)

    @contextmanager
    def performing(self) -> Iterator[None]:
        """Raises LeaseSuperseded, LeaseRanOut; then nothing was performed, and nobody takes over while something is."""
        with self.told(), fence.performing(str(self.path), self.number):
            yield

    async def hold(self, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Take over from the incarnation before, then do the work for as long as nobody takes over from this one.

        Raises LeaseSuperseded, LeaseRanOut, fence.CannotTake, and what the work raises."""
        taken = await self.take()
        working, keeping = asyncio.ensure_future(work()), asyncio.create_task(self.keep(taken))
        try:
            await asyncio.wait({working, keeping}, return_when=asyncio.FIRST_COMPLETED)
            return working.result() if working.done() else keeping.result()
        finally:
            for task in (working, keeping):
                task.cancel()
            await asyncio.gather(working, keeping, return_exceptions=True)

    async def take(self) -> int:
        """What `keep` counts from. Raises what `hold` does."""
        taken = time.monotonic_ns()
        await asyncio.to_thread(self.take_fence)
        return taken

    def take_fence(self, end_us: int = 0) -> None:
        """Blocks."""
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        reached("before_fence")
        with self.told():
            fence.take(str(self.path), self.number, end_us=end_us)
        reached("after_fence")

    async def keep(self, taken: int) -> NoReturn:
        """Renew it. A failure to write is tried again; not having written in time is the end, whatever the reason."""
        renewed, life = taken, int(self.seconds * 1e9)
        while True:
            await asyncio.sleep(self.seconds / 4)
            now = time.monotonic_ns()
            with self.told(), contextlib.suppress(OSError):
                fence.renew(str(self.path), self.number)
                if now - renewed <= life:
                    renewed = now
            if now - renewed > life:
                raise LeaseRanOut(self.agent, self.seconds)

    @contextmanager
    def told(self) -> Iterator[None]:
        """What the fence says, as errors of the log."""
        try:
            yield
        except fence.RanOut:
            raise LeaseRanOut(self.agent, self.seconds) from None
        except fence.Superseded:
            raise LeaseSuperseded(self.agent, self.number) from None
