"""Run a session in the daemon and show it: what `exec`, `resume` and `attach` have in common.

The daemon works from the first moment on; what the screen needs is imported meanwhile."""

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from frontends.client import Daemon, Stream, Take

Kind = Literal["new", "resumed", "attached"]


@dataclass(frozen=True, slots=True)
class Wish:
    """A request to run a session, as JSON (actors.hosting.RunRequest), and how to show it."""

    request: Mapping[str, Any]
    format: Literal["text", "json", "stream-json"]
    attended: bool
    after: int = 0
    """The event behind which showing begins."""

    @property
    def session(self) -> str:
        return self.request["session"]

    def again(self, after: int) -> "Wish":
        """For a session that ended unseen: go on with nothing, only show the rest."""
        request = {**self.request, "kind": "attached", "prompt": None, "merge": False, "command_id": new_id()}
        return Wish(request, self.format, self.attended, after)


def new_id() -> str:
    return secrets.token_hex(8)


def begin(daemon: Daemon, wish: Wish) -> bool:
    """Whether it was hosted already. Raises DaemonRefused, DaemonUnreachable."""
    answer = daemon.insist("POST", "/sessions", {"request": wish.request, "variables": dict(daemon.variables)})
    return bool(answer["known"])


def run(daemon: Daemon, wish: Wish) -> int:
    """The exit code. Raises DaemonRefused, DaemonUnreachable, Detached."""
    daemon.start()
    while True:
        stream = Stream(daemon, wish.session, wish.after, partial(begin, daemon, wish))
        from frontends.terminal.remote import SessionGone

        try:
            return asyncio.run(_show(daemon, wish, stream))
        except SessionGone:
            wish = wish.again(stream.after)


async def _show(daemon: Daemon, wish: Wish, stream: Stream) -> int:
    from frontends.terminal.driver import ask_on_terminal
    from frontends.terminal.remote import RemoteSession, show
    from frontends.terminal.screen import Screen

    session = RemoteSession(daemon, wish.session, Screen(wish.session, wish.format))
    loop = asyncio.get_running_loop()
    stream.deliver_to(lambda kind, value: _hand_over(loop, session.take, kind, value))
    try:
        return await show(session, ask_on_terminal if wish.attended else None)
    finally:
        stream.deliver_to(None)


def _hand_over(loop: asyncio.AbstractEventLoop, take: Take, kind: str, value: dict[str, Any]) -> None:
    loop.call_soon_threadsafe(take, kind, value)
