"""The part of benchmarks/fanout.py that kills: fan-outs in which a process of the daemon dies, each finished then, and
what is left of all of them."""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal, get_args

from benchmarks.daemon import Machine, machine, wait_for
from benchmarks.fanout_work import Options, Turns, begin_fan_out, run_git, shell, show_count, write_script
from configs.places import MARK, RUN_MARK
from eventlog.lock import is_held
from frontends.client import DaemonUnreachable
from processes import tree

Victim = Literal["session", "agent", "gateway"]
VICTIMS: tuple[Victim, ...] = get_args(Victim)
COUNT = "echo begun >> count-NAME.txt; sleep 0.3; echo ended >> count-NAME.txt"
LONGEST_S = 180.0
WINDOW_S = 1.2
"""The kill comes at most so long after the first agent began."""
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Census:
    """What there is of each kind, by name. Of a machine with a daemon that is idle."""

    worktrees: frozenset[str]
    """That somebody has, or that are in no record. Warm ones are no leak."""
    references: frozenset[str]
    """But those of sessions and of their agents."""
    branches: frozenset[str]
    locks: frozenset[str]
    """Files of git's locks; files of ours that somebody holds."""
    commands: frozenset[str]
    """Processes that carry the mark of a session."""

    def added(self, before: "Census") -> dict[str, frozenset[str]]:
        return {name: getattr(self, name) - getattr(before, name) for name in Census.__slots__}


def leaks(chosen: Options) -> None:
    """Fan-outs of two or three agents. A random process of each dies: its session's, an agent's, the gateway. Then it
    is waited for, resumed where it did not go on by itself, and merged."""
    random, kills, odd = Random(chosen.seed), Counter[str](), list[str]()
    memory, helped = segments(), 0
    with machine({"a.txt": "one\n", ".gitignore": "out/\n"}) as here:
        folder = here.place.folder
        finish(here, fan_out_of(here, 3))
        what_is_wrong(here, "", 3)
        before, idle = take_census(here), names_of(own_processes(folder))
        for _ in range(chosen.fanouts):
            agents = random.choice((2, 3))
            session = fan_out_of(here, agents)
            kills[kill_one(here, session, random)] += 1
            helped += finish(here, session)
            odd += what_is_wrong(here, session, agents)
        found = take_census(here).added(before)
        more = names_of(own_processes(folder)) - idle
        retired = len(list(here.home.glob("worktrees/*/trash/*")))
    # Other daemons of this machine come and go: what somebody uses is theirs.
    found["segments of shared memory"] = frozenset(name for name in segments() - memory if not is_mapped(name))
    found["processes, after thalia down"] = frozenset(map(str, own_processes(folder)))
    died = ", ".join(f"{count} times {name}" for name, count in sorted(kills.items()))
    print(f"died: {died}; then resumed by hand: {helped}")
    show_count("fan-outs that did not end as without a kill", len(odd), chosen.fanouts)
    for line in odd:
        print(f"   {line}")
    for name, things in found.items():
        show_count(f"left: {name}", len(things), chosen.fanouts)
        for thing in sorted(things)[:5]:
            print(f"   {thing}")
    print(f"more processes of the idle daemon than before: {dict(more)}; retired worktrees not yet deleted: {retired}")


def names_of(found: Sequence[int]) -> Counter[str]:
    return Counter(tree.read(f"/proc/{pid}/comm").decode().strip() for pid in found)


def fan_out_of(one: Machine, agents: int) -> str:
    """The session that has begun it."""
    names = [f"number{number}" for number in range(agents)]
    model = write_script(one, {name: turns_for(name) for name in names})
    return begin_fan_out(one, model, *(f"Do {name}." for name in names), "--check", "ls *.txt", "--merge")


def turns_for(name: str) -> Turns:
    write = {"name": "write", "arguments": {"path": f"{name}.txt", "content": f"{name}\n"}}
    command = COUNT.replace("NAME", name)
    return [{"tool_calls": [write], "delay_ms": 100}, shell(command, 100), {"text": "Done.", "delay_ms": 100}]


def own_processes(folder: Path) -> list[int]:
    return tree.carriers(MARK, str(folder))


def kill_one(one: Machine, session: str, random: Random) -> str:
    """From a random moment of the fan-out on, as soon as it is at work. Its name, or `nothing` where all was over."""
    leases, victim = one.home / "sessions" / session / "leases", random.choice(VICTIMS)
    wait_for(leases.exists, LONGEST_S)
    time.sleep(random.uniform(0.0, WINDOW_S))
    while not (pids := find(one, session, victim)):
        if is_over(one, session):
            return "nothing"
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.kill(random.choice(pids), signal.SIGKILL)
    return victim


def find(one: Machine, session: str, victim: Victim) -> list[int]:
    """Of this machine's daemon alone. An agent's process that is at work has the helper of its commands below it."""
    own = own_processes(one.place.folder)
    lines = {pid: tree.read(f"/proc/{pid}/cmdline").replace(b"\0", b" ") for pid in own}
    if victim == "gateway":
        return [pid for pid, line in lines.items() if b" -m actors.gateway " in line]
    if victim == "agent":
        return [pid for pid, line in lines.items() if b"AgentWorker" in line and tree.descendants(pid)]
    lock = one.home / "sessions" / session / "writer.lock"
    if not is_held(lock):
        return []
    return [pid for pid in own if pid == json.loads(lock.read_bytes())["pid"]]


def finish(one: Machine, session: str) -> bool:
    """Until the daemon has it no more. Whether it was not merged by then, so that somebody had to go on with it."""
    wait_for(partial(is_over, one, session), LONGEST_S)
    if is_merged(one):
        return False
    one.start("resume", session, "--merge").communicate()
    wait_for(partial(is_over, one, session), LONGEST_S)
    return True


def is_over(one: Machine, session: str) -> bool:
    with suppress(DaemonUnreachable):
        return session not in one.daemon.ask("GET", "/status")["hosted"]
    return False


def is_merged(one: Machine) -> bool:
    return run_git(one.folder / "repo", "status", "--porcelain") != ""


def what_is_wrong(one: Machine, session: str, agents: int) -> list[str]:
    """Of what it brought to the checkout, which is as at the start afterwards."""
    root = one.folder / "repo"
    names = [f"number{number}" for number in range(agents)]
    wanted = {f"{name}.txt": f"{name}\n" for name in names} | {f"count-{name}.txt": "begun\nended\n" for name in names}
    found = {path.name: path.read_text() for path in root.glob("*.txt") if path.name != "a.txt"}
    run_git(root, "reset", "--quiet", "--hard")
    run_git(root, "clean", "--quiet", "-fdx")
    different = sorted(name for name in wanted | found if wanted.get(name) != found.get(name))
    return [f"{session}: {', '.join(f'{name} is {found.get(name)!r}' for name in different)}"] if different else []


def take_census(one: Machine) -> Census:
    root = one.folder / "repo"
    names = run_git(root, "for-each-ref", "--format=%(refname)").split()
    sessions = [path.name for path in (one.home / "sessions").iterdir()]
    own = tuple(f"refs/thalia/{session}{end}" for session in sessions for end in ("/", "+"))
    held = [path for path in one.home.glob("sessions/*/*.lock") if is_held(path)]
    held += [path for path in one.home.glob("sessions/*/leases/*") if is_held(path)]
    return Census(
        worktrees=frozenset(worktrees(one, root)),
        references=frozenset(name for name in names if not name.startswith((*own, "refs/heads/"))),
        branches=frozenset(name for name in names if name.startswith("refs/heads/")),
        locks=frozenset(map(str, [*(root / ".git").rglob("*.lock"), *held])),
        commands=frozenset(str(pid) for session in sessions for pid in tree.carriers(RUN_MARK, session)),
    )


def worktrees(one: Machine, root: Path) -> list[str]:
    """Folders, git's own record of them, and ours, where they are not all there, or somebody has it."""
    records: list[Mapping[str, str]] = [json.loads(path.read_text()) for path in one.home.glob("worktrees/*/*.json")]
    warm = {record["name"] for record in records if record["state"] == "free"}
    folders = {path.name for path in one.home.glob("worktrees/*/thalia-*") if path.is_dir()}
    known = {path.name for path in (root / ".git" / "worktrees").glob("*")}
    everything = folders | known | {record["name"] for record in records}
    return [name for name in everything if name not in warm & folders & known]


def segments() -> frozenset[str]:
    return frozenset(path.name for path in SHARED_MEMORY.iterdir()) if SHARED_MEMORY.exists() else frozenset()


def is_mapped(name: str) -> bool:
    """Whether a living process uses it."""
    needle = str(SHARED_MEMORY / name).encode()
    return any(needle in tree.read(f"/proc/{pid}/maps") for pid in tree.pids())
