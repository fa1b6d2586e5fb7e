"""The table of a fan-out's agents: what stands in it, how it fits, when it is drawn."""

import asyncio
import io
import os
import signal
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from agent.fans import Stage
from agent.roster import AgentLine, Roster
from eventlog.effects import RunTool
from eventlog.events import Event
from eventlog.ids import AgentId
from eventlog.outcomes import AttemptLost, MergePrepared
from eventlog.seams import Clock
from frontends.terminal.bottom import Bottom
from frontends.terminal.escape import columns, shorten
from frontends.terminal.fan_table import table_lines
from frontends.terminal.live import LiveTable
from frontends.terminal.screen import Screen
from tests.agent.core_bodies import done, finished, replied, started, tool
from tests.agent.core_book import SECOND, Book, begun
from tests.agent.core_fans import by_person, commit, red, worked
from tests.frontends.screen_model import ScreenModel

EVIL = "a\x1b[2J\x1b]52;c;eA==\x07\x9b2J\rb\u202ec\u200bd\U000e0041e\te\x1b[9A"
NOW_US = 1_000 * SECOND


def agent(number: int, stage: Stage = "working", task: str = "Do it.", **more: object) -> AgentLine:
    known: dict[str, object] = {"doing": None, "since_us": None, "cost_usd": 0.5, "worktree": None, "commit": None}
    return AgentLine(AgentId(f"f1-{number}"), task, stage, 1, **{**known, "began_us": 0, **more})


def shell(command: str) -> RunTool:
    return tool("shell", arguments=f'{{"command":"{command}"}}')


def draw(book: Book, now_us: int = NOW_US, width: int = 80) -> list[str]:
    """What an incremental fold of the log draws."""
    roster = Roster()
    for event in book.log:
        roster.take(event)
    return table_lines(roster.lines(), width, 24, now_us)


def words(line: str) -> list[str]:
    return line.split()


def test_each_agent_is_told_by_its_events_as_they_come() -> None:
    book = Book(by_person("Add tests.\nIn two files.", "Write docs.", "Wait.", jobs=2, check="make test"))
    began = next(event.ts_us for event in book.log if getattr(event.body, "call_id", "") == "f1-1_r1")
    assert [words(line)[:4] for line in draw(book)] == [
        ["f1-1", "Add", "tests.", "working"],
        ["f1-2", "Write", "docs.", "working"],
        ["f1-3", "Wait.", "waiting", "$0.0000"],
    ]
    book.agent("f1-1", *begun("f1-1"))
    line, *_ = draw(book, began + 75 * SECOND)
    assert line == ("f1-1  Add tests.        working     waits for the model          1:15   $0.0000")
    book.agent("f1-1", finished("c1", replied("shell", cost=0.25)), started("c1_1", shell("make")))
    assert words(draw(book)[0])[3:6] == ["working", "shell", "make"]
    assert words(draw(book)[0])[-1] == "$0.2500"
    book.agent("f1-1", finished("c1_1", done()))
    book.room.end("f1-1_r1", worked("1", spent_usd=0.25))
    assert words(draw(book)[0])[3] == "merging"
    book.room.end("f1-1_m1", MergePrepared(commit=commit("5")))
    assert words(draw(book)[0])[3] == "checking"
    book.room.end("f1-1_k1", red())
    assert words(draw(book)[0])[3] == "waiting", "until another has done its round"
    book.room.end("f1-2_r1", worked(None))
    assert words(draw(book)[0])[3:5] == ["working", "2"], "the round in which it mends"
    assert words(draw(book)[1])[3] == "unchanged"


def test_the_time_goes_on_until_an_agent_is_at_its_end() -> None:
    hour = 3600 * SECOND
    agents = [
        agent(1, began_us=NOW_US - 5 * SECOND),
        agent(2, began_us=NOW_US - hour - 61 * SECOND),
        agent(3, "merged", began_us=NOW_US - hour, ended_us=NOW_US - hour + 61 * SECOND),
        agent(4, "waiting", began_us=None),
        agent(5, began_us=NOW_US + hour),
    ]
    times = [[word for word in words(line) if ":" in word] for line in table_lines(agents, 80, 24, NOW_US)]
    assert times == [["0:05"], ["1:01:01"], ["1:01"], [], ["0:00"]], "the last one's clock was set back"


def test_what_nobody_knows_the_price_of_is_not_called_free() -> None:
    assert words(table_lines([agent(1, cost_usd=None)], 80, 24, NOW_US)[0])[-1] == "?"


def sixty_four() -> list[AgentLine]:
    counts: Mapping[Stage, int] = {"merged": 5, "conflicted": 1, "working": 8, "ready": 2, "waiting": 48}
    stages: list[Stage] = [stage for stage, count in counts.items() for _ in range(count)]
    return [agent(number, stage) for number, stage in enumerate(stages, 1)]


def test_of_64_agents_those_that_something_happens_to_fit_on_24_lines() -> None:
    lines = table_lines(sixty_four(), 80, 22, NOW_US)
    assert len(lines) == 22
    assert [words(line)[0] for line in lines[:-1]] == [f"f1-{number}" for number in range(7, 28)]
    assert lines[-1] == "5 merged, 1 conflicted, 37 waiting"


def test_those_that_wait_give_way_to_those_at_work() -> None:
    agents = [agent(number, "waiting" if number % 2 else "working") for number in range(1, 11)]
    lines = table_lines(agents, 80, 7, NOW_US)
    assert [words(line)[0] for line in lines[:-1]] == ["f1-1", "f1-2", "f1-4", "f1-6", "f1-8", "f1-10"]
    assert lines[-1] == "4 waiting"


def test_more_at_work_than_lines_are_counted_too() -> None:
    agents = [agent(1, "merged"), *(agent(number) for number in range(2, 12))]
    assert table_lines(agents, 80, 4, NOW_US)[-1] == "1 merged, 7 working"


def test_agents_that_all_fit_keep_their_lines_when_they_are_at_their_end() -> None:
    agents = [agent(1, "merged"), agent(2), agent(3, "red")]
    assert [words(line)[0] for line in table_lines(agents, 80, 3, NOW_US)] == ["f1-1", "f1-2", "f1-3"]


def test_a_terminal_of_hardly_any_lines_gets_a_sum_or_nothing() -> None:
    sum_of_all = "5 merged, 1 conflicted, 48 waiting, 8 working, 2 ready"
    assert [table_lines(sixty_four(), 80, height, NOW_US) for height in (1, 0, -1)] == [[sum_of_all], [], []]


def test_in_20_columns_an_agent_has_its_number_its_stage_and_some_of_its_task() -> None:
    agents = [agent(1, task="Add tests for the date parser.", doing=shell("make")), agent(12, "conflicted")]
    assert table_lines(agents, 20, 24, NOW_US) == ["1  Add … working", "12 Do i… conflicted"]


def test_columns_come_with_the_room_for_them() -> None:
    line = agent(1, task="Add tests for the date parser.", doing=shell("make"), began_us=NOW_US - SECOND)
    found = {}
    for width in range(20, 120):
        [text] = table_lines([line], width, 24, NOW_US)
        for part in ("0:01", "$0.5000", "shell make"):
            if part in text:
                found.setdefault(part, width)
    assert list(found) == ["0:01", "$0.5000", "shell make"]
    assert found["shell make"] <= 80


@given(task=st.text(), about=st.text(), width=st.integers(1, 200), height=st.integers(-2, 30), count=st.integers(1, 40))
@settings(max_examples=200)
def test_no_text_makes_a_line_too_long_or_acts_on_the_terminal(
    task: str, about: str, width: int, height: int, count: int
) -> None:
    doing = tool("shell", arguments="{}").model_copy(update={"tool": about})
    agents = [agent(number, task=task + EVIL * (number % 2), doing=doing) for number in range(1, count + 1)]
    lines = table_lines(agents, width, height, NOW_US)
    assert len(lines) <= max(height, 0)
    for line in lines:
        assert columns(line) < max(width, 2)
        assert not {"\x1b", "\r", "\t", "\n", "\u202e", "\u200b"} & set(line)
        assert not any(unicodedata.category(letter) == "Cc" for letter in line)


def test_a_hostile_task_is_shown_as_what_it_is() -> None:
    [line] = table_lines([agent(1, task=EVIL)], 400, 24, NOW_US)
    assert "a<U+001B>[2J<U+001B>]52;c;eA==<U+0007><U+009B>2J<U+000D>b<U+202E>c<U+200B>d<U+E0041>e\\te" in line


def test_wide_letters_and_marks_keep_the_columns_in_line() -> None:
    tasks = (
        "日本語の長い説明がここにある",
        "e\u0301" * 20,
        "Short.",
        "A family \U0001f468\u200d\U0001f469\u200d\U0001f467.",
    )
    screen = ScreenModel()
    screen.feed("\n".join(table_lines([agent(1, task=task) for task in tasks], 80, 24, NOW_US)))
    assert [row.index("w") for row in screen.rows] == [len("f1-1  Add tests.        ")] * len(tasks)
    assert {len(row) for row in screen.rows} == {79}


@given(text=st.text("ab日e\u0301\u200d"), width=st.integers(1, 30))
def test_what_is_shortened_fits_and_says_so(text: str, width: int) -> None:
    short = shorten(text, width)
    assert columns(short) <= width
    assert short == text or (short.endswith("…") and text.startswith(short[:-1]) and columns(text) > width)


@dataclass
class Person(io.StringIO):
    """Before a terminal that shows at once what is written."""

    screen: ScreenModel = field(default_factory=ScreenModel)
    writes: int = 0
    written: asyncio.Event = field(default_factory=asyncio.Event)

    def write(self, text: str, /) -> int:
        self.screen.feed(text)
        self.writes += 1
        self.written.set()
        return len(text)

    def isatty(self) -> bool:
        return True


@dataclass
class HandClock(Clock):
    us: int = 0

    def now_us(self) -> int:
        return self.us


@dataclass
class Show:
    """A session on a terminal, told one event after the other."""

    person: Person = field(default_factory=Person)
    clock: HandClock = field(default_factory=HandClock)
    tick_s: float = 600.0
    told: int = 0
    screen: Screen = field(init=False)

    def __post_init__(self) -> None:
        bottom = Bottom(self.person, lambda: (self.person.screen.width, self.person.screen.height))
        self.screen = Screen("s", "text", out=self.person, table=LiveTable(bottom, self.clock, self.tick_s))

    def tell(self, events: Sequence[Event], late_s: int = 0) -> None:
        for event in events[self.told :]:
            self.clock.us = event.ts_us + late_s * SECOND
            self.screen.on_event(event)
        self.told = len(events)

    @property
    def lines(self) -> list[str]:
        return self.person.screen.lines


def ended(book: Book) -> Book:
    book.room.merge("f1-1", "5")
    book.room.end("f1-2_r1", worked(None))
    book.room.close("5")
    return book


def test_the_table_stands_below_what_is_said_and_once_in_its_final_form_above_the_result() -> None:
    show, book = Show(), Book(by_person("One thing.", "Two things."))
    book.agent("f1-1", *begun("f1-1"))
    show.tell(book.log)
    assert [words(line)[0] for line in show.lines[-2:]] == ["f1-1", "f1-2"]
    assert "● agent f1-2: Two things." in show.lines[-3]
    book.agent("f1-1", finished("c1", replied("shell", cost=0.25)), started("c1_1", shell("make")))
    show.tell(book.log)
    assert show.lines[-3:-2] == ["  f1-1 ● shell make"]
    assert "shell make" in show.lines[-2]
    show.tell(ended(book).log)
    assert [line for line in show.lines if "$" in line] == [
        "f1-1  One thing.        merged                                   0:13   $0.2500",
        "f1-2  Two things.       unchanged                                0:13   $0.0000",
    ]
    assert show.lines[-3:] == [
        "  1 of 2 merged.",
        "  1. One thing.: merged. I did it.",
        "  2. Two things.: nothing changed. I did it.",
    ]


def test_an_agent_that_is_lost_is_drawn_as_it_is() -> None:
    show, book = Show(), Book(by_person("One thing."))
    show.tell(book.log)
    for _ in range(3):
        book.room.end("f1-1_r1", AttemptLost(evidence="It died."))
    show.tell(book.log)
    assert "stopped" in show.lines[-1] and "f1-1" in show.lines[-1]


def test_of_what_is_long_past_only_the_end_is_drawn() -> None:
    now, later = Show(), Show()
    book = ended(Book(by_person("One thing.", "Two things.")))
    now.tell(book.log)
    later.tell(book.log, late_s=60)
    assert later.lines == now.lines
    assert later.person.writes < now.person.writes
    said = sum(bool(line) for line in now.lines)
    assert later.person.writes <= said


def test_the_past_is_not_shown_but_its_agents_are() -> None:
    show, book = Show(), Book(by_person("One thing.", "Two things."))
    show.screen.take_past(book.log)
    show.told = len(book.log)
    assert show.lines == []
    book.agent("f1-1", *begun("f1-1"))
    show.tell(book.log)
    assert [words(line)[:4] for line in show.lines] == [
        ["f1-1", "One", "thing.", "working"],
        ["f1-2", "Two", "things.", "working"],
    ]


def test_what_the_model_writes_meanwhile_is_not_drawn_into() -> None:
    from agent.models.client import TextDelta

    show, book = Show(), Book(by_person("One thing."))
    show.tell(book.log)
    said = show.lines[:-1]
    show.screen.on_delta(TextDelta("Half a "))
    assert show.lines == [*said, "Half a"]
    book.agent("f1-1", *begun("f1-1"))
    show.tell(book.log)
    assert show.lines == [*said, "Half a"]
    show.screen.on_delta(TextDelta("line.\n"))
    assert show.lines[: len(said) + 1] == [*said, "Half a line."] and "f1-1" in show.lines[-1]


def test_a_session_without_a_fan_out_is_shown_as_without_a_table() -> None:
    book = Book(by_person("One thing."))
    events = [event for event in book.log if event.actor == "main"][:4]
    show, plain = Show(), io.StringIO()
    alone = Screen("s", "text", out=plain)
    show.tell(events)
    for event in events:
        alone.on_event(event)
    assert show.person.screen.lines == plain.getvalue().splitlines() != []


async def redrawn(show: Show) -> list[str]:
    show.person.written.clear()
    await asyncio.wait_for(show.person.written.wait(), 10)
    return [line for line in show.lines if line.startswith(("f1-", "1 ", "2 "))]


async def test_the_times_go_on_while_a_session_is_watched_and_nothing_happens() -> None:
    show, book = Show(tick_s=0.01), Book(by_person("One thing."))
    show.tell(book.log)
    async with show.screen.watching():
        show.clock.us += 60 * SECOND
        assert ["1:0" in line for line in await redrawn(show)] == [True]
    assert len(asyncio.all_tasks()) == 1, "nothing is left that draws"


async def test_the_table_follows_the_size_of_the_terminal_at_once() -> None:
    show, book = Show(), Book(by_person("One thing.", "Two things."))
    show.tell(book.log)
    said = show.lines[:-2]
    async with show.screen.watching():
        show.person.screen.resize(40, 24)
        os.kill(os.getpid(), signal.SIGWINCH)
        assert [line.split()[:3] for line in await redrawn(show)] == [["1", "One", "thing."], ["2", "Two", "things."]]
        show.person.screen.resize(80, 3)
        os.kill(os.getpid(), signal.SIGWINCH)
        assert await redrawn(show) == ["2 working"]
    assert signal.getsignal(signal.SIGWINCH) == signal.SIG_DFL
    assert show.lines[: len(said)] == said
