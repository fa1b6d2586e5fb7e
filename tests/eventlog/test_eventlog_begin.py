"""Whoever reads a log while it is opened knows beforehand to which events a later one goes back."""

import asyncio
from collections.abc import Set as AbstractSet
from pathlib import Path
from random import Random

import duckdb
import pytest
from eventlog_folders import SESSION, append, crash_image, make, said

from eventlog.checking import Reader
from eventlog.errors import LogDamaged
from eventlog.events import Body, DamageAccepted, Event, Rewound
from eventlog.opening import look_through, open_log
from eventlog.redact import Redactor
from eventlog.seams import FixedClock

COUNT, EVERY = 9_000, 250


class Shown:
    def __init__(self) -> None:
        self.back_to: AbstractSet[int] = frozenset()
        self.events: list[Event] = []

    def begin(self, back_to: AbstractSet[int]) -> Reader:
        assert not self.events
        self.back_to = back_to
        return self.events.append

    def wanted(self) -> set[int]:
        return {event.body.to_seq for event in self.events if isinstance(event.body, Rewound)}


def body(number: int, random: Random) -> Body:
    if number % EVERY == 0:
        return Rewound(to_seq=random.randrange(1, number), saved=None, restored=None)
    # Random, so that it does not shrink to one block of the file.
    return said(f'{random.randbytes(200).hex()} "to_seq":{number}', number)


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    """A killed writer's folder, nearly all of it in the file."""
    base, random = tmp_path_factory.mktemp("begin"), Random(4)
    opened = make(base / "live")

    async def fill() -> None:
        bodies = [body(number, random) for number in range(1, COUNT + 1)]
        for start in range(0, COUNT, 500):
            await append(opened.log, bodies[start : start + 500])
        opened.log.checkpoint()
        await append(opened.log, [said("in the WAL")])

    asyncio.run(fill())
    image = crash_image(base / "live", base / "image")
    opened.close()
    return image


def test_exactly_the_rewinds_are_known_before_the_first_event(stored: Path) -> None:
    shown = Shown()
    look_through(stored, shown.begin)
    assert len(shown.events) == COUNT + 1
    assert shown.back_to == shown.wanted()
    assert len(shown.back_to) > COUNT // EVERY - 5, "what a text says is none"


def test_of_a_damaged_file_the_rewinds_before_the_damage_are_known(stored: Path, tmp_path: Path) -> None:
    file = stored / "log.duckdb"
    image, kept = crash_image(stored, tmp_path / "s"), set[int]()
    for share in (0.3, 0.5, 0.7, 0.9):
        data = bytearray(file.read_bytes())
        data[int(len(data) * share)] ^= 1
        (image / "log.duckdb").write_bytes(data)
        shown = Shown()
        with pytest.raises(LogDamaged):
            open_log(image, SESSION, FixedClock(), Redactor(), begin=shown.begin).close()
        assert shown.back_to >= shown.wanted()
        kept.add(len(shown.events))
    assert max(kept) > EVERY, "a part could be read"
    accepted = Shown()
    opened = open_log(image, SESSION, FixedClock(), Redactor(), accept_damage=True, begin=accepted.begin)
    try:
        assert accepted.back_to >= accepted.wanted()
        assert isinstance(accepted.events[-1].body, DamageAccepted)
        assert tuple(accepted.events) == opened.read(), "what was shown is what stands in the log"
    finally:
        opened.close()


def test_a_row_that_says_it_is_no_rewind_though_it_is_one_was_altered(tmp_path: Path) -> None:
    opened = make(tmp_path / "s")
    rewound = Rewound(to_seq=1, saved=None, restored=None)
    asyncio.run(append(opened.log, [said("one"), rewound, said("two")]))
    opened.close()
    with duckdb.connect(str(tmp_path / "s" / "log.duckdb")) as connection:
        connection.execute("UPDATE events SET kind = 'user_said' WHERE seq = 2")
    with pytest.raises(LogDamaged, match="event 2 was altered"):
        look_through(tmp_path / "s", Shown().begin)
