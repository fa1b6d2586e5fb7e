"""From `provider/name` to what a client needs. Values of settings come in; nothing is read, and no key comes out."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import SecretStr

from agent.models.client import ModelClient, Prices
from agent.models.discovery import Found
from agent.models.requests import MAX_TOKENS_NAME
from configs.models import ModelProfile, ModelTable, Provider, known_models, lookup

if TYPE_CHECKING:
    from agent.models.chat import Timeouts


@dataclass(frozen=True, slots=True)
class Target:
    provider: str
    wire_model: str
    """As the provider's API wants it; for `scripted` the file of the script."""
    base_url: str
    """Empty for `scripted`."""
    key_name: str | None
    """The setting that holds the key; None where none is to be sent."""
    profile: ModelProfile

    @property
    def model(self) -> str:
        return f"{self.provider}/{self.wire_model}"

    @property
    def prices(self) -> Prices:
        return Prices(self.profile.input_usd, self.profile.cached_usd, self.profile.output_usd)

    def parameters(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of a request: what was chosen, less what the provider refuses, and its own names."""
        kept = {name: value for name, value in chosen.items() if name not in self.profile.refused_parameters}
        return {**kept, MAX_TOKENS_NAME: self.profile.max_tokens_name}


@dataclass(frozen=True, slots=True)
class NoModel:
    sentence: str
    """What is missing and how to set it."""


def choose(
    model: str | None,
    settings: Mapping[str, str],
    found: Sequence[Found] = (),
    table: ModelTable | None = None,
) -> Target | NoModel:
    """`settings` are values as the environment names them (OPENAI_API_KEY, OPENAI_BASE_URL …). Without a model the
    first one of the servers found on this machine is taken."""
    table = table or known_models()
    if not model:
        return _choose_found(found, settings, table)
    provider, slash, name = model.partition("/")
    if not slash or not name:
        return NoModel(f"The model {model!r} names no provider; write it as provider/name, such as openai/{model}.")
    owner = table.providers.get(provider)
    if owner is None:
        return NoModel(f"The provider {provider!r} is not known; known are {', '.join(sorted(table.providers))}.")
    if provider == "scripted":
        if not Path(name).is_file():
            return NoModel(f"The script {name} is not there; write the model as scripted/FILE.")
        return Target(provider, name, "", None, lookup(provider, name, table))
    return _choose_server(provider, owner, name, settings, table)


def open_client(
    target: Target, key: SecretStr | None, random: Random, timeouts: "Timeouts | None" = None
) -> ModelClient:
    """Raises BadAddress, BadKey, BadScript."""
    if target.provider == "scripted":
        from agent.models.scripted import ScriptedModel, load_script

        return ScriptedModel(load_script(Path(target.wire_model)), random)
    from agent.models.chat import ChatClient

    return ChatClient(target.base_url, key, key_name=target.key_name or "", random=random, timeouts=timeouts)


def is_loopback(base_url: str) -> bool:
    host = urlsplit(base_url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _choose_found(found: Sequence[Found], settings: Mapping[str, str], table: ModelTable) -> Target | NoModel:
    for server in found:
        owner = table.providers.get(server.name)
        if owner is not None and server.models:
            own = owner.model_copy(update={"base_url": server.base_url, "base_url_variable": None})
            return _choose_server(server.name, own, server.models[0], settings, table)
    return NoModel("No model is chosen and no model server runs on this machine; choose one with -m provider/name.")


def _choose_server(
    provider: str, owner: Provider, name: str, settings: Mapping[str, str], table: ModelTable
) -> Target | NoModel:
    replaced = settings.get(owner.base_url_variable, "") if owner.base_url_variable else ""
    base_url = (replaced.strip() or owner.base_url).rstrip("/")
    try:
        on_this_machine = is_loopback(base_url)
    except ValueError:
        return NoModel(f"The address in {owner.base_url_variable} cannot be read; it looks like https://host/v1.")
    key_name = owner.key_variable if owner.key_variable and settings.get(owner.key_variable) else None
    if key_name is None and owner.key_variable and not (on_this_machine or owner.local):
        return NoModel(f"{owner.key_variable} is not set; set it to your key for {base_url} to use {provider}/{name}.")
    return Target(provider, name, base_url, key_name, lookup(provider, name, table))
