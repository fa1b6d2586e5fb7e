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
from actors.agent_work import Agent, Known, Workshop, fold_agent
from actors.building import Parts, find_files, make_workshop, try_sandbox
from actors.distance import Distance, find_mirror
from actors.elsewhere import read_mirror
from actors.fan_files import retire
from actors.files import SessionFiles
from actors.models import ModelChoice
from actors.orders import Order, decode_order
from actors.refusals import refusal_of
from actors.remote_lease import RemoteLease
from actors.remote_log import RemoteLog
from actors.warming import become_worker, describe_process
from agent.state import State
from configs.places import daemon_environment, decode_variables, place_of, read_variables
from configs.settings import Environment, load_settings
from eventlog.effects import RetireAgents
from eventlog.ids import SessionId
from eventlog.seams import SystemClock
from worktrees.bundle import held_commits, take_bundle
from worktrees.objects import read_ref
from worktrees.repository import Repository

IDLE_S = 600.0
"""After so long without work its process ends."""


class AgentWorker:
    """Plain: values cross as JSON, and an error as a value, so that no traceback crosses at all."""

    def __init__(self, state_folder: str) -> None:
        """`state_folder`: empty for the node's own."""
        self._place = place_of(state_folder)
        self._place.make()
        become_worker(self._place)
        self._order: Order | None = None
        self._agent: Agent | None = None
        self._working: asyncio.Task[bytes] | None = None
        self._interrupted = False
        self._free = True
        self._rounds = 0
        self._known: tuple[Order, State] | None = None
        """The latest round that ended here, and what its agent knew by then."""

    async def list_held(self, repository: str, settings: bytes) -> list[str]:
        """The commits that the mirror of a repository has on this node. `settings`: JSON of MirrorSettings. Raises
        GitError."""
        mirror = await asyncio.to_thread(self._find_mirror, repository, settings)
        return list(await asyncio.to_thread(held_commits, mirror))

    async def take_base(self, repository: str, settings: bytes, ref: str, bundle: bytes) -> None:
        """Into that mirror. Raises GitError."""
        mirror = await asyncio.to_thread(self._find_mirror, repository, settings)
        await asyncio.to_thread(take_bundle, mirror, bundle, {ref: read_ref(mirror.git, ref)})

    async def retire(self, session: str, repository: str, settings: bytes, effect: bytes) -> list[str]:
        """`effect`: JSON of a RetireAgents. As AgentsRetired.kept. Raises GitError."""
        state_folder = self._place.state_folder
        mirror = await asyncio.to_thread(self._find_mirror, repository, settings)
        files = SessionFiles(SessionId(session), mirror, state_folder, state_folder / "sessions" / session, {})
        retired = await asyncio.to_thread(retire, files, RetireAgents.model_validate_json(effect))
        return list(retired.kept)

    def _find_mirror(self, repository: str, settings: bytes) -> Repository:
        return find_mirror(self._place.state_folder, Path(repository), read_mirror(settings))

    async def begin(self, order: bytes, variables: bytes, bundle: bytes) -> bool:
        """Take a round; False where another one is under way here, or has ended and nobody knows yet. `bundle`: for an
        agent that works far from its session."""
        if not self._free:
            return False
        self._free = False
        self._order, self._interrupted = decode_order(order), False
        self._rounds += 1
        self._working = asyncio.create_task(self._work(self._order, orjson.loads(variables), bundle))
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
        node = ray.get_runtime_context().get_node_id()
        return orjson.dumps({**describe_process(), "node": node, "owner": owner, "free": self._free})

    async def _work(self, order: Order, variables: Mapping[str, str], bundle: bytes) -> bytes:
        try:
            outcome = await self._carry_out(order, decode_variables(variables), bundle)
        except Exception as error:  # any of them has to become a sentence on another side
            return orjson.dumps(refusal_of(error, self._place.log))
        finally:
            self._agent = None
        return orjson.dumps({"outcome": outcome})

    async def _carry_out(self, order: Order, variables: Mapping[str, str], bundle: bytes) -> Any:
        parts = self._find_parts(order, variables)
        shop = await asyncio.to_thread(_open_shop, parts, order)
        door, given = self._place.door(order.session), order.elsewhere
        file = lease_file(parts.environment.sessions / order.session, order.agent)
        lease = AgentLease(order.agent, order.lease, file)
        distance = None if given is None else Distance(order.session, door, given, bundle)
        if given is not None:
            lease = RemoteLease(order.agent, order.lease, file, given.settings.agent_lease_s, door=door)
        try:
            async with RemoteLog(door, order.agent, order.lease, parts.redactor) as log:
                known = self._recall(order) or await asyncio.to_thread(fold_agent, log, order.agent, order.lease)
                self._agent = agent = Agent(shop, log, lease, known, distance)
                if self._interrupted:
                    agent.interrupt()
                try:
                    outcome = await agent.work(order.round)
                    self._known = (order, agent.state)
                    return outcome.model_dump(mode="json")
                finally:
                    await agent.close()
        finally:
            await shop.models.close()
            await shop.runner.close()

    def _find_parts(self, order: Order, variables: Mapping[str, str]) -> Parts:
        """Raises SettingsError."""
        given = order.elsewhere
        if given is not None:
            # Of folders, programs and the user this machine's own count.
            variables = {**variables, **daemon_environment(read_variables())}
        environment = Environment(variables, self._place.state_folder, order.config_file)
        settings = load_settings(environment) if given is None else given.settings
        return Parts(environment, settings, SystemClock(), lambda delta: None)

    def _recall(self, order: Order) -> Known | None:
        """What the agent knows, where nobody else was it since: its log need not be read again."""
        if self._known is None:
            return None
        before, state = self._known
        same = before.mine == order.mine and before.lease == order.lease - 1
        return Known(state) if same else None

    def _leave_later(self) -> None:
        rounds = self._rounds

        def leave() -> None:
            if self._rounds == rounds and self._free:
                ray.kill(ray.get_runtime_context().current_actor, no_restart=True)

        asyncio.get_running_loop().call_later(IDLE_S, leave)


def _open_shop(parts: Parts, order: Order) -> Workshop:
    """Blocks. Raises CannotStart, GitError."""
    environment, given = parts.environment, order.elsewhere
    folder = environment.sessions / order.session
    if given is None:
        files = find_files(parts, order.session, order.repository)
    else:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        mirror = find_mirror(environment.state_folder, order.repository, given.mirror)
        files = SessionFiles(order.session, mirror, environment.state_folder, folder, environment.variables)
    models = ModelChoice(environment, parts.settings)
    sandbox = try_sandbox(order.mode)
    return make_workshop(parts, folder, files, order.rights, models, sandbox, own=True)


AgentWorkerActor: ActorClass[AgentWorker] = ray.remote(AgentWorker)
