"""The log of a killed session, altered in every way, and what must hold of each copy."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from actors.history import Verified, verify
from agent.folding import fold_events
from eventlog.anchor import read_anchor
from eventlog.errors import LogDamaged
from eventlog.events import DamageAccepted, Event
from eventlog.ids import SessionId
from eventlog.opening import read_log
from eventlog.seams import SystemClock
from tests.chaos.arena import TURNS, Arena, kill
from tests.eventlog.eventlog_folders import Reopened, checksums, reopen

DATABASE, WAL, ANCHOR = "log.duckdb", "log.duckdb.wal", "head"


@dataclass(frozen=True)
class Image:
    """A killed session's folder. Never opened; each case has a copy."""

    folder: Path
    events: tuple[Event, ...]
    acknowledged: int
    earlier: dict[str, bytes]
    """Its files as they were when its first turn had ended."""
    other: Path
    """Another session of the same repository, killed as well."""
    whole_from: int
    """The length of the WAL from which on it holds every acknowledged event."""
    arena: Arena

    def copy(self, target: Path) -> Path:
        shutil.copytree(self.folder, target)
        return target

    def bytes_of(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()


@contextmanager
def made_image(base: Path) -> Iterator[Image]:
    """In an empty folder."""
    (base / "arena").mkdir()
    with Arena(base / "arena", [*TURNS, *TURNS]) as arena:
        assert arena.start("exec", "Do it.", "-m", "openai/test").wait(60) == 0, arena.errors()
        folder = arena.session_folder()
        assert folder is not None
        earlier = {name: (folder / name).read_bytes() for name in (DATABASE, ANCHOR)}
        killed(arena, "resume", "--last", "Again.", crash_at="after_commit:9")
        events = read_log(folder)
        before = set(folder.parent.iterdir())
        killed(arena, "exec", "Do it.", "-m", "openai/test", crash_at="before_call_model:3")
        (other,) = set(folder.parent.iterdir()) - before
        reading = read_anchor(folder / ANCHOR)
        assert reading is not None and reading.head is not None
        assert len(events) > reading.head.seq, "the last transaction should not be acknowledged"
        image = Image(folder, events, reading.head.seq, earlier, other, 0, arena)
        yield replace(image, whole_from=length_needed(image, base / "cut"))


def killed(arena: Arena, *arguments: str, crash_at: str) -> None:
    run = arena.start(*arguments, crash_at=crash_at)
    assert run.wait(60) == -9, arena.errors()
    kill(run, "everything")


def open_at(folder: Path, *, accept_damage: bool = False) -> Reopened:
    return reopen(folder, session=SessionId(folder.name), clock=SystemClock(), accept_damage=accept_damage)


def refusal(image: Image, folder: Path) -> LogDamaged | None:
    """None where it opens, with every acknowledged event; where it does not, nothing of it was touched."""
    before = checksums(folder)
    try:
        opened = open_at(folder)
    except LogDamaged as damage:
        assert checksums(folder) == before, "a refusal changed the files"
        return damage
    opened.close()
    assert opened.events == image.events[: len(opened.events)]
    assert len(opened.events) >= image.acknowledged, "acknowledged events are missing, and nobody was told"
    return None


def accept(image: Image, folder: Path, damage: LogDamaged) -> int:
    """Go on without what is lost. How many events were kept; -1 where even that is refused, for nothing can be read."""
    damaged = checksums(folder)
    try:
        opened = open_at(folder, accept_damage=True)
    except LogDamaged as again:
        assert str(again) == str(damage)
        assert checksums(folder) == damaged
        return -1
    opened.close()
    kept, acceptance = opened.events[:-1], opened.events[-1]
    assert kept == image.events[: len(kept)]
    check_accepted(image, opened, acceptance, damaged)
    if damage.lost is not None:
        assert damage.lost == max(image.acknowledged - len(kept), 0), str(damage)
    again = open_at(folder)
    again.close()
    assert again.events == opened.events
    assert again.lost is None
    assert fold_events(again.events) == fold_events(again.events)
    assert isinstance(verify(again.events), Verified)
    return len(kept)


def check_accepted(image: Image, opened: Reopened, acceptance: Event, damaged: dict[str, str]) -> None:
    """The loss is in the log, under numbers that nobody else gets, and the damaged files are beside it."""
    lost = opened.lost
    assert lost is not None
    assert acceptance.body == DamageAccepted(first_lost=lost.first, last_lost=lost.last, kept_at=lost.kept_at)
    assert acceptance.seq == lost.last + 1 > len(opened.events) - 1
    aside = checksums(Path(lost.kept_at))
    assert aside == {name: digest for name, digest in damaged.items() if name in (DATABASE, WAL, ANCHOR)}


def judge(image: Image, folder: Path, *, accepting: bool = True) -> bool:
    """Whether it was refused. Removes the copy."""
    damage = refusal(image, folder)
    if damage is not None:
        assert "\n" not in str(damage)
        assert damage.lost is None or f"{damage.lost} acknowledged event" in str(damage)
        if accepting:
            accept(image, folder, damage)
    shutil.rmtree(folder)
    return damage is not None


def judge_changed(image: Image, target: Path, name: str, data: bytes, *, accepting: bool = True) -> bool:
    folder = image.copy(target)
    (folder / name).write_bytes(data)
    return judge(image, folder, accepting=accepting)


def wal_entries(wal: bytes) -> list[int]:
    """Where each entry ends: its size, a checksum (8 bytes each) and its bytes, behind a head of which only the length
    matters here. The one length is right with which the entries end where the file does."""
    for head in range(8, 256):
        ends, at = [head], head
        while at + 16 <= len(wal):
            at += 16 + int.from_bytes(wal[at : at + 8], "little")
            ends.append(at)
        if at == len(wal) and len(ends) > 10:
            return ends
    raise AssertionError("the WAL is not what this test takes it for")


def length_needed(image: Image, target: Path) -> int:
    wal = image.bytes_of(WAL)
    needed = len(wal)
    for end in reversed(wal_entries(wal)):
        folder = image.copy(target)
        (folder / WAL).write_bytes(wal[:end])
        whole = refusal(image, folder) is None
        shutil.rmtree(folder)
        if not whole:
            return needed
        needed = end
    raise AssertionError("the WAL holds nothing that was acknowledged")
