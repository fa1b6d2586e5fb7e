"""A machine whose daemon is killed, part by part, under the sessions that it runs; and a person who wants them done.

The person begins a session, comes back when the terminal was killed, and answers what is asked. Every event that any
terminal shows is noted with its time. `python -m tests.chaos.daemon_arena FILE` sums up what trials have written."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from threading import Thread
from typing import Any, Literal, get_args

from pydantic import TypeAdapter

from agent.standing import BLOCKED
from processes.tree import send
from tests.chaos.arena import COUNT, EDIT, ROOT, SECRET

# Where the tests of the command line keep what they share.
sys.path.append(str(ROOT / "tests" / "cli"))
from tests.cli.cli_program import Terminal, terminal, wait_until
from tests.cli.daemon_machine import Machine

Part = Literal["terminal", "gateway", "host", "raylet", "gcs", "supervisor", "everything"]
PARTS: tuple[Part, ...] = get_args(Part)
Way = Literal["watched", "detached", "unconfined", "asked"]
WAYS: tuple[Way, ...] = get_args(Way)
LONGEST_S = 90.0
COMMANDS = 4
"""Of a session whose commands are unconfined: each leaves its number in a ledger outside."""
AGAIN = "Once more."
TELL = f"printf '%s%s' {SECRET[:9]} {SECRET[9:]}"
"""The secret is in its output, and not in its text, where it would be refused."""
OPTIONS: Mapping[Way, tuple[str, ...]] = {
    "watched": ("--merge",),
    "detached": ("--detach",),
    "unconfined": ("--dangerously-bypass-approvals-and-sandbox",),
    "asked": ("-s", "off", "--permission-mode", "ask"),
}


@dataclass(frozen=True, slots=True)
class Kill:
    """Times in seconds; of the kill since 1970. None where nothing was left to come."""

    parts: tuple[Part, ...]
    pids: int
    at: float
    logged_s: float | None = None
    """Until the session's next event."""
    shown_s: float | None = None
    """Until a terminal showed an event that none had shown before."""


KILL = TypeAdapter(Kill)


class Watch:
    """A program that prints events, and when each whole line of it came. One that only follows shows questions and
    waits on; any other ends where nobody is there to answer."""

    def __init__(self, process: "subprocess.Popen[str]", follows: bool) -> None:
        self.process, self.follows = process, follows
        self.lines: list[tuple[float, dict[str, Any]]] = []
        self._thread = Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # A killed program may leave half a line: that was not shown.
            if line.endswith("\n"):
                self.lines.append((time.time(), json.loads(line)))

    @property
    def shown(self) -> list[tuple[float, dict[str, Any]]]:
        """Events."""
        return [(at, value) for at, value in list(self.lines) if "seq" in value]

    @property
    def asks(self) -> bool:
        """Whether a question stands, as far as it has shown."""
        bodies = [value["body"] for _, value in self.shown]
        asked = {b["call_id"] for b in bodies if b["kind"] == "effect_started" and b["effect"]["kind"] == "ask_user"}
        return bool(asked - {b["ask"] for b in bodies if b["kind"] in ("approved", "denied")})

    def close(self) -> None:
        self.process.wait()
        self._thread.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@dataclass(slots=True)
class Person:
    """Wants one session done."""

    arena: "DaemonArena"
    number: int
    way: Way
    before: frozenset[str]
    rooms: ExitStack
    watches: list[Watch] = field(default_factory=list)
    first: Terminal | None = None
    """Where a session that asks was begun; it is left as soon as there is a question."""
    answering: Terminal | None = None
    read_until: int = 0
    """How far the answering terminal's text is dealt with."""

    @property
    def session(self) -> str:
        """Empty until there is one."""
        found = self.arena.names() - self.before
        assert len(found) <= 1, found
        return next(iter(found), "")

    def begin(self) -> None:
        prompt = f"Do number {self.number}."
        match self.way:
            case "watched" | "unconfined":
                self._watch("exec", prompt, "-m", "openai/test", *OPTIONS[self.way])
            case "detached":
                done = self.arena.machine.run("exec", prompt, "-m", "openai/test", *OPTIONS[self.way])
                assert done.code == 0, done.err
                self.come_back()
            case "asked":
                arguments = ("exec", prompt, "-m", "openai/test", *OPTIONS[self.way])
                self.first = self.rooms.enter_context(terminal(self.arena.machine, *arguments))
                wait_until(lambda: self.session != "")
                self.come_back()

    def come_back(self, follow: bool = False) -> None:
        self._watch(*(("log", self.session, "--follow") if follow else ("attach", self.session)))

    def _watch(self, *arguments: str) -> None:
        errors = self.rooms.enter_context(self.arena.errors.open("ab"))
        run = self.arena.machine.start(*arguments, "--output-format", "stream-json", stderr=errors)
        self.watches.append(Watch(run, "--follow" in arguments))

    def tend(self) -> bool:
        """What a person does now; False once nothing is left to do."""
        watch = self.watches[-1]
        if watch.process.poll() is not None:
            watch.close()
            if not self._watch_again(watch):
                return False
        if self.way == "asked":
            self._answer(watch)
        return True

    def _watch_again(self, ended: Watch) -> bool:
        """Whether there is more to see."""
        code = ended.process.returncode
        if code == -signal.SIGKILL:
            # What it asked for may still wait in front of the next gateway, but not behind what is asked now.
            self.arena.hosted()
            self.come_back() if self.session else self.begin()
            return True
        waits = code == BLOCKED and ended.asks
        assert code == 0 or waits, self.arena.trouble(code)
        if waits or ended.follows:
            self.come_back(follow=waits)
        return waits or ended.follows

    def _answer(self, watch: Watch) -> None:
        if watch.asks and self.first is not None:
            # Its person goes, and comes back at another terminal.
            self._leave(self.first)
            self.first = None
        if self.answering is not None and self.answering.process.poll() is not None:
            while self.answering.read(0):
                pass
            code = self.answering.process.returncode
            assert code in (0, -signal.SIGKILL), (code, self.answering.text)
            self.answering = None
        if watch.asks and self.answering is None:
            self.answering = self.rooms.enter_context(terminal(self.arena.machine, "attach", self.session))
            self.read_until = 0
        for screen in (self.first, self.answering):
            if screen is not None:
                screen.read(0)
        if self.answering is not None and b"run it?" in self.answering.shown[self.read_until :]:
            self.read_until = len(self.answering.shown)
            self.answering.type("y\n")

    def _leave(self, screen: Terminal) -> None:
        with suppress(ProcessLookupError):
            os.killpg(screen.process.pid, signal.SIGKILL)
        screen.process.wait()

    def tend_for(self, seconds: float) -> bool:
        """False where nothing is left to do before."""
        end = time.monotonic() + seconds
        while self.tend():
            if time.monotonic() > end:
                return True
            time.sleep(0.01)
        return False

    def tend_until_seen(self, at: float) -> None:
        """Until a terminal has shown an event which none had shown at that time, or nothing is left to do."""
        while self.first_shown(at) is None and self.tend():
            time.sleep(0.01)

    def first_shown(self, at: float) -> float | None:
        """When a terminal showed the first event which none had shown at that time."""
        shown = [(when, value["seq"]) for watch in self.watches for when, value in watch.shown]
        known = max((seq for when, seq in shown if when <= at), default=0)
        return min((when for when, seq in shown if seq > known), default=None)

    def kill_terminals(self) -> int:
        """All that a person has open. How many there were."""
        screens = [screen for screen in (self.first, self.answering) if screen is not None]
        living = [watch for watch in self.watches if watch.process.poll() is None]
        for watch in living:
            watch.process.kill()
        for screen in screens:
            self._leave(screen)
        self.first = self.answering = None
        return len(living) + len(screens)

    def finish(self) -> None:
        """Until nothing is left to do, and the daemon has it no more."""
        end = time.monotonic() + LONGEST_S
        while self.tend():
            assert time.monotonic() < end, f"it never ended: {self.arena.trouble(None)}"
            time.sleep(0.01)
        wait_until(lambda: self.session not in self.arena.hosted(), LONGEST_S)


@dataclass(slots=True)
class DaemonArena:
    """Sessions of one machine, one after the other."""

    machine: Machine
    folder: Path

    @property
    def errors(self) -> Path:
        return self.folder / "errors.txt"

    def ledger(self, number: int) -> Path:
        return self.folder / f"ledger-{number}"

    def trouble(self, code: int | None) -> str:
        log = self.machine.daemon_place.log
        return f"exit code {code}: {self.errors.read_text()[-2000:]}\n{log.read_text()[-3000:] if log.exists() else ''}"

    def hosted(self) -> set[str]:
        """As the program tells, once a gateway has answered; nothing where there is no daemon."""
        while (done := self.machine.run("status", "--output-format", "json")).code != 0:
            pass
        return set(json.loads(done.out)["hosted"])

    def names(self) -> frozenset[str]:
        """Sessions that the daemon has accepted, or that have begun."""
        waiting = {path.stem for path in self.machine.daemon_place.hosted.glob("*.json")}
        return frozenset(waiting | set(self.machine.sessions()))

    @contextmanager
    def person(self, number: int, way: Way) -> Iterator[Person]:
        """Who has begun session `number` on a clean checkout; all terminals are gone afterwards."""
        self.machine.git("reset", "--hard", "--quiet")
        self.machine.git("clean", "-fdq")
        with ExitStack() as rooms:
            one = Person(self, number, way, self.names(), rooms)
            rooms.callback(lambda: [watch.close() for watch in one.watches])
            rooms.callback(one.kill_terminals)
            one.begin()
            yield one

    def find(self, part: Part, person: Person) -> list[int]:
        """Its processes, which are alive; none where it has not begun."""
        match part:
            case "terminal":
                return []
            case "everything":
                return [*self.machine.pids(), *self.machine.survivors()]
            case "host":
                with suppress(OSError, ValueError, KeyError):
                    lock = self.machine.home / "sessions" / person.session / "writer.lock"
                    return [pid for pid in self.machine.pids() if pid == json.loads(lock.read_bytes())["pid"]]
                return []
            case _:
                return self.machine.find(part)

    def kill(self, parts: Sequence[Part], person: Person) -> Kill | None:
        """SIGKILL for all of them at once; None where none of them runs."""
        found = {part: self.find(part, person) for part in parts}
        targets = {pid for pids in found.values() for pid in pids}
        at = time.time()
        send(targets, signal.SIGKILL)
        ended = person.kill_terminals() if {"terminal", "everything"} & set(parts) else 0
        hit: tuple[Part, ...] = tuple(part for part in parts if found[part] or (part == "terminal" and ended))
        return Kill(hit, len(targets) + ended, at) if hit else None

    def kill_at_random(self, person: Person, random: Random, hands: Sequence[Sequence[Part]]) -> list[Kill]:
        """Each at a random moment, half of them while the session recovers from the one before. Fewer where the session
        is over by then."""
        kills: list[Kill] = []
        for parts in hands:
            if kills and random.random() < 0.5:
                person.tend_until_seen(kills[-1].at)
            kill: Kill | None = None
            # What does not run now is killed later, and not just when it is born.
            while kill is None and person.tend_for(random.uniform(0.02, 1.5)):
                kill = self.kill(parts, person)
            kills += [kill] if kill is not None else []
        return kills

    def files(self, person: Person) -> dict[str, str]:
        """Where the result is: of what was merged in the checkout."""
        made = self.machine.state(person.session).worktree
        assert made is not None
        root = self.machine.repository if person.way == "watched" else Path(made.path)
        found = [path for path in root.rglob("*") if path.is_file() and ".git" not in path.relative_to(root).parts]
        return {str(path.relative_to(root)): path.read_text() for path in sorted(found)}

    def holding(self, text: bytes) -> list[Path]:
        """Files of the state folder and of the daemon's that hold it; a worktree is the user's own."""
        files = [p for f in (self.machine.home, self.machine.daemon_place.folder) for p in f.rglob("*") if p.is_file()]
        return [path for path in files if "worktrees" not in path.parts and text in path.read_bytes()]


def deal(random: Random, count: int) -> list[tuple[Part, ...]]:
    """What each kill hits: every part and half as many pairs, in a drawn order; then anew."""
    hands: list[tuple[Part, ...]] = []
    while len(hands) < count:
        dealt: list[tuple[Part, ...]] = [(part,) for part in PARTS]
        dealt += [tuple(random.sample(PARTS[:-1], 2)) for _ in range(len(PARTS) // 2)]
        hands += random.sample(dealt, len(dealt))
    return hands[:count]


def turns_of(way: Way, ledger: Path) -> list[object]:
    """What the model says, and one more turn for whoever goes on afterwards."""
    match way:
        case "watched" | "detached":
            turns: list[dict[str, object]] = [
                {"tool_calls": [_call("read", path="a.py"), _call("grep", pattern="one")]},
                {"tool_calls": [EDIT, _call("shell", command=COUNT)]},
                {"tool_calls": [_call("write", path="b.txt", content="new\n"), _call("commit", message="Both")]},
                {"text": "I think.", "tool_calls": [_call("shell", command=TELL)]},
            ]
        case "unconfined" | "asked":
            # Appended in one write, and by a program whose arguments nobody can judge: it is asked for.
            program = f"import time; open('{ledger}', 'a').write('%d\\n'); time.sleep(0.3)"
            commands = [f'python3 -c "{program % index}"' for index in range(COMMANDS)]
            turns = [{"tool_calls": [_call("shell", command=command)]} for command in commands]
    return [{**turn, "delay_ms": 200} for turn in (*turns, {"text": "Done."}, {"text": AGAIN})]


def _call(name: str, **arguments: str) -> dict[str, object]:
    return {"name": name, "arguments": arguments}


@contextmanager
def serving_conversations(folder: Path, conversations: Mapping[str, Sequence[object]]) -> Iterator[str]:
    """The base URL of a model that says this to whoever's first words are a key; a process of its own."""
    script, port_file = folder / "script.json", folder / "port"
    listed = [{"when": when, "turns": turns} for when, turns in conversations.items()]
    script.write_text(json.dumps({"conversations": listed}))
    command = (sys.executable, "-m", "agent.models.server", "--script", str(script), "--port-file", str(port_file))
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=ROOT, **pipes) as server:
        try:
            wait_until(lambda: port_file.exists() and port_file.read_text().strip() != "")
            yield f"http://127.0.0.1:{port_file.read_text().strip()}/v1"
        finally:
            # The end of its standard input ends it.
            assert server.stdin is not None
            server.stdin.close()


def sum_up(kills: Sequence[Kill]) -> Iterator[str]:
    for name, chosen in (*((part, [k for k in kills if k.parts == (part,)]) for part in PARTS),
                         ("two of them", [k for k in kills if len(k.parts) > 1]), ("all", list(kills))):  # fmt: skip
        line = f"{name:12} {len(chosen):4} kills"
        for label, times in (("logged", [k.logged_s for k in chosen]), ("shown", [k.shown_s for k in chosen])):
            known = [seconds for seconds in times if seconds is not None]
            line += f" · next event {label} after {median(known):.2f} s, worst {max(known):.2f} s" if known else ""
        yield line


def main() -> None:
    lines = Path(sys.argv[1]).read_text().splitlines()
    print("\n".join(sum_up([KILL.validate_json(line) for line in lines])))


if __name__ == "__main__":
    main()
