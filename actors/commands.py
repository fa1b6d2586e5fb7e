"""Shell commands of a session: from an intent to a durable, confined run, and from what it left to an outcome."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agent.tools.output import command_text
from agent.tools.schemas import ShellArguments
from configs.places import RUN_MARK
from eventlog.effects import RunTool
from eventlog.ids import CallId
from eventlog.outcomes import Cancelled, OutcomeUnknown, ToolFailed, ToolSucceeded
from eventlog.redact import Redactor
from processes.calls import inspect, read_output, read_start
from processes.commands import CallState, Command, CommandResult, Confinement, Limits, Lost, ProcessError
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


class Commands:
    def __init__(self, runner: Runner, room: CommandRoom, redactor: Redactor) -> None:
        self._runner, self._room, self._redactor = runner, room, redactor

    def folder(self, call_id: CallId, attempt: int) -> Path:
        return self._room.calls / f"{call_id}.{attempt}"

    def inspect(self, call_id: CallId, attempt: int) -> CallState:
        return inspect(self.folder(call_id, attempt))

    def began_us(self, call_id: CallId, attempt: int) -> int:
        start = read_start(self.folder(call_id, attempt))
        return int(start["started_us"]) if start else 0

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
        command = Command(text=arguments.command, cwd=cwd, env=env, limits=limits, confinement=confinement)
        try:
            result = await self._runner.run(folder, command)
        except ProcessError as error:
            return ToolFailed(text=str(error))
        return self.outcome(call_id, attempt, result, writes=not (effect.confined and effect.read_only))

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
        output = read_output(folder, HEAD, TAIL)
        self._scrub(folder)
        if isinstance(result, Lost):
            tail = (output.head + output.tail)[-400:].decode(errors="replace")
            return OutcomeUnknown(evidence=f"it began at {result.started_us} µs; its last output was: {tail!r}")
        spill = str(output.path) if output.omitted else None
        text = command_text(output.head, output.tail, output.omitted, result.exit_code, spill)
        text = "\n".join(part for part in (text, _note(result)) if part)
        if result.cancelled:
            return Cancelled(text=text, started=True, wrote=writes)
        if result.exit_code == 0 and not result.timed_out and result.setup_error is None:
            return ToolSucceeded(text=text, exit_code=0, wrote=writes, spill=spill, recovered=recovered)
        wrote = writes and result.setup_error is None
        return ToolFailed(text=text, exit_code=result.exit_code, wrote=wrote, spill=spill, recovered=recovered)

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
