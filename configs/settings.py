"""Settings: defaults, then the user's file, then the environment, then options. The only reader of the environment.

A repository's own `.thalia/config.toml` is not read here: it can tighten rules only, once its folder is trusted."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from configs.models import SECRET_NAME, KnownModel, ModelTable, OwnProvider, check_own, known_models, with_own
from configs.places import config_file, read_variables, state_folder
from configs.tools import OwnTool, check_names

MODES = ("plan", "ask", "auto", "bypass")
SANDBOXES = ("read-only", "workspace-write", "off")

_HARMLESS = frozenset({"SSH_AUTH_SOCK", "XAUTHORITY", "GPG_AGENT_INFO"})


class SettingsError(Exception):
    """One sentence: which file, which key, what it should be."""


class PermissionRules(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    allow: tuple[str, ...] = ()
    ask: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()


class ModelPrice(BaseModel):
    """Money per million tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    input: float
    cached: float | None = None
    cache_write: float | None = None
    output: float
    window: int | None = None

    def over(self, known: KnownModel | None) -> KnownModel:
        """What is known, with this price. Where none is given of input from the cache or into it, that costs what any
        input does."""
        changes = {
            "input_usd": self.input,
            "cached_usd": self.input if self.cached is None else self.cached,
            "output_usd": self.output,
            "cache_write_usd": self.cache_write,
            "as_of": None,
            "source": "your settings",
        }
        window = {} if self.window is None else {"window": self.window}
        return (known or KnownModel()).model_copy(update=changes | window)


class Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    model: str | None = None
    """`provider/name`."""
    fallback_model: str | None = None
    """`provider/name` of what answers for the rest of a turn in which `model` does not."""
    permission_mode: Literal["plan", "ask", "auto", "bypass"] | None = None
    """None: ask with a terminal, auto without one."""
    sandbox: Literal["read-only", "workspace-write", "off"] = "workspace-write"
    max_turns: int | None = Field(default=200, ge=1)
    max_budget_usd: float | None = Field(default=None, gt=0)
    max_attempts: int = Field(default=6, ge=1, le=100)
    silence_s: float = Field(default=300.0, gt=0)
    """How long a model server may say nothing."""
    agent_quiet_s: float = Field(default=4000.0, gt=0)
    """How long an agent beside the main one may log nothing until its process is replaced; longer than any one call."""
    agent_lease_s: float = Field(default=60.0, ge=2)
    """How long an agent on another node may act without hearing of its session: longer than that may be away, and what
    goes on in its place waits for so long."""
    agents: tuple[str, ...] = ()
    """Background agents of each session, by name: those that ship and the user's own, never a repository's."""
    command_timeout_s: float = Field(default=120.0, gt=0)
    command_output_mib: int = Field(default=16, ge=1, le=4096)
    log_checkpoint_mib: float = Field(default=64.0, gt=0)
    """How much of a session's log may stand in its write-ahead file before a quiet moment is used to move it."""
    setup_command: str | None = None
    """Runs once in each new worktree, confined."""
    instructions: str = ""
    """Added to every session's system prompt."""
    permissions: PermissionRules = PermissionRules()
    prices: Mapping[str, ModelPrice] = Field(default_factory=dict)
    """By `provider/name`; wins over the table that ships."""
    providers: Mapping[str, OwnProvider] = Field(default_factory=dict)
    """Changes to known providers, and providers of the user's own."""
    tools: Mapping[str, OwnTool] = Field(default_factory=dict)
    """Programs that the model may ask for, by the names that it calls them."""

    @field_validator("providers")
    @classmethod
    def _known_or_whole(cls, own: Mapping[str, OwnProvider]) -> Mapping[str, OwnProvider]:
        check_own(own)
        return own

    @field_validator("tools")
    @classmethod
    def _named_well(cls, tools: Mapping[str, OwnTool]) -> Mapping[str, OwnTool]:
        check_names(tools)
        return tools

    @property
    def table(self) -> ModelTable:
        """The providers and models that ship, with the user's own and their prices."""
        table = with_own(known_models(), self.providers)
        own = {name: price.over(table.models.get(name)) for name, price in self.prices.items()}
        return table.model_copy(update={"models": {**table.models, **own}}) if own else table


@dataclass(frozen=True, slots=True)
class Environment:
    """What the process was started with. Values that look secret are known here so that the log never holds them."""

    variables: Mapping[str, str] = field(repr=False)
    state_folder: Path
    config_file: Path

    @property
    def sessions(self) -> Path:
        return self.state_folder / "sessions"

    @property
    def worktrees(self) -> Path:
        return self.state_folder / "worktrees"

    @property
    def models(self) -> Path:
        """Where the weights of local models are kept."""
        return self.state_folder / "models"

    @property
    def secrets(self) -> frozenset[str]:
        return frozenset(
            value
            for name, value in self.variables.items()
            if SECRET_NAME.search(name) and name not in _HARMLESS and len(value) >= 8 and not Path(value).is_absolute()
        )


def read_environment() -> Environment:
    variables = read_variables()
    return Environment(variables, state_folder(variables), config_file(variables))


def load_settings(environment: Environment) -> Settings:
    """Raises SettingsError."""
    tree: dict[str, object] = {}
    file = environment.config_file
    if file.exists():
        try:
            tree = tomllib.loads(file.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise SettingsError(f"{file} is not valid TOML: {error}; correct it or move it away.") from error
        except OSError as error:
            raise SettingsError(f"{file} cannot be read: {error.strerror}.") from error
    if "THALIA_MODEL" in environment.variables:
        tree["model"] = environment.variables["THALIA_MODEL"]
    try:
        return Settings.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        said = first["msg"].removeprefix("Value error, ")
        raise SettingsError(f"{file}: `{where}`: {said}.") from error
