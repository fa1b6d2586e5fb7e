"""What a command is, what bounds it, and how it ended: values that survive a round trip through JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

KIB, MIB = 1024, 1024 * 1024


class ProcessError(Exception):
    """The base of this room's errors; the text is one sentence for a person.

    ProcessError
        SandboxMissing      nothing was started: confinement was asked for and cannot be had
        RunnerBroken        the helper cannot be kept alive, or was closed
        NothingStarted      the call folder says that its command never began
        Superseded          nothing was started: the lease is another incarnation's
    """


class SandboxMissing(ProcessError):
    pass


class RunnerBroken(ProcessError):
    pass


class NothingStarted(ProcessError):
    pass


class Superseded(ProcessError):
    pass


@dataclass(frozen=True, slots=True)
class Limits:
    """None is unlimited. A limit on processes does not bind root."""

    timeout_s: float | None = 120.0
    output_bytes: int = 16 * MIB
    """Kept on disk, of stdout and stderr together; beyond it the last 64 KiB are kept too."""
    cpu_s: int | None = None
    """Of each process."""
    memory_bytes: int | None = None
    """Address space of each process."""
    processes: int | None = None
    """Confined: of the command alone; unconfined: of the user."""
    file_bytes: int | None = None
    """The largest file that may be written, in whole KiB."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """All that a confined command sees of the host besides /usr and a few files of /etc. Absolute paths."""

    writable: tuple[Path, ...]
    readable: tuple[Path, ...] = ()
    """Toolchains; one that does not exist is left out."""
    git_dir: Path | None = None
    """The common .git, read-only."""
    git_file: Path | None = None
    """The worktree's own .git file, read-only inside the writable worktree."""
    network: bool = False
    binds: tuple[tuple[Path, Path], ...] = ()
    """(source, target): folders of the host shown read-only at another place."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The command ends, cancelled, when nobody has touched `path` for `seconds`."""

    path: Path
    seconds: float
    number: int | None = None
    """It is started only where the file holds this number (fence.py)."""


@dataclass(frozen=True, slots=True)
class Command:
    text: str
    """Run by bash -c."""
    cwd: Path
    env: Mapping[str, str]
    """The whole environment (see environment.py)."""
    limits: Limits = field(default_factory=Limits)
    confinement: Confinement | None = None
    lease: Lease | None = None


@dataclass(frozen=True, slots=True)
class CommandResult:
    exit_code: int | None
    """None where a signal ended it or nothing ran; a confined command that a signal ended has 128 + signal."""
    signal: int | None
    timed_out: bool
    cancelled: bool
    output_total: int
    """Bytes written by the command."""
    output_omitted: int
    """Of these, bytes kept nowhere."""
    started_us: int
    finished_us: int
    setup_error: str | None
    """One sentence where the command was never executed."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """Nothing ran and nothing is running: it may be started."""


@dataclass(frozen=True, slots=True)
class Running:
    pid: int
    """Of the wrapper, which may be dead while its tree lives."""


@dataclass(frozen=True, slots=True)
class Done:
    result: CommandResult


@dataclass(frozen=True, slots=True)
class Lost:
    """It began, nothing of it lives, and how it ended is not known."""

    started_us: int


CallState = NotStarted | Running | Done | Lost


def command_to_json(command: Command) -> str:
    return json.dumps(asdict(command), default=str, sort_keys=True)


def command_from_json(text: str) -> Command:
    """ValueError, KeyError or TypeError where the text is no command."""
    data: dict[str, Any] = json.loads(text)
    confinement, lease = data["confinement"], data["lease"]
    return Command(
        text=data["text"],
        cwd=Path(data["cwd"]),
        env=data["env"],
        limits=Limits(**data["limits"]),
        confinement=None if confinement is None else _confinement(confinement),
        lease=None if lease is None else Lease(Path(lease["path"]), lease["seconds"], lease["number"]),
    )


def _confinement(data: dict[str, Any]) -> Confinement:
    return Confinement(
        writable=tuple(Path(path) for path in data["writable"]),
        readable=tuple(Path(path) for path in data["readable"]),
        git_dir=None if data["git_dir"] is None else Path(data["git_dir"]),
        git_file=None if data["git_file"] is None else Path(data["git_file"]),
        network=data["network"],
        binds=tuple((Path(source), Path(target)) for source, target in data["binds"]),
    )


def result_to_json(result: CommandResult) -> str:
    return json.dumps(asdict(result), sort_keys=True)


def result_from_json(text: str | bytes) -> CommandResult:
    """ValueError or TypeError where the text is no result."""
    return CommandResult(**json.loads(text))


def shell_argv(bash: str, text: str, limits: Limits) -> list[str]:
    """bash -c TEXT, under the limits that a process inherits: each costs a second start of bash, so only where set."""
    plain = [bash, "--noprofile", "--norc", "-c", text]
    flags = [
        ("-t", limits.cpu_s),
        ("-v", limits.memory_bytes and limits.memory_bytes // KIB),
        ("-u", limits.processes),
        ("-f", limits.file_bytes and -(-limits.file_bytes // KIB)),
    ]
    wanted = [f"ulimit {flag} {value}" for flag, value in flags if value is not None]
    if not wanted:
        return plain
    script = " && ".join([*wanted, 'exec "$@"'])
    return [bash, "--noprofile", "--norc", "-c", script, bash, *plain]
