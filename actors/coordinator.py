"""The coordinator of one session: owns its log, its inbox and the main agent's loop. A plain class in one process.

It takes commands and publishes events; it knows no terminal and no Ray."""

import asyncio
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from pathlib import Path

from actors.files import SessionFiles
from actors.restarting import Restart, restore_first
from actors.world import LocalWorld
from agent.decide import Planner
from agent.loop import Loop
from agent.standing import Standing, standing_of
from agent.state import State
from configs.boot import boot_id
from configs.crash import reached
from configs.version import VERSION
from eventlog.effects import CallModel, MakeWorktree, MergeWork, TakeSnapshot
from eventlog.events import (
    Approved,
    Body,
    Command,
    Denied,
    EffectStarted,
    Event,
    FanOutAsked,
    Interrupted,
    ModeChosen,
    SessionOpened,
    UserSaid,
)
from eventlog.ids import CallId, CommandId, Commit, snapshot_id
from eventlog.opening import Opened
from eventlog.outcomes import Merged, Refused
from eventlog.seams import Prepared
from processes.runner import Runner


@dataclass(frozen=True, slots=True)
class Identity:
    """Who opens the log: goes into its first event of this epoch."""

    version: str
    pid: int
    host: str
    boot: str

    def opens(self, opened: Opened) -> SessionOpened:
        return SessionOpened(
            epoch=opened.log.epoch,
            version=self.version,
            pid=self.pid,
            host=self.host,
            boot=self.boot,
            recovered_from=opened.log.head.seq or None,
        )


def this_process() -> Identity:
    return Identity(VERSION, os.getpid(), socket.gethostname(), boot_id())


@dataclass(slots=True)
class Coordinator:
    opened: Opened
    files: SessionFiles
    runner: Runner
    world: LocalWorld
    planner: Planner
    identity: Identity
    past: InitVar[State]
    """What the log held when it was opened."""
    listeners: list[Callable[[Event], None]] = field(default_factory=list)
    loop: Loop = field(init=False)

    def __post_init__(self, past: State) -> None:
        self.loop = Loop(self.opened.log, self.planner, self.world, past, self._publish)

    @property
    def state(self) -> State:
        return self.loop.state

    @property
    def standing(self) -> Standing:
        return standing_of(self.loop.state)

    async def begin(self, bodies: Sequence[Body], worktree: MakeWorktree, prompt: UserSaid | FanOutAsked) -> State:
        """A new session: one transaction holds its first events and the intents that follow from them."""
        intent = EffectStarted(call_id=CallId("w1"), attempt=1, effect=worktree)
        await self.loop.record(self.identity.opens(self.opened), *bodies, intent, prompt)
        return await self.loop.wait()

    async def reopen(self, bodies: Sequence[Body], restart: Restart | None = None) -> State:
        """Take over the log that an earlier process left, settle what it left open, and go on. `restart`: the machine
        was started anew meanwhile."""
        if self.opened.lost is not None and self.opened.lost.told is not None:
            self._publish(self.opened.lost.told)
        opens = self.identity.opens(self.opened)
        if restart is None:
            return await self.loop.run(opens, *bodies)
        if restart.restore is not None:
            await restore_first(self.loop, self.world, opens, restart.restore)
        else:
            await self.loop.record(opens.model_copy(update={"torn": restart.torn}))
        return await self.loop.run(*bodies)

    async def rest(self) -> State:
        return await self.loop.wait()

    async def moved(self) -> None:
        """Never: in this process nobody else answers."""
        await asyncio.get_running_loop().create_future()

    async def say(self, *commands: Command) -> State:
        """Go on until nothing moves without a person."""
        for command in commands:
            self.send(command)
        return await self.loop.wait()

    def send(self, command: Command) -> None:
        """From any frontend, at any time; a repeated id does nothing."""
        if isinstance(command, Approved | Denied):
            reached("before_answer")
        self.loop.inbox.put_nowait(command)

    async def append(self, prepared: Sequence[Prepared]) -> tuple[Event, ...]:
        """What another agent sends: stored and published, and nothing of the main agent's state. To be awaited where it
        is called: then events are published in the order of the log. Raises LeaseSuperseded, LogError."""
        events = await self.opened.log.append(prepared)
        for event in events:
            self._publish(event)
        if any(isinstance(event.body, EffectStarted) and isinstance(event.body.effect, CallModel) for event in events):
            # As in the loop: while others work for hours, the main agent may call no model itself.
            self.opened.log.checkpoint_when_large()
        return events

    def interrupt(self, command_id: CommandId) -> None:
        self.send(Interrupted(id=command_id))

    async def merge(self, at_s: int, number: int) -> Merged | Refused:
        """Bring the result to the user's checkout. Killed half-way, the next opening of the session finishes it."""
        state = self.state
        if state.worktree is None or state.snapshot is None:
            return Refused(text="This session has no worktree of its own; there is nothing to merge.")
        if state.written != "no" and Path(state.worktree.path) != self.files.repository.root:
            taken = TakeSnapshot(parent=state.snapshot, at_s=at_s, reason="before a merge")
            await self.loop.record(EffectStarted(call_id=snapshot_id(state.snapshots + 1), attempt=1, effect=taken))
            state = await self.loop.wait()
            if state.worktree is None or state.snapshot is None or state.written != "no":
                return state.refused or Refused(text="The worktree could not be snapshotted; nothing was merged.")
        effect = MergeWork(
            checkout=str(self.files.repository.root),
            base=state.worktree.base,
            result=state.snapshot,
            head=Commit(self.files.repository.head),
            at_s=at_s,
        )
        await self.loop.record(EffectStarted(call_id=CallId(f"m{number}"), attempt=1, effect=effect))
        state = await self.loop.wait()
        return state.refused or state.merged or Refused(text="The merge left no outcome.")

    async def close(self) -> None:
        await self.world.close()
        await self.runner.close()
        await asyncio.to_thread(self.opened.close)

    def _publish(self, event: Event) -> None:
        if isinstance(event.body, Approved | Denied):
            reached("after_answer")
        for listener in self.listeners:
            listener(event)


def changes_mode(state: State, mode: ModeChosen) -> bool:
    return state.mode.model_copy(update={"id": mode.id}) != mode
