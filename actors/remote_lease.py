"""The lease of an incarnation that works on another node than its session: what grants it is out of sight.

Its fence (agent_lease.py) keeps others on its own node out, and knows nothing of a replacement elsewhere. So the lease
lasts only for as long as the session's door confirmed, counted from before it was asked, on a clock that also counts
sleep; the file of the fence says until when. From that moment on the node performs nothing for this incarnation, and
the process around each of its commands ends it, whatever has become of the incarnation itself."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from actors.agent_lease import AgentLease, LeaseRanOut
from actors.frames import FrameError
from actors.relay import DoorGone, ask
from eventlog.errors import LeaseSuperseded
from processes import fence, tree

_SHARES = 8
"""The door is asked so many times in the life of a lease, and an answer is waited for that long."""
_PAUSE = 0.02
"""Of a lease's life, between a try that failed and the next."""


@dataclass(frozen=True, slots=True)
class RemoteLease(AgentLease):
    door: Path = field(kw_only=True)
    """Where the session's door is reached on this node."""

    async def take(self) -> int:
        """Microseconds since boot, as everywhere here: when the lease ends."""
        end_us = await self._confirm(tree.boot_us() + self._life_us)
        await asyncio.to_thread(self.take_fence, end_us)
        return end_us

    async def keep(self, taken: int) -> NoReturn:
        end_us = taken
        while True:
            await asyncio.sleep(self.seconds / _SHARES)
            confirmed_us = await self._confirm(end_us)
            # Not having written in time is the end, whatever the reason.
            with self.told(), suppress(OSError):
                fence.extend(str(self.path), self.number, confirmed_us)
                end_us = confirmed_us

    async def _confirm(self, end_us: int) -> int:
        """When the lease ends from now on. Raises LeaseSuperseded, and LeaseRanOut where nobody confirmed it before
        its end."""
        while (now_us := tree.boot_us()) < end_us:
            with suppress(DoorGone, FrameError, TimeoutError):
                async with asyncio.timeout(min(self.seconds / _SHARES, (end_us - now_us) / 1e6)):
                    await self._ask()
                return now_us + self._life_us
            await asyncio.sleep(self.seconds * _PAUSE)
        raise LeaseRanOut(self.agent, self.seconds)

    async def _ask(self) -> None:
        """Raises LeaseSuperseded, DoorGone, FrameError."""
        answer = await ask(self.door, {"op": "renew", "agent": self.agent, "lease": self.number})
        if answer.get("error") == LeaseSuperseded.__name__:
            raise LeaseSuperseded(self.agent, self.number)
        if "error" in answer:
            raise DoorGone(answer["text"])

    @property
    def _life_us(self) -> int:
        return int(self.seconds * 1e6)
