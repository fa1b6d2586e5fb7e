"""What is known of providers and models before a request is made: addresses, protocols, windows, prices."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, field_validator, model_validator

MODELS_FILE = Path(__file__).with_name("models.toml")
DEFAULT_WINDOW = 128_000
Protocol = Literal["chat", "responses", "messages"]
"""Chat Completions, Responses, Messages."""

_DATED = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8}|latest)$")
_PROVIDER_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SECRET_NAME = re.compile(r"(?i)key|token|secret|passw|credential|auth|cookie|dsn|_url$|^db$")
"""A variable of such a name holds a secret: its value is kept from logs, screens and child processes."""
NOT_SERVERS = frozenset({"scripted", "local"})
"""Providers without an address of their own: a file is played, or a server is started when it is needed."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Provider(_Table):
    base_url: str
    base_url_variable: str | None = None
    """The setting that replaces the base URL."""
    base_url_ends: str = ""
    """What that setting leaves out by custom, and the base URL ends with."""
    key_variable: str | None = None
    """The setting that holds the key; None where there is none."""
    protocol: Protocol = "chat"
    """What it is asked in."""
    speaks: tuple[Protocol, ...] = ()
    """All that it understands, where that is more than `protocol`."""
    elsewhere: Protocol | None = None
    """What is spoken at another address than the published one, where that is not `protocol`: many servers that
    stand in for this provider know only that."""
    max_tokens_name: str = "max_tokens"
    """Of protocol chat alone."""
    refused_parameters: tuple[str, ...] = ()
    """Parameters that its API answers with an error."""
    always_reasons: bool = False
    """It answers a request that turns reasoning off with an error."""
    reasons: bool = True
    """Its models may reason; of those that do not no reasoning is asked for, which some servers refuse."""
    local: bool = False
    """It runs on the user's own machine: no bill, and no key is needed."""

    @property
    def protocols(self) -> tuple[Protocol, ...]:
        """The one in use first."""
        return (self.protocol, *(other for other in self.speaks if other != self.protocol))


class OwnProvider(_Table):
    """What a person changes in a provider, or the whole of one of their own. None is as it was."""

    base_url: str | None = None
    protocol: Protocol | None = None
    key_variable: str | None = None
    reasons: bool | None = None

    @field_validator("base_url")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        if url is None:
            return None
        try:
            parts = urlsplit(url)
            fits = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        except ValueError:
            raise ValueError("an address looks like https://host/v1") from None
        if not fits:
            raise ValueError("an address looks like https://host/v1")
        if parts.username or parts.password:
            raise ValueError("an address holds no user and no password; name the variable of the key in key_variable")
        return url.rstrip("/")

    @field_validator("key_variable")
    @classmethod
    def _is_secret_name(cls, name: str | None) -> str | None:
        if name is not None and not _VARIABLE.fullmatch(name):
            raise ValueError("it names a variable of the environment, it does not hold the key itself")
        if name is not None and not SECRET_NAME.search(name):
            raise ValueError("name the variable so that its value is known to be secret, such as MINE_API_KEY")
        return name


class KnownModel(_Table):
    """A price is whole or absent, and then says when and where it was published."""

    window: int = DEFAULT_WINDOW
    max_output: int | None = None
    """Tokens of one reply to ask for at most, if any."""
    reasons: bool = True
    """It may reason; else no reasoning is asked for."""
    input_usd: float | None = None
    cached_usd: float | None = None
    output_usd: float | None = None
    cache_write_usd: float | None = None
    """Of input that the provider puts into its cache, where that is another price than of any input."""
    as_of: str | None = None
    source: str | None = None
    warning: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> "KnownModel":
        price = (self.input_usd, self.cached_usd, self.output_usd)
        known = [value is not None for value in price]
        some = any(known) or self.cache_write_usd is not None
        if some and not (all(known) and self.as_of and self.source):
            raise ValueError("a price needs input_usd, cached_usd, output_usd, as_of and source")
        return self


class ModelTable(_Table):
    providers: dict[str, Provider]
    models: dict[str, KnownModel]
    """By `provider/name`."""

    @model_validator(mode="after")
    def _owned(self) -> Self:
        for name in self.models:
            if name.partition("/")[0] not in self.providers:
                raise ValueError(f"the model {name} has no provider")
        return self


class ModelProfile(_Table):
    window: int
    """Tokens the model can hold."""
    max_output: int | None
    input_usd: float | None
    """USD per million tokens, with the next two. None is unknown."""
    cached_usd: float | None
    output_usd: float | None
    cache_write_usd: float | None
    """None is what any input costs."""
    as_of: str | None
    source: str | None
    warning: str | None
    """What a person must know before using the model."""
    max_tokens_name: str
    refused_parameters: tuple[str, ...]
    always_reasons: bool
    reasons: bool


def load_models(path: Path = MODELS_FILE) -> ModelTable:
    return ModelTable.model_validate(tomllib.loads(path.read_text()))


@cache
def known_models() -> ModelTable:
    """The table that ships."""
    return load_models()


def check_own(own: Mapping[str, OwnProvider], table: ModelTable | None = None) -> None:
    """Raises ValueError: a phrase that says what is wrong."""
    known = (table or known_models()).providers
    for name, provider in own.items():
        if not _PROVIDER_NAME.fullmatch(name):
            raise ValueError(f"a provider is named in small letters, digits, - and _, not {name!r}")
        if name in NOT_SERVERS:
            raise ValueError(f"{name} has no address; give a provider of your own another name")
        if name not in known and provider.base_url is None:
            raise ValueError(f"{name} is not known, so it needs a base_url such as http://127.0.0.1:8000/v1")


def with_own(table: ModelTable, own: Mapping[str, OwnProvider]) -> ModelTable:
    """The table with a person's providers in it."""
    providers = {name: _changed(table.providers.get(name), mine) for name, mine in own.items()}
    return table.model_copy(update={"providers": {**table.providers, **providers}}) if own else table


def _changed(known: Provider | None, own: OwnProvider) -> Provider:
    """A changed address is another one than the published; a protocol that a person names counts everywhere."""
    if known is None:
        known = Provider(base_url="")
    changes = own.model_dump(exclude_none=True)
    if own.protocol is not None:
        changes["elsewhere"] = None
    elif own.base_url is not None and known.elsewhere is not None:
        changes["protocol"] = known.elsewhere
    return known.model_copy(update=changes)


def lookup(provider: str, wire_model: str, table: ModelTable | None = None) -> ModelProfile:
    """What is known of a model. A name with a date stands for the name without it; a local model costs nothing; any
    other that is not listed has the default window and no price."""
    table = table or known_models()
    owner = table.providers.get(provider) or Provider(base_url="")
    known = _find(table.models, provider, wire_model)
    free = owner.local and known.input_usd is None
    return ModelProfile(
        window=known.window,
        max_output=known.max_output,
        input_usd=0.0 if free else known.input_usd,
        cached_usd=0.0 if free else known.cached_usd,
        output_usd=0.0 if free else known.output_usd,
        cache_write_usd=known.cache_write_usd,
        as_of=known.as_of,
        source=known.source,
        warning=known.warning,
        max_tokens_name=owner.max_tokens_name,
        refused_parameters=owner.refused_parameters,
        always_reasons=owner.always_reasons,
        reasons=owner.reasons and known.reasons,
    )


def _find(models: Mapping[str, KnownModel], provider: str, wire_model: str) -> KnownModel:
    name = f"{provider}/{wire_model}"
    return models.get(name) or models.get(_DATED.sub("", name)) or KnownModel()
