"""What is known of providers and models before a request is made: addresses, names of settings, windows, prices."""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, model_validator

MODELS_FILE = Path(__file__).with_name("models.toml")
DEFAULT_WINDOW = 128_000
_DATED = re.compile(r"-(\d{4}-\d{2}-\d{2}|\d{8}|latest)$")


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Provider(_Table):
    base_url: str
    base_url_variable: str | None = None
    """The setting that replaces the base URL."""
    key_variable: str | None = None
    """The setting that holds the key; None where there is none."""
    max_tokens_name: str = "max_tokens"
    refused_parameters: tuple[str, ...] = ()
    """Parameters that its API answers with an error."""
    local: bool = False
    """It runs on the user's own machine: no bill, and no key is needed."""


class KnownModel(_Table):
    """A price is whole or absent, and then says when and where it was published."""

    window: int = DEFAULT_WINDOW
    input_usd: float | None = None
    cached_usd: float | None = None
    output_usd: float | None = None
    as_of: str | None = None
    source: str | None = None
    warning: str | None = None

    @model_validator(mode="after")
    def _whole(self) -> "KnownModel":
        price = (self.input_usd, self.cached_usd, self.output_usd)
        known = [value is not None for value in price]
        if any(known) and not (all(known) and self.as_of and self.source):
            raise ValueError("a price needs input_usd, cached_usd, output_usd, as_of and source")
        return self


class ModelTable(_Table):
    providers: dict[str, Provider]
    models: dict[str, KnownModel]
    """By `provider/name`."""


class ModelProfile(_Table):
    window: int
    """Tokens the model can hold."""
    input_usd: float | None
    """USD per million tokens, with the next two. None is unknown."""
    cached_usd: float | None
    output_usd: float | None
    as_of: str | None
    source: str | None
    warning: str | None
    """What a person must know before using the model."""
    max_tokens_name: str
    refused_parameters: tuple[str, ...]


def load_models(path: Path = MODELS_FILE) -> ModelTable:
    return ModelTable.model_validate(tomllib.loads(path.read_text()))


@cache
def known_models() -> ModelTable:
    """The table that ships."""
    return load_models()


def lookup(provider: str, wire_model: str, table: ModelTable | None = None) -> ModelProfile:
    """What is known of a model. A name with a date stands for the name without it; a local model costs nothing; any
    other that is not listed has the default window and no price."""
    table = table or known_models()
    owner = table.providers.get(provider) or Provider(base_url="")
    known = _find(table.models, provider, wire_model)
    free = owner.local and known.input_usd is None
    return ModelProfile(
        window=known.window,
        input_usd=0.0 if free else known.input_usd,
        cached_usd=0.0 if free else known.cached_usd,
        output_usd=0.0 if free else known.output_usd,
        as_of=known.as_of,
        source=known.source,
        warning=known.warning,
        max_tokens_name=owner.max_tokens_name,
        refused_parameters=owner.refused_parameters,
    )


def _find(models: Mapping[str, KnownModel], provider: str, wire_model: str) -> KnownModel:
    name = f"{provider}/{wire_model}"
    return models.get(name) or models.get(_DATED.sub("", name)) or KnownModel()
