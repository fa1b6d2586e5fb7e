"""A delivery is taken whole or not at all: beside a lease that is granted, and cut anywhere."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from door_visits import SCOUT, House
from far_life import NOW, Life, living
from playing import wait_until

from actors.door_requests import Move
from actors.receiving import FOLDER, discard_bundles, store_bundle, take_delivered
from eventlog.effects import TakeSnapshot
from eventlog.ids import Commit
from eventlog.outcomes import SnapshotTaken
from worktrees.bundle import make_bundle
from worktrees.objects import read_ref

OTHER = "refs/thalia/s1+other"


@dataclass(slots=True)
class Far:
    """A session at its door, and an agent of it on another node, with a snapshot of which the session does not know."""

    house: House
    life: Life
    taken: Commit

    @property
    def folder(self) -> Path:
        return self.house.coordinator.opened.log.folder

    def pack(self, refs: Mapping[str, str]) -> str:
        """By full names; under which name it is stored."""
        bundle = make_bundle(self.life.files.repository, refs, (self.life.home.head,))
        name = hashlib.sha256(bundle).hexdigest()
        store_bundle(self.folder, name, bundle)
        return name

    def pack_own(self, *names: str) -> dict[str, Any]:
        """A request that lets each of these hold the snapshot."""
        bundle = self.pack({self.life.files.ref(name): self.taken for name in names})
        moves = {name: {"old": None, "new": self.taken} for name in names}
        return {"op": "deliver", "agent": SCOUT, "lease": 1, "bundle": bundle, "moves": moves}

    def at_home(self, *names: str) -> list[str | None]:
        files = self.life.home.files
        return [read_ref(files.repository.git, files.ref(name)) for name in names]

    def hold_up(self, name: str) -> Path:
        """The reference cannot move while this file, git's lock, is there."""
        files = self.life.home.files
        lock = files.repository.common_dir / f"{files.ref(name)}.lock"
        lock.parent.mkdir(parents=True, exist_ok=True)
        lock.touch()
        return lock

    async def half_taken(self) -> None:
        """The first of two references was moved."""
        await asyncio.to_thread(wait_until, lambda: self.at_home("main") == [self.taken])

    async def grant(self) -> list[str | None]:
        """The next lease; what the references held when it was."""
        async with self.house.door.taking:
            found = self.at_home("main", "work")
            await self.house.grant()
        return found

    @property
    def all_refs(self) -> bytes:
        return self.life.home.files.repository.git.run("for-each-ref")


@pytest.fixture
async def far(tmp_path: Path) -> AsyncIterator[Far]:
    async with living(tmp_path) as (house, life):
        (life.place.path / "made.txt").write_text("made\n")
        effect = TakeSnapshot(parent=life.home.head, at_s=NOW, reason="test")
        taken = life.files.take_snapshot(life.place, effect)
        assert isinstance(taken, SnapshotTaken)
        yield Far(house, life, taken.commit)


async def test_a_lease_is_granted_before_a_delivery_or_after_all_of_it(far: Far) -> None:
    """The delivery is held up between its two references."""
    visitor, lock = await far.house.visit(), far.hold_up("work")
    asked = visitor.say(**far.pack_own("main", "work"))
    await far.half_taken()
    granting = asyncio.ensure_future(far.grant())
    assert (await visitor.ask(op="ping"))["ok"] and not granting.done() and far.at_home("work") == [None]
    lock.unlink()
    assert await granting == [far.taken, far.taken]
    assert (await visitor.answer(asked))["ok"]
    assert (await visitor.ask(**far.pack_own("later")))["error"] == "LeaseSuperseded"
    assert far.at_home("later") == [None]


async def test_who_asked_may_go_and_it_is_taken_whole(far: Far) -> None:
    visitor, other, lock = await far.house.visit(), await far.house.visit(), far.hold_up("work")
    request = far.pack_own("main", "work")
    visitor.say(**request)
    await far.half_taken()
    visitor.cut()
    for _ in range(5):
        await other.ask(op="ping")
    granting = asyncio.ensure_future(far.grant())
    await other.ask(op="ping")
    lock.unlink()
    assert await granting == [far.taken, far.taken], "also then no lease is granted in the middle of it"
    assert (await other.ask(**{**request, "lease": 2}))["ok"] and list((far.folder / FOLDER).iterdir()) == []


async def test_the_same_delivery_from_two_at_once_is_acknowledged_to_both(far: Far) -> None:
    visitors = [await far.house.visit() for _ in range(3)]
    request = far.pack_own("main")
    assert [answer.get("ok") for answer in await asyncio.gather(*(v.ask(**request) for v in visitors))] == [True] * 3
    assert far.at_home("main") == [far.taken]


async def test_what_was_cut_between_two_references_goes_on_when_it_is_asked_again(far: Far) -> None:
    request = far.pack_own("main", "work")
    file = far.folder / FOLDER / request["bundle"]
    bundle = file.read_bytes()
    moves = {name: Move(old=None, new=far.taken) for name in ("main", "work")}
    take_delivered(far.life.home.files, far.folder, request["bundle"], moves)
    git = far.life.home.files.repository.git
    git.run("update-ref", "-d", far.life.home.files.ref("work"))
    file.write_bytes(bundle)
    assert (await (await far.house.visit()).ask(**request))["ok"]
    assert far.at_home("main", "work") == [far.taken] * 2


@pytest.mark.parametrize("name", ["../s1+other/main", "../../heads/main", "/refs/heads/main", ".hidden", "main.lock"])
async def test_a_name_that_leads_elsewhere_is_refused_also_where_the_bundle_has_it(name: str, far: Far) -> None:
    """And it is answered: the agent would wait for ever."""
    before, visitor = far.all_refs, await far.house.visit()
    bundle = far.pack({f"{OTHER}/main": far.taken})
    moves = {name: {"old": None, "new": far.taken}}
    answer = await visitor.ask(op="deliver", agent=SCOUT, lease=1, bundle=bundle, moves=moves)
    assert answer["error"] == "BundleRefused" and "nothing was taken" in answer["text"]
    assert far.all_refs == before and (await visitor.ask(op="ping"))["ok"]


async def test_a_bundle_that_holds_more_or_other_references_than_were_named_moves_none(far: Far) -> None:
    before, own = far.all_refs, far.pack_own("main")
    bundle = far.pack({far.life.files.ref("main"): far.taken, f"{OTHER}/main": far.taken})
    answer = await (await far.house.visit()).ask(**{**own, "bundle": bundle})
    assert answer["error"] == "BundleRefused" and far.all_refs == before


async def test_a_bundle_with_another_commit_than_was_told_moves_nothing(far: Far) -> None:
    before, request = far.all_refs, far.pack_own("main")
    request["moves"]["main"]["new"] = far.life.home.head
    answer = await (await far.house.visit()).ask(**request)
    assert answer["error"] == "BundleRefused" and "another commit" in answer["text"] and far.all_refs == before


# The file


def test_a_bundle_for_a_session_that_is_not_there_is_not_stored(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store_bundle(tmp_path / "none", "0" * 64, b"x")
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_that_comes_again_takes_the_place_of_the_first_and_goes_with_the_rest(tmp_path: Path) -> None:
    store_bundle(tmp_path, "0" * 64, b"half")
    store_bundle(tmp_path, "0" * 64, b"whole")
    assert [file.read_bytes() for file in (tmp_path / FOLDER).iterdir()] == [b"whole"]
    assert (tmp_path / FOLDER / ("0" * 64)).stat().st_mode & 0o077 == 0
    (tmp_path / FOLDER / ".draft").write_bytes(b"left by one that was killed")
    discard_bundles(tmp_path)
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_a_bundle_that_cannot_get_its_name_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / FOLDER / ("0" * 64)).mkdir(parents=True)
    with pytest.raises(OSError):
        store_bundle(tmp_path, "0" * 64, b"x")
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == ["0" * 64]
