"""Commands of a session: from an intent to a durable run, confined or not, and from what it left to an outcome."""

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import assert_never

from agent.recovery import Ended, Evidence, NeverBegan, StillRuns, Vanished
from agent.tools.output import command_text
from agent.tools.schemas import ShellArguments
from configs.places import RUN_MARK
from configs.tools import KEY_VARIABLE
from eventlog.effects import RunTool
from eventlog.ids import CallId
from eventlog.outcomes import Cancelled, OutcomeUnknown, ToolFailed, ToolSucceeded
from eventlog.redact import Redactor
from processes.calls import began_us, inspect, read_output
from processes.commands import (
    CallState,
    Command,
    CommandResult,
    Confinement,
    Done,
    Lease,
    Limits,
    Lost,
    NotStarted,
    ProcessError,
    Running,
)
from processes.environment import child_env
from processes.runner import Runner
from worktrees.project import ProjectEnvironment

HEAD, TAIL = 12_000, 20_000
"""Bytes of a command's output that are read; what the model gets is cut further."""

CommandOutcome = ToolSucceeded | ToolFailed | Cancelled | OutcomeUnknown


@dataclass(frozen=True, slots=True)
class CommandRoom:
    """What commands of this session may see and use."""

    calls: Path
    """The session's `calls/`."""
    variables: Mapping[str, str]
    limits: Limits
    run_mark: str
    """In the environment of every process of this session, so that none is overlooked."""
    lease: Lease | None = None
    """Of the agent that runs them, where it may be replaced while it lives (agent_lease.py)."""


class Commands:
    def __init__(self, runner: Runner, room: CommandRoom, redactor: Redactor) -> None:
        self._runner, self._room, self._redactor = runner, room, redactor

    def folder(self, call_id: CallId, attempt: int) -> Path:
        return self._room.calls / f"{call_id}.{attempt}"

    def inspect(self, call_id: CallId, attempt: int) -> CallState:
        return inspect(self.folder(call_id, attempt))

    def evidence(self, call_id: CallId, attempt: int, found: CallState, *, writes: bool = True) -> Evidence:
        """What `found` says of a command that an earlier process began."""
        match found:
            case NotStarted():
                return NeverBegan()
            case Running():
                return StillRuns()
            case Done(result):
                return Ended(self.outcome(call_id, attempt, result, writes=writes, recovered=True))
            case Lost():
                told = self.outcome(call_id, attempt, found)
                return Vanished(told.evidence if isinstance(told, OutcomeUnknown) else "it began and left no result")
            case _:
                assert_never(found)

    def began_us(self, call_id: CallId, attempt: int) -> int:
        return began_us(self.folder(call_id, attempt))

    async def run(
        self,
        call_id: CallId,
        attempt: int,
        effect: RunTool,
        arguments: ShellArguments,
        confinement: Confinement | None,
        cwd: Path,
        project: ProjectEnvironment,
    ) -> CommandOutcome:
        """Run it, or wait for the run that an earlier process began. Never twice in one attempt."""
        folder = self.folder(call_id, attempt)
        extra = {**project.env, RUN_MARK: self._room.run_mark}
        env = child_env(self._room.variables, extra)
        env["PATH"] = ":".join([*project.path_entries, env.get("PATH", "/usr/bin:/bin")])
        timeout = arguments.timeout_s or self._room.limits.timeout_s
        limits = Limits(timeout_s=timeout, output_bytes=self._room.limits.output_bytes)
        command = Command(
            text=arguments.command,
            cwd=cwd,
            env=env,
            limits=limits,
            confinement=confinement,
            lease=self._room.lease,
        )
        try:
            result = await self._runner.run(folder, command)
        except ProcessError as error:
            return ToolFailed(text=str(error))
        return self.outcome(call_id, attempt, result, writes=not (effect.confined and effect.read_only))

    async def run_program(
        self, folder: Path, program: Sequence[str], said: Mapping[str, object], *, cwd: Path, timeout_s: float
    ) -> CommandResult | Lost:
        """Unconfined, with `said` as JSON on its input; the `key` in it stands in a variable too. No folder of the
        project is on its path. Never twice in one folder. Raises ProcessError."""
        given = _input_of(folder)
        if isinstance(inspect(folder), NotStarted):
            # Whole when it gets its name: a program that an earlier process is about to begin may read it.
            temporary = given.with_suffix(".new")
            temporary.touch(0o600)
            temporary.write_text(json.dumps(said, ensure_ascii=False))
            temporary.rename(given)
        env = child_env(self._room.variables, {RUN_MARK: self._room.run_mark, KEY_VARIABLE: str(said["key"])})
        limits = Limits(timeout_s=timeout_s, output_bytes=self._room.limits.output_bytes)
        text = f"exec {shlex.join(program)} < {shlex.quote(str(given))}"
        command = Command(text=text, cwd=cwd, env=env, limits=limits, lease=self._room.lease)
        try:
            result = await self._runner.run(folder, command)
        except ProcessError:
            # It never began, and never will under this attempt.
            given.unlink(missing_ok=True)
            raise
        given.unlink(missing_ok=True)
        return result

    def discard_inputs(self) -> None:
        """Of programs that are over, left by a killed session. A question that never began is asked anew."""
        for given in self._room.calls.glob("*.input"):
            state = inspect(given.with_suffix(""))
            if isinstance(state, Done | Lost) or (isinstance(state, NotStarted) and ".find" in given.name):
                given.unlink(missing_ok=True)

    def unused(self, name: str) -> Path:
        """The first folder of this name, counted from 1, in which nothing was begun."""
        return next(path for number in count(1) if not (path := self._room.calls / f"{name}{number}").exists())

    async def attach(self, call_id: CallId, attempt: int) -> CommandOutcome:
        result = await self._runner.attach(self.folder(call_id, attempt))
        return self.outcome(call_id, attempt, result, recovered=True)

    def cancel(self, call_id: CallId, attempt: int) -> bool:
        """False where nobody can be asked: it has not begun, or has ended."""
        return self._runner.cancel(self.folder(call_id, attempt))

    def outcome(
        self,
        call_id: CallId,
        attempt: int,
        result: CommandResult | Lost,
        *,
        writes: bool = True,
        recovered: bool = False,
    ) -> CommandOutcome:
        folder = self.folder(call_id, attempt)
        _input_of(folder).unlink(missing_ok=True)
        if isinstance(result, Lost):
            output = read_output(folder, HEAD, TAIL)
            self._scrub(folder)
            tail = (output.head + output.tail)[-400:].decode(errors="replace")
            return OutcomeUnknown(evidence=f"it began at {result.started_us} µs; its last output was: {tail!r}")
        text, spill = self.shown(folder, result)
        if result.cancelled:
            return Cancelled(text=text, started=True, wrote=writes)
        if result.exit_code == 0 and not result.timed_out and result.setup_error is None:
            return ToolSucceeded(text=text, exit_code=0, wrote=writes, spill=spill, recovered=recovered)
        wrote = writes and result.setup_error is None
        return ToolFailed(text=text, exit_code=result.exit_code, wrote=wrote, spill=spill, recovered=recovered)

    def shown(self, folder: Path, result: CommandResult) -> tuple[str, str | None]:
        """What the model reads of a run, and where all of it lies if that is not all."""
        output = read_output(folder, HEAD, TAIL)
        self._scrub(folder)
        spill = str(output.path) if output.omitted else None
        text = command_text(output.head, output.tail, output.omitted, result.exit_code, spill)
        return "\n".join(part for part in (text, _note(result)) if part), spill

    def _scrub(self, folder: Path) -> None:
        """The files that stay with the session hold no secret either."""
        for name in ("output", "tail"):
            path = folder / name
            if not path.exists():
                continue
            text = path.read_bytes().decode("utf-8", "surrogateescape")
            if self._redactor.suspects(text) and (clean := self._redactor.clean(text)) != text:
                path.write_bytes(clean.encode("utf-8", "surrogateescape"))


def _note(result: CommandResult) -> str:
    """How it ended, where the exit code does not say so."""
    if result.setup_error is not None:
        return result.setup_error
    if result.timed_out:
        return f"Ended after {(result.finished_us - result.started_us) / 1e6:.0f} s, its time limit."
    return f"Ended by signal {result.signal}." if result.signal is not None else ""


def _input_of(folder: Path) -> Path:
    """What a program is told, beside the folder of its call."""
    return folder.with_name(f"{folder.name}.input")
