"""What a session that is running has logged: asked of the daemon, which asks the session's own writer."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eventlog.catalogue import Listed
    from eventlog.events import Event
    from frontends.client import Daemon


def list_hosted(daemon: "Daemon") -> "Sequence[Listed] | None":
    """All sessions, the one that changed last first. None where no daemon runs: their files are looked at then."""
    if not daemon.runs():
        return None
    from eventlog.catalogue import Listed, Summary

    sessions = daemon.place.state_folder / "sessions"
    return [
        Listed(
            folder=sessions / row["id"],
            live=row["live"],
            summary=Summary.model_validate(row["summary"]) if row["summary"] else None,
            trouble=row["trouble"],
        )
        for row in daemon.ask("GET", "/sessions")["sessions"]
    ]


def hosted_events(daemon: "Daemon", session: str, follow: bool) -> "Iterator[Event] | None":
    """In order, each once; with `follow` until the session has ended. None where the daemon does not run it: its log is
    read from its files then."""
    if not daemon.runs():
        return None
    from frontends.client import DaemonRefused

    try:
        head = daemon.ask("GET", f"/sessions/{session}")["head"]
    except DaemonRefused as error:
        if error.status == 404:
            return None
        raise
    return _events(daemon, session, None if follow else head)


def _events(daemon: "Daemon", session: str, until: int | None) -> "Iterator[Event]":
    """Raises DaemonRefused, LogError."""
    from eventlog.events import Event
    from frontends.client import DaemonRefused, DaemonUnreachable

    after, running = 0, True
    while running and (until is None or after < until):
        try:
            for kind, value in daemon.follow(session, after):
                if kind == "event":
                    after = value["event"]["seq"]
                    yield Event.model_validate(value["event"])
                if kind == "error":
                    raise DaemonRefused(500, (value["error"],), value["text"])
                running = kind != "over"
                if not running or (until is not None and after >= until):
                    break
        except DaemonUnreachable:
            daemon.start()
        except DaemonRefused as error:
            if error.status != 404:
                raise
            running = False
    if until is None or after < until:
        # It ended meanwhile, and whoever reads slowly was not waited for.
        yield from _rest_of(daemon.place.state_folder / "sessions" / session, after, until)


def _rest_of(folder: Path, after: int, until: int | None) -> "Iterator[Event]":
    from eventlog.opening import read_log

    for event in read_log(folder):
        if event.seq > after and (until is None or event.seq <= until):
            yield event
