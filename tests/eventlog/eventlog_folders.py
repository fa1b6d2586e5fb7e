"""Logs for tests: made, grown, crashed."""

import asyncio
import hashlib
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eventlog.events import Body, Draft, Event, UserSaid
from eventlog.ids import CommandId, SessionId
from eventlog.opening import Opened, create_log, open_log
from eventlog.redact import Redactor
from eventlog.seams import Clock, FixedClock
from eventlog.store import DuckLog

SESSION = SessionId("s1")


def make(folder: Path, redactor: Redactor | None = None) -> Opened:
    return create_log(folder, SESSION, FixedClock(), redactor or Redactor())


@dataclass(frozen=True, slots=True)
class Reopened(Opened):
    events: tuple[Event, ...] = ()
    """What was shown while it was opened."""


def reopen(
    folder: Path, *, session: SessionId = SESSION, clock: Clock | None = None, accept_damage: bool = False
) -> Reopened:
    shown: list[Event] = []
    opened = open_log(
        folder,
        session,
        clock or FixedClock(),
        Redactor(),
        accept_damage=accept_damage,
        begin=lambda back_to: shown.append,
    )
    return Reopened(opened.log, opened.lock, opened.last, opened.lost, tuple(shown))


def said(text: str, number: int = 0) -> UserSaid:
    return UserSaid(id=CommandId(f"u{number}"), text=text)


async def append(log: DuckLog, bodies: Iterable[Body]) -> tuple[Event, ...]:
    return await log.append([log.prepare(Draft(body=body)) for body in bodies])


def fill(log: DuckLog, batches: Sequence[Sequence[Body]]) -> tuple[Event, ...]:
    async def run() -> tuple[Event, ...]:
        return tuple([event for batch in batches for event in await append(log, batch)])

    return asyncio.run(run())


def crash_image(log_folder: Path, target: Path) -> Path:
    """What a killed writer leaves: its files as they are while it holds them open."""
    shutil.copytree(log_folder, target)
    target.chmod(0o700)
    return target


def checksums(folder: Path) -> dict[str, str]:
    """Of every file but the lock, which names its last holder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "writer.lock"
    }
