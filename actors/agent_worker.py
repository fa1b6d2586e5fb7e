"""The actor in which one agent of a session works: a warm process that takes one round after the other, of any session.

Nothing is retried by Ray: an agent whose process died goes on from the log, in another one."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import ray
from ray.actor import ActorClass

from actors.agent_lease import AgentLease, lease_file
from actors.agent_work import Agent, Workshop, fold_agent
from actors.building import Parts, find_files, make_workshop, try_sandbox
from actors.models import ModelChoice
from actors.orders import Order, decode_order
from actors.refusals import refusal_of
from actors.remote_log import RemoteLog
from actors.warming import become_worker, describe_process
from agent.state import State
from configs.places import daemon_place, decode_variables
from configs.settings import Environment, load_settings
from eventlog.seams import SystemClock

IDLE_S = 600.0
"""After so long without work its process ends."""


class AgentWorker:
    """Plain: values cross as JSON, and an error as a value, so that no traceback crosses at all."""

    def __init__(self, state_folder: str) -> None:
        self._place = daemon_place(Path(state_folder))
        become_worker(self._place)
        self._order: Order | None = None
        self._agent: Agent | None = None
        self._working: asyncio.Task[bytes] | None = None
        self._interrupted = False
        self._free = True
        self._rounds = 0
        self._known: tuple[Order, State] | None = None
        """The latest round that ended here, and what its agent knew by then."""

    async def begin(self, order: bytes, variables: bytes) -> bool:
        """Take a round; False where another one is under way here, or has ended and nobody knows yet."""
        if not self._free:
            return False
        self._free = False
        self._order, self._interrupted = decode_order(order), False
        self._rounds += 1
        self._working = asyncio.create_task(self._work(self._order, orjson.loads(variables)))
        return True

    async def outcome(self, owner: str) -> bytes:
        """What a round came to, once it is over: {"outcome": …}, or what made an end of it. Empty where it is not of
        this owner. Once it was told this process takes another round, and until then it tells again: whoever asked
        first may have died."""
        order, working = self._order, self._working
        if order is None or working is None or order.owner != owner:
            return b""
        told = await asyncio.shield(working)
        if self._working is working and not self._free:
            self._free = True
            self._leave_later()
        return told

    async def interrupt(self, owner: str) -> None:
        if self._order is None or self._order.owner != owner:
            return
        self._interrupted = True
        if self._agent is not None:
            self._agent.interrupt()

    async def describe(self) -> bytes:
        """`owner`: of the round that it has, or had last."""
        owner = self._order.owner if self._order is not None else None
        return orjson.dumps({**describe_process(), "owner": owner, "free": self._free})

    async def _work(self, order: Order, variables: Mapping[str, str]) -> bytes:
        try:
            outcome = await self._carry_out(order, variables)
        except Exception as error:  # any of them has to become a sentence on another side
            return orjson.dumps(refusal_of(error, self._place.log))
        finally:
            self._agent = None
        return orjson.dumps({"outcome": outcome})

    async def _carry_out(self, order: Order, variables: Mapping[str, str]) -> Any:
        environment = Environment(decode_variables(variables), self._place.state_folder, order.config_file)
        parts = Parts(environment, load_settings(environment), SystemClock(), lambda delta: None)
        shop = await asyncio.to_thread(_open_shop, parts, order)
        lease = AgentLease(order.agent, order.lease, lease_file(environment.sessions / order.session, order.agent))
        door = self._place.door(order.session)
        try:
            async with RemoteLog(door, order.agent, order.lease, parts.redactor) as log:
                state = self._recall(order) or await asyncio.to_thread(fold_agent, log, order.agent, order.lease)
                self._agent = agent = Agent(shop, log, lease, state)
                if self._interrupted:
                    agent.interrupt()
                try:
                    self._known = (order, await agent.work(order.round))
                    return (await asyncio.to_thread(agent.conclude, order.round.effect)).model_dump(mode="json")
                finally:
                    await agent.close()
        finally:
            await shop.models.close()
            await shop.runner.close()

    def _recall(self, order: Order) -> State | None:
        """What the agent knows, where nobody else was it since: its log need not be read again."""
        if self._known is None:
            return None
        before, state = self._known
        same = before.mine == order.mine and before.lease == order.lease - 1
        return state if same else None

    def _leave_later(self) -> None:
        rounds = self._rounds

        def leave() -> None:
            if self._rounds == rounds and self._free:
                ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

        asyncio.get_running_loop().call_later(IDLE_S, leave)


def _open_shop(parts: Parts, order: Order) -> Workshop:
    """Blocks. Raises CannotStart, GitError."""
    files = find_files(parts, order.session, order.repository)
    models = ModelChoice(parts.environment, parts.settings)
    folder = parts.environment.sessions / order.session
    sandbox = try_sandbox(order.mode)
    return make_workshop(parts, folder, files, order.rights, models, sandbox, own=True)


AgentWorkerActor: ActorClass[AgentWorker] = ray.remote(AgentWorker)
