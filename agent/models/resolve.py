"""From `provider/name` to what a client needs. Values of settings come in; nothing is read, and no key comes out."""

import importlib.util
import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, assert_never, runtime_checkable
from urllib.parse import urlsplit

from pydantic import SecretStr

from agent.models.client import ModelClient, ModelError, Prices
from agent.models.discovery import Found
from agent.models.formats import MAX_OUTPUT, MAX_TOKENS_NAME
from configs.models import ModelProfile, ModelTable, Provider, known_models, lookup
from configs.models import Protocol as Spoken
from configs.settings import Environment, Settings

if TYPE_CHECKING:
    from agent.models.http import Timeouts
    from agent.models.wires import Wire

_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class Target:
    provider: str
    wire_model: str
    """As the provider's API wants it; for `scripted` the file of the script."""
    base_url: str
    """Empty for `scripted` and `local`."""
    key_name: str | None
    """The setting that holds the key; None where none is to be sent."""
    profile: ModelProfile
    protocol: Spoken = "chat"
    weights: Path | None = None
    """Of provider `local`: what its server is started with."""

    @property
    def model(self) -> str:
        return f"{self.provider}/{self.wire_model}"

    @property
    def prices(self) -> Prices:
        known = self.profile
        return Prices(known.input_usd, known.cached_usd, known.output_usd, known.cache_write_usd)

    def parameters(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of a request: what was chosen, less what the provider refuses, its own names, and the most
        that one reply of the model may have."""
        profile = self.profile
        kept = {name: value for name, value in chosen.items() if name not in profile.refused_parameters}
        if profile.always_reasons:
            kept = {name: value for name, value in kept.items() if not _turns_reasoning_off(name, value)}
        name = profile.max_tokens_name if self.protocol == "chat" else MAX_OUTPUT
        bound = {} if profile.max_output is None else {name: profile.max_output}
        match self.protocol:
            case "chat":
                return {**bound, **kept, MAX_TOKENS_NAME: name}
            case "messages":
                return {**bound, **kept}
            case "responses":
                # Nothing is asked to be included where there is no reasoning: some servers refuse that.
                none = {} if profile.reasons else {"include": None}
                return {**bound, **none, **kept}
            case _:
                assert_never(self.protocol)


@dataclass(frozen=True, slots=True)
class NoModel:
    sentence: str
    """What is missing and how to set it."""


def choose(
    model: str | None,
    settings: Mapping[str, str],
    found: Sequence[Found] = (),
    table: ModelTable | None = None,
    models_folder: Path | None = None,
) -> Target | NoModel:
    """`settings` are values as the environment names them (OPENAI_API_KEY, OPENAI_BASE_URL …). Without a model the
    first one of the servers found on this machine is taken. `models_folder` holds the weights of provider `local`."""
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
    if provider == "local":
        return _choose_weights(name, models_folder, table)
    return _choose_server(provider, owner, name, settings, table)


class CannotChoose(ModelError):
    """No model can be called as things are; one sentence says what is missing and how to set it."""


def pick(model: str | None, environment: Environment, settings: Settings, found: Sequence[Found] = ()) -> Target:
    """`choose` with what a process was started with and a person has set. Raises CannotChoose."""
    target = choose(model, environment.variables, found, settings.table, environment.models)
    if isinstance(target, NoModel):
        raise CannotChoose(target.sentence)
    return target


def key_of(target: Target, environment: Environment) -> SecretStr | None:
    key = environment.variables.get(target.key_name) if target.key_name else None
    return SecretStr(key) if key else None


def open_client(
    target: Target,
    key: SecretStr | None,
    random: Random,
    timeouts: "Timeouts | None" = None,
    wire: "Wire | None" = None,
) -> ModelClient:
    """`wire` is what is spoken where that is settled already, as by the log of a session. Raises BadAddress, BadKey,
    BadScript."""
    if target.provider == "scripted":
        from agent.models.scripted import ScriptedModel, load_script

        return ScriptedModel(load_script(Path(target.wire_model)), random)
    from agent.models.http import HttpModel
    from agent.models.wires import WIRES

    spoken, key_name = wire or WIRES[target.protocol], target.key_name or ""

    def connect(base_url: str) -> HttpModel:
        return HttpModel(spoken, base_url, key, key_name=key_name, random=random, timeouts=timeouts)

    if target.weights is None:
        return connect(target.base_url)
    from agent.models.local import serve
    from agent.models.on_demand import OnDemand

    return OnDemand(partial(serve, target.weights), connect)


@runtime_checkable
class _Closing(Protocol):
    async def close(self) -> None: ...


async def close_client(client: ModelClient) -> None:
    """Give back the connections, or the process, of a client that has any."""
    if isinstance(client, _Closing):
        await client.close()


def _turns_reasoning_off(name: str, value: Any) -> bool:
    """In any of the protocols."""
    match name, value:
        case ("reasoning_effort", "none") | ("reasoning", {"effort": "none"}) | ("thinking", {"type": "disabled"}):
            return True
        case _:
            return False


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


def _choose_weights(name: str, folder: Path | None, table: ModelTable) -> Target | NoModel:
    """`local/NAME` is the file NAME.gguf among the weights on this machine."""
    if importlib.util.find_spec("xllamacpp") is None:
        return NoModel("Models of provider local need their server; install it with: pip install 'thalia[local]'.")
    if folder is None or not _FILE_NAME.fullmatch(name):
        return NoModel(f"There is no model {name} here; local/NAME stands for NAME.gguf in the folder of models.")
    weights = folder / f"{name}.gguf"
    if not weights.is_file():
        known = "fetch it with" if name == "smollm2" else "put the weights there, or fetch a small model with"
        return NoModel(f"{weights} is not there; {known}: thalia models get smollm2")
    return Target("local", name, "", None, lookup("local", name, table), weights=weights)


def _choose_server(
    provider: str, owner: Provider, name: str, settings: Mapping[str, str], table: ModelTable
) -> Target | NoModel:
    base_url, protocol = address_of(owner, settings)
    try:
        on_this_machine = is_loopback(base_url)
    except ValueError:
        return NoModel(f"The address in {owner.base_url_variable} cannot be read; it looks like https://host/v1.")
    key_name = owner.key_variable if owner.key_variable and settings.get(owner.key_variable) else None
    if key_name is None and owner.key_variable and not (on_this_machine or owner.local):
        return NoModel(f"{owner.key_variable} is not set; set it to your key for {base_url} to use {provider}/{name}.")
    return Target(provider, name, base_url, key_name, lookup(provider, name, table), protocol)


def address_of(owner: Provider, settings: Mapping[str, str]) -> tuple[str, Spoken]:
    """Where the provider is, and what is spoken there."""
    replaced = settings.get(owner.base_url_variable, "").strip().rstrip("/") if owner.base_url_variable else ""
    if not replaced:
        return owner.base_url, owner.protocol
    base_url = replaced if replaced.endswith(owner.base_url_ends) else replaced + owner.base_url_ends
    return base_url, owner.protocol if base_url == owner.base_url else owner.elsewhere or owner.protocol
