"""Whether another process still moves, as one that moves itself can tell.

A process that is stopped or hangs keeps its sockets open, and whoever asks it something waits for ever. What counts as
its silence is the waiting alone, in pieces, and of them only those that ended on time: a machine that was asleep, or
is so busy that the one who waits is late too, says nothing about the one who is waited for."""

import asyncio
import time
from collections.abc import Awaitable, Callable

_TICKS = 10
_LATE = 2.0
"""A piece of waiting that took so many times as long as it should was not on time."""


async def wait_silent(ping: Callable[[], Awaitable[object]], limit_s: float, first_s: float = 0.0) -> None:
    """Returns once `ping`, called again and again, waits longer than `limit_s`; the first time `first_s`, where that
    is longer. As long as something comes back, this goes on; what `ping` raises ends it."""
    tick_s, patience_s = limit_s / _TICKS, max(first_s, limit_s)
    while await _is_answered(ping, tick_s, round(patience_s / tick_s)):
        patience_s = limit_s
        await asyncio.sleep(tick_s)


async def _is_answered(ping: Callable[[], Awaitable[object]], tick_s: float, ticks: int) -> bool:
    asking = asyncio.ensure_future(ping())
    try:
        while ticks > 0:
            began = time.monotonic()
            done, _ = await asyncio.wait([asking], timeout=tick_s)
            if done:
                await asking
                return True
            ticks -= time.monotonic() - began < _LATE * tick_s
        return False
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
