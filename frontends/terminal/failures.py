"""From an exception to an exit code and one sentence. What nobody foresaw is kept in a file, not thrown at a person."""

import os
import time
import traceback
from pathlib import Path

from eventlog.errors import system_refusal

OUR_FAULT, USAGE, BLOCKED, NOT_THE_SAME, STOPPED = 1, 2, 10, 14, 130

_BY_NAME = {
    "LogBusy": BLOCKED,
    "LogDamaged": BLOCKED,
    "LogUnsafe": BLOCKED,
    "LogWriteFailed": BLOCKED,
    "LogNotFound": USAGE,
    "LogError": BLOCKED,
    "CannotStart": USAGE,
    "NoModelChosen": USAGE,
    "SettingsError": USAGE,
    "ReplayError": USAGE,
    "BadSchema": USAGE,
    "Undecodable": NOT_THE_SAME,
    "BlobMissing": BLOCKED,
    "Abandoned": STOPPED,
    "RepositoryRefused": USAGE,
    "GitError": BLOCKED,
    "TargetInUse": USAGE,
    "ProcessError": BLOCKED,
    "ModelError": USAGE,
    "NotHosted": USAGE,
    "SessionRuns": BLOCKED,
    "NoRay": BLOCKED,
    "PlaceUnsafe": BLOCKED,
    "DaemonUnreachable": BLOCKED,
    "SessionDied": BLOCKED,
    "OtherVersion": BLOCKED,
    "StateFolderRefused": BLOCKED,
    "OSError": BLOCKED,
}
"""By the name of the class, or of its nearest base that stands here: importing them all would be slow."""


def explain(error: BaseException, state_folder: Path) -> tuple[int, str]:
    """(exit code, sentence)."""
    code = getattr(error, "code", None)
    if type(error).__name__ == "Stop" and isinstance(code, int):
        return code, str(error)
    if type(error).__name__ == "Abandoned":
        return STOPPED, "Left as it is; `thalia resume --last` goes on."
    if type(error).__name__ == "Detached":
        return STOPPED, "It goes on without this terminal; `thalia attach --last` comes back."
    kinds = [kind.__name__ for kind in type(error).__mro__]
    if type(error).__name__ == "DaemonRefused":
        # What the daemon could not do, for the reason that its own error had.
        kinds = [*getattr(error, "kinds", ()), "DaemonRefused"]
    elif isinstance(error, OSError) and error.strerror:
        return BLOCKED, system_refusal(error)
    for kind in kinds:
        if kind in _BY_NAME and str(error):
            return _BY_NAME[kind], str(error)
    return OUR_FAULT, _keep(error, state_folder)


def _keep(error: BaseException, state_folder: Path) -> str:
    """The traceback without the values of variables or messages: they may hold secrets."""
    name = type(error).__name__
    file = state_folder / f"fault-{time.time_ns() // 1_000_000}.txt"
    stack = "".join(traceback.format_tb(error.__traceback__))
    try:
        state_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as out:
            out.write(f"{name}\n{stack}")
    except OSError:
        return f"Thalia failed ({name}) and could not write a report; the session's log is whole."
    return f"Thalia failed ({name}); a report is in {file}. The session's log is whole: `thalia resume` goes on."
