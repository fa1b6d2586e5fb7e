"""Altered files: each log opens with all that was acknowledged, or says how much is lost; it never loses silently."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from eventlog_folders import append, checksums, crash_image, fill, make, reopen, said

from eventlog.anchor import read_anchor
from eventlog.errors import LogDamaged, Undecodable
from eventlog.events import DamageAccepted, Event
from eventlog.opening import read_log

IN_FILE, IN_WAL = 40, 60
WAL = "log.duckdb.wal"


@pytest.fixture(scope="module")
def crashed(tmp_path_factory) -> tuple[Path, tuple[Event, ...]]:
    """A killed writer's folder: events 1 to 40 in the file, 41 to 100 in the WAL, in batches of two."""
    base = tmp_path_factory.mktemp("crashed")
    opened = make(base / "live")
    first = fill(opened.log, [[said(f"text {n}", n), said(f"more {n}" * 30, n)] for n in range(IN_FILE // 2)])
    opened.log.checkpoint()
    opened.close()
    again = reopen(base / "live")
    second = fill(again.log, [[said(f"text {n}", n), said(f"more {n}" * 30, n)] for n in range(IN_WAL // 2)])
    image = crash_image(base / "live", base / "image")
    again.close()
    return image, first + second


@pytest.fixture
def image(crashed: tuple[Path, tuple[Event, ...]], tmp_path) -> Path:
    return crash_image(crashed[0], tmp_path / "s")


@pytest.fixture
def all_events(crashed: tuple[Path, tuple[Event, ...]]) -> tuple[Event, ...]:
    return crashed[1]


def edit(path: Path, change: Callable[[bytearray], bytes | bytearray | None]) -> None:
    data = bytearray(path.read_bytes())
    changed = change(data)
    path.write_bytes(data if changed is None else changed)


def cut_wal(share: float) -> Callable[[Path], None]:
    return lambda folder: edit(folder / WAL, lambda data: data[: int(len(data) * share)])


def flip(name: str, place: float, bit: int) -> Callable[[Path], None]:
    def change(data: bytearray) -> None:
        data[min(int(len(data) * place), len(data) - 1)] ^= 1 << bit

    return lambda folder: edit(folder / name, change)


def zero_tail(name: str, share: float) -> Callable[[Path], None]:
    return lambda folder: edit(folder / name, lambda data: data[: int(len(data) * share)].ljust(len(data), b"\0"))


def garbage_after_wal(folder: Path) -> None:
    edit(folder / WAL, lambda data: data + random.Random(1).randbytes(500))


def delete(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def tear_both(data: bytearray) -> None:
    data[20] ^= 2
    data[532] ^= 2


_places = random.Random(20)
WAL_DAMAGE: dict[str, Callable[[Path], None]] = {
    "deleted": delete(WAL),
    "emptied": cut_wal(0),
    "garbage appended": garbage_after_wal,
    **{f"cut at {share:.3f}": cut_wal(share) for share in (_places.random() for _ in range(12))},
    **{
        f"bit {b} flipped at {p:.3f}": flip(WAL, p, b)
        for p, b in ((_places.random(), _places.randrange(8)) for _ in range(12))
    },
    **{f"tail zeroed from {share:.3f}": zero_tail(WAL, share) for share in (0.0, 0.31, 0.77, 0.999)},
}
ANCHOR_DAMAGE: dict[str, Callable[[Path], None]] = {
    "missing": delete("head"),
    "zeroed": zero_tail("head", 0),
    "empty": lambda folder: edit(folder / "head", lambda data: b""),
    "first slot torn": flip("head", 20 / 1024, 3),
    "second slot torn": flip("head", 532 / 1024, 3),
    "both torn": lambda folder: edit(folder / "head", tear_both),
    "second half gone": lambda folder: edit(folder / "head", lambda data: data[:512]),
}


def assert_opens_whole_or_says_what_is_lost(folder: Path, all_events: tuple[Event, ...]) -> LogDamaged | None:
    before = checksums(folder)
    try:
        opened = reopen(folder)
    except LogDamaged as damage:
        assert checksums(folder) == before, "a refusal changed the files"
        return damage
    opened.close()
    assert opened.events == all_events
    return None


def assert_accepting_continues(folder: Path, all_events: tuple[Event, ...], damage: LogDamaged) -> None:
    damaged = checksums(folder)
    opened = reopen(folder, accept_damage=True)
    assert opened.lost is not None
    kept, acceptance = opened.events[:-1], opened.events[-1]
    assert kept == all_events[: len(kept)]
    if damage.lost is not None:
        assert damage.lost == len(all_events) - len(kept)
        assert (opened.lost.first, opened.lost.last) == (len(kept) + 1, len(all_events))
    assert acceptance.body == DamageAccepted(
        first_lost=opened.lost.first, last_lost=opened.lost.last, kept_at=opened.lost.kept_at
    )
    aside = checksums(Path(opened.lost.kept_at))
    assert aside == {name: digest for name, digest in damaged.items() if "/" not in name}
    assert acceptance.seq == opened.lost.last + 1
    after = fill(opened.log, [[said("after")]])
    assert after[0].seq == acceptance.seq + 1
    assert tuple(opened.log.read()) == (*opened.events, *after)
    opened.close()
    again = reopen(folder)
    assert again.lost is None
    assert again.events == (*kept, acceptance, *after)
    again.close()
    assert read_log(folder) == again.events


def test_an_undamaged_crash_opens_with_every_event(image: Path, all_events: tuple[Event, ...]) -> None:
    assert read_log(image) == all_events
    assert assert_opens_whole_or_says_what_is_lost(image, all_events) is None


@pytest.mark.parametrize("name", WAL_DAMAGE)
def test_a_damaged_wal_never_loses_silently(image: Path, all_events: tuple[Event, ...], name: str) -> None:
    WAL_DAMAGE[name](image)
    damage = assert_opens_whole_or_says_what_is_lost(image, all_events)
    assert (damage is None) == (name == "garbage appended")
    if damage is not None:
        assert damage.lost is not None
        assert 0 < damage.lost <= IN_WAL
        assert f"{damage.lost} acknowledged event" in str(damage)
        assert_accepting_continues(image, all_events, damage)


def test_a_flipped_bit_costs_only_what_stands_after_it(image: Path, all_events: tuple[Event, ...]) -> None:
    flip(WAL, 0.9, 2)(image)
    damage = assert_opens_whole_or_says_what_is_lost(image, all_events)
    assert damage is not None and damage.lost is not None
    assert damage.lost < IN_WAL / 4


@pytest.mark.parametrize("name", ANCHOR_DAMAGE)
def test_a_damaged_anchor_never_hides_a_loss(image: Path, all_events: tuple[Event, ...], name: str, tmp_path) -> None:
    ANCHOR_DAMAGE[name](image)
    without_wal = crash_image(image, tmp_path / "without")
    (without_wal / WAL).unlink()
    with pytest.raises(LogDamaged):
        reopen(without_wal)
    damage = assert_opens_whole_or_says_what_is_lost(image, all_events)
    if damage is not None:
        assert_accepting_continues(image, all_events, damage)


def tear_newest_slot(head: Path) -> None:
    data = head.read_bytes()
    turns = [int.from_bytes(data[at + 8 : at + 16], "little") for at in (0, 512)]
    flip("head", (turns.index(max(turns)) * 512 + 30) / 1024, 5)(head.parent)


def test_a_write_of_the_anchor_that_was_torn_does_no_harm(tmp_path) -> None:
    """The events came first, so the log is ahead of the older slot."""
    opened = make(tmp_path / "live")
    events = fill(opened.log, [[said("a")], [said("b")], [said("c")]])
    image = crash_image(tmp_path / "live", tmp_path / "s")
    opened.close()
    tear_newest_slot(image / "head")
    again = reopen(image)
    assert again.events == events
    reading = read_anchor(image / "head")
    assert reading is not None
    assert not reading.damaged
    assert reading.head == again.log.head
    again.close()


def test_a_torn_slot_does_not_hide_that_its_events_are_gone(tmp_path) -> None:
    opened = make(tmp_path / "live")
    fill(opened.log, [[said("a")], [said("b")]])
    earlier = crash_image(tmp_path / "live", tmp_path / "earlier")
    fill(opened.log, [[said("c")]])
    (earlier / "head").write_bytes((tmp_path / "live" / "head").read_bytes())
    opened.close()
    tear_newest_slot(earlier / "head")
    with pytest.raises(LogDamaged, match="half of its anchor"):
        reopen(earlier)


def test_events_beyond_the_anchor_stand(tmp_path) -> None:
    opened = make(tmp_path / "s")
    fill(opened.log, [[said("a")]])
    anchor = (tmp_path / "s" / "head").read_bytes()
    events = (*opened.log.read(), *fill(opened.log, [[said("b")]]))
    opened.close()
    (tmp_path / "s" / "head").write_bytes(anchor)
    again = reopen(tmp_path / "s")
    assert again.events == events
    again.close()


@pytest.mark.parametrize(
    ("sql", "what", "lost"),
    [
        ("UPDATE events SET payload = replace(payload, 'text 3', 'text 4') WHERE seq = 7", "event 7 was altered", 94),
        ("UPDATE events SET ts_us = ts_us + 1 WHERE seq = 7", "event 7 was altered", 94),
        ("DELETE FROM events WHERE seq = 7", "event 7 is missing", 94),
        ("DELETE FROM events WHERE seq > 90", "ends at event 90, but event 100 was acknowledged", 10),
        ("INSERT INTO events SELECT * FROM events WHERE seq = 100", "event 101 is missing", 0),
        ("UPDATE events SET seq = seq + 5 WHERE seq > 50", "event 51 is missing", 50),
    ],
)
def test_an_altered_table_is_noticed(
    image: Path, all_events: tuple[Event, ...], sql: str, what: str, lost: int
) -> None:
    import duckdb

    with duckdb.connect(str(image / "log.duckdb")) as connection:
        connection.execute(sql)
    damage = assert_opens_whole_or_says_what_is_lost(image, all_events)
    assert damage is not None
    assert what in damage.what
    assert damage.lost == lost
    assert_accepting_continues(image, all_events, damage)


def test_a_gap_is_accepted_only_where_the_event_behind_it_explains_it(tmp_path) -> None:
    """The right hashes alone do not make a gap right."""
    import duckdb

    from eventlog.codec import chain

    opened = make(tmp_path / "s")
    fill(opened.log, [[said("a")], [said("b")]])
    opened.close()
    with duckdb.connect(str(tmp_path / "s" / "log.duckdb")) as connection:
        (previous,), (ts, payload) = (
            connection.execute("SELECT hash FROM events WHERE seq = 1").fetchall()[0],
            connection.execute("SELECT ts_us, payload FROM events WHERE seq = 2").fetchall()[0],
        )
        digest = chain(previous, 5, ts, payload.encode())
        connection.execute("UPDATE events SET seq = 5, hash = ? WHERE seq = 2", [digest])
    with pytest.raises(LogDamaged, match="event 2 is missing"):
        reopen(tmp_path / "s")


def test_damage_can_be_accepted_twice(image: Path, all_events: tuple[Event, ...]) -> None:
    cut_wal(0.5)(image)
    opened = reopen(image, accept_damage=True)
    first = opened.lost
    fill(opened.log, [[said("after")]])
    second_image = crash_image(image, image.parent / "second")
    opened.close()
    (second_image / WAL).unlink()
    again = reopen(second_image, accept_damage=True)
    assert first is not None and again.lost is not None
    assert again.lost.kept_at != first.kept_at
    assert (again.lost.first, again.lost.last) == (first.last + 2, first.last + 2)
    again.close()


def test_a_database_that_cannot_be_opened_at_all_is_kept(image: Path) -> None:
    (image / "log.duckdb").write_bytes(b"nonsense" * 100)
    before = checksums(image)
    for accept in (False, True):
        with pytest.raises(LogDamaged, match="cannot be opened") as caught:
            reopen(image, accept_damage=accept)
        assert caught.value.lost == IN_FILE + IN_WAL
        assert checksums(image) == before


def test_a_log_of_a_newer_version_is_not_damage(tmp_path) -> None:
    import duckdb

    from eventlog.codec import GENESIS, chain

    opened = make(tmp_path / "s")
    fill(opened.log, [[said("a")]])
    opened.close()
    with duckdb.connect(str(tmp_path / "s" / "log.duckdb")) as connection:
        ts, payload = connection.execute("SELECT ts_us, payload FROM events").fetchall()[0]
        newer = payload.replace('"version":1', '"version":99')
        connection.execute("UPDATE events SET payload = ?, hash = ?", [newer, chain(GENESIS, 1, ts, newer.encode())])
    before = checksums(tmp_path / "s")
    with pytest.raises(Undecodable, match="newer version"):
        reopen(tmp_path / "s", accept_damage=True)
    assert checksums(tmp_path / "s") == before


async def test_a_copy_is_readable_while_its_writer_lives(tmp_path) -> None:
    opened = make(tmp_path / "s")
    events = await append(opened.log, [said("a"), said("b")])
    assert read_log(tmp_path / "s") == events
    more = await append(opened.log, [said("c")])
    assert read_log(tmp_path / "s") == events + more
    opened.close()
