"""What the parts of benchmarks/fanout.py share: a scripted model by words of each task, fan-outs through the command
line, and what a log says of when things happened."""

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.daemon import Machine
from eventlog.effects import MakeWorktree, SpawnAgent
from eventlog.events import EffectFinished, EffectStarted, Event, LeaseGranted
from eventlog.ids import AgentId
from eventlog.outcomes import WorktreeReady

Turns = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Options:
    """How large each part is. `files`: in the large repository."""

    files: int = 20_000
    rounds: int = 5
    merges: int = 50
    at_once: int = 64
    trials: int = 10
    fanouts: int = 10
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Done:
    """A fan-out that is over. `ms`: of the command, from its start to its end."""

    session: str
    code: int
    ms: float
    said: Mapping[str, Any]


@dataclass(slots=True)
class Moments:
    """Of one agent, in microseconds since 1970."""

    begun: int = 0
    """Its session announced it."""
    leased: int = 0
    woken: int = 0
    """Its own first event: its process has opened the log."""
    ready: int = 0
    """It has its worktree."""


def many_files(count: int) -> dict[str, str]:
    return {f"d{number // 200}/f{number}.py": f"x = {number}\n" for number in range(count)}


def pack(root: Path) -> None:
    """As a clone is."""
    run_git(root, "repack", "-a", "-d", "--quiet")


def shell(command: str, delay_ms: int = 0) -> Mapping[str, Any]:
    return {"tool_calls": [{"name": "shell", "arguments": {"command": command}}], "delay_ms": delay_ms}


def write_script(one: Machine, agents: Mapping[str, Turns]) -> str:
    """The name of a model: an agent's turns are found by words of its task."""
    conversations = [{"when": words, "turns": list(turns)} for words, turns in agents.items()]
    text = json.dumps({"conversations": conversations})
    file = one.folder / f"fan-{abs(hash(text))}.json"
    file.write_text(text)
    return f"scripted/{file}"


def fan_out(one: Machine, model: str, *arguments: str) -> Done:
    """Through the command line, to its end, whatever that is."""
    begin = time.perf_counter()
    with one.start("fanout", *arguments, "-m", model, "--output-format", "json") as process:
        out, _ = process.communicate()
    ms = (time.perf_counter() - begin) * 1000
    said = json.loads(out)
    return Done(said["session"], process.returncode, ms, said)


def begin_fan_out(one: Machine, model: str, *arguments: str) -> str:
    """The id of the session, which goes on by itself."""
    said = one.run("fanout", *arguments, "-m", model, "--detach").decode()
    return said.partition("session ")[2].split()[0]


def moments_of(events: Sequence[Event]) -> dict[AgentId, Moments]:
    """Of each agent's first round."""
    found: dict[AgentId, Moments] = {}
    for event in events:
        match event.body:
            case EffectStarted(effect=SpawnAgent(agent=agent, round=1)):
                found.setdefault(agent, Moments(event.ts_us))
            case LeaseGranted(agent=agent) if agent in found and not found[agent].leased:
                found[agent].leased = event.ts_us
            case EffectFinished(outcome=WorktreeReady()) if event.actor in found:
                found[event.actor].ready = event.ts_us
            case EffectStarted(effect=MakeWorktree()) if event.actor in found:
                found[event.actor].woken = event.ts_us
            case _:
                pass
    return found


def plain_git(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """git as a person runs it, without this machine's settings, and never busy with its own housekeeping."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    who = ("-c", "user.name=Bench", "-c", "user.email=bench@localhost", "-c", "gc.auto=0")
    return subprocess.run(["git", *who, *arguments], cwd=folder, env=env, capture_output=True, text=True, check=False)


def run_git(folder: Path, *arguments: str) -> str:
    """Raises SystemExit where git says no."""
    done = plain_git(folder, *arguments)
    if done.returncode != 0:
        raise SystemExit(f"git {' '.join(arguments)}: {done.stderr}")
    return done.stdout.strip()


def show_count(name: str, found: int, of: int) -> None:
    """Of what may never be."""
    print(f"{name:<50} {found:8d}     of {of:6d}  bar 0: {'met' if found == 0 else 'MISSED'}", flush=True)
