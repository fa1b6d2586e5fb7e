"""The agents of a fan-out while it is under way: a table below all else that a session says."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from agent.roster import Roster
from eventlog.events import Event
from eventlog.ids import CallId
from eventlog.seams import Clock
from frontends.terminal.bottom import Bottom
from frontends.terminal.fan_table import table_lines

_LATE_US = 2_000_000
"""Whoever attaches is told what has been: of that not each step is drawn."""
_NOT_OURS = 2
"""Rows of the terminal: the one with the cursor, and one of what is said."""


class LiveTable:
    """Given each event, from the log's first on or from where no fan-out is under way; what came before what is to be
    shown is the past."""

    def __init__(self, bottom: Bottom, clock: Clock, tick_s: float = 1.0) -> None:
        """`tick_s`: after so long the times are drawn anew though nothing happens."""
        self._bottom, self._clock, self._tick_s = bottom, clock, tick_s
        self._roster = Roster()
        self._fan: CallId | None = None
        """The one that is shown."""

    def take_past(self, event: Event) -> None:
        self._roster.take(event)
        self._fan = self._roster.under_way

    def take(self, event: Event) -> list[str]:
        """The lines that stay: all agents as they ended, where their fan-out ends with this event."""
        self._roster.take(event)
        before, self._fan = self._fan, self._roster.under_way
        now_us = self._clock.now_us()
        if before not in (None, self._fan):
            self._bottom.lines = ()
            return table_lines(self._roster.lines(before), self._bottom.size[0], None, now_us)
        if self._bottom.shown or now_us - event.ts_us < _LATE_US:
            self._update(now_us)
        return []

    def write(self, text: str) -> None:
        """What is to stand above the table, or just where the cursor is while there is none."""
        self._bottom.write(text)

    def draw(self) -> None:
        """What `take` has changed of it."""
        self._bottom.draw()

    @asynccontextmanager
    async def ticking(self) -> AsyncIterator[None]:
        """Meanwhile the times go on, and the table follows the size of the terminal."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGWINCH, self._redraw)
        loop.add_signal_handler(signal.SIGCONT, self._begin_anew)
        ticking = asyncio.create_task(self._tick())
        try:
            yield
        finally:
            for number in (signal.SIGWINCH, signal.SIGCONT):
                loop.remove_signal_handler(number)
            ticking.cancel()
            with suppress(asyncio.CancelledError):
                await ticking

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(self._tick_s)
            self._redraw()

    def _redraw(self) -> None:
        self._update(self._clock.now_us())
        self._bottom.draw()

    def _begin_anew(self) -> None:
        """It was stopped for a while, and the shell wrote where the table was."""
        self._bottom.forget()
        self._redraw()

    def _update(self, now_us: int) -> None:
        if self._fan is not None:
            width, height = self._bottom.size
            agents = self._roster.lines(self._fan)
            self._bottom.lines = table_lines(agents, width, height - _NOT_OURS, now_us)
