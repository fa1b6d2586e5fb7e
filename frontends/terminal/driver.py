"""Drive one session from a terminal: interrupt on Ctrl-C, put its questions to the person, wait for its end."""

import asyncio
import contextlib
import secrets
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Protocol

from agent.state import State
from eventlog.effects import AskUser
from eventlog.events import Approved, Command, Denied
from eventlog.ids import CallId, CommandId
from frontends.terminal.screen import Screen

Answer = Callable[[AskUser], tuple[bool, str]]
"""Puts a question to a person: (yes, the reason for a no)."""


class Session(Protocol):
    @property
    def state(self) -> State: ...
    def interrupt(self, command_id: CommandId) -> None: ...
    async def say(self, *commands: Command) -> State: ...


class Abandoned(Exception):
    """Ctrl-C a second time: the session is left as it is, to be resumed."""


async def drive(session: Session, go: Callable[[], Awaitable[State]], screen: Screen, answer: Answer) -> State:
    """Until nothing moves without a person who is not there. Raises Abandoned, LogError."""
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(go())
    stops = 0

    def stop() -> None:
        nonlocal stops
        stops += 1
        if stops == 1 and session.state.active:
            screen.say("Interrupting; Ctrl-C again leaves the session as it is.")
            session.interrupt(new_id())
        else:
            running.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        state = await running
        while state.asks:
            commands = await asyncio.to_thread(_ask_all, state, answer)
            running = asyncio.ensure_future(session.say(*commands))
            state = await running
    except asyncio.CancelledError:
        raise Abandoned from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):
                loop.remove_signal_handler(number)
    return state


def _ask_all(state: State, answer: Answer) -> list[Command]:
    return [_decide(call, question, answer) for call, question in state.asks.items()]


def _decide(call: CallId, question: AskUser, answer: Answer) -> Command:
    yes, reason = answer(question)
    if yes:
        return Approved(id=new_id(), ask=call, binding=question.binding)
    return Denied(id=new_id(), ask=call, reason=reason)


def ask_on_terminal(question: AskUser) -> tuple[bool, str]:
    """The question itself stands on the screen already; this is the prompt under it."""
    sys.stdout.write("  run it? [y/N, or a word of why not] ")
    sys.stdout.flush()
    line = sys.stdin.readline()
    said = line.strip()
    if said.lower() in ("y", "yes"):
        return True, ""
    return False, "" if said.lower() in ("", "n", "no") else said


def new_id() -> CommandId:
    return CommandId(secrets.token_hex(8))
