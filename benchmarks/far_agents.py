"""What it costs an agent to work on another node than its session's, beside the same agent at home.

    python -m benchmarks.far_agents [--files 20000] [--bytes 2500] [--steps 10] [--trials 5] [--lose 3]

A head and two nodes on this machine, each with an address of its own on loopback; a fan-out of one agent whose steps
are a command that writes and an edit. In turn at home and on a node. From the log: until its worktree is ready (on the
node bare the first time, then with what came before), and a step from there. Then a node is lost in the middle of a
command: how long until the agent's next event elsewhere, of which the lease is a part."""

import argparse
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.daemon import Machine, wait_for
from benchmarks.fanout_work import fan_out, moments_of, pack, shell, write_script
from benchmarks.quiet import Figure, show, show_machine, wait_quiet
from configs.places import MARK, daemon_place
from eventlog.events import EffectFinished, EffectStarted, Event, LeaseGranted
from eventlog.outcomes import AttemptLost, SnapshotTaken
from processes import tree
from worktrees.sample import make_repository

LEASE_S = 3
AGENT = "f1-1"
PORTS = {"head": 27330, "b": 27930, "c": 28530}


def write(number: int) -> Mapping[str, Any]:
    return {"tool_calls": [{"name": "write", "arguments": {"path": f"e{number}.txt", "content": f"{number}\n"}}]}


def turns(steps: int) -> list[Mapping[str, Any]]:
    both = [(shell(f"echo {n} > c{n}.txt"), write(n)) for n in range(steps)]
    return [*(turn for pair in both for turn in pair), {"text": "Done."}]


@contextmanager
def cluster(files: int, size: int) -> Iterator[Machine]:
    with tempfile.TemporaryDirectory(prefix="thalia-bench-") as name:
        folder, random_ = Path(name), random.Random(1)
        texts = {f"d{n % 200}/f{n}.txt": random_.randbytes(size // 2).hex() + "\n" for n in range(files)}
        make_repository(folder / "repo", texts)
        pack(folder / "repo")
        (folder / "config.toml").write_text(f"agent_lease_s = {LEASE_S}\n")
        env = {"PATH": os.environ["PATH"], "HOME": name, "LANG": "C.UTF-8", "THALIA_HOME": f"{name}/home"}
        one = Machine(folder, env | {"THALIA_CONFIG": f"{name}/config.toml"})
        one.run("up", "--cluster", f"127.0.0.2:{PORTS['head']}")
        try:
            yield one
        finally:
            one.run("down")


@contextmanager
def node(one: Machine, name: str, host: str) -> Iterator["subprocess.Popen[bytes]"]:
    """It has joined. Its state folder is new."""
    state = one.folder / f"node-{name}-{time.monotonic_ns()}"
    options = (
        "--token-file",
        str(one.home / "cluster.token"),
        "--state",
        str(state),
        "--labels",
        f"zone={name},far=yes",
    )
    process = one.start("node", f"127.0.0.2:{PORTS['head']}", "--host", host, "--port", str(PORTS[name]), *options)
    try:
        assert process.stdout is not None and re.search(rb"joined", process.stdout.readline())
        yield process
    finally:
        process.terminate()
        process.communicate()
        assert tree.carriers(MARK, str(daemon_place(state / "node").folder)) == []


def measure(one: Machine, model: str, labels: Sequence[str], ready: Figure, step: Figure, steps: int) -> None:
    load = wait_quiet()
    done = fan_out(one, model, "Do it.", *labels)
    assert done.code == 0, done.said
    one.wait_idle()
    events = one.events()
    found = moments_of(events)[next(iter(moments_of(events)))]
    last = max(event.ts_us for event in events if event.actor == AGENT)
    ready.add((found.ready - found.begun) / 1000, load)
    step.add((last - found.ready) / 1000 / steps, load)


def compare(one: Machine, steps: int, trials: int) -> None:
    model = write_script(one, {"Do it.": turns(steps)})
    names = {"home": (), "far": ("--labels", "zone=b")}
    first = {key: Figure(f"worktree ready, first time: {key}") for key in names}
    ready = {key: Figure(f"worktree ready, later: {key}") for key in names}
    each = {key: Figure(f"a step (a command and an edit): {key}") for key in names}
    for trial in range(trials + 1):
        for key, labels in names.items():
            into = ready[key] if trial else first[key]
            measure(one, model, labels, into, each[key] if trial else Figure("first"), steps)
    for figures in (first, ready, each):
        show([figures["home"]])
        show([figures["far"]], figures["home"])


def lose(one: Machine, trials: int) -> None:
    """Of the two nodes that of the agent, while its command runs; another one takes its place."""
    hosts = {"b": "127.0.0.3", "c": "127.0.0.4"}
    model = write_script(one, {"Go on.": [write(1), shell("echo 1 > c1.txt"), shell("sleep 1.5"), {"text": "Done."}]})
    noticed, again = Figure("node lost, until it is told"), Figure("node lost, until the agent's next event elsewhere")
    for _ in range(trials):
        with ExitStack() as joined:
            nodes = {name: joined.enter_context(node(one, name, host)) for name, host in hosts.items()}
            load = wait_quiet()
            with one.start("fanout", "Go on.", "-m", model, "--labels", "far=yes", "--output-format", "json") as run:
                wait_for(lambda: b"sleep 1.5" in b"".join(tree.read(f"/proc/{pid}/cmdline") for pid in tree.pids()))
                at_us = time.time_ns() // 1000
                kill_working(nodes)
                run.communicate()
            one.wait_idle()
            events = one.events()
            assert run.returncode == 0
            noticed.add((first_after(events, at_us, "main") - at_us) / 1000, load)
            again.add((first_after(events, at_us, AGENT, 2) - at_us) / 1000, load)
            assert sum(isinstance(e.body, LeaseGranted) for e in events) >= 2
    show([noticed, again])
    print(f"of which the lease may take {LEASE_S} s, and its margin 1 s")


def kill_working(nodes: Mapping[str, "subprocess.Popen[bytes]"]) -> None:
    """The node below which the command runs, with all its processes, at once."""
    for process in nodes.values():
        below = tree.descendants(process.pid)
        if any(b"sleep 1.5" in tree.read(f"/proc/{pid}/cmdline") for pid in below):
            tree.send([process.pid, *below], signal.SIGKILL)
            return
    raise SystemExit("The command runs below no node.")


def first_after(events: Sequence[Event], at_us: int, actor: str, lease: int = 1) -> int:
    return next(e.ts_us for e in events if e.ts_us > at_us and e.actor == actor and e.lease >= lease)


def count(events: Sequence[Event]) -> str:
    """What of it went home."""
    ends = [event.body.outcome for event in events if isinstance(event.body, EffectFinished)]
    begun = sum(isinstance(event.body, EffectStarted) for event in events)
    taken = sum(isinstance(end, SnapshotTaken) for end in ends)
    return f"{begun} effects, {taken} snapshots, {sum(isinstance(end, AttemptLost) for end in ends)} attempts lost"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, number in (("files", 20_000), ("bytes", 2500), ("steps", 10), ("trials", 5), ("lose", 3)):
        parser.add_argument(f"--{name}", type=int, default=number)
    chosen = parser.parse_args()
    show_machine()
    print(f"{chosen.files:,} files of {chosen.bytes:,} bytes")
    with cluster(chosen.files, chosen.bytes) as one:
        with node(one, "b", "127.0.0.3"):
            compare(one, chosen.steps, chosen.trials)
            print(count(one.events()))
        if chosen.lose:
            lose(one, chosen.lose)


if __name__ == "__main__":
    sys.exit(main())
