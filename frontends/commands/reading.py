"""What a session that is running has logged: asked of the daemon, which asks the session's own writer."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from frontends.client import Daemon, DaemonRefused, DaemonUnreachable

if TYPE_CHECKING:
    from eventlog.catalogue import Listed
    from eventlog.events import Event


def list_hosted(daemon: Daemon) -> "Sequence[Listed] | None":
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


def hosted_events(daemon: Daemon, session: str, follow: bool) -> "Iterator[Event] | None":
    """In order, each once; with `follow` until the session has ended. None where the daemon does not run it: its log is
    read from its files then."""
    if not daemon.runs():
        return None
    try:
        head = daemon.ask("GET", f"/sessions/{session}")["head"]
    except DaemonRefused as error:
        if error.status == 404:
            return None
        raise
    return _events(daemon, session, None if follow else head)


def _events(daemon: Daemon, session: str, until: int | None) -> "Iterator[Event]":
    from eventlog.events import Event

    after = 0
    while until is None or after < until:
        try:
            for kind, value in daemon.follow(session, after):
                if kind == "over":
                    return
                if kind == "event":
                    after = value["event"]["seq"]
                    yield Event.model_validate(value["event"])
                if until is not None and after >= until:
                    return
        except DaemonRefused as error:
            if error.status == 404:
                return
            raise
        except DaemonUnreachable:
            pass
        daemon.start()
