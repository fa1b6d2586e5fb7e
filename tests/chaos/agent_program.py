"""One incarnation of an agent, as a process of its own: the loop and the local world over the log of a coordinator.

    python -m tests.chaos.agent_program FOLDER DOOR LEASE SCRIPT MODE FENCE

FOLDER is that of a Stage, MODE `auto` (confined) or `bypass` (not), FENCE `fenced` or `open`, the latter to see what
the fence is good for. Ends with 0 when its turn is done, and with 3 and the sentence on its standard error when it had
to stop."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from actors.agent_lease import AgentLease, lease_file
from actors.building import Parts, connect, find_files, make_context, make_rules, pick_model, try_sandbox
from actors.commands import CommandRoom, Commands
from actors.files import SessionFiles
from actors.models import Models
from actors.remote_log import RemoteLog
from actors.world import LocalWorld
from agent.folding import fold_events
from agent.loop import Loop
from agent.models.requests import RequestCache
from agent.planning import Surroundings, ToolPlanner
from agent.standing import EXIT_CODES
from agent.state import State
from configs import crash
from eventlog.effects import MakeWorktree
from eventlog.errors import LogError
from eventlog.events import Body, ContextSet, EffectStarted, LimitsSet, ModeChosen, UserSaid
from eventlog.ids import AgentId, CallId, CommandId, Commit, SessionId
from processes.commands import Limits
from processes.runner import Runner
from processes.self_test import SandboxReport
from tests.actors.playing import SESSION, Stage

SCOUT = AgentId("scout")
OWN = SessionId(f"{SESSION}-scout")
"""Whose worktree and refs are the agent's."""
STOPPED = 3

Guard = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Agent:
    parts: Parts
    files: SessionFiles
    mode: ModeChosen
    context: ContextSet
    models: Models
    sandbox: SandboxReport
    lease: AgentLease
    fenced: bool

    def planner(self, requests: RequestCache) -> ToolPlanner:
        around = Surroundings(
            checkout=self.files.repository.root,
            home=Path(self.parts.environment.variables["HOME"]),
            agent=SCOUT,
            sandbox_works=self.sandbox.ok,
            own_worktree=True,
            git_runs_programs=self.files.repository.runs_programs,
        )
        return ToolPlanner(make_rules(self.parts.settings), around, requests, self.parts.clock)

    def world(self, runner: Runner, requests: RequestCache, planner: ToolPlanner) -> LocalWorld:
        room = CommandRoom(
            calls=self.lease.path.parent.parent / "calls",
            variables=self.parts.environment.variables,
            limits=Limits(timeout_s=30),
            run_mark=SESSION,
            lease=self.lease.of_commands if self.fenced else None,
        )
        commands = Commands(runner, room, self.parts.redactor)
        guard: Guard = self.lease.performing if self.fenced else nullcontext
        return LocalWorld(
            self.files, commands, self.models, requests, planner.may_read, lambda delta: None, performing=guard
        )

    def opening(self) -> tuple[Body, ...]:
        worktree = MakeWorktree(
            repository=str(self.files.repository.root),
            head=Commit(self.files.repository.head),
            carry_dirty=False,
            at_s=self.parts.clock.now_us() // 1_000_000,
        )
        limits = LimitsSet(id=CommandId("limits"), max_attempts=1)
        intent = EffectStarted(call_id=CallId("w1"), attempt=1, effect=worktree)
        return self.context, self.mode, limits, intent, UserSaid(id=CommandId("task"), text="Do it.")


def prepare(folder: Path, number: int, script: str, mode: str, fence: str) -> Agent:
    stage = Stage(folder)
    parts = stage.parts
    files = find_files(parts, OWN, stage.repository)
    chosen = ModeChosen.model_validate(
        {"id": "mode", "mode": mode, "sandbox": "off" if mode == "bypass" else "workspace-write", "attended": False}
    )
    target = pick_model(parts, script)
    context = make_context(parts, target, files, chosen, snapshots=True, bound=None)
    return Agent(
        parts=parts,
        files=files,
        mode=chosen,
        context=context,
        models=connect(parts, (target,), (context,)),
        sandbox=try_sandbox(chosen),
        lease=AgentLease(SCOUT, number, lease_file(stage.session_folder(), SCOUT)),
        fenced=fence == "fenced",
    )


async def live(agent: Agent, door: Path) -> State:
    """Begin the agent's turn, or take it up where the incarnation before left it, to its end. Raises LogError."""
    runner, requests = (
        Runner(agent.sandbox.bwrap, crash.WRAPPER, etc=agent.parts.environment.state_folder),
        RequestCache(),
    )
    planner = agent.planner(requests)
    world = agent.world(runner, requests, planner)
    async with RemoteLog(door, SCOUT, agent.lease.number, agent.parts.redactor) as log:
        events = await asyncio.to_thread(lambda: tuple(log.read()))
        loop = Loop(log, planner, world, fold_events(events, actor=SCOUT), lambda event: None)
        opening = () if loop.state.context else agent.opening()

        async def work() -> State:
            if not opening:
                return await loop.run()
            await loop.record(*opening)
            return await loop.wait()

        try:
            return await agent.lease.hold(work)
        finally:
            await world.close()
            await runner.close()


def main(folder: str, door: str, number: str, script: str, mode: str, fence: str) -> int:
    agent = prepare(Path(folder), int(number), script, mode, fence)
    try:
        state = asyncio.run(live(agent, Path(door)))
    except LogError as error:
        print(error, file=sys.stderr)
        return STOPPED
    assert state.ending is not None
    return EXIT_CODES[state.ending.ending]


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
