"""What a person does with a daemon while one of its processes ends itself at a named place, and what they find.

A plan (configs/crash.py) says where. The daemon lives on from one plan to the next, as a person's daemon does, and must
come back by itself: nobody does anything here that nobody would do at a terminal."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from eventlog.anchor import Head
from processes.tree import is_alive, read, send
from tests.chaos.arena import EDIT, SECRET
from tests.chaos.daemon_arena import Watch, serving_conversations
from tests.chaos.invariants import (
    acknowledged,
    check_acknowledged,
    check_ledger,
    check_nothing_left,
    check_secrets,
    check_session,
    check_shown,
    row_hashes,
    told,
)
from tests.chaos.keyboard import Attended
from tests.chaos.scenes import FINAL, LEDGER, call, turns
from tests.cli.cli_program import FILES, PROGRAM
from tests.cli.daemon_machine import Machine, machine

LONGEST_S = 100.0
KILLED = "killed"
"""In a trace: here a plan came true."""


@dataclass(slots=True)
class Stage:
    """A machine with a daemon whose processes have a plan."""

    machine: Machine
    folder: Path
    before: frozenset[str] = frozenset()
    """Sessions of earlier."""
    heads: list[Head] = field(default_factory=list)
    """What was acknowledged when each plan had come true."""
    plans: int = 0

    @property
    def plan(self) -> Path:
        return self.folder / "plan"

    @property
    def next_plan(self) -> Path:
        return self.folder / "plan.next"

    @property
    def trace(self) -> Path:
        return self.folder / "trace"

    @property
    def screen(self) -> Path:
        """What terminals have shown."""
        return self.folder / "screen.txt"

    @property
    def ledger(self) -> Path:
        return self.folder / "outside" / "ledger"

    @property
    def session(self) -> str:
        """The one that is not of earlier; empty until it has begun."""
        place = self.machine.daemon_place
        there = {path.stem for path in place.hosted.glob("*.json")} | set(self.machine.sessions())
        assert len(there - self.before) <= 1
        return next(iter(there - self.before), "")

    @property
    def session_folder(self) -> Path:
        return self.machine.home / "sessions" / self.session

    @property
    def host(self) -> int:
        """The process that has the session's lock."""
        return json.loads((self.session_folder / "writer.lock").read_bytes())["pid"]

    def set_up(self, *places: str) -> None:
        """A clean checkout and an empty ledger, nothing seen yet; then the plan, each place counted from the kill
        before it."""
        self.machine.git("reset", "--hard", "--quiet")
        self.machine.git("clean", "-fdq")
        self.before = frozenset(self.machine.sessions())
        self.heads.clear()
        for path in (self.ledger, self.trace, self.plan, self.next_plan):
            path.unlink(missing_ok=True)
        self.plans = len(places)
        for path, place in reversed([*zip((self.plan, self.next_plan), places, strict=False)]):
            new = self.folder / "plan.new"
            new.write_text(f"{place}\n")
            new.rename(path)

    def look(self) -> None:
        """Whether somebody has died since."""
        left = self.plan.exists() + self.next_plan.exists()
        while left < self.plans:
            self.plans -= 1
            self.heads.append(acknowledged(self.session_folder) if self.session else Head(0, ""))

    def reached(self) -> list[str]:
        """Names, in order; KILLED among them."""
        lines = self.trace.read_text().split() if self.trace.exists() else []
        return [line.partition(":")[0] for line in lines]

    def attend(self, *arguments: str, meanwhile: Callable[[], None] = lambda: None) -> int:
        """At a terminal, where a person says yes to whatever is asked. The exit code."""

        def over() -> bool:
            meanwhile()
            return run.poll() is not None

        env = {**self.machine.env, "TERM": "xterm"}
        run = Attended([*PROGRAM], arguments, self.machine.repository, env, self.screen)
        try:
            self.wait(over, " ".join(arguments))
        finally:
            if run.poll() is None:
                run.kill()
            run.wait()
        return run.returncode

    def wait(self, true: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + LONGEST_S
        while not true():
            self.look()
            assert time.monotonic() < end, f"it never ended: {what}; {self.trouble()}"
            time.sleep(0.01)
        self.look()

    def trouble(self) -> str:
        said = (self.machine.daemon_place.log, self.screen)
        return "\n".join(path.read_text()[-2000:] for path in said if path.exists())

    def watch(self) -> Watch:
        arguments = ("log", self.session, "--follow", "--output-format", "stream-json")
        with self.screen.open("ab") as errors:
            return Watch(self.machine.start(*arguments, stderr=errors), True)

    def settle(self) -> None:
        """Until the daemon has it no more. Whoever comes back finds a daemon, or starts one."""
        self.tell("up")
        self.wait(lambda: self.session not in self.machine.daemon.insist("GET", "/status")["hosted"], "it is let go")

    def check_down(self) -> None:
        """Of a daemon that was ended nothing is left."""
        one, place = self.machine, self.machine.daemon_place
        left = [pid for pid in (*one.pids(), *one.survivors()) if is_alive(pid)]
        assert left == [], f"{[line_of(pid) for pid in left]}; {self.trouble()}"
        assert not place.folder.exists()
        assert list(place.hosted.iterdir()) == []

    def runs(self, command: str) -> bool:
        """Whether a command of the session runs. Where the daemon is gone, a person who waits for that starts it."""
        if not self.machine.daemon.runs():
            self.tell("up")
        return any(command in line_of(pid) for pid in self.machine.survivors())

    def files(self) -> dict[str, str]:
        """Of the checkout."""
        root = self.machine.repository
        found = [path for path in root.rglob("*") if path.is_file() and ".git" not in path.relative_to(root).parts]
        return {str(path.relative_to(root)): path.read_text() for path in sorted(found)}

    def tell(self, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        """A command that must do what it says, whoever is killed meanwhile."""
        run = self.machine.start(*arguments, env=env)
        try:
            self.wait(lambda: run.poll() is not None, " ".join(arguments))
        finally:
            if run.poll() is None:
                run.kill()
            out, err = run.communicate()
        assert run.returncode == 0, f"{arguments}: {out}{err}{self.trouble()}"


def line_of(pid: int) -> str:
    return read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace")[:200]


@dataclass(frozen=True, slots=True)
class DaemonScene:
    name: str
    play: Callable[[Stage], None]
    """Until the session is done, and its result is in the checkout."""
    final: Mapping[str, str]
    ledger: tuple[str, ...] = ()
    slow: bool = False
    """It waits for a limit of time to pass."""
    exact: bool = True
    """Whether one kill is to be noticed by nobody: what it hit lives on, or is done again, and nothing is told of."""

    def prepare(self, stage: Stage, *places: str) -> None:
        # Begun by somebody who has no key: a session runs with the variables of whoever asked for it.
        stage.tell("up", env={"OPENAI_API_KEY": "", "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})
        stage.set_up(*places)


def work(stage: Stage, prompt: str) -> None:
    """At a terminal, to the end and the merge; somebody else looks on from when there is something to see."""
    watches: list[Watch] = []

    def look_on() -> None:
        if not watches and stage.session and (stage.session_folder / "head").exists():
            watches.append(stage.watch())

    try:
        code = stage.attend("exec", prompt, "-m", "openai/test", "--merge", meanwhile=look_on)
        assert code == 0, stage.trouble()
        stage.settle()
    finally:
        for watch in watches:
            watch.close()
    for watch in watches:
        assert watch.process.returncode == 0, stage.trouble()
        check_shown([value for _, value in watch.shown], stage.machine.events(stage.session))
        assert [value["seq"] for _, value in watch.shown] == list(range(1, len(watch.shown) + 1))


def work_and_end(stage: Stage, prompt: str, hang: bool = False) -> None:
    """The daemon is ended in the middle, nothing of it may be left, and the session goes on with the next one."""
    stage.tell("exec", prompt, "-m", "openai/test", "--detach")
    stage.wait(lambda: stage.runs("sleep"), "the command begins")
    if hang:
        # It does not hear that it should end, and has to be cut off.
        send([stage.host], signal.SIGSTOP)
    stage.tell("down")
    stage.check_down()
    assert stage.attend("resume", stage.session, "--merge") == 0, stage.trouble()
    stage.settle()


def slow_turns(seconds: int) -> list[object]:
    return [{"tool_calls": [EDIT]}, {"tool_calls": [call("shell", command=f"sleep {seconds}")]}, {"text": "Done."}]


TWO = {**FILES, "a.py": "two\n"}
SCENES = (
    DaemonScene("whole", lambda stage: work(stage, "Do it all."), {**FILES, **FINAL}, ("1", "2")),
    DaemonScene("ended", lambda stage: work_and_end(stage, "Do it slowly."), TWO, exact=False),
    DaemonScene("cut", lambda stage: work_and_end(stage, "Do it some time.", hang=True), TWO, exact=False, slow=True),
)


@contextmanager
def staging(folder: Path) -> Iterator[Stage]:
    """Ends with `down`, which leaves nothing."""
    outside = folder / "outside"
    outside.mkdir()
    (outside / "note.txt").write_text("A note.\n")
    (outside / "ledger.py").write_text(LEDGER)
    conversations = {
        "Do it all.": turns(outside),
        "Do it slowly.": slow_turns(15),
        "Do it some time.": slow_turns(4),
    }
    with serving_conversations(folder, conversations) as url:
        env = {
            "OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": SECRET,
            "THALIA_CRASH_PLAN": str(folder / "plan"),
            "THALIA_CRASH_TRACE": str(folder / "trace"),
        }
        with machine(folder / "machine", env) as one:
            one.config.write_text("log_checkpoint_mib = 0.02\n")
            yield Stage(one, folder)


def check(stage: Stage, scene: DaemonScene, places: Sequence[str]) -> None:
    """All that must hold once a scene is over."""
    folder, events = stage.session_folder, stage.machine.events(stage.session)
    check_session(events)
    check_acknowledged(stage.heads, row_hashes(folder))
    counted = stage.ledger.read_text().split() if stage.ledger.exists() else []
    check_ledger(counted, scene.ledger, events)
    check_secrets([folder, stage.machine.daemon_place.hosted], [SECRET])
    assert SECRET not in stage.machine.daemon_place.log.read_text()
    assert list(holding(SECRET, stage.machine.daemon_place.folder)) == []
    check_nothing_left(stage.machine.home, stage.machine.repository, stage.machine.survivors())
    assert list(stage.machine.daemon_place.hosted.iterdir()) == []
    assert stage.files() == scene.final or told(events), f"{places}: {told(events)}"
    if scene.exact and len(places) <= 1:
        assert told(events) == [], f"{places}"
        assert counted == list(scene.ledger)


def holding(secret: str, folder: Path) -> Iterator[Path]:
    """Files in a folder where others come and go meanwhile."""
    for root, _, names in os.walk(folder):
        for path in (Path(root, name) for name in names):
            with suppress(OSError):
                if path.is_file() and not path.is_symlink() and secret.encode() in path.read_bytes():
                    yield path


def strike(stage: Stage, scene: DaemonScene, *places: str) -> list[str]:
    """Kill at these places, let it recover, check. What was reached after the last kill, counted from there; how often
    things happen depends on what comes in at once, so a place that was not reached is tried at its turn before. Empty
    where that was its first."""
    scene.prepare(stage, *places)
    scene.play(stage)
    check(stage, scene, places)
    reached = stage.reached()
    if KILLED in reached:
        after = reached[len(reached) - reached[::-1].index(KILLED) :]
        return [f"{name}:{after[: index + 1].count(name)}" for index, name in enumerate(after)]
    name, _, count = places[0].rpartition(":")
    return strike(stage, scene, f"{name}:{int(count) - 1}", *places[1:]) if int(count) > 1 else []
