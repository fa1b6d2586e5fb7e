"""What can go wrong with a log.

LogError
├── LogBusy          another process writes it: wait, fork, or take over
├── CannotTakeOver   that process stays, or cannot be told for sure: end it by hand
├── LogDamaged       acknowledged events are missing: accept, or give up
├── LogWriteFailed   the disk is full or gone: stop, nothing was started
├── LeaseSuperseded  another incarnation of this agent took over: end everything, stop
├── LogNotFound      no such session
├── LogUnsafe        its folder belongs to someone else, or others can read it
├── BlobMissing      a text that an event names is gone or altered
└── Undecodable      a whole event that this version cannot read: upgrade
"""

import errno
import os
from pathlib import PurePath


class LogError(Exception):
    """One sentence for a person."""


class LogBusy(LogError):
    def __init__(self, folder: str, pid: int | None) -> None:
        self.pid = pid
        owner = f"process {pid}" if pid else "another process"
        super().__init__(
            f"This session is being written by {owner}; read it with `thalia log`, or `thalia fork` it; where that "
            f"process hangs, `thalia resume {PurePath(folder).name} --take-over` ends it and goes on."
        )


class CannotTakeOver(LogError):
    def __init__(self, owner: str, why: str) -> None:
        super().__init__(f"This session is being written by {owner}, and cannot be taken over: {why}; end it by hand.")


_GO_ON = "Nothing was changed; `thalia resume ID --accept-damage` keeps a copy and goes on without them."
_GIVE_UP = "Nothing was changed; put the session's files back from a backup, or begin anew with `thalia exec`."


class LogDamaged(LogError):
    """`lost` counts acknowledged events that are gone; None where that cannot be told. `readable`: there is something
    to go on with."""

    def __init__(self, what: str, lost: int | None, *, readable: bool = True) -> None:
        self.lost = lost
        self.what = what
        number = "an unknown number of" if lost is None else str(lost)
        super().__init__(
            f"The log is damaged: {what}; {number} acknowledged event{'' if lost == 1 else 's'} lost. "
            + (_GO_ON if readable else _GIVE_UP)
        )


class LogWriteFailed(LogError):
    pass


class LeaseSuperseded(LogError):
    """Nothing of the append was stored. The log takes those of others as before."""

    def __init__(self, agent: str, lease: int) -> None:
        super().__init__(f"Lease {lease} of agent {agent} was superseded; this incarnation has to stop.")


class LogNotFound(LogError):
    pass


class LogUnsafe(LogError):
    pass


class BlobMissing(LogError):
    pass


class Undecodable(LogError, ValueError):
    pass


def reason(error: BaseException) -> str:
    """The first line of what a library says, short enough for a sentence."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).strip()
    if (full := os.strerror(errno.ENOSPC)) in text:
        return full
    return text.splitlines()[0][:160] if text else type(error).__name__


def system_refusal(error: OSError) -> str:
    """One sentence for a person."""
    where = f" ({error.filename})" if error.filename else ""
    return f"The system refused: {error.strerror}{where}; nothing that was logged is lost."
