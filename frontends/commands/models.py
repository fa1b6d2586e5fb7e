"""`thalia models`: what is known, what runs on this machine, what a model can do, and a small model of one's own."""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from agent.models.discovery import Found
    from configs.models import KnownModel, Provider
    from configs.settings import Environment, Settings

UNREACHABLE = 13

models = typer.Typer(help="Models: which are known, which run here, what one can do.", rich_markup_mode=None)

Output = Annotated[Literal["text", "json"], typer.Option("--output-format", help="json: one object a line.")]


@models.callback(invoke_without_command=True)
def list_models(context: typer.Context, output: Output = "text") -> None:
    """Providers, models with their prices, and servers on this machine."""
    if context.invoked_subcommand is not None:
        return
    import asyncio

    from agent.models.discovery import find_servers

    environment, settings = _read()
    owners, found = known_owners(settings, environment), asyncio.run(find_servers())
    lines = [line for owner in owners for line in (owner_lines(owner) if output == "text" else owner_rows(owner))]
    print("\n".join([*lines, *(server_lines(found) if output == "text" else server_rows(found))]))


@models.command()
def probe(
    name: Annotated[str, typer.Argument(help="provider/name, e.g. openai/gpt-5.")], output: Output = "text"
) -> None:
    """Ask a model one tiny question, and say what works. It costs what the question costs."""
    import asyncio

    from agent.models.probe import probe as converse
    from agent.models.resolve import key_of, pick
    from frontends.terminal.tables import finding_rows

    environment, settings = _read()
    target = pick(name, environment, settings)
    if target.profile.warning:
        print(f"! {target.profile.warning}", file=sys.stderr)
    found = asyncio.run(converse(target, key_of(target, environment)))
    print("\n".join(finding_rows(found, output)))
    raise typer.Exit(0 if found[0].ok else UNREACHABLE)


@models.command()
def get(name: Annotated[str, typer.Argument(help="smollm2: 135 million parameters, about 100 MB.")]) -> None:
    """Fetch a small model that runs on this machine, to try things out: it streams, and cannot use tools."""
    from agent.models.client import ModelError

    if name != "smollm2":
        raise ModelError(f"There is no model {name} to get; there is smollm2.")
    from agent.models.local import get_smollm2

    environment, _ = _read()
    print(f"{get_smollm2(environment.models)}\nuse it with: thalia exec PROMPT -m local/smollm2")


def _read() -> "tuple[Environment, Settings]":
    """Raises SettingsError."""
    from configs.settings import load_settings, read_environment

    environment = read_environment()
    return environment, load_settings(environment)


@dataclass(frozen=True, slots=True)
class Owner:
    """A provider as it would be used now, and what is known of its models, by their names there."""

    name: str
    provider: "Provider"
    base_url: str
    """Empty where it has none: its server is started when it is needed."""
    protocols: tuple[str, ...]
    """The one in use first."""
    key_set: bool
    models: "Mapping[str, KnownModel]"


def known_owners(settings: "Settings", environment: "Environment") -> list[Owner]:
    """In the order of the table, the user's own last."""
    from agent.models.client import BadAddress
    from agent.models.http import shown_address
    from agent.models.resolve import address_of

    table = settings.table
    owners: list[Owner] = []
    for name, provider in table.providers.items():
        if name == "scripted":
            continue
        base_url, protocol = address_of(provider, environment.variables)
        try:
            shown = shown_address(base_url) if base_url else ""
        except BadAddress:
            shown = f"(the address in {provider.base_url_variable} cannot be used)"
        own = {full.partition("/")[2]: model for full, model in table.models.items() if full.partition("/")[0] == name}
        spoken = (protocol, *(other for other in provider.protocols if other != protocol))
        key_set = bool(provider.key_variable and environment.variables.get(provider.key_variable))
        owners.append(Owner(name, provider, shown, spoken, key_set, own))
    return owners


def owner_lines(owner: Owner) -> list[str]:
    """The provider, then its models, each with its warning below it."""
    head = [owner.base_url or "its server is started when it is needed", ", ".join(owner.protocols), *_key(owner)]
    lines = [f"{owner.name}  {' · '.join(head)}"]
    for name, model in owner.models.items():
        when = f"  {model.as_of or model.source}" if model.input_usd is not None else ""
        lines.append(f"  {name:<32} {model.window:>9,} tokens  {_price(owner, model)}{when}")
        lines += [f"    ! {model.warning}"] if model.warning else []
    return lines


def owner_rows(owner: Owner) -> list[str]:
    head = {
        "kind": "provider",
        "provider": owner.name,
        "base_url": owner.base_url,
        "protocols": owner.protocols,
        "key_variable": owner.provider.key_variable,
        "key_set": owner.key_set,
        "local": owner.provider.local,
    }
    rows = [
        {"kind": "model", "model": f"{owner.name}/{name}", **model.model_dump()} for name, model in owner.models.items()
    ]
    return [json.dumps(row, ensure_ascii=False) for row in (head, *rows)]


def server_lines(found: "Sequence[Found]") -> list[str]:
    """What answers here; a model that a server offers is used as server/model."""
    from frontends.terminal.escape import safe_line

    if not found:
        return ["on this machine  no model server runs on the usual ports"]
    shown = [(server, ", ".join(map(safe_line, server.models)) or "no model yet") for server in found]
    return ["on this machine", *(f"  {server.name}  {server.base_url} · {names}" for server, names in shown)]


def server_rows(found: "Sequence[Found]") -> list[str]:
    return [json.dumps({"kind": "server", **asdict(server)}, ensure_ascii=False) for server in found]


def _key(owner: Owner) -> list[str]:
    if owner.key_set:
        return [f"{owner.provider.key_variable} is set"]
    if owner.provider.key_variable is None or owner.provider.local:
        return ["no key needed"]
    return [f"{owner.provider.key_variable} is not set"]


def _price(owner: Owner, model: "KnownModel") -> str:
    """USD per million tokens."""
    if model.input_usd is None:
        return "free" if owner.provider.local else "price unknown"
    written = f" · ${model.cache_write_usd:g} cache writes" if model.cache_write_usd is not None else ""
    return f"${model.input_usd:g} in · ${model.cached_usd:g} cached{written} · ${model.output_usd:g} out"
