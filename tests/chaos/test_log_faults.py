"""Every fault of a log's files, on the log of a killed session.

It had two turns; most of them stands in the WAL, whose last transaction was stored but never acknowledged. Each altered
copy opens with every acknowledged event, or says how many are missing and touches nothing; with the damage accepted it
goes on. A seeded part in `make test`, all lengths and thousands of bits in `make crash`."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from actors.history import Verified, verify
from eventlog.events import DamageAccepted
from tests.chaos.arena import TURNS, Arena
from tests.chaos.log_image import (
    ANCHOR,
    DATABASE,
    WAL,
    Image,
    accept,
    checksums,
    judge,
    judge_changed,
    killed,
    made_image,
    refusal,
    wal_entries,
)

ALL = "THALIA_TEST_KILLS" in os.environ
SEED = int(os.environ.get("THALIA_TEST_SEED", "1"))
ACCEPTED = 0.05 if ALL else 0.15
"""The part of the refused copies that are opened once more, without what is lost: it takes as long as all else."""
SLOT, RECORD = 512, 92
"""Bytes of an anchor's slot, and of what is written into it."""

pytestmark = [pytest.mark.timeout(3600 if ALL else 120)]


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    with made_image(tmp_path_factory.mktemp("image")) as made:
        yield made


# The WAL.


def lengths(wal: bytes) -> list[int]:
    if ALL:
        return list(range(len(wal)))
    random, ends = Random(SEED), wal_entries(wal)
    edges = {end + by for end in random.sample(ends, 8) for by in (-1, 0, 1)}
    drawn = random.sample(range(len(wal)), 20)
    return sorted(length for length in {0, *edges, *drawn} if length < len(wal))


def test_a_wal_cut_at_any_length_loses_nothing_silently(image: Image, tmp_path: Path) -> None:
    wal, needed = image.bytes_of(WAL), image.whole_from
    random = Random(SEED)
    for length in lengths(wal):
        refused = judge_changed(image, tmp_path / "s", WAL, wal[:length], accepting=random.random() < ACCEPTED)
        assert refused == (length < needed), f"cut to {length} of {len(wal)}, needed {needed}"


def test_a_bit_flipped_anywhere_in_the_wal_loses_nothing_silently(image: Image, tmp_path: Path) -> None:
    wal, needed = image.bytes_of(WAL), image.whole_from
    head = wal_entries(wal)[0]
    random = Random(SEED)
    refused = 0
    for _ in range(4000 if ALL else 12):
        place, bit = random.randrange(len(wal)), random.randrange(8)
        changed = bytearray(wal)
        changed[place] ^= 1 << bit
        damaged = judge_changed(image, tmp_path / "s", WAL, bytes(changed), accepting=random.random() < ACCEPTED)
        refused += damaged
        assert damaged or place >= needed or place < head, f"bit {bit} of byte {place} went unnoticed"
    assert refused > 0


def zeroed(wal: bytes) -> Iterator[bytes]:
    """Runs of zeros in the middle and at the end, as lost sectors and a file grown before its data look."""
    random = Random(SEED)
    sizes = (1, 8, 512, len(wal) // 2, len(wal))
    for size in (size for size in sizes for _ in range(20 if ALL else 1)):
        start = random.randrange(len(wal) - size + 1)
        yield wal[:start] + bytes(size) + wal[start + size :]
        yield wal[: len(wal) - size] + bytes(size)


def test_a_wal_with_zeros_in_it_loses_nothing_silently(image: Image, tmp_path: Path) -> None:
    wal = image.bytes_of(WAL)
    random = Random(SEED)
    changes = [changed for changed in zeroed(wal) if changed != wal]
    refused = 0
    for data in changes:
        refused += judge_changed(image, tmp_path / "s", WAL, data, accepting=random.random() < ACCEPTED)
    assert refused > 0


def test_rubbish_behind_the_wal_costs_nothing(image: Image, tmp_path: Path) -> None:
    wal = image.bytes_of(WAL)
    for size in (1, 15, 16, 17, 512, 5000):
        folder = image.copy(tmp_path / "s")
        (folder / WAL).write_bytes(wal + Random(SEED + size).randbytes(size))
        damage = refusal(image, folder)
        if damage is not None:
            assert damage.lost == 0
            assert accept(image, folder, damage) >= image.acknowledged
        shutil.rmtree(folder)


def test_a_wal_that_is_gone_or_is_another_session_s_is_named(image: Image, tmp_path: Path) -> None:
    missing = image.copy(tmp_path / "missing")
    (missing / WAL).unlink()
    assert judge(image, missing)
    assert judge_changed(image, tmp_path / "other", WAL, (image.other / WAL).read_bytes())


# The database.


def test_a_database_that_was_cut_altered_or_exchanged_loses_nothing_silently(image: Image, tmp_path: Path) -> None:
    data = image.bytes_of(DATABASE)
    random = Random(SEED)
    cuts = [0, 4095, 12288, len(data) - 1]
    cuts += [random.randrange(len(data)) for _ in range(200 if ALL else 2)]
    for length in cuts:
        accepting = random.random() < 2 * ACCEPTED
        assert judge_changed(image, tmp_path / "s", DATABASE, data[:length], accepting=accepting)
    for _ in range(2000 if ALL else 12):
        # Half of them in the three headers, which are few bytes of many.
        place = random.choice((random.randrange(len(data)), random.randrange(3 * 4096)))
        changed = bytearray(data)
        changed[place] ^= 1 << random.randrange(8)
        judge_changed(image, tmp_path / "s", DATABASE, bytes(changed), accepting=random.random() < ACCEPTED)
    assert judge_changed(image, tmp_path / "s", DATABASE, (image.other / DATABASE).read_bytes())
    assert judge_changed(image, tmp_path / "s", DATABASE, random.randbytes(len(data)))


# The anchor.


def newest_slot(head: bytes) -> int:
    """Where the slot begins that was written last."""
    turns = [int.from_bytes(head[at + 8 : at + 16], "little") for at in (0, SLOT)]
    return turns.index(max(turns)) * SLOT


def test_an_anchor_torn_at_any_length_hides_nothing(image: Image, tmp_path: Path) -> None:
    """What was in the slot before, or zeros, behind the part that arrived."""
    head = image.bytes_of(ANCHOR)
    for slot in (0, SLOT):
        for length in range(RECORD + 1) if ALL else Random(SEED + slot).sample(range(RECORD + 1), 4):
            for rest in (bytes(RECORD), image.earlier[ANCHOR][slot : slot + RECORD]):
                torn = head[: slot + length] + rest[length:] + head[slot + RECORD :]
                # The events came first, and all are there: nothing is missing, and nobody says so.
                folder = image.copy(tmp_path / "s")
                (folder / ANCHOR).write_bytes(torn)
                damage = refusal(image, folder)
                if damage is not None:
                    accept(image, folder, damage)
                    assert "half of its anchor" in str(damage)
                    assert slot == newest_slot(head) or damage.lost is None
                shutil.rmtree(folder)


def test_a_torn_anchor_and_a_cut_wal_hide_nothing_together(image: Image, tmp_path: Path) -> None:
    """A reader who only has the older slot can not count what is lost, and says that too."""
    head, wal = bytearray(image.bytes_of(ANCHOR)), image.bytes_of(WAL)
    head[newest_slot(bytes(head)) + 30] ^= 4
    ends = [end for end in wal_entries(wal) if end < image.whole_from]
    for length in ends if ALL else Random(SEED).sample(ends, 5):
        folder = image.copy(tmp_path / "s")
        (folder / ANCHOR).write_bytes(head)
        (folder / WAL).write_bytes(wal[:length])
        damage = refusal(image, folder)
        assert damage is not None
        assert damage.lost is None
        accept(image, folder, damage)
        shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["missing", "empty", "half", "both slots torn", "rubbish", "another session's"])
def test_an_anchor_that_says_nothing_right_is_damage(image: Image, name: str, tmp_path: Path) -> None:
    folder = image.copy(tmp_path / "s")
    head = image.bytes_of(ANCHOR)
    torn = bytearray(head)
    torn[20] ^= 2
    torn[SLOT + 20] ^= 2
    changed = {
        "missing": None,
        "empty": b"",
        "half": head[:SLOT],
        "both slots torn": bytes(torn),
        "rubbish": Random(SEED).randbytes(len(head)),
        "another session's": (image.other / ANCHOR).read_bytes(),
    }[name]
    if changed is None:
        (folder / ANCHOR).unlink()
    else:
        (folder / ANCHOR).write_bytes(changed)
    damage = refusal(image, folder)
    # Half may be the half that counts, and another session's is behind this log, which then only seems to be ahead.
    assert damage is not None or name in ("half", "another session's")
    if damage is not None:
        accept(image, folder, damage)


def test_an_older_anchor_than_the_log_is_no_damage(image: Image, tmp_path: Path) -> None:
    """As after a kill between the commit and the anchor."""
    assert not judge_changed(image, tmp_path / "s", ANCHOR, image.earlier[ANCHOR])


def test_an_older_database_without_its_wal_is_named(image: Image, tmp_path: Path) -> None:
    """As a backup that restored a part."""
    folder = image.copy(tmp_path / "s")
    (folder / DATABASE).write_bytes(image.earlier[DATABASE])
    (folder / WAL).unlink()
    assert judge(image, folder)


# Through the command line.


def damages(image: Image) -> dict[str, dict[str, bytes | None]]:
    """By name: files that are altered, None where one is gone; and what a person must be told of the loss."""
    wal, data = image.bytes_of(WAL), image.bytes_of(DATABASE)
    return {
        f", but event {image.acknowledged} was acknowledged; ": {WAL: None},
        "an unknown number of acknowledged events lost": {ANCHOR: None},
        f"; {image.acknowledged} acknowledged events lost": {
            DATABASE: data[: len(data) // 2],
            WAL: wal[: len(wal) // 2],
        },
    }


def test_a_person_is_told_in_one_sentence(image: Image, tmp_path: Path) -> None:
    for number, (told, files) in enumerate(damages(image).items()):
        copy = tmp_path / str(number)
        shutil.copytree(image.arena.folder, copy, symlinks=True)
        shutil.rmtree(copy / "home" / "sessions" / image.other.name)
        arena = Arena(copy, port=image.arena.port)
        (copy / "errors.txt").unlink()
        folder = copy / "home" / "sessions" / image.folder.name
        for name, data in files.items():
            (folder / name).unlink() if data is None else (folder / name).write_bytes(data)
        before = checksums(folder)
        assert arena.start("resume", "--last").wait(60) == 10
        (line,) = arena.errors().strip().splitlines()
        assert told in line
        assert line.startswith("The log is damaged: ")
        assert checksums(folder) == before


def test_resume_goes_on_without_what_a_person_gave_up(tmp_path: Path) -> None:
    with Arena(tmp_path, [*TURNS, {"text": "Done."}, {"text": "Done."}]) as arena:
        killed(arena, "exec", "Do it.", "-m", "openai/test", crash_at="before_call_model:4")
        folder = arena.session_folder()
        assert folder is not None
        whole = arena.events()
        wal = (folder / WAL).read_bytes()
        (folder / WAL).write_bytes(wal[: len(wal) // 2])
        assert arena.start("resume", "--last").wait(60) == 10
        code = arena.start("resume", "--last", "--accept-damage", "--merge").wait(60)
        events = arena.events()
        assert code == 0, arena.errors()
        (accepted,) = [event for event in events if isinstance(event.body, DamageAccepted)]
        kept = events[: events.index(accepted)]
        assert kept == whole[: len(kept)]
        assert accepted.seq == len(whole) + 1
        assert (folder / "damaged" / "1" / WAL).read_bytes() == wal[: len(wal) // 2]
        assert [event.seq for event in events[len(kept) :]] == list(range(accepted.seq, events[-1].seq + 1))
        assert isinstance(verify(events), Verified)
        # The log gave the names of the lost calls out again: the command was run, not answered with the old result.
        assert (folder / "damaged" / "1" / "calls" / "c2_2.1" / "done").exists()
        assert arena.files()["counter.txt"] == "begun\nended\n" * 2
        assert arena.files()["b.txt"] == "new\n"
        assert arena.survivors() == []
