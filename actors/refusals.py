"""What ended something, as a value that crosses processes."""

import traceback
from pathlib import Path

from actors.building import CannotStart
from agent.models.client import ModelError
from configs.places import append_line
from configs.settings import SettingsError
from eventlog.errors import LogError, system_refusal
from processes.commands import ProcessError
from worktrees.git import GitError


def refusal_of(error: Exception, log: Path) -> dict[str, object]:
    """For another process: the names of the error's classes, nearest first, and its sentence. Of what nobody foresaw
    the place is written to `log`, and no words: they may hold secrets."""
    kinds = [kind.__name__ for kind in type(error).__mro__ if issubclass(kind, Exception)]
    if isinstance(error, (CannotStart, LogError, GitError, SettingsError, ModelError, ProcessError)):
        return {"kinds": kinds, "text": valid_text(str(error))}
    if isinstance(error, OSError) and error.strerror:
        return {"kinds": kinds, "text": valid_text(system_refusal(error))}
    append_line(log, f"{kinds[0]}\n{''.join(traceback.format_tb(error.__traceback__))}")
    return {"kinds": kinds, "text": ""}


def valid_text(text: str) -> str:
    """It may name a file whose name is no text."""
    return text.encode("utf-8", "backslashreplace").decode()
