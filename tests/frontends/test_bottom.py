"""The last lines of a terminal stay where they are while others scroll away above them."""

import io
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from frontends.terminal.bottom import Bottom, can_redraw
from tests.frontends.screen_model import ScreenModel

LETTERS = "ab 日é"
LINE = st.text(LETTERS, max_size=25).map(str.rstrip)
TABLE = st.lists(st.text(LETTERS, max_size=9).map(str.rstrip), max_size=4).map(tuple)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.lists(LINE, min_size=1, max_size=3)),
        st.tuples(st.just("table"), TABLE),
        st.tuples(st.just("begin"), LINE.filter(bool)),
        st.tuples(st.just("forget"), st.none()),
    ),
    max_size=12,
)
CUT = "日" * 5
"""As wide as the narrowest terminal here."""


@dataclass
class Person(io.StringIO):
    """Sees what is written at once; after each time the terminal is as it should be."""

    screen: ScreenModel = field(default_factory=ScreenModel)
    writes: list[str] = field(default_factory=list)

    def write(self, text: str, /) -> int:
        self.screen.feed(text)
        self.writes.append(text)
        assert self.screen.wraps and self.screen.cursor
        return len(text)

    @property
    def bottom(self) -> Bottom:
        return Bottom(self, lambda: (self.screen.width, self.screen.height))


def wrapped(text: str, width: int) -> list[str]:
    """As a terminal shows it that has nothing else to show."""
    alone = ScreenModel(width, 100)
    alone.feed(text)
    return alone.lines


@given(steps=STEPS)
def test_whatever_is_written_stands_above_the_lines_and_the_lines_stand_below_once(steps: list[tuple]) -> None:
    person = Person(screen=ScreenModel(19, 100))
    bottom, said, table, kept = person.bottom, "", (), []
    for kind, value in steps:
        match kind:
            case "write":
                text = "".join(f"{line}\n" for line in value)
                bottom.write(text)
                said += text
            case "table":
                bottom.lines = table = value
                bottom.draw()
            case "begin":
                bottom.write(value)
                said += value
            case _:
                if not said or said.endswith("\n"):
                    bottom.draw()
                    said += "".join(f"{line}\n" for line in table)
                    bottom.forget()
                    bottom.draw()
        closed = not said or said.endswith("\n")
        shown = "".join(f"{line}\n" for line in table) if closed and bottom.shown else ""
        assert person.screen.lines == wrapped(said + shown, 19), kept
        assert bottom.shown == bool(table and closed)


def test_only_what_has_changed_is_drawn() -> None:
    person = Person()
    bottom = person.bottom
    bottom.lines = ("one", "two", "three")
    bottom.draw()
    bottom.lines = ("one", "2", "three")
    bottom.draw()
    assert "2" in person.writes[-1] and "one" not in person.writes[-1] and "three" not in person.writes[-1]
    assert person.screen.lines == ["one", "2", "three"]
    count = len(person.writes)
    bottom.draw()
    assert len(person.writes) == count, "nothing, where nothing has"


def test_what_is_written_above_clears_nothing_that_is_written_again() -> None:
    person = Person()
    bottom = person.bottom
    bottom.lines = ("one", "two")
    bottom.draw()
    bottom.write("said\n")
    before_table, _, _ = person.writes[-1].partition("one")
    assert "\x1b[J" not in before_table, "no moment without them"
    assert person.screen.lines == ["said", "one", "two"]


def test_a_line_that_fills_the_terminal_keeps_its_last_letter() -> None:
    person = Person(screen=ScreenModel(10, 24))
    bottom = person.bottom
    bottom.lines = ("one",)
    bottom.draw()
    bottom.write("0123456789\nshort\n" + CUT + "\n")
    assert person.screen.lines == ["0123456789", "short", CUT, "one"]


def test_without_lines_nothing_but_the_text_is_written() -> None:
    person = Person()
    bottom = person.bottom
    for text in ("a line\n", "the begin", "ning\n", "\t\n", ""):
        bottom.write(text)
    bottom.draw()
    assert "".join(person.writes) == "a line\nthe beginning\n\t\n"


def test_lines_that_the_terminal_wrapped_when_it_became_narrow_are_drawn_over() -> None:
    person = Person(screen=ScreenModel(40, 24))
    bottom = person.bottom
    bottom.write("said\n")
    bottom.lines = ("1 " + "x" * 37, "2 short", "日" * 19)
    bottom.draw()
    person.screen.resize(10, 24)
    bottom.lines = ("1 xx", "2 short", CUT[:4])
    bottom.draw()
    assert person.screen.lines == ["said", "1 xx", "2 short", CUT[:4]]
    person.screen.resize(40, 24)
    bottom.write("more\n")
    assert person.screen.lines == ["said", "more", "1 xx", "2 short", CUT[:4]]


def test_a_letter_that_the_terminal_shows_wider_than_thought_moves_no_line() -> None:
    person = Person(screen=ScreenModel(10, 24))
    bottom = person.bottom
    bottom.lines = ("x" * 15, "two")
    bottom.draw()
    bottom.lines = ("y" * 15, "2")
    bottom.draw()
    bottom.write("said\n")
    assert [len(line) for line in person.screen.lines] == [4, 9, 1]
    assert person.screen.lines[0] == "said"


def test_a_terminal_that_knows_no_sequences_or_not_all_letters_is_left_alone() -> None:
    def able(encoding: str, **variables: str) -> bool:
        master, slave = os.openpty()
        with os.fdopen(master, "rb"), os.fdopen(slave, "w", encoding=encoding) as out:
            return can_redraw(out, variables)

    asked: dict[str, Callable[[], bool]] = {
        "yes": lambda: able("utf-8", TERM="xterm-256color"),
        "dumb": lambda: able("utf-8", TERM="dumb"),
        "none": lambda: able("utf-8"),
        "latin": lambda: able("latin-1", TERM="xterm"),
        "pipe": lambda: can_redraw(io.TextIOWrapper(io.BytesIO(), "utf-8"), {"TERM": "xterm"}),
    }
    assert [name for name, ask in asked.items() if ask()] == ["yes"]
