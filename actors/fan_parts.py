"""The parts of a fan-out that its session carries out: agents, merges, checks."""

import json
from collections.abc import Awaitable, Callable
from typing import Any, assert_never

from actors.agents import Agents
from actors.commands import Commands
from actors.fan_files import advance_branch, place_check, prepare_merge, retire
from actors.files import Place, SessionFiles
from agent.recovery import MAX_ATTEMPTS, Evidence, Finish, Vanished, settle
from agent.state import State
from agent.tools.schemas import ShellArguments
from eventlog.effects import AdvanceBranch, CheckMerge, PartOfFan, PrepareMerge, RetireAgents, RunTool, SpawnAgent
from eventlog.ids import CallId
from eventlog.outcomes import AgentsRetired, AttemptLost, Outcome, OutcomeUnknown, ToolFailed
from processes.commands import Confinement, NotStarted, Running

Change = Callable[..., Awaitable[Any]]
"""Runs a function that changes files or references, in a thread (LocalWorld)."""


class FanParts:
    def __init__(
        self,
        files: SessionFiles,
        commands: Commands,
        agents: Agents,
        confine: Callable[[bool, Place], Confinement],
        change: Change,
    ) -> None:
        self._files, self._commands, self._agents = files, commands, agents
        self._confine, self._change = confine, change

    async def perform(self, call_id: CallId, attempt: int, effect: PartOfFan, state: State) -> Outcome:
        match effect:
            case SpawnAgent():
                if state.interrupting:
                    # By an earlier process, which may have died before the agent heard of it.
                    self._agents.interrupt(effect.agent)
                return await self._agents.run(effect, attempt, state)
            case PrepareMerge():
                return await self._change(prepare_merge, self._files, call_id, effect)
            case CheckMerge():
                return await self._check(call_id, attempt, effect)
            case AdvanceBranch():
                return await self._change(advance_branch, self._files, effect)
            case RetireAgents():
                here = await self._change(retire, self._files, effect)
                return AgentsRetired(kept=(*here.kept, *await self._agents.retire(effect)))
            case _:
                assert_never(effect)

    def interrupt(self, call_id: CallId, attempt: int, effect: PartOfFan) -> None:
        """The others are short, and better whole than half."""
        match effect:
            case SpawnAgent():
                self._agents.interrupt(effect.agent)
            case CheckMerge():
                self._commands.cancel(call_id, attempt)
            case _:
                pass

    def look(self, call_id: CallId, attempt: int) -> Evidence:
        """What a check left that an earlier process began."""
        found = self._commands.inspect(call_id, attempt)
        return self._commands.evidence(call_id, attempt, found, writes=False)

    async def _check(self, call_id: CallId, attempt: int, effect: CheckMerge) -> Outcome:
        if isinstance(self._commands.inspect(call_id, attempt), Running):
            outcome = await self._commands.attach(call_id, attempt)
        else:
            place = await self._change(place_check, self._files, effect)
            arguments = json.dumps({"command": effect.command})
            run = RunTool(
                tool="shell",
                arguments=arguments,
                effect_class="command",
                allowed_by="the fan-out's check",
                confined=effect.confined,
            )
            confinement = self._confine(False, place) if effect.confined else None
            outcome = await self._commands.run(
                call_id,
                attempt,
                run,
                ShellArguments(command=effect.command),
                confinement,
                place.path,
                self._files.project(place),
            )
        if isinstance(outcome, ToolFailed) and isinstance(self._commands.inspect(call_id, attempt), NotStarted):
            # No model reads this and runs it again.
            return AttemptLost(evidence=outcome.text) if attempt < MAX_ATTEMPTS else outcome
        if not isinstance(outcome, OutcomeUnknown):
            return outcome
        settled = settle(effect, attempt, Vanished(outcome.evidence))
        assert isinstance(settled, Finish)
        return settled.outcome
