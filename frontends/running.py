"""Run a session in the daemon and show it: what `exec`, `resume` and `attach` have in common.

The daemon works from the first moment on; what the screen needs is imported meanwhile."""

import gc
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from configs.places import encode_variables
from frontends.client import Daemon, Stream, Take
from frontends.terminal.bottom import can_redraw

if TYPE_CHECKING:
    import asyncio

_TRIES = 2
"""How often the end of a session is asked for that says nothing new."""
Kind = Literal["new", "resumed", "attached"]


@dataclass(frozen=True, slots=True)
class Wish:
    """A request to run a session, as JSON (actors.hosting.RunRequest), and how to show it."""

    request: Mapping[str, Any]
    format: Literal["text", "json", "stream-json"]
    attended: bool
    after: int | None = 0
    """The event behind which showing begins; below 0 it counts back from the last. None: what this request does."""
    agent: str | None = None
    """Whose doings are shown; None: the main agent's."""

    @property
    def session(self) -> str:
        return self.request["session"]

    def again(self, after: int) -> "Wish":
        """For a session that ended unseen: go on with nothing, only show the rest."""
        request = {**self.request, "kind": "attached", "prompt": None}
        return Wish(request, self.format, self.attended, after, self.agent)


def begin(daemon: Daemon, wish: Wish) -> dict[str, Any]:
    """`head`: the seq of the last event before; `standing`: where the session stood then.

    Raises DaemonRefused, DaemonUnreachable, StateFolderRefused."""
    if wish.request["kind"] != "attached":
        daemon.renew()
    asked = {"request": wish.request, "variables": encode_variables(daemon.variables)}
    # A long log takes its time to be opened.
    return daemon.insist("POST", "/sessions", asked, limit_s=None)


def run(daemon: Daemon, wish: Wish) -> int:
    """The exit code. Raises DaemonRefused, DaemonUnreachable, Detached, SessionGone."""
    daemon.start()
    tries = 0
    while True:
        watched = wish.format == "text" and wish.agent is None and can_redraw(sys.stdout, daemon.variables)
        stream = Stream(daemon, wish.session, wish.after, partial(begin, daemon, wish), with_past=watched)
        import asyncio

        from frontends.terminal.remote import SessionGone

        try:
            return asyncio.run(_show(daemon, wish, stream))
        except SessionGone:
            tries = 0 if stream.after > (wish.after or 0) else tries + 1
            if tries > _TRIES:
                raise
            wish = wish.again(stream.after)


async def _show(daemon: Daemon, wish: Wish, stream: Stream) -> int:
    import asyncio

    from eventlog.ids import MAIN, AgentId
    from frontends.terminal.driver import ask_on_terminal
    from frontends.terminal.remote import RemoteSession, show
    from frontends.terminal.screen import make_screen

    # What is imported stays: to look through it once more at the exit would take 30 ms.
    gc.freeze()
    screen = make_screen(wish.session, wish.format, AgentId(wish.agent or MAIN))
    session = RemoteSession(daemon, wish.session, screen)
    loop = asyncio.get_running_loop()
    stream.deliver_to(lambda kind, value: _hand_over(loop, session.take, kind, value))
    try:
        return await show(session, ask_on_terminal if wish.attended else None)
    finally:
        stream.deliver_to(None)


def _hand_over(loop: "asyncio.AbstractEventLoop", take: Take, kind: str, value: dict[str, Any]) -> None:
    loop.call_soon_threadsafe(take, kind, value)
