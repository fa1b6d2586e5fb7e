"""The models of a session: for each context that its log names, the client that the request is sent with.

A session may go from one model to another, on resume, by its fallback, by a rewind: what counts is the context of the
state, never what was chosen today."""

from collections.abc import Iterable
from random import Random
from typing import Protocol

from agent.models.client import ModelClient, ModelError, ModelRequest, OnDelta
from agent.models.http import Timeouts
from agent.models.resolve import Target, close_client, key_of, open_client, pick
from agent.models.wires import wire_of
from configs.settings import Environment, Settings
from eventlog.events import ContextSet
from eventlog.outcomes import ModelFailed


class Models(Protocol):
    def client(self, context: ContextSet) -> ModelClient:
        """Raises nothing: what cannot be reached says so when it is called."""
        ...

    async def close(self) -> None: ...


class OneModel:
    """The same client whatever the context says: for a caller that brings its own."""

    def __init__(self, client: ModelClient) -> None:
        self._client = client

    def client(self, context: ContextSet) -> ModelClient:
        return self._client

    async def close(self) -> None:
        """Nothing: it belongs to the caller."""


class Unusable:
    """A model that cannot be called in this process; its call fails for good with the reason."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> ModelFailed:
        return ModelFailed(fault="refused", text=self._sentence, retry=False)


class ModelChoice:
    """Clients by model and builder, each made when it is first asked for and kept."""

    def __init__(self, environment: Environment, settings: Settings, targets: Iterable[Target] = ()) -> None:
        """`targets` are known already; a server that was found on this machine is nowhere else."""
        self._environment, self._settings = environment, settings
        self._targets = {target.model: target for target in targets}
        self._clients: dict[tuple[str, str], ModelClient] = {}

    def connect(self, model: str, builder: str) -> ModelClient:
        """Opens no connection yet. Raises ModelError."""
        if (client := self._clients.get((model, builder))) is None:
            target = self._targets.get(model) or pick(model, self._environment, self._settings)
            timeouts = Timeouts(silence_s=self._settings.silence_s)
            client = open_client(target, key_of(target, self._environment), Random(), timeouts, wire_of(builder))
            self._targets[model], self._clients[model, builder] = target, client
        return client

    def client(self, context: ContextSet) -> ModelClient:
        try:
            return self.connect(context.model, context.builder)
        except ModelError as error:
            return Unusable(str(error))

    async def close(self) -> None:
        for client in self._clients.values():
            await close_client(client)
        self._clients.clear()
