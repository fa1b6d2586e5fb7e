"""What this machine has and what can be given back."""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from actors.building import Parts, find_files
from actors.files import AGENT_MARK
from actors.past import Past
from agent.models.resolve import NoModel, choose
from agent.state import ended
from configs.scratch import scratch
from configs.settings import Environment, SettingsError, load_settings
from eventlog.catalogue import list_sessions
from eventlog.errors import LogError
from eventlog.ids import SessionId
from processes.self_test import self_test
from worktrees.git import GitError


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    ok: bool
    needed: bool
    text: str
    """What was found, or what to do."""


def examine(environment: Environment) -> tuple[Finding, ...]:
    return (_git(), _sandbox(), _state(environment), _settings(environment), _model(environment), _search())


def _git() -> Finding:
    found = shutil.which("git")
    return Finding("git", found is not None, True, found or "install git")


def _search() -> Finding:
    from agent.tools.searching import find_ripgrep

    found = find_ripgrep()
    return Finding("ripgrep", found is not None, False, str(found) if found else "searches use a slower built-in")


def _sandbox() -> Finding:
    with scratch("sandbox") as folder:
        report = self_test(folder)
    text = f"{report.bwrap} holds" if report.ok else f"{'; '.join(report.failures)}; install bubblewrap"
    return Finding("sandbox", report.ok, True, text)


def _state(environment: Environment) -> Finding:
    folder = environment.state_folder
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        text = f"{folder} cannot be written ({error.strerror}); set THALIA_HOME to another folder"
        return Finding("state folder", False, True, text)
    if folder.stat().st_mode & 0o077:
        return Finding("state folder", False, True, f"others can look into {folder}; `chmod 700` it")
    return Finding("state folder", True, True, str(folder))


def _settings(environment: Environment) -> Finding:
    try:
        load_settings(environment)
    except SettingsError as error:
        return Finding("settings", False, True, str(error))
    there = environment.config_file.exists()
    return Finding("settings", True, True, str(environment.config_file) if there else "defaults")


def _model(environment: Environment) -> Finding:
    try:
        wanted = load_settings(environment).model
    except SettingsError:
        wanted = None
    target = choose(wanted, environment.variables)
    if isinstance(target, NoModel):
        return Finding("model", False, False, target.sentence)
    return Finding("model", True, False, target.model)


def reclaim(parts: Parts, dry_run: bool) -> list[str]:
    """Worktrees of sessions that are gone or merged go back; crashes' leftovers are mended. Never a session's log."""
    lines: list[str] = []
    live, repositories = set[str](), dict[str, SessionId]()
    for session, repository, needed in _sessions(parts):
        repositories.setdefault(repository, session)
        if needed:
            live.add(session)
    for repository, session in repositories.items():
        try:
            pool = find_files(parts, session, Path(repository)).pool
            # An agent's worktree is needed as long as its session's is.
            of_agents = {r.key for r in pool.records() if r.key.partition(AGENT_MARK)[0] in live}
            if dry_run:
                unneeded = [r for r in pool.records() if r.key not in live | of_agents and r.state in ("ready", "kept")]
                lines += [f"would give back {record.path}" for record in unneeded]
                continue
            report = pool.gc(live | of_agents, now_s=parts.clock.now_us() // 1_000_000)
        except GitError as error:
            lines.append(f"left alone {repository}: {error}")
            continue
        lines += [f"gave back {name}" for name in report.reclaimed]
        lines += [f"kept {kept.key}: {kept.reason}" for kept in report.kept]
        lines += [f"saved as {name}" for name in report.saved]
        lines += [f"mended {name}" for name in report.phantoms]
    return lines


def _sessions(parts: Parts) -> Iterator[tuple[SessionId, str, bool]]:
    """(id, repository, whether its worktree is still needed); one that cannot be read is needed."""
    for listed in list_sessions(parts.environment.sessions):
        try:
            past = Past.of(listed.folder)
        except LogError:
            continue
        if past.made is None:
            continue
        finished = ended(past.state) == "done" and past.state.merged is not None
        yield SessionId(listed.folder.name), past.made.repository, listed.live or not finished
