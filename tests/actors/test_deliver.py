"""What an agent made on another node comes to the references of its session's repository, and nothing else does."""

import hashlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from door_visits import SCOUT, House, Visitor, open_house

from actors.files import SessionFiles
from actors.receiving import FOLDER, discard_bundles, store_bundle
from worktrees.bundle import make_bundle, take_bundle
from worktrees.mirror import mirror_settings, open_mirror
from worktrees.objects import THALIA, encode_commit, read_ref, write_commit
from worktrees.repository import Repository
from worktrees.snapshot import tree_of

BASE = "refs/thalia/bases/first"


@dataclass(slots=True)
class Far:
    """A node that has the repository, and an agent of the session on it."""

    house: House
    visitor: Visitor
    files: SessionFiles
    """The agent's, at home."""
    mirror: Repository
    base: str

    def commit(self, message: str, parent: str = "") -> str:
        git = self.mirror.git
        tree = tree_of(git, self.base)
        assert tree is not None
        return write_commit(git, encode_commit(tree, (parent or self.base,), message, THALIA, 1))

    def pack(self, refs: Mapping[str, str]) -> str:
        """Of names below the agent's own references; the name of the file, which lies with the session."""
        wanted = {self.files.ref(name): commit for name, commit in refs.items()}
        bundle = make_bundle(self.mirror, wanted, (self.base,))
        name = hashlib.sha256(bundle).hexdigest()
        store_bundle(self.house.coordinator.opened.log.folder, name, bundle)
        return name

    async def deliver(self, bundle: str, *, lease: int = 1, **moves: tuple[str | None, str]) -> dict[str, Any]:
        return await self.ask(bundle, moves, lease)

    async def ask(self, bundle: str, moves: Mapping[str, tuple[str | None, str]], lease: int = 1) -> dict[str, Any]:
        told = {name: {"old": old, "new": new} for name, (old, new) in moves.items()}
        return await self.visitor.ask(op="deliver", agent=SCOUT, lease=lease, bundle=bundle, moves=told)

    def held(self, name: str = "main") -> str | None:
        return read_ref(self.files.repository.git, self.files.ref(name))

    @property
    def waiting(self) -> list[str]:
        folder = self.house.coordinator.opened.log.folder / FOLDER
        return sorted(path.name for path in folder.glob("*"))


@pytest.fixture
async def far(tmp_path: Path) -> AsyncIterator[Far]:
    async with open_house(tmp_path) as house:
        await house.grant()
        files = house.coordinator.files.of_agent(SCOUT)
        base = files.repository.head
        mirror = open_mirror(tmp_path / "node", "one", mirror_settings(files.repository, {}))
        take_bundle(mirror, make_bundle(files.repository, {BASE: base}, ()), {BASE: None})
        yield Far(house, await house.visit(), files, mirror, base)


async def test_what_was_made_is_held_by_the_agents_references_and_the_file_is_gone(far: Far) -> None:
    one = far.commit("One")
    two = far.commit("Two", one)
    name = far.pack({"main": two, "work": one})
    assert (await far.deliver(name, main=(None, two), work=(None, one)))["ok"]
    assert (far.held(), far.held("work"), far.waiting) == (two, one, [])
    three = far.commit("Three", two)
    assert (await far.deliver(far.pack({"main": three}), main=(two, three)))["ok"]
    assert far.held() == three


async def test_a_delivery_that_comes_again_changes_nothing_and_is_acknowledged_again(far: Far) -> None:
    one = far.commit("One")
    name = far.pack({"main": one})
    assert (await far.deliver(name, main=(None, one)))["ok"]
    assert (await far.deliver(name, main=(None, one)))["ok"], "also without its file"
    far.pack({"main": one})
    assert (await far.deliver(name, main=(None, one)))["ok"]
    assert (far.held(), far.waiting) == (one, [])


async def test_a_superseded_incarnation_moves_nothing(far: Far) -> None:
    one = far.commit("One")
    name = far.pack({"main": one})
    await far.house.grant()
    answer = await far.deliver(name, main=(None, one))
    assert answer["error"] == "LeaseSuperseded" and far.held() is None
    assert (await far.deliver(name, lease=2, main=(None, one)))["ok"]


async def test_while_a_lease_is_granted_no_reference_moves(far: Far) -> None:
    one = far.commit("One")
    name = far.pack({"main": one})
    async with far.house.door.taking:
        asked = far.visitor.say(
            op="deliver", agent=SCOUT, lease=1, bundle=name, moves={"main": {"old": None, "new": one}}
        )
        assert (await far.visitor.ask(op="ping"))["ok"], "nobody else waits"
        await far.house.grant()
    assert (await far.visitor.answer(asked))["error"] == "LeaseSuperseded"
    assert far.held() is None


async def test_what_is_not_there_is_asked_for_again(far: Far) -> None:
    one = far.commit("One")
    name = far.pack({"main": one})
    discard_bundles(far.house.coordinator.opened.log.folder)
    assert (await far.deliver(name, main=(None, one)))["error"] == "NotStored"
    assert (await far.deliver(far.pack({"main": one}), main=(None, one)))["ok"]


async def test_a_reference_that_somebody_else_moved_stays_as_it_is(far: Far) -> None:
    one, other = far.commit("One"), far.commit("Other")
    assert (await far.deliver(far.pack({"main": other}), main=(None, other)))["ok"]
    answer = await far.deliver(far.pack({"main": one}), main=(None, one))
    assert answer["error"] == "RefMoved" and far.held() == other


@pytest.mark.parametrize("name", ["../main", "../../../heads/main", "/etc/passwd", "a..b", "main.lock", ""])
async def test_no_reference_but_the_agents_own_can_be_named(far: Far, name: str) -> None:
    one = far.commit("One")
    before = far.files.repository.git.run("for-each-ref")
    answer = await far.ask(far.pack({"main": one}), {name: (None, one)})
    assert "error" in answer and answer["error"] != "LogError", answer
    assert far.files.repository.git.run("for-each-ref") == before


async def test_a_file_elsewhere_cannot_be_named(far: Far) -> None:
    one = far.commit("One")
    answer = await far.deliver("../../" + "0" * 58, main=(None, one))
    assert answer["error"] == "BadRequest"


async def test_a_damaged_bundle_is_refused_and_nothing_moves(far: Far) -> None:
    one = far.commit("One")
    name = far.pack({"main": one})
    file = far.house.coordinator.opened.log.folder / FOLDER / name
    file.write_bytes(file.read_bytes()[:-30])
    answer = await far.deliver(name, main=(None, one))
    assert answer["error"] == "BundleRefused" and far.held() is None
