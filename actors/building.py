"""Put a session together: settings, repository, log, model, rules, world. The one place that knows all rooms."""

import asyncio
import contextlib
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import orjson

from actors.agent_work import Workshop, equip
from actors.agents import Agents
from actors.commands import CommandRoom
from actors.coordinator import Coordinator, this_process
from actors.files import SessionFiles, open_files
from actors.models import ModelChoice, Models
from actors.subagents import LocalAgents
from agent.models.client import Delta, ModelError
from agent.models.discovery import find_servers
from agent.models.resolve import Target, pick
from agent.models.wires import WIRES
from agent.permissions.rules import RuleError, Rules, parse_rules
from agent.permissions.shell import parse
from agent.planning import Surroundings
from agent.prompt import build_system
from agent.state import State
from agent.tools.instructions import collect, reader
from agent.tools.schemas import OF_MAIN, SAYING, TOOLS, tools_json
from configs import crash
from configs.scratch import scratch
from configs.settings import Environment, Settings
from configs.tools import OwnTool
from eventlog.errors import LogError
from eventlog.events import ContextSet, ModeChosen, ModelRoute
from eventlog.ids import MAIN, SessionId
from eventlog.opening import Opened, create_log
from eventlog.redact import Redactor
from eventlog.seams import Clock, SystemClock
from processes.commands import Limits
from processes.runner import Runner
from processes.sandbox import candidates
from processes.self_test import SandboxReport, self_test


class CannotStart(Exception):
    """One sentence; nothing was started."""


class NoModelChosen(CannotStart):
    pass


@dataclass(frozen=True, slots=True)
class Rights:
    """What was given for this run, besides the settings: rules, and folders outside that commands may read."""

    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    readable: tuple[Path, ...] = ()


MakeAgents = Callable[[Workshop, Rights], Agents]


@dataclass(frozen=True, slots=True)
class Parts:
    """What is the same for a new and a resumed session."""

    environment: Environment
    settings: Settings
    clock: Clock
    on_delta: Callable[[Delta], None]
    make_agents: MakeAgents = field(default=lambda shop, wanted: LocalAgents(shop))
    """Where the session's other agents live; by default in this process."""

    @property
    def redactor(self) -> Redactor:
        return Redactor(self.environment.secrets)


_held: dict[tuple[tuple[str, int, int], ...], SandboxReport] = {}
"""Reports of tests that succeeded in this process, by the programs that were tried."""


def find_files(parts: Parts, session: SessionId, folder: Path) -> SessionFiles:
    """Raises GitError. Opens no log, makes no folder but the session's scratch when something needs it."""
    environment = parts.environment
    scratch = environment.sessions / session
    return open_files(session, folder, environment.state_folder, scratch, environment.variables)


def pick_model(parts: Parts, name: str | None) -> Target:
    """What was named, else a server on the usual local ports. Raises NoModelChosen: one sentence, how to choose one."""
    wanted = name or parts.settings.model
    found = () if wanted else asyncio.run(find_servers())
    try:
        return pick(wanted, parts.environment, parts.settings, found)
    except ModelError as error:
        raise NoModelChosen(str(error)) from error


def try_sandbox(mode: ModeChosen) -> SandboxReport:
    """Whether commands can be confined here, and if not, why. Raises CannotStart where the mode needs it."""
    if mode.sandbox == "off":
        return SandboxReport(False, ("the sandbox is off",), None)
    report = _test_sandbox()
    if not report.ok and mode.mode == "auto":
        raise CannotStart(
            f"Commands cannot be confined here ({'; '.join(report.failures)}), so mode auto does not start; install "
            "bubblewrap, or use --permission-mode ask, or --dangerously-bypass-approvals-and-sandbox if you trust "
            "what will run."
        )
    return report


def _test_sandbox() -> SandboxReport:
    """What held once holds as long as the programs are the same; what did not is tried again: somebody may mend it."""
    programs = tuple(_identity(path) for path in candidates())
    if programs not in _held:
        with scratch("sandbox") as folder:
            report = self_test(folder)
        if not report.ok:
            return report
        _held[programs] = report
    return _held[programs]


def _identity(path: Path) -> tuple[str, int, int]:
    found = path.stat()
    return str(path), found.st_ino, found.st_mtime_ns


def rehearse(folder: Path) -> None:
    """What a process sets up at the first session alone (imports, DuckDB, the sandbox's test), in an empty folder, so
    that no session waits for it. Raises nothing that a session would not raise for itself."""
    with contextlib.suppress(LogError):
        create_log(folder / "log", SessionId("rehearsal"), SystemClock(), Redactor(())).close()
    with contextlib.suppress(OSError):
        _test_sandbox()
    tools_of_main({}, {})
    parse("true")


def make_rules(settings: Settings, allowed: tuple[str, ...] = (), denied: tuple[str, ...] = ()) -> Rules:
    """Raises CannotStart with the rule that cannot be read."""
    written = settings.permissions
    try:
        return parse_rules(
            {"allow": [*written.allow, *allowed], "ask": list(written.ask), "deny": [*written.deny, *denied]}
        )
    except RuleError as error:
        raise CannotStart(f"A permission rule cannot be used: {error}") from error


def make_context(
    parts: Parts,
    target: Target,
    files: SessionFiles,
    mode: ModeChosen,
    *,
    snapshots: bool,
    bound: int | None,
    schema: str | None = None,
    agents: Mapping[str, str] | None = None,
) -> ContextSet:
    """All that requests are made of besides the conversation; from here on only the log is asked. `agents`: whom the
    main agent can ask, and what each is for."""
    root = files.repository.root
    own = parts.environment.config_file.parent / "AGENTS.md"
    user = (str(own), own.read_bytes()) if own.is_file() else None
    date = _date(parts.clock.now_us())
    extra = parts.settings.instructions
    if schema is not None:
        extra += f"\nYour final reply must be one JSON value and nothing else, valid for this schema:\n{schema}"
    system = build_system(
        platform=platform.system(),
        date=date,
        mode=mode.mode,
        sandbox=mode.sandbox,
        instructions=collect(root, root, reader(root), user),
        extra=extra,
    )
    return ContextSet(
        **make_route(target).model_dump(),
        system=system,
        tools=tools_of_main(parts.settings.tools, agents or {}, fan_out=snapshots),
        token_bound=bound,
        snapshots=snapshots,
        setup=parts.settings.setup_command or "",
    )


def make_route(target: Target) -> ModelRoute:
    """What of a context depends on the model."""
    profile = target.profile
    return ModelRoute(
        builder=WIRES[target.protocol].builder,
        model=target.model,
        wire_model=target.wire_model,
        parameters=orjson.dumps(target.parameters({})).decode(),
        window=profile.window,
        input_usd=profile.input_usd,
        cached_usd=profile.cached_usd,
        output_usd=profile.output_usd,
        cache_write_usd=profile.cache_write_usd,
        warning=profile.warning or "",
    )


def build(parts: Parts, opened: Opened, shop: Workshop, rights: Rights, state: State) -> Coordinator:
    """`state`: what the log holds."""
    opened.log.checkpoint_bytes = int(parts.settings.log_checkpoint_mib * 2**20)
    agents = parts.make_agents(shop, rights)
    planner, world = equip(shop, parts.on_delta, agents=agents)
    coordinator = Coordinator(
        opened=opened,
        past=state,
        files=shop.files,
        runner=shop.runner,
        world=world,
        planner=planner,
        identity=this_process(),
    )
    agents.open(opened.log, coordinator.append)
    coordinator.listeners.append(agents.note)
    return coordinator


def make_workshop(
    parts: Parts,
    session_folder: Path,
    files: SessionFiles,
    rights: Rights,
    models: Models,
    sandbox: SandboxReport,
    *,
    own: bool,
) -> Workshop:
    """`own`: whether the session's agents have worktrees of their own. Makes nothing on the disk; raises CannotStart
    with the rule that cannot be read."""
    settings, environment, session = parts.settings, parts.environment, session_folder.name
    room = CommandRoom(
        calls=session_folder / "calls",
        variables=environment.variables,
        limits=Limits(timeout_s=settings.command_timeout_s, output_bytes=settings.command_output_mib << 20),
        run_mark=session,
    )
    around = Surroundings(
        checkout=files.repository.root,
        home=_home(environment.variables),
        agent=MAIN,
        sandbox_works=sandbox.ok,
        own_worktree=own,
        git_runs_programs=files.repository.runs_programs,
        session=session,
        tools=settings.tools,
        changed_between=files.changed_between,
    )
    rules = make_rules(settings, rights.allowed, rights.denied)
    runner = Runner(sandbox.bwrap, crash.WRAPPER, etc=environment.state_folder)
    lease_s = settings.agent_lease_s
    return Workshop(files, room, around, rules, models, runner, parts.redactor, parts.clock, rights.readable, lease_s)


def connect(parts: Parts, targets: Sequence[Target], contexts: Sequence[ContextSet | ModelRoute]) -> Models:
    """The models of a session; those that these contexts name can be called. Raises CannotStart."""
    models = ModelChoice(parts.environment, parts.settings, targets)
    try:
        for context in contexts:
            models.connect(context.model, context.builder)
    except ModelError as error:
        raise CannotStart(str(error)) from error
    return models


def list_tools(own: Mapping[str, OwnTool], names: Sequence[str] | None) -> str:
    """Of a background agent, with those that it speaks with. None: all, the user's own too."""
    given = [tool.name for tool in TOOLS if tool.name not in OF_MAIN] if names is None else [*names, *SAYING]
    return tools_json(given, own if names is None else None)


def tools_of_main(own: Mapping[str, OwnTool], agents: Mapping[str, str], *, fan_out: bool = True) -> str:
    """`agents`: those in the background, and what each is for. Without snapshots agents of a fan-out would have nothing
    to begin with."""
    return tools_json(_names(fan_out, bool(agents)), own, agents) if own or agents else _our_tools(fan_out)


def _names(fan_out: bool, ask_agent: bool) -> list[str]:
    left_out = {*SAYING, *(() if fan_out else ("fan_out",)), *(() if ask_agent else ("ask_agent",))}
    return [tool.name for tool in TOOLS if tool.name not in left_out]


@cache
def _our_tools(fan_out: bool) -> str:
    return tools_json(_names(fan_out, ask_agent=False))


def _home(variables: Mapping[str, str]) -> Path:
    return Path(variables.get("HOME", "/nonexistent"))


def _date(now_us: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(now_us / 1e6, UTC).strftime("%Y-%m-%d")
