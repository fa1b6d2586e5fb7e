"""`thalia demo`: six agents build six features of a small game at the same time, one is killed half-way, all is merged.

No key and no network are needed: what the agents write is fixed (configs/demo/game.toml), all else is real. So is the
kill: SIGKILL for the agent's process and all that it started, in the middle of a command."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from processes.tree import descendants, parent, read, send
from worktrees.sample import make_repository

GAME = Path(__file__).resolve().parent.parent / "configs" / "demo" / "game.toml"
PATIENCE_S = 90.0
PLAY = "map\ngo east\ntake\ngo east\nfight\ngo west\ngo south\ndrink\nscore\n"
RESOLVE = r"sed -i '/^<<<<<<< /d;/^=======$/d;/^>>>>>>> /d' commands.py && "


def run_demo(keep: bool) -> int:
    """The exit code of the first part that failed, else 0."""
    folder = Path(tempfile.mkdtemp(prefix="thalia-demo-"))
    try:
        return _play(folder, tomllib.loads(GAME.read_text()))
    finally:
        _start(folder, "down", quiet=True).wait()
        if keep:
            print(f"The game and the log stay in {folder}.")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _play(folder: Path, game: Mapping[str, Any]) -> int:
    make_repository(folder / "game", {name: text.lstrip("\n") for name, text in game["files"].items()})
    (folder / "script.json").write_text(json.dumps(_script(game)))
    tasks = [feature["task"] for feature in game["feature"]]
    print(f"{len(tasks)} agents with a scripted model: what they write is fixed, all else is real.\n", flush=True)
    model = ("-m", f"scripted/{folder / 'script.json'}")
    run = _start(folder, "fanout", *tasks, "--check", game["check"], *model, "--merge")
    worktree = _wait_for_command(folder, run)
    if worktree is None:
        run.wait()
        print("The run ended before an agent could be killed.")
        return run.returncode or 1
    killed = _kill(worktree)
    print(f"\n*** SIGKILL: an agent and what it runs, {killed} processes, in the middle of a command ***\n", flush=True)
    code = run.wait()
    if code < 0:
        # Without Ray the agents live in the session's own process.
        code = _start(folder, "resume", "--last", "--merge").wait()
    print("\nThe game, as it stands in the checkout now:\n", flush=True)
    place = folder / "game"
    played = subprocess.run([sys.executable, "game.py"], cwd=place, input=PLAY, text=True, check=False)
    tested = subprocess.run([sys.executable, "-m", "unittest", "-q"], cwd=place, check=False)
    print(flush=True)
    return code or played.returncode or tested.returncode or _start(folder, "replay", "--last", "--verify").wait()


def _script(game: Mapping[str, Any]) -> dict[str, Any]:
    """What the models say: a conversation for each feature, found by its task."""
    return {
        "model": "demo",
        "turns": [],
        "conversations": [
            {"when": feature["task"], "turns": _turns(feature, game["check"])} for feature in game["feature"]
        ],
    }


def _turns(feature: Mapping[str, Any], check: str) -> list[dict[str, Any]]:
    slow = "echo started >> progress.log; sleep 3; " if feature.get("killed") else ""
    after = " && rm progress.log" if slow else ""
    writes = [_call("write", path=name, content=text.lstrip("\n")) for name, text in feature["files"].items()]
    under, entry = feature["under"], feature["entry"]
    edit = _call("edit", path="commands.py", old_text=under, new_text=f"{under}\n    {entry}")
    # Should it meet another in the same lines, both stay.
    mend = [
        {"tool_calls": [_call("shell", command=RESOLVE + check)], "delay_ms": 150},
        {"text": "Both entries stand there now, and all tests pass.", "delay_ms": 150},
    ]
    return [
        {"tool_calls": [_call("read", path="commands.py")], "delay_ms": 150},
        {"tool_calls": [*writes, edit], "delay_ms": 150},
        {"tool_calls": [_call("shell", command=f"{slow}{check}{after}")], "delay_ms": 150},
        {"text": feature["said"], "delay_ms": 150},
        *mend,
        *mend,
    ]


def _call(name: str, **arguments: str) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def _start(folder: Path, *arguments: str, quiet: bool = False) -> "subprocess.Popen[bytes]":
    env = {name: value for name, value in os.environ.items() if not name.startswith(("THALIA_", "OPENAI_"))}
    return subprocess.Popen(
        [sys.executable, "-I", "-m", "cli", *arguments],
        cwd=folder / "game" if (folder / "game").exists() else folder,
        env={**env, "THALIA_HOME": str(folder / "state"), "THALIA_CONFIG": str(folder / "config.toml")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if quiet else None,
    )


def _wait_for_command(folder: Path, run: "subprocess.Popen[bytes]") -> Path | None:
    """The worktree of the agent that is to be killed, once its command runs; None where that never comes."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end and run.poll() is None:
        if found := list(folder.glob("state/worktrees/*/*/progress.log")):
            return found[0].parent
        time.sleep(0.02)
    return None


def _kill(worktree: Path) -> int:
    """The process that runs the command in this worktree, the one that began that, and so on up to the agent's own,
    with all that they started. How many."""
    inside = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cwd") if _points_to(path, worktree)]
    agents = {agent for pid in inside if (agent := _agent_above(pid)) is not None}
    found = {pid for agent in agents for pid in (agent, *descendants(agent))}
    send(sorted(found), 9)
    return len(found)


def _agent_above(pid: int) -> int | None:
    """The nearest process above that is an agent's, or a session's."""
    while pid > 1:
        name = read(f"/proc/{pid}/cmdline")
        if name.startswith(b"ray::AgentWorker") or b"\0cli\0" in name:
            return pid
        pid = parent(pid)
    return None


def _points_to(link: Path, folder: Path) -> bool:
    try:
        return link.readlink() == folder
    except OSError:
        return False
