"""What an agent makes on another node goes to its session before the log says that it is made: with the node nothing is
lost that stands in the log.

A command may write anything, so the worktree is captured after each one; edits stand in the log themselves."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from actors import detached
from actors.detached import WorkerLost
from actors.files import SessionFiles
from actors.frames import FrameError
from actors.moving import capture_after
from actors.relay import DoorGone, ask
from agent.results import wrote
from agent.state import State
from configs.crash import reached_in
from eventlog.effects import MakeWorktree, RestoreTree, RunTool, TakeSnapshot
from eventlog.errors import LeaseSuperseded, LogError
from eventlog.events import EffectStarted
from eventlog.outcomes import Outcome, ToolSucceeded
from worktrees.bundle import make_bundle, refs_below

Store = Callable[[str, str, bytes], Awaitable[bool]]
"""A bundle under its name beside the log of a session. False where it could not be stored. Raises WorkerLost, and
ValueError where nobody is there."""

STORE_S = 120.0
"""For one bundle to cross."""
PAUSE_S = 0.25
TRIES = 3
"""Of a bundle that is refused, each with all that the agent has."""


class DeliveryFailed(LogError):
    """The session could not take what the agent made; another incarnation begins with what it took last."""


@dataclass(frozen=True, slots=True)
class Recipient:
    """The session of one incarnation of an agent."""

    door: Path
    session: str
    agent: str
    lease: int
    held: Mapping[str, str]
    """The agent's references as the session has them, by full name."""
    have: Sequence[str]
    """Other commits that it has."""


async def store_far(session: str, name: str, bundle: bytes) -> bool:
    """A Store."""
    from actors.near_door import FAR

    far = await detached.find(FAR)
    return await detached.ask(far.store.remote(session, name, bundle), STORE_S)


class Courier:
    """A Carrier, of one incarnation."""

    def __init__(
        self,
        files: SessionFiles,
        session: Recipient,
        change: Callable[..., Awaitable[object]],
        store: Store = store_far,
    ) -> None:
        """`change` runs a function in a thread, under the agent's lease."""
        self._files, self._session, self._change, self._store = files, session, change, store
        self._held = dict(session.held)
        self._busy = asyncio.Lock()

    async def __call__(self, intent: EffectStarted, state: State, outcome: Outcome) -> None:
        match intent.effect:
            case MakeWorktree() | TakeSnapshot() | RestoreTree():
                await self.deliver()
            case RunTool() as effect if wrote(effect, outcome) == "more":
                await self._change(capture_after, self._files, state, (intent.call_id, intent.attempt))
                await self.deliver()
            case RunTool() if isinstance(outcome, ToolSucceeded) and outcome.commit is not None:
                await self.deliver()
            case _:
                pass

    async def deliver(self) -> None:
        """All that moved since. Raises LogError."""
        async with self._busy:
            found = await asyncio.to_thread(refs_below, self._files.repository, self._files.refs)
            moved = {ref: commit for ref, commit in found.items() if self._held.get(ref) != commit}
            if moved:
                await self._send(moved)
                self._held.update(moved)

    async def _send(self, moved: Mapping[str, str]) -> None:
        refusal: str | None = ""
        for _ in range(TRIES):
            have = (*self._session.have, *(() if refusal else self._held.values()))
            bundle = await asyncio.to_thread(
                make_bundle, self._files.repository, moved, have, reached=reached_in("bundle")
            )
            refusal = await self._bring(hashlib.sha256(bundle).hexdigest(), bundle, moved)
            if refusal is None:
                return
        raise DeliveryFailed(f"What agent {self._session.agent} made could not be taken: {refusal}")

    async def _bring(self, name: str, bundle: bytes, moved: Mapping[str, str]) -> str | None:
        """None once it was taken, else why not. For as long as the lease lasts somebody may come back."""
        to = self._session
        below = len(self._files.refs) + 1
        moves = {ref[below:]: {"old": self._held.get(ref), "new": commit} for ref, commit in moved.items()}
        question = {"op": "deliver", "agent": to.agent, "lease": to.lease, "bundle": name, "moves": moves}
        while True:
            with suppress(WorkerLost, ValueError, DoorGone, FrameError):
                if await self._store(to.session, name, bundle):
                    answer = await ask(to.door, question)
                    if answer.get("error") == LeaseSuperseded.__name__:
                        raise LeaseSuperseded(to.agent, to.lease)
                    if answer.get("error") != "NotStored":
                        return answer["text"] if "error" in answer else None
            await asyncio.sleep(PAUSE_S)
