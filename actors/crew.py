"""The background agents of a session, from the definitions that its user named."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from actors.building import CannotStart, Parts, list_tools, make_route, pick_model
from agent.background import Crew
from agent.definition_files import Found, look_for_definitions
from agent.definitions import AgentDefinition
from agent.prompt import as_background
from eventlog.events import BackgroundAgent, ContextSet, ModelRoute
from eventlog.ids import AgentId

NOBODY = "none"
"""What a user names who wants no background agent, whatever the settings say."""


def find_chosen(parts: Parts, root: Path, named: Sequence[str] | None) -> tuple[AgentDefinition, ...]:
    """What `named` means; None: what the user's settings name, for which a repository's definition does not count.
    Raises CannotStart."""
    wanted = parts.settings.agents if named is None else tuple(name for name in named if name != NOBODY)
    if not wanted:
        return ()
    found = look_for_definitions(Path(parts.environment.variables.get("HOME", "/nonexistent")), root)
    known = {one.name: one for one in (found.unasked if named is None else found.definitions)}
    if missing := [name for name in wanted if name not in known]:
        raise CannotStart(_missing(missing[0], known, found))
    return tuple(known[name] for name in dict.fromkeys(wanted))


def name_all(definitions: Sequence[AgentDefinition]) -> dict[str, str]:
    """What each is for."""
    return {one.name: one.description for one in definitions}


def make_crew(parts: Parts, definitions: Sequence[AgentDefinition], context: ContextSet) -> tuple[BackgroundAgent, ...]:
    """`context`: the main agent's. Raises CannotStart where a model cannot be used."""
    return tuple(
        BackgroundAgent(
            agent=AgentId(one.name),
            description=one.description,
            defined_in=one.path,
            wakes_on=one.wakes_on,
            budget_usd_per_hour=one.budget_usd_per_hour,
            context=as_background(
                context if one.model is None else with_route(context, make_route(pick_model(parts, one.model))),
                one.name,
                one.instructions,
                list_tools(parts.settings.tools, one.tools),
            ),
        )
        for one in definitions
    )


def with_route(context: ContextSet, route: ModelRoute) -> ContextSet:
    return context.model_copy(update=route.model_dump())


def follow_model(crew: Crew, before: ContextSet, after: ContextSet) -> tuple[BackgroundAgent, ...]:
    """Those that have the session's model go with it where that changes."""
    route = ModelRoute(**{name: getattr(after, name) for name in ModelRoute.model_fields})
    return tuple(
        one.chosen.model_copy(update={"context": with_route(one.chosen.context, route)})
        if one.chosen.context.model == before.model
        else one.chosen
        for one in crew
    )


def _missing(name: str, known: Mapping[str, AgentDefinition], found: Found) -> str:
    wrong = next((problem for problem in found.problems if f"/{name}.md" in problem), None)
    return wrong or f"There is no background agent {name!r}; there are {', '.join(sorted(known)) or 'none'}."
