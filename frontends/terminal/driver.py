"""Drive one session from a terminal: interrupt on Ctrl-C, put its questions to the person, wait for its end."""

import asyncio
import contextlib
import os
import signal
import sys
import termios
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from agent.standing import Standing
from configs.version import new_command_name
from eventlog.effects import AskUser
from eventlog.events import Approved, Command, Denied, Event, Interrupted
from eventlog.ids import CallId, CommandId
from frontends.terminal.screen import Screen

Answer = Callable[[], Awaitable[str | None]]
"""A line from a person; None where nobody is there any more."""


class Session(Protocol):
    @property
    def standing(self) -> Standing: ...
    def interrupt(self, command_id: CommandId) -> None: ...
    async def say(self, *commands: Command) -> object: ...
    async def rest(self) -> object:
        """Until nothing moves without a person."""
        ...

    async def moved(self) -> None:
        """Until it goes on though nobody here has answered: somebody else did."""
        ...


class Abandoned(Exception):
    """Ctrl-C a second time: the session is left as it is, to be resumed."""


async def drive(
    session: Session,
    go: Callable[[], Awaitable[object]],
    screen: Screen,
    answer: Answer | None,
    past: Callable[[], Iterable[Event]] = tuple,
) -> None:
    """Until nothing moves without a person who is not there (no `answer`). `past`: what was logged before it goes on,
    where that does not come by itself. Raises Abandoned, LogError."""
    screen.take_up(session.standing)
    if session.standing.fanning:
        screen.take_past(past())
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(go())
    asking: asyncio.Future[list[Command]] | None = None
    stops = 0

    def stop() -> None:
        nonlocal stops
        stops += 1
        if stops > 1 or not session.standing.active:
            running.cancel()
        elif asking is not None:
            asking.cancel()
        else:
            screen.say("Interrupting; Ctrl-C again leaves the session as it is.")
            session.interrupt(new_id())

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        async with screen.watching():
            await running
            while session.standing.asks and answer is not None:
                asking = asyncio.ensure_future(_ask_all(session.standing, screen, answer))
                commands = await _answers(asking, session)
                asking = None
                if commands == []:
                    return
                running = asyncio.ensure_future(session.rest() if commands is None else session.say(*commands))
                await running
    except asyncio.CancelledError:
        raise Abandoned from None
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            with contextlib.suppress(ValueError):
                loop.remove_signal_handler(number)


async def _answers(asking: "asyncio.Future[list[Command]]", session: Session) -> list[Command] | None:
    """On Ctrl-C at a question the turn is interrupted. None where somebody else answered."""
    moving = asyncio.ensure_future(session.moved())
    await asyncio.wait([asking, moving], return_when=asyncio.FIRST_COMPLETED)
    elsewhere = not asking.done()
    moving.cancel()
    asking.cancel()
    try:
        return await asking
    except asyncio.CancelledError:
        return None if elsewhere else [Interrupted(id=new_id())]


async def _ask_all(standing: Standing, screen: Screen, answer: Answer) -> list[Command]:
    """One answer a question, as far as somebody answers."""
    commands: list[Command] = []
    for call, question in standing.asks.items():
        screen.show_question(call, question)
        line = await answer()
        if line is None:
            break
        commands.append(_decide(call, question, line.strip()))
    return commands


def _decide(call: CallId, question: AskUser, said: str) -> Command:
    if said.lower() in ("y", "yes"):
        return Approved(id=new_id(), ask=call, binding=question.binding)
    return Denied(id=new_id(), ask=call, reason="" if said.lower() in ("", "n", "no") else said)


async def ask_on_terminal() -> str | None:
    """The prompt under a question, and a line from the terminal. It can be cancelled while it waits."""
    descriptor = _own_terminal()
    # What was typed before the question was shown is no answer to it.
    with contextlib.suppress(termios.error):
        termios.tcflush(descriptor, termios.TCIFLUSH)
    sys.stdout.write("  run it? [y/N, or a word of why not] ")
    sys.stdout.flush()
    loop, typed = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(descriptor, typed.set)
    try:
        await typed.wait()
        line = os.read(descriptor, 65536)
    except (OSError, asyncio.CancelledError) as error:
        print(flush=True)
        if isinstance(error, OSError):
            return None
        raise
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)
    return line.decode("utf-8", "replace") if line else None


def _own_terminal() -> int:
    """The terminal of the standard input, opened anew: waiting makes it non-blocking, and what is printed meanwhile, or
    by the shell afterwards, goes through the very file that the standard input has."""
    try:
        name = os.ttyname(sys.stdin.fileno())
    except OSError:  # In a container it may have none here.
        name = "/dev/tty"
    return os.open(name, os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)


def new_id() -> CommandId:
    return CommandId(new_command_name())
