"""What the daemon costs: a step, a cold start, a long session, an interrupt, a death, memory, coming back.

    python -m benchmarks.daemon [step cold session interrupt killed memory attach] [--rounds 10] [--trials 100]

Everything goes through the command line or the gateway's socket, as a frontend would. Each part has its peer or its
floor in the same run, in turn with it; a sample begins when the cores are idle (benchmarks/quiet.py), and the load
before it stands beside the figure. Clocks are the wall's: events of the log, of another process, are compared."""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.quiet import Figure, show, show_machine, wait_quiet
from benchmarks.step import WRITES, Server
from configs.places import MARK, RUN_MARK, DaemonPlace, daemon_place
from configs.version import new_session_name
from eventlog.events import EffectStarted, Event, SessionOpened, TurnEnded
from eventlog.opening import read_log
from frontends.client import Daemon
from processes import tree
from worktrees.sample import make_repository

PYTHON = (sys.executable, "-I")
STEPS = 100
DEADLINE_S = 30.0
WILLING = "setsid sleep 300.{0} & (env -i setsid sleep 300.{0} &); sleep 300.{0}"
STUBBORN = "trap '' TERM; " + WILLING
"""Commands whose processes leave the group and carry no mark of ours, and that ignore SIGTERM as well. {0} makes each
one's own."""


@dataclass(slots=True)
class Machine:
    """A person's machine: a home, a repository, a daemon."""

    folder: Path
    env: dict[str, str]

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def place(self) -> DaemonPlace:
        return daemon_place(self.home)

    @property
    def daemon(self) -> Daemon:
        return Daemon(self.place, self.env)

    def script(self, *turns: Mapping[str, Any]) -> str:
        """The name of a model that says this."""
        text = json.dumps({"turns": turns})
        file = self.folder / f"script-{abs(hash(text))}.json"
        file.write_text(text)
        return f"scripted/{file}"

    def start(self, *arguments: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            [*PYTHON, "-m", "cli", *arguments],
            cwd=self.folder / "repo",
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def run(self, *arguments: str) -> bytes:
        process = self.start(*arguments)
        out, _ = process.communicate()
        assert process.returncode == 0, (arguments, process.returncode)
        return out

    def newest(self) -> str:
        return max(path.name for path in (self.home / "sessions").iterdir())

    def events(self) -> tuple[Event, ...]:
        return read_log(self.home / "sessions" / self.newest())

    def begin(self, model: str, prompt: str = "go") -> str:
        """Open a session as the command line does, and return its id."""
        session = new_session_name()
        options = {"folder": str(self.folder / "repo"), "model": model, "mode": "auto"}
        request = {"session": session, "kind": "new", "command_id": os.urandom(8).hex(), "options": options}
        request |= {"config_file": self.env["THALIA_CONFIG"], "prompt": prompt, "merge": False}
        self.daemon.ask("POST", "/sessions", {"request": request, "variables": self.env})
        return session

    def wait_idle(self) -> None:
        wait_for(lambda: not self.daemon.ask("GET", "/status")["hosted"])


SMALL: Mapping[str, str] = {f"src/file{i}.py": f"x = {i}\n" for i in range(20)}


@contextmanager
def machine(files: Mapping[str, str] = SMALL) -> Iterator[Machine]:
    """Its daemon is up, and down at the end. `files`: of the repository."""
    with tempfile.TemporaryDirectory(prefix="thalia-bench-") as name:
        folder = Path(name)
        make_repository(folder / "repo", files)
        env = {"PATH": os.environ["PATH"], "HOME": name, "LANG": "C.UTF-8", "THALIA_HOME": f"{name}/home"}
        one = Machine(folder, env | {"THALIA_CONFIG": f"{name}/none", "OPENAI_API_KEY": "none"})
        one.run("up")
        try:
            yield one
        finally:
            one.run("down")


def wait_for(true: Callable[[], object], patience_s: float = DEADLINE_S) -> None:
    end = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > end:
            raise TimeoutError("what was waited for did not happen")
        time.sleep(0.002)


def time_run(process: "subprocess.Popen[bytes]", begin: float) -> tuple[float, float]:
    """(ms to the first line, ms to the end)."""
    assert process.stdout is not None
    process.stdout.readline()
    first = (time.time() - begin) * 1000
    process.stdout.read()
    assert process.wait() == 0
    return first, (time.time() - begin) * 1000


ONE_STEP: Sequence[Mapping[str, Any]] = (
    {"tool_calls": [{"name": "shell", "arguments": {"command": "true"}}]},
    {"text": "Done."},
)


def step(one: Machine, rounds: int) -> None:
    """Beside a bare Python, one that imports typer, and the same session in the process of the command line."""
    model = one.script(*ONE_STEP)
    bare = Figure("python -c pass")
    typer = Figure("python -c 'import typer'")
    inside = Figure("thalia exec --no-daemon, one step, to the end")
    first, end = Figure("thalia exec, one step: first line", 150), Figure("thalia exec, one step: to the end", 450)
    names = ("the daemon opens the session", "worktree and step, by the log", "the end, until the process is gone")
    parts = [Figure(f"   of it: {name}") for name in names]
    for _ in range(rounds):
        for figure, command in ((bare, "pass"), (typer, "import typer")):
            load, begin = wait_quiet(), time.time()
            subprocess.run([*PYTHON, "-c", command], env=one.env, check=True)
            figure.add((time.time() - begin) * 1000, load)
        load, begin = wait_quiet(), time.time()
        inside.add(time_run(one.start("exec", "go", "-m", model, "--no-daemon"), begin)[1], load)
        load, begin = wait_quiet(), time.time()
        to_first, to_end = time_run(one.start("exec", "go", "-m", model), begin)
        first.add(to_first, load)
        end.add(to_end, load)
        opened, over = ((stamp(one.events(), kind) - begin) * 1000 for kind in (SessionOpened, TurnEnded))
        for part, value in zip(parts, (opened - to_first, over - opened, to_end - over), strict=True):
            part.add(value, load)
    show((bare, typer, inside, first, end), inside)
    show(parts)


def stamp(events: Sequence[Event], kind: type[object]) -> float:
    """When the last event of this kind was made, in s."""
    return [event.ts_us for event in events if isinstance(event.body, kind)][-1] / 1e6


def cold(one: Machine, rounds: int) -> None:
    """The daemon is down before; beside the same with it up."""
    model = one.script(*ONE_STEP)
    first, end = (
        Figure("thalia exec, no daemon runs: first line", 150),
        Figure("thalia exec, no daemon runs: end", 6000),
    )
    warm = Figure("the same, warm: to the end")
    for _ in range(max(rounds // 2, 3)):
        one.run("down")
        load, begin = wait_quiet(), time.time()
        to_first, to_end = time_run(one.start("exec", "go", "-m", model), begin)
        first.add(to_first, load)
        end.add(to_end, load)
        one.run("up")
        load, begin = wait_quiet(), time.time()
        warm.add(time_run(one.start("exec", "go", "-m", model), begin)[1], load)
    show((warm, first, end), warm)


def session(one: Machine, rounds: int) -> None:
    """100 steps against the loopback model server, by the log: from the third model call to the last. In turn with the
    same program in one process."""
    inside, through = Figure("ms a step in one process"), Figure("ms a step through the coordinator's actor")
    server = Server(one.folder, STEPS, WRITES)
    one.env["OPENAI_BASE_URL"] = f"http://127.0.0.1:{server.port}/v1"
    try:
        for _ in range(max(rounds // 2, 3)):
            for figure, more in ((inside, ["--no-daemon"]), (through, [])):
                load = wait_quiet()
                one.run("exec", "go", "-m", "openai/bench", "--output-format", "json", *more)
                events = one.events()
                calls = [event.ts_us for event in events if is_call(event)]
                figure.add((calls[-1] - calls[2]) / 1000 / (len(calls) - 3), load)
    finally:
        server.close()
    through.bar = round(1.3 * inside.middle, 1)
    show((inside, through), inside)


def living(session: str, number: int) -> set[int]:
    """Processes of a trial: by their mark, or by an argument that only they have."""
    return {*tree.carriers(RUN_MARK, session), *sleepers(number)}


def sleepers(number: int) -> list[int]:
    line = b"sleep\x00300.%d\x00" % number
    return [pid for pid in tree.pids() if tree.read(f"/proc/{pid}/cmdline") == line and tree.is_alive(pid)]


def interrupt(one: Machine, trials: int) -> None:
    """From the gateway's request to the last process of the command gone. The floor: to look for them once."""
    look = Figure("one look at all processes")
    kinds = {
        WILLING: Figure("interrupt: all processes are gone", 200),
        STUBBORN: Figure("the same, of a command that ignores SIGTERM", 200),
    }
    survivors = 0
    for number in range(1, trials + 1):
        text, gone = list(kinds.items())[number % 2]
        command = {"name": "shell", "arguments": {"command": text.format(number)}}
        session = one.begin(one.script({"tool_calls": [command]}, {"text": "Done."}))
        wait_for(partial(has_begun, number))
        load, begin = wait_quiet(0.5), time.perf_counter()
        body = {"kind": "interrupted", "id": os.urandom(8).hex()}
        one.daemon.ask("POST", f"/sessions/{session}/commands", body)
        wait_for(partial(is_over, session, number))
        gone.add((time.perf_counter() - begin) * 1000, load)
        one.wait_idle()
        begin = time.perf_counter()
        survivors += len(living(session, number))
        look.add((time.perf_counter() - begin) * 1000, load)
    show((look, *kinds.values()))
    print(f"survivors in {trials} trials: {survivors} (bar 0)")


def has_begun(number: int) -> bool:
    return len(sleepers(number)) == WILLING.count("sleep ")


def is_over(session: str, number: int) -> bool:
    return not living(session, number)


def killed(one: Machine, rounds: int) -> None:
    """SIGKILL for the process that hosts a session while the model thinks: until somebody attached hears that the
    log is open again, and that the next attempt of the call began."""
    opened, goes_on = Figure("killed: the session is open again", 3000), Figure("killed: the turn goes on", 3000)
    model = one.script({"text": "Slow.", "delay_ms": 600_000})
    for _ in range(rounds):
        session = one.begin(model)
        stream = one.daemon.follow(session, 0)
        hear(stream, '"call_model"')
        lock = one.home / "sessions" / session / "writer.lock"
        load, begin = wait_quiet(), time.perf_counter()
        os.kill(json.loads(lock.read_bytes())["pid"], signal.SIGKILL)
        hear(stream, '"session_opened"')
        opened.add((time.perf_counter() - begin) * 1000, load)
        hear(stream, '"call_model"')
        goes_on.add((time.perf_counter() - begin) * 1000, load)
        one.daemon.ask("POST", f"/sessions/{session}/stop")
        one.wait_idle()
    show((opened, goes_on))


def hear(stream: Iterator[tuple[str, dict[str, Any]]], what: str) -> None:
    """Until an event of the stream holds this text."""
    if not any(kind == "event" and what in json.dumps(value) for kind, value in stream):
        raise TimeoutError(f"the stream ended without {what}")


def is_call(event: Event) -> bool:
    return isinstance(event.body, EffectStarted) and event.body.effect.kind == "call_model"


def memory(one: Machine, _: int) -> None:
    """Proportional set size of all processes of an idle daemon with its pool, some seconds after a session."""
    one.run("exec", "go", "-m", one.script(*ONE_STEP))
    one.wait_idle()
    load = wait_quiet()
    found: Counter[str] = Counter()
    for pid in tree.carriers(MARK, str(one.place.folder)):
        rollup = tree.read(f"/proc/{pid}/smaps_rollup")
        if pss := re.search(rb"^Pss:\s+(\d+) kB", rollup, re.MULTILINE):
            found[name_of(pid)] += int(pss[1])
    total = Figure("proportional set size of the idle daemon and its pool", 600, "MB")
    total.add(sum(found.values()) / 1000, load)
    show((total,))
    for name, kilobytes in found.most_common():
        print(f"   {name:<55} {kilobytes / 1000:8.1f} MB")


def name_of(pid: int) -> str:
    line = tree.read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    if line.startswith("ray::"):
        return line.split()[0]
    known = ("actors.daemon", "actors.gateway", "gcs_server", "raylet/raylet", "ray.scripts")
    return next((name for name in known if name in line), line[:50])


def attach(one: Machine, rounds: int) -> None:
    """The terminal of a session dies; a new one comes back: to the first old event, and to the newest one. Beside the
    same program with nothing to do."""
    done = {"tool_calls": [{"name": "shell", "arguments": {"command": "true"}}]}
    waiting = {"tool_calls": [{"name": "shell", "arguments": {"command": "sleep 300.0"}}]}
    model = one.script(*[done] * 20, waiting, {"text": "Done."})
    floor = Figure("thalia status")
    first, whole = Figure("attach: the first event", 300), Figure("attach: up to date", 300)
    terminal = one.start("exec", "go", "-m", model)
    wait_for(lambda: sleepers(0))
    terminal.kill()
    terminal.communicate()
    events = one.events()
    missing = 0
    for _ in range(rounds):
        load, begin = wait_quiet(), time.time()
        floor.add(time_run(one.start("status"), begin)[1], load)
        load, begin = wait_quiet(), time.time()
        again = one.start("attach", "--last", "--output-format", "stream-json")
        assert again.stdout is not None
        shown = [json.loads(again.stdout.readline())["seq"]]
        first.add((time.time() - begin) * 1000, load)
        shown += [json.loads(again.stdout.readline())["seq"] for _ in events[1:]]
        whole.add((time.time() - begin) * 1000, load)
        missing += shown != [event.seq for event in events]
        again.kill()
        again.communicate()
    one.run("stop", "--last")
    show((floor, first, whole), floor)
    print(f"attached with an event missing or doubled, of {len(events)}: {missing} times (bar 0)")


PARTS = {f.__name__: f for f in (step, cold, session, interrupt, killed, memory, attach)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--trials", type=int, default=100)
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    # So that a daemon is ended too where a limit of time ends this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    show_machine()
    with machine() as one:
        for name in chosen.parts or PARTS:
            print(f"-- {name}")
            PARTS[name](one, chosen.trials if name == "interrupt" else chosen.rounds)


if __name__ == "__main__":
    main()
