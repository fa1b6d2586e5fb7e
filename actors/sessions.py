"""Begin a session, or take one up again. What a frontend needs to know stands in the values here."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.building import (
    CannotStart,
    Parts,
    Rights,
    build,
    connect,
    find_files,
    make_context,
    make_route,
    make_workshop,
    pick_model,
    tools_of_main,
    try_sandbox,
)
from actors.coordinator import Coordinator, changes_mode
from actors.crew import find_chosen, follow_model, make_crew, name_all
from actors.files import SessionFiles
from actors.history import commit_at
from actors.lost import put_aside
from actors.models import Models, OneModel
from actors.past import Past
from actors.restarting import Restart, plan_restart
from agent.definitions import AgentDefinition
from agent.models.client import ModelClient
from agent.models.resolve import Target
from agent.planning import BUDGETED_OUTPUT_TOKENS
from agent.state import State
from configs.boot import boot_id
from configs.version import new_command_name
from eventlog.effects import MakeWorktree
from eventlog.events import (
    AgentsChosen,
    Body,
    ContextSet,
    Continued,
    Event,
    FallbackSet,
    FanOutAsked,
    LimitsSet,
    Mode,
    ModeChosen,
    ModelRoute,
    Sandbox,
    UserSaid,
)
from eventlog.events import EffectStarted as Started
from eventlog.finding import choose_session
from eventlog.ids import CallId, CommandId, Commit, SessionId
from eventlog.opening import Opened, create_log, open_log
from eventlog.taking_over import end_writer
from worktrees.git import GitError


@dataclass(frozen=True, slots=True)
class FanRequest:
    """Tasks for as many agents, in place of a prompt for one."""

    tasks: tuple[str, ...]
    jobs: int | None = None
    """Agents at work at the same time; None: as many as usual."""
    check: str = ""
    labels: tuple[str, ...] = ()
    """NAME=VALUE of nodes of the cluster on which they are to work; none: on any."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a user chose for this run; None is not chosen."""

    folder: Path
    model: str | None = None
    fallback: str | None = None
    """What answers for the rest of a turn in which `model` does not."""
    mode: Mode | None = None
    sandbox: Sandbox | None = None
    attended: bool = False
    max_turns: int | None = None
    max_budget_usd: float | None = None
    clean: bool = False
    base: str | None = None
    """Begin with this commit of the repository, and without what is uncommitted."""
    fan: FanRequest | None = None
    in_place: bool = False
    snapshots: bool = True
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    add_dirs: tuple[Path, ...] = ()
    """Folders outside the repository that commands may read."""
    agents: tuple[str, ...] | None = None
    """Background agents by name; None: as the settings say, or as they are in a session that is resumed."""
    schema: str | None = None
    """JSON schema of the final reply."""
    accept_damage: bool = False
    take_over: bool = False
    """Whether another process that writes the session is ended first."""
    command_id: CommandId | None = None
    """Of the prompt, or of the word to go on; whoever asks again with the same one repeats nothing."""
    goes_on: bool = True
    """Whether a turn that ended early is taken up again where nothing is said."""


def new_command_id() -> CommandId:
    return CommandId(new_command_name())


@dataclass(slots=True)
class Ready:
    """A session whose first step is `go`; nothing has happened in the world yet."""

    coordinator: Coordinator
    bodies: tuple[Body, ...]
    worktree: MakeWorktree | None
    prompt: UserSaid | FanOutAsked | None
    restart: Restart | None = None

    async def go(self) -> State:
        if self.worktree is not None and self.prompt is not None:
            return await self.coordinator.begin(self.bodies, self.worktree, self.prompt)
        return await self.coordinator.reopen(self.bodies, self.restart)


def prepare_new(
    parts: Parts, session: SessionId, options: Options, prompt: str, client: ModelClient | None = None
) -> Ready:
    """Raises CannotStart, GitError, LogError. The log's folder is the first thing that is made."""
    files = _files(parts, session, options.folder)
    base, target, mode = _find_base(files, options), pick_model(parts, options.model), _mode(parts, options)
    sandbox = try_sandbox(mode)
    limits = _limits(parts, options, None)
    bound = BUDGETED_OUTPUT_TOKENS if limits.max_budget_usd is not None else None
    snapshots = options.snapshots and not options.in_place
    defined = find_crew(parts, files, options) if snapshots else ()
    agents = name_all(defined)
    context = make_context(
        parts, target, files, mode, snapshots=snapshots, bound=bound, schema=options.schema, agents=agents
    )
    crew = make_crew(parts, defined, context)
    spare = _spare(parts, options.fallback or parts.settings.fallback_model, context.model)
    routes = [make_route(one) for one in spare]
    _check_budget(parts, limits, context, *routes, *(one.context for one in crew))
    models = OneModel(client) if client is not None else connect(parts, (target, *spare), (context, *routes))
    # Before there is a log: a rule that cannot be read begins no session.
    folder, rights = parts.environment.sessions / session, rights_of(options)
    shop = make_workshop(parts, folder, files, rights, models, sandbox, own=not options.in_place)
    opened = create_log(folder, session, parts.clock, parts.redactor)
    coordinator = build(parts, opened, shop, rights, State())
    worktree = MakeWorktree(
        repository=str(files.repository.root),
        head=base,
        carry_dirty=not options.clean and options.base is None,
        at_s=parts.clock.now_us() // 1_000_000,
        in_place=options.in_place,
    )
    fallbacks = (FallbackSet(route=route) for route in routes)
    bodies = (context, *fallbacks, mode, limits, *((AgentsChosen(agents=crew),) if crew else ()))
    return Ready(coordinator, bodies, worktree, _first_word(options, prompt))


def _first_word(options: Options, prompt: str) -> UserSaid | FanOutAsked:
    id, fan = options.command_id or new_command_id(), options.fan
    if fan is None:
        return UserSaid(id=id, text=prompt)
    return FanOutAsked(id=id, tasks=fan.tasks, jobs=fan.jobs or 0, check=fan.check, labels=fan.labels)


def _find_base(files: SessionFiles, options: Options) -> Commit:
    """Raises CannotStart."""
    if options.fan is not None and (options.in_place or not options.snapshots):
        raise CannotStart("Agents of a fan-out need worktrees of their own and snapshots; leave that option out.")
    if options.base is None:
        return Commit(files.repository.head)
    found = files.find_commit(options.base)
    if found is None:
        raise CannotStart(f"There is no commit {options.base!r} here; name a branch, a tag or a commit.")
    return found


def prepare_resumed(
    parts: Parts, session: SessionId, options: Options, prompt: str | None, client: ModelClient | None = None
) -> Ready:
    """Raises LogBusy at once where another process has it, CannotTakeOver where that was to be ended; CannotStart,
    GitError, LogError otherwise."""
    folder = parts.environment.sessions / session
    if options.take_over:
        end_writer(folder)
    past = Past()
    opened = open_log(
        folder, session, parts.clock, parts.redactor, accept_damage=options.accept_damage, begin=past.begin
    )
    try:
        return _reopen(parts, opened, past, options, prompt, client)
    except BaseException:
        opened.close()
        raise


def _reopen(
    parts: Parts, opened: Opened, past: Past, options: Options, prompt: str | None, client: ModelClient | None
) -> Ready:
    session = opened.log.session
    state, worktree = past.state, past.made
    if state.context is None or worktree is None:
        raise CannotStart(f"Session {session} ended before it began; start it anew with `thalia exec`.")
    files = _files(parts, session, Path(worktree.repository))
    put_aside(opened, files, state.snapshot, past.damage)
    mode = _resumed_mode(parts, options, state.mode)
    sandbox = try_sandbox(mode)
    bodies, restart = list[Body](), None
    if again := _worktree_again(parts, files, opened, past):
        bodies.append(Started(call_id=CallId(f"w{opened.log.epoch}"), attempt=1, effect=again))
    else:
        now_s = parts.clock.now_us() // 1_000_000
        restart = plan_restart(files, opened, state, boot_id(), now_s)
    if changes_mode(state, mode):
        bodies.append(mode)
    limits = state.limits
    if options.max_turns is not None or options.max_budget_usd is not None:
        limits = _limits(parts, options, state.limits)
        bodies.append(limits)
    models, chosen = (
        (OneModel(client), []) if client is not None else _choose_again(parts, options, state, files, mode, limits)
    )
    bodies += [*chosen, *_word(options, state, prompt)]
    rights = rights_of(options)
    shop = make_workshop(parts, opened.log.folder, files, rights, models, sandbox, own=not worktree.in_place)
    return Ready(build(parts, opened, shop, rights, state), tuple(bodies), None, None, restart)


def _choose_again(
    parts: Parts, options: Options, state: State, files: SessionFiles, mode: ModeChosen, limits: LimitsSet
) -> tuple[Models, list[Body]]:
    """The models that a resumed session goes on with, and what is logged of a change. As its log says where nothing
    else is chosen: an unfinished turn goes on with what had taken over, the next one begins with the chosen model."""
    chosen = state.chosen or state.context
    now = state.context if state.active else chosen
    assert chosen is not None and now is not None
    # Who takes up a killed session with its first options names what is chosen already.
    anew = options.model is not None and not (state.active and options.model == chosen.model)
    target = pick_model(parts, options.model if anew else now.model)
    context, crew = now, tuple(one.chosen for one in state.crew)
    defined = None if options.agents is None or not now.snapshots else find_crew(parts, files, options)
    agents = {str(one.agent): one.description for one in crew} if defined is None else name_all(defined)
    if anew:
        context = make_context(
            parts, target, files, mode, snapshots=now.snapshots, bound=now.token_bound, agents=agents
        )
        crew = follow_model(state.crew, chosen, context)
    if defined is not None:
        # Those whose tools are the same keep the bytes of their requests.
        tools = tools_of_main(parts.settings.tools, agents, fan_out=now.snapshots)
        context, crew = context.model_copy(update={"tools": tools}), make_crew(parts, defined, context)
    bodies: list[Body] = [context] if context != now else []
    bodies += [AgentsChosen(agents=crew)] if crew != tuple(one.chosen for one in state.crew) else []
    spare = _spare(parts, options.fallback, context.instead_of or context.model)
    routes = [make_route(one) for one in spare]
    logged = [state.fallback] if state.fallback is not None and not routes else []
    _check_budget(parts, limits, context, *routes, *logged, *(one.context for one in crew))
    bodies += [FallbackSet(route=route) for route in routes if route != state.fallback]
    return connect(parts, (target, *spare), (context, *routes)), bodies


def find_crew(parts: Parts, files: SessionFiles, options: Options) -> tuple[AgentDefinition, ...]:
    """Raises CannotStart."""
    if options.agents and options.in_place:
        raise CannotStart("Background agents need worktrees of their own and snapshots; leave --in-place out.")
    return find_chosen(parts, files.repository.root, options.agents)


def _spare(parts: Parts, name: str | None, model: str) -> tuple[Target, ...]:
    """The fallback model, if one is named that is not the model itself. Raises CannotStart."""
    if name is None or name == model:
        return ()
    return (pick_model(parts, name),)


def _worktree_again(parts: Parts, files: SessionFiles, opened: Opened, past: Past) -> MakeWorktree | None:
    """Where the session has no worktree: it could not be made, was given back after a merge, or somebody deleted it."""
    made, state = past.made, past.state
    assert made is not None
    if made.in_place or state.is_open(MakeWorktree):
        return None
    if state.worktree is None:
        return past.made_last
    found = files.pool.adopt(opened.log.session)
    if found is not None and found.path.is_dir():
        return None
    return MakeWorktree(
        repository=made.repository,
        head=commit_at(files, opened.read(), opened.log.head.seq),
        base=state.worktree.base,
        carry_dirty=False,
        at_s=parts.clock.now_us() // 1_000_000,
    )


def _word(options: Options, state: State, prompt: str | None) -> list[Body]:
    """What the user says now, once however often it is asked for; or the word to go on."""
    said = options.command_id or new_command_id()
    if said in state.commands:
        return []
    if prompt:
        return [UserSaid(id=said, text=prompt)]
    return [Continued(id=said)] if options.goes_on and _stopped_early(state) else []


def _stopped_early(state: State) -> bool:
    """Whether a turn is to be taken up again: it ended before its task was done, or a fork or a rewind cut it."""
    if state.active:
        return False
    # What a fan-out left for a person to do no turn can go on with.
    over = ("done", "withheld", "blocked", "check_failed")
    return bool(state.messages) if state.ending is None else state.ending.ending not in over


def rights_of(options: Options) -> Rights:
    return Rights(allowed(options), options.denied, options.add_dirs)


def allowed(options: Options) -> tuple[str, ...]:
    return (*options.allowed, *(f"read(/{folder.absolute()}/**)" for folder in options.add_dirs))


def made_worktree(events: Sequence[Event]) -> MakeWorktree | None:
    """The intent that says in which repository a session works."""
    for event in events:
        if isinstance(event.body, Started) and isinstance(event.body.effect, MakeWorktree):
            return event.body.effect
    return None


def resolve_session(parts: Parts, name: str | None, last: bool) -> SessionId:
    """An id, a unique beginning of one, or the one that changed last. Raises LogNotFound."""
    return SessionId(choose_session(parts.environment.sessions, name, last))


def _files(parts: Parts, session: SessionId, folder: Path) -> SessionFiles:
    try:
        files = find_files(parts, session, folder)
    except GitError as error:
        raise CannotStart(str(error)) from error
    state_folder = parts.environment.state_folder
    if state_folder.resolve().is_relative_to(files.repository.root.resolve()):
        raise CannotStart(f"The state folder {state_folder} is inside the checkout; set THALIA_HOME to another place.")
    return files


def _mode(parts: Parts, options: Options) -> ModeChosen:
    mode = options.mode or parts.settings.permission_mode or ("ask" if options.attended else "auto")
    sandbox = options.sandbox or parts.settings.sandbox
    return ModeChosen(id=new_command_id(), mode=mode, sandbox=sandbox, attended=options.attended)


def _resumed_mode(parts: Parts, options: Options, before: ModeChosen) -> ModeChosen:
    """As before, but bypass counts for one run: it must be typed again."""
    mode = options.mode or (before.mode if before.mode != "bypass" else None)
    sandbox = options.sandbox or (before.sandbox if before.mode != "bypass" else None)
    chosen = Options(folder=options.folder, mode=mode, sandbox=sandbox, attended=options.attended)
    return _mode(parts, chosen)


def _limits(parts: Parts, options: Options, before: LimitsSet | None) -> LimitsSet:
    """What was chosen now, else what held before, else the settings."""
    settings = parts.settings
    turns, budget = (before.max_turns, before.max_budget_usd) if before else (None, None)
    return LimitsSet(
        id=new_command_id(),
        max_turns=options.max_turns or turns or settings.max_turns,
        max_budget_usd=options.max_budget_usd or budget or settings.max_budget_usd,
        max_attempts=settings.max_attempts,
    )


def _check_budget(parts: Parts, limits: LimitsSet, *contexts: ContextSet | ModelRoute) -> None:
    """Raises CannotStart."""
    if limits.max_budget_usd is None:
        return
    for context in contexts:
        if context.input_usd is None or context.output_usd is None:
            raise CannotStart(
                f"No price is known for {context.model}, so a budget cannot be kept; add it under [prices] in "
                f"{parts.environment.config_file}, or leave out --max-budget-usd."
            )
