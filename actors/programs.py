"""Programs of the user's as tools (class external): begun once, waited for, adopted, asked about when they vanished."""

import json
from collections.abc import Mapping
from pathlib import Path

from actors.commands import Commands
from agent.external import Answer, CannotTell, Found, NotDone, settle_answer
from agent.recovery import Askable, Ended, Evidence, NeverBegan, StillRuns, Vanished
from configs.tools import NOT_DONE, OwnTool
from eventlog.effects import RunTool
from eventlog.ids import CallId
from eventlog.outcomes import Outcome, OutcomeUnknown, ToolFailed
from eventlog.redact import has_marker
from processes.commands import CommandResult, Done, Lost, NotStarted, ProcessError, Running


class Programs:
    """An Outside, and where its tools run."""

    def __init__(self, commands: Commands, tools: Mapping[str, OwnTool]) -> None:
        self._commands, self._tools = commands, tools

    def look(self, call_id: CallId, attempt: int, effect: RunTool, *, stopped: bool) -> Evidence:
        """`stopped`: the user interrupted the turn."""
        match self._commands.inspect(call_id, attempt):
            case NotStarted():
                return NeverBegan()
            case Running():
                return StillRuns()
            case Done(result) if _is_certain(result) and (stopped or not result.cancelled):
                return Ended(self._commands.outcome(call_id, attempt, result, recovered=True))
            case Done(result) | (Lost() as result):
                seen = self._seen(call_id, attempt, result)
                tool = self._tools.get(effect.tool)
                return Askable(seen) if tool is not None and tool.find else Vanished(seen)

    async def run(self, call_id: CallId, attempt: int, effect: RunTool, cwd: Path) -> Outcome:
        """One intent, carried as far as it goes: what began is never begun again, what ended unseen is asked for."""
        before = self._commands.inspect(call_id, attempt)
        if isinstance(before, NotStarted) and (why := self._refusal(effect)) is not None:
            return ToolFailed(text=why)
        tool = self._tools.get(effect.tool)
        said = {"tool": effect.tool, "key": effect.key, "arguments": json.loads(effect.arguments)}
        timeout_s = tool.timeout_s if tool is not None else 1.0
        folder = self._commands.folder(call_id, attempt)
        try:
            result = await self._commands.run_program(folder, effect.program, said, cwd=cwd, timeout_s=timeout_s)
        except ProcessError as error:
            return ToolFailed(text=str(error))
        # One that had been ended without the user is asked for (look).
        cut = isinstance(before, Done) and before.result.cancelled
        if not isinstance(result, Lost) and _is_certain(result) and not cut:
            recovered = not isinstance(before, NotStarted)
            return self._commands.outcome(call_id, attempt, result, recovered=recovered)
        seen = self._seen(call_id, attempt, result)
        answer = await self.find(effect.tool, effect.key)
        return settle_answer(effect, attempt, seen, answer, lost=isinstance(result, Lost))

    async def find(self, tool: str, key: str) -> Answer:
        known = self._tools.get(tool)
        if known is None or not known.find:
            return CannotTell(f"the settings name nothing that could be asked what became of it (`find` of {tool})")
        said = {"tool": tool, "key": key}
        folder = self._commands.unused(f"{key}.find")
        try:
            # Not in the worktree, which may be gone: a key is all that it needs.
            result = await self._commands.run_program(
                folder, known.find, said, cwd=Path("/"), timeout_s=known.timeout_s
            )
        except ProcessError as error:
            return CannotTell(f"it could not be asked for: {error}")
        if isinstance(result, Lost):
            return CannotTell("it could not be asked for: `find` was killed")
        text, _ = self._commands.shown(folder, result)
        if not _is_certain(result) or result.cancelled or result.exit_code not in (0, NOT_DONE):
            return CannotTell(f"`find` could not tell: {text[-400:]}")
        return Found(text) if result.exit_code == 0 else NotDone()

    def _refusal(self, effect: RunTool) -> str | None:
        """Why a call that was allowed is not begun after all."""
        if any(has_marker(word) for word in effect.program):
            return f"{effect.tool} did not run: its command holds a secret, which is never kept or run; name a file."
        known = self._tools.get(effect.tool)
        if known is None or known.command != effect.program:
            return f"{effect.tool} did not run: its command is no longer what the settings said when it was allowed."
        return None

    def _seen(self, call_id: CallId, attempt: int, result: CommandResult | Lost) -> str:
        told = self._commands.outcome(call_id, attempt, result)
        return told.evidence if isinstance(told, OutcomeUnknown) else told.text


def _is_certain(result: CommandResult) -> bool:
    """Its exit code, or the user who stopped it, says how it ended: no time limit and no signal cut it off."""
    return not result.timed_out and (result.signal is None or result.cancelled)
