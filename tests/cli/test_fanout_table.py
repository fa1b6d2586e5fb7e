"""What a person sees of a fan-out on a terminal: a table of the agents that keeps up with them."""

import fcntl
import os
import re
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from cli_program import Place, Terminal, Turns, shell, terminal
from daemon_machine import Machine
from fan_program import script, wait_at_gate, write

from processes.tree import send
from tests.frontends.screen_model import ScreenModel

DONE: Mapping[str, Any] = {"text": "Done."}
EVIL = "Write\x1b[2J it\x1b[5A all\u202e over."
ROW = re.compile(r"^f1-[1-9] ")


@dataclass
class Person:
    """Looks at a terminal."""

    terminal: Terminal
    screen: ScreenModel = field(default_factory=ScreenModel)
    seen: int = 0

    def wait_for(self, sight: Callable[[list[str]], bool], seconds: float = 60) -> None:
        """Until the rows of the table, the last lines of the screen, are so."""
        end = time.monotonic() + seconds
        while not sight(self.table):
            assert time.monotonic() < end, "\n".join(self.screen.lines)
            assert self.look(), "it ended: \n" + "\n".join(self.screen.lines)

    def look(self) -> bool:
        goes_on = self.terminal.read(0.1)
        # What was sent last may end in the middle of a letter.
        cut = len(self.terminal.shown)
        while cut > self.seen and (cut == len(self.terminal.shown) and self.terminal.shown[cut - 1] >= 0x80):
            cut -= 1
        self.screen.feed(self.terminal.shown[self.seen : cut].decode(errors="replace"))
        self.seen = cut
        return goes_on

    def finish(self) -> int:
        while self.look():
            pass
        self.screen.feed(self.terminal.shown[self.seen :].decode())
        return self.terminal.process.wait(30)

    @property
    def table(self) -> list[str]:
        """What stands at the bottom of it, as far as it is a table."""
        rows: list[str] = []
        for line in reversed(self.screen.on_screen):
            if not ROW.match(line):
                break
            rows.insert(0, line)
        return rows


def has(*parts: str) -> Callable[[list[str]], bool]:
    """A row with each."""
    return lambda rows: len(rows) == len(parts) and all(part in row for part, row in zip(parts, rows, strict=True))


def waiting(place: Place, name: str) -> Turns:
    """An agent that writes a file and then waits at its gate."""
    return ({"tool_calls": [write(name, "new\n"), shell(wait_at_gate(place))]}, DONE)


def open_gates(place: Place, *names: str) -> None:
    for name in names:
        [file] = place.home.glob(f"worktrees/*/*/{name}")
        (file.parent / "gate").touch()


def agents_of(place: Place) -> str:
    return script(place, {"left": waiting(place, "left.txt"), "right": waiting(place, "right.txt"), "all": (DONE,)})


ASKED = ("Write on the left.\nIt is easy.", "Write on the right.", EVIL, "--jobs", "2")


@pytest.mark.both_ways
def test_the_agents_are_seen_at_work_and_once_as_they_ended(place: Place) -> None:
    place.env["TERM"] = "xterm-256color"
    with terminal(place, "fanout", *ASKED, "-m", agents_of(place)) as shown:
        person = Person(shown)
        person.wait_for(has("shell until [ -e gate", "shell until [ -e gate", "waiting"))
        first, _, third = person.table
        assert first.startswith("f1-1  Write on the le…  working     shell until")
        assert third.startswith("f1-3  Write<U+001B>[2…  waiting")
        assert any("f1-1 ● write left.txt" in line for line in person.screen.lines), "what is said stands above"
        seconds = {f":{number:02}" for number in range(1, 60)}
        person.wait_for(lambda rows: all(any(second in row for second in seconds) for row in rows[:2]))
        events = len(place.events())
        before = [took(row) for row in person.table[:2]]
        person.wait_for(lambda rows: [took(row) for row in rows[:2]] > before)
        assert len(place.events()) == events, "the times go on by themselves"

        open_gates(place, "left.txt")
        person.wait_for(has("merged", "working", "unchanged"))
        assert person.screen.cursor and person.screen.wraps
        person.screen.resize(120, 30)
        fcntl.ioctl(shown.master, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
        person.wait_for(has("Write on the left.  ", "; do sleep 0.05; done", "unchanged"))
        open_gates(place, "right.txt")
        assert person.finish() == 0
    screen = person.screen
    rows = [line for line in screen.lines if ROW.match(line)]
    assert has("merged", "merged", "unchanged")(rows), "\n".join(screen.lines)
    assert screen.lines.index(rows[-1]) < screen.lines.index("  2 of 3 merged.")
    assert not any("working" in row for row in rows)
    assert screen.cursor and screen.wraps


def took(row: str) -> str:
    [found] = re.findall(r"\d+:\d\d", row)
    return found


def test_a_terminal_that_cannot_redraw_gets_the_lines_of_a_pipe(place: Place) -> None:
    model = script(place, {"one": (DONE,), "two": (DONE,)})
    asked = ("fanout", "Do one.", "Do two.", "--jobs", "1", "-m", model)
    shown = [place.run(*asked).out]
    for name in ("dumb", ""):
        place.env["TERM"] = name
        with terminal(place, *asked) as screen:
            assert screen.finish() == 0
        shown.append(screen.text)
    piped, *others = ([plain(line) for line in text.splitlines()] for text in shown)
    assert all(other == piped for other in others)
    assert "\x1b" not in "".join(shown)


def plain(line: str) -> str:
    """Without what differs from run to run."""
    return re.sub(r"session \S+|worktree \S+|\d+\.\d s", "…", line)


@pytest.mark.alone("the process itself is killed")
def test_who_resumes_a_fan_out_sees_the_agents_that_are_under_way(place: Place) -> None:
    place.env["TERM"] = "xterm"
    with terminal(place, "fanout", *ASKED, "-m", agents_of(place)) as shown:
        person = Person(shown)
        person.wait_for(has("shell until [ -e gate", "shell until [ -e gate", "waiting"))
        os.killpg(shown.process.pid, signal.SIGKILL)
        person.finish()
        assert person.screen.cursor and person.screen.wraps, "also when it is killed"
    with terminal(place, "resume", "--last") as shown:
        person = Person(shown)
        person.wait_for(has("shell until [ -e gate", "shell until [ -e gate", "waiting"))
        assert not any("> Write on the left." in line for line in person.screen.lines), "what was is not told again"
        open_gates(place, "left.txt", "right.txt")
        assert person.finish() == 0
    rows = [line for line in person.screen.lines if ROW.match(line)]
    assert has("merged", "merged", "unchanged")(rows), "\n".join(person.screen.lines)


def test_ctrl_c_ends_the_agents_and_they_are_seen_as_they_ended(place: Place) -> None:
    place.env["TERM"] = "xterm"
    with terminal(place, "fanout", *ASKED, "-m", agents_of(place)) as shown:
        person = Person(shown)
        person.wait_for(has("shell until [ -e gate", "shell until [ -e gate", "waiting"))
        shown.type("\x03")
        assert person.finish() == 130
    rows = [line for line in person.screen.lines if ROW.match(line)]
    assert has("stopped", "stopped", "stopped")(rows), "\n".join(person.screen.lines)
    assert any(line.endswith("Interrupting; Ctrl-C again leaves the session as it is.") for line in person.screen.lines)


def test_whoever_comes_back_from_the_background_finds_the_table_below_what_the_shell_wrote(place: Place) -> None:
    place.env["TERM"] = "xterm"
    with terminal(place, "fanout", *ASKED, "-m", agents_of(place)) as shown:
        person = Person(shown)
        person.wait_for(has("shell until [ -e gate", "shell until [ -e gate", "waiting"))
        send([shown.process.pid], signal.SIGCONT)
        # The first stays where it was, as the shell's own lines would stand below it.
        person.wait_for(lambda rows: len(rows) == 6)
        open_gates(place, "left.txt", "right.txt")
        assert person.finish() == 0
    rows = [line for line in person.screen.lines if ROW.match(line)]
    assert len(rows) == 6 and has("merged", "merged", "unchanged")(rows[3:])


@pytest.mark.xdist_group("both-ways")
def test_who_resumes_a_session_of_the_daemon_that_was_opened_anew_sees_the_agents_of_before(shared: Machine) -> None:
    shared.env["TERM"] = "xterm"
    at_work = has("shell until [ -e gate", "shell until [ -e gate", "waiting")
    with terminal(shared, "fanout", *ASKED, "-m", agents_of(shared)) as first:
        one = Person(first)
        one.wait_for(at_work)
        host = shared.host()
        send([host], signal.SIGKILL)
        one.wait_for(lambda _: any("resumed after event" in line for line in one.screen.lines))
        one.wait_for(at_work)
        with terminal(shared, "resume", "--last") as second:
            other = Person(second)
            other.wait_for(at_work)
            assert shared.host() != host
            assert not any("> Write on the left." in line for line in other.screen.lines), "what was is not told again"
            open_gates(shared, "left.txt", "right.txt")
            assert (one.finish(), other.finish()) == (0, 0)
    for person in (one, other):
        rows = [line for line in person.screen.lines if ROW.match(line)]
        assert has("merged", "merged", "unchanged")(rows), "\n".join(person.screen.lines)
    shared.put_aside()
