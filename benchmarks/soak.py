"""A long session that is killed again and again: nothing that it uses may grow with its length, but its record.

    python -m benchmarks.soak [--steps 20000] [--kill-every 60] [--turn 250] [--keep FOLDER]

The program is `thalia` itself, a process for each start, with a scripted model on loopback. Its commands are confined
in one turn and not in the next; between them stand edits, commits, searches and long outputs. Each --kill-every seconds
SIGKILL ends, in turn, the process alone, every process of the session, and every process and the one that takes it up;
then the same command takes it up. A counted command writes its call's number once: into the worktree where it is
confined, else into a file outside. After each turn of --turn steps the session is rewound to its beginning: so the
conversation stays bounded, and what grows is not owed to it; the log grows on. Everything is looked at from outside.
Ctrl-C ends it early, with a report on what was done.

Ends with 1 where an event is lost, an effect is doubled, or something grows that has no reason to."""

import argparse
import itertools
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Literal

from actors.history import Verified, verify
from benchmarks.place import Place
from benchmarks.soak_samples import (
    MIB,
    Disk,
    Process,
    judge_disk,
    judge_processes,
    leaks,
    line,
    look_at_disk,
    look_at_process,
    slope,
)
from benchmarks.soak_work import Plan, Told, commands_of, digest, edits_of, script
from eventlog.events import EffectFinished, EffectStarted, Event
from eventlog.opening import read_log

Kind = Literal["process", "everything", "everything, twice"]
KINDS: tuple[Kind, ...] = ("process", "everything", "everything, twice")
BYPASS = "--dangerously-bypass-approvals-and-sandbox"
BEGIN, GO = "Begin.", "Go on."
DEADLINE_S = 600.0
"""Without an event."""
LEAST_STEPS = 10
"""Of a process before it is killed: however often that happens, the session comes to its end."""


class Broken(Exception):
    """A promise of the product was not kept; one sentence."""


class Soak:
    def __init__(self, place: Place, plan: Plan) -> None:
        self.place, self.plan = place, plan
        self.told = Told()
        self.processes: list[Process] = []
        self.disks: list[Disk] = []
        self.starts: list[tuple[int, float]] = []
        """(events, seconds from the start of a process to its first event)."""
        self.kills: Counter[Kind] = Counter()
        self.spent_s = 0.0
        """In turns, without what is looked at between them."""
        self.stopped = False
        """By a person, in the middle of a turn."""
        self._kinds = itertools.cycle(KINDS)
        self._due = time.monotonic() + plan.kill_every_s
        self._begun_at = 0
        """Steps before the process that runs."""
        self._again: tuple[str, ...] = ()
        """What takes the present turn up after a kill."""
        self._out = place.folder / "out.jsonl"
        self._ledger = place.folder / "ledger"

    @property
    def events(self) -> int:
        return max(self.told.digests, default=0)

    def run(self) -> None:
        with self.place.model(script(self.plan, "none")):
            self._finish(self._start("exec", BEGIN, "-m", "openai/soak"))
        base = self.events
        self.disks.append(look_at_disk(self.place, 0))
        for number in itertools.count():
            begun = time.monotonic()
            self._turn(confined=number % 2 == 0)
            self._rewind(base)
            self.spent_s += time.monotonic() - begun
            self.disks.append(look_at_disk(self.place, self.told.steps))
            self._say()
            if self.told.steps >= self.plan.steps:
                return

    def _turn(self, *, confined: bool) -> None:
        self._ledger.write_text("")
        target, flags = ("steps.txt", ()) if confined else (str(self._ledger), (BYPASS,))
        said, unknown = self.told.said, len(self.told.unknown)
        with self.place.model(script(self.plan, target)):
            resume = ("resume", self.place.session.name)
            self._again = (*resume, *flags)
            run = self._start(*resume, GO, *flags)
            while not self._ended(run, said):
                run = self._start(*self._again)
        worktree = self._worktree()
        counted = (worktree / "steps.txt" if confined else self._ledger).read_text()
        self.check_effects(counted, len(self.told.unknown) - unknown, confined=confined)
        edited = (worktree / "a.py").read_text()
        if edited != f"count = {edits_of(self.plan)}\n":
            raise Broken(f"after {edits_of(self.plan)} edits the file says {edited!r}")

    def check_effects(self, counted: str, unknown: int, *, confined: bool) -> None:
        """Each command once. One that nobody can tell about is missing and was told as unknown; never one that is
        confined."""
        times = Counter(text.partition(".")[0] for text in counted.split())
        wanted = commands_of(self.plan)
        if times and max(times.values()) > 1:
            raise Broken(f"an effect happened twice: {[call for call, count in times.items() if count > 1]}")
        if len(times) < wanted - (0 if confined else unknown) or len(times) > wanted:
            raise Broken(f"{len(times)} of {wanted} effects happened, {unknown} are told as unknown")

    def _worktree(self) -> Path:
        [found] = (path for path in self.place.home.glob("worktrees/*/thalia-*") if path.is_dir())
        return found

    def _rewind(self, base: int) -> None:
        run = self.place.start("rewind", f"{self.place.session.name}@{base}", out=self.place.folder / "rewound.txt")
        with self._ended_on_error(run):
            code = run.wait(DEADLINE_S)
        if code != 0:
            raise Broken(f"the session could not be rewound: {self.place.errors()}")

    def _start(self, *arguments: str) -> "Popen[bytes]":
        """Returns when its first event is there, or when it ended. A third kind of kill ends it in its recovery."""
        begun = time.monotonic()
        run = self.place.start(*arguments, "--output-format", "stream-json", out=self._out)
        with self._ended_on_error(run):
            while not self.told.read(self._out) and run.poll() is None:
                time.sleep(0.005)
        self.starts.append((self.events, time.monotonic() - begun))
        self._begun_at = self.told.steps
        return run

    def _ended(self, run: "Popen[bytes]", said: int) -> bool:
        """Look at the run until it ended by itself, or until it was killed, once its prompt is known to be stored."""
        moved = looked = time.monotonic()
        with self._ended_on_error(run):
            while run.poll() is None:
                now = time.monotonic()
                if self.told.read(self._out):
                    moved = now
                if now - moved > DEADLINE_S:
                    raise Broken(f"nothing happened for {DEADLINE_S:.0f} s: {self.place.errors()}")
                if now - looked > self.plan.look_every_s:
                    looked = now
                    self._look(run)
                alive = self.told.said > said and self.told.steps >= self._begun_at + LEAST_STEPS
                if alive and now > self._due:
                    self._due = now + self.plan.kill_every_s
                    self._kill(run)
                    return False
                time.sleep(0.02)
        self._finish(run)
        return True

    def _look(self, run: "Popen[bytes]") -> None:
        since = self.told.steps - self._begun_at
        look = look_at_process(self.place, run.pid, self.told.steps, self.events, len(self.starts), since)
        if look is not None:
            self.processes.append(look)

    def _kill(self, run: "Popen[bytes]") -> None:
        kind = next(self._kinds)
        self.kills[kind] += 1
        if kind == "process":
            self.place.belonging(run.pid)
            run.kill()
        else:
            self.place.kill_everything(run.pid)
        run.wait()
        if kind == "everything, twice":
            # In the middle of its recovery, which takes longer the longer the log is.
            recovery = self.place.start(*self._again, "--output-format", "stream-json", out=self._out)
            with self._ended_on_error(recovery):
                time.sleep(self.starts[-1][1] * 0.7)
                self.place.kill_everything(recovery.pid)
                recovery.wait()
        self._cut()

    def _cut(self) -> None:
        """A killed process may have left half a line."""
        self.told.read(self._out)
        with self._out.open("r+b") as file:
            file.truncate(self.told.read_to)

    def _finish(self, run: "Popen[bytes]") -> None:
        with self._ended_on_error(run):
            code = run.wait(DEADLINE_S)
        self.told.read(self._out)
        if code != 0:
            raise Broken(f"the session ended with {code}: {self.place.errors()}")
        # What was read is known by its digests.
        self._out.write_bytes(b"")
        self.told.read_to = 0

    @contextmanager
    def _ended_on_error(self, run: "Popen[bytes]") -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.place.kill_everything(run.pid)
            run.wait()
            raise

    def _say(self) -> None:
        last = self.processes[-1] if self.processes else None
        memory = f"{last.bytes / MIB:6.1f} MiB" if last else ""
        kills, step = sum(self.kills.values()), self.told.steps
        print(
            f"{step:>7} steps {self.events:>8} events {kills:>4} kills {memory}   "
            f"{self.spent_s * 1000 / step:5.1f} ms a step   last start {self.starts[-1][1]:.2f} s",
            flush=True,
        )

    def check_log(self) -> tuple[Event, ...]:
        """No gap, nothing lost that was shown, one outcome for each start, each request as it was logged."""
        events = read_log(self.place.session)
        if [event.seq for event in events] != list(range(1, len(events) + 1)):
            raise Broken("the log has a gap")
        stored = {event.seq: digest(event.model_dump_json().encode()) for event in events}
        lost = [seq for seq, shown in self.told.digests.items() if stored.get(seq) != shown]
        if lost:
            raise Broken(f"{len(lost)} events were shown and are not in the log as they were, from {min(lost)} on")
        started = [(e.body.call_id, e.body.attempt) for e in events if isinstance(e.body, EffectStarted)]
        finished = [(e.body.call_id, e.body.attempt) for e in events if isinstance(e.body, EffectFinished)]
        fits = Counter(finished) <= Counter(started) if self.stopped else sorted(finished) == sorted(started)
        if len(set(started)) != len(started) or not fits:
            raise Broken("an effect was started or ended twice, or has no end")
        if not isinstance(verify(events), Verified):
            raise Broken("a request is not the one that was logged")
        if self.place.left():
            raise Broken(f"processes live on: {self.place.left()}")
        return events

    def report(self) -> list[str]:
        """Prints the table; names of what leaks."""
        verdicts = [*judge_processes(self.processes, self.plan.turn // 2), *judge_disk(self.disks)]
        kills = ", ".join(f"{count} x {kind}" for kind, count in self.kills.items()) or "none"
        print(f"\n{self.told.steps} steps, {self.events} events, {len(self.starts)} starts; kills: {kills}")
        print(
            f"effects: 0 doubled, {len(self.told.unknown)} told as unknown; events shown and lost: 0 of {self.events}"
        )
        print(f"{'':<28} {'first':>12} {'last':>12}")
        print("\n".join(map(line, verdicts)))
        each = slope([(events, seconds * 1e6) for events, seconds in self.starts])
        fixed = min(seconds for _, seconds in self.starts)
        print(f"a start takes {fixed:.2f} s and {each:.1f} ms for each 1,000 events of the log")
        return leaks(verdicts)


def soak(plan: Plan, folder: Path) -> list[str]:
    """Raises Broken."""
    place = Place(folder)
    place.make("max_turns = 1000000\n")
    run = Soak(place, plan)
    try:
        run.run()
    except KeyboardInterrupt:
        run.stopped = True
    run.check_log()
    return run.report()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--turn", type=int, default=250, help="steps between two rewinds")
    parser.add_argument("--kill-every", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--look-every", type=float, default=2.0, metavar="SECONDS")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="work here and leave it")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    plan = Plan(chosen.steps, chosen.turn, chosen.kill_every, chosen.look_every)
    try:
        if chosen.keep is not None:
            grown = soak(plan, chosen.keep)
        else:
            with tempfile.TemporaryDirectory(prefix="thalia-bench-") as name:
                grown = soak(plan, Path(name))
    except Broken as broken:
        print(f"BROKEN: {broken}")
        return 1
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
