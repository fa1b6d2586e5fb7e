"""What an agent makes on another node is with its session before the log says that it is made, or the agent stops."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pytest
from door_visits import SCOUT, House
from far_life import NOW, Life, living, shell

from actors.courier import TRIES, Courier, DeliveryFailed
from actors.detached import WorkerLost
from actors.frames import decode, encode, read_payload
from actors.moving import CAPTURED
from actors.receiving import FOLDER, store_bundle
from actors.relay import ask
from eventlog.effects import Effect, RestoreTree, TakeSnapshot
from eventlog.errors import LeaseSuperseded
from eventlog.events import EffectStarted
from eventlog.ids import CallId, Commit
from eventlog.outcomes import (
    AttemptLost,
    Cancelled,
    Conflicted,
    Outcome,
    OutcomeUnknown,
    SnapshotTaken,
    ToolFailed,
    ToolSucceeded,
)
from tests.agent.core_bodies import model_call, replied, tool
from tests.worktrees.repositories import content
from worktrees.bundle import read_header
from worktrees.objects import move_ref, read_ref
from worktrees.restore import checkout_tree

Way = Literal["lost", "nobody", "full", "vanishes", "open"]
Door = Literal["silent", "refuses", "open"]
WROTE = ToolSucceeded(text="", wrote=True)
SNAPSHOT = TakeSnapshot(parent=Commit("b" * 40), at_s=NOW, reason="test")


@dataclass(slots=True)
class Far:
    """A session at its door, and an agent of it with a worktree on another node."""

    house: House
    life: Life
    ways: list[Way] = field(default_factory=list)
    """Of the next bundles; then open."""
    doors: list[Door] = field(default_factory=list)
    """How the next questions are met. Silent: what was asked is done and nobody says so."""
    bundles: list[bytes] = field(default_factory=list)
    questions: int = 0

    def courier(self, change: Callable[..., Awaitable[object]] = asyncio.to_thread) -> Courier:
        to = replace(self.life.recipient(self.door), session=self.house.coordinator.opened.log.session)
        return Courier(self.life.files, to, change, self.store)

    @property
    def door(self) -> Path:
        """In front of the session's."""
        return self.house.door.path.with_name("front")

    @property
    def folder(self) -> Path:
        return self.house.coordinator.opened.log.folder

    async def store(self, session: str, name: str, bundle: bytes) -> bool:
        assert session == self.house.coordinator.opened.log.session
        self.bundles.append(bundle)
        match self.ways.pop(0) if self.ways else "open":
            case "lost":
                raise WorkerLost("its process died")
            case "nobody":
                raise ValueError("no such actor")
            case "full":
                return False
            case "vanishes":
                return True
            case _:
                await asyncio.to_thread(store_bundle, self.folder, name, bundle)
                return True

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        payload = await read_payload(reader)
        assert payload is not None
        self.questions += 1
        how = self.doors.pop(0) if self.doors else "open"
        answer: dict[str, Any] = {"id": 1, "error": "BundleRefused", "text": "No."}
        if how != "refuses":
            answer = await ask(self.house.door.path, decode(payload))
        if how != "silent":
            writer.write(encode(answer))
        writer.close()

    def at_home(self, name: str) -> str | None:
        files = self.life.home.files
        return read_ref(files.repository.git, files.ref(name))

    def make(self, text: str = "made far away\n") -> None:
        (self.life.place.path / "made.txt").write_text(text)

    def hold(self, name: str, commit: str) -> None:
        """Let a reference of the agent's hold a commit on its node."""
        git, ref = self.life.files.repository.git, self.life.files.ref(name)
        move_ref(git, ref, commit, (read_ref(git, ref),))

    def snapshot(self) -> Commit:
        """Nobody was told of it yet."""
        parent = self.life.state.snapshot
        assert parent is not None
        taken = self.life.files.take_snapshot(self.life.place, TakeSnapshot(parent=parent, at_s=NOW, reason="test"))
        assert isinstance(taken, SnapshotTaken)
        return taken.commit

    async def after(self, courier: Courier, effect: Effect, outcome: Outcome, call: str = "c7") -> None:
        await courier(EffectStarted(call_id=CallId(call), attempt=2, effect=effect), self.life.state, outcome)


@pytest.fixture
async def far(tmp_path: Path) -> AsyncIterator[Far]:
    async with living(tmp_path) as (house, life):
        one = Far(house, life)
        async with await asyncio.start_unix_server(one.meet, str(one.door)):
            yield one


# What is brought, and after what


@pytest.mark.parametrize(
    "outcome",
    [
        WROTE,
        ToolFailed(text="", wrote=True),
        Cancelled(text="", started=True, wrote=True),
        OutcomeUnknown(evidence="nobody knows"),
        Conflicted(text="", found=None),
    ],
    ids=lambda outcome: outcome.kind,
)
async def test_after_a_command_that_may_have_written_the_session_has_the_tree_under_its_name(
    outcome: Outcome, far: Far, tmp_path: Path
) -> None:
    far.make()
    await far.after(far.courier(), shell(), outcome)
    held = far.at_home(CAPTURED)
    assert held is not None and far.at_home("main") is None
    repository = far.life.home.files.repository
    assert repository.git.run("show", "-s", "--format=%s", held) == b"After c7.2\n"
    checkout_tree(repository, held, tmp_path / "shown")
    assert content(tmp_path / "shown") == far.life.found and "made.txt" in far.life.found
    assert list((far.folder / FOLDER).iterdir()) == []


async def test_a_command_after_which_all_is_as_before_is_told_apart_as_well(far: Far) -> None:
    courier = far.courier()
    await far.after(courier, shell(), WROTE, "c1")
    first = far.at_home(CAPTURED)
    await far.after(courier, shell(), WROTE, "c2")
    assert None is not first != far.at_home(CAPTURED)


@pytest.mark.parametrize(
    "effect, outcome",
    [
        (tool("read"), ToolSucceeded(text="x")),
        (tool("edit"), WROTE),
        (shell(), ToolSucceeded(text="x")),
        (shell(), ToolFailed(text="x")),
        (shell(), AttemptLost(evidence="gone")),
        (model_call(), replied()),
    ],
    ids=["read", "edit", "wrote nothing", "failed", "lost", "model"],
)
async def test_after_what_leaves_the_log_nothing_to_promise_nothing_is_sent(
    effect: Effect, outcome: Outcome, far: Far
) -> None:
    far.make()
    far.snapshot()
    await far.after(far.courier(), effect, outcome)
    assert far.bundles == [] and far.at_home("main") is None


@pytest.mark.parametrize(
    "effect, outcome",
    [
        (SNAPSHOT, SnapshotTaken(commit=Commit("c" * 40), changed=True)),
        (RestoreTree(commit=Commit("c" * 40)), SnapshotTaken(commit=Commit("c" * 40), changed=True)),
        (tool("commit"), ToolSucceeded(text="", commit=Commit("c" * 40))),
    ],
    ids=lambda value: value.kind,
)
async def test_after_each_step_that_moves_references_the_session_has_them_all(
    effect: Effect, outcome: Outcome, far: Far
) -> None:
    far.make()
    taken = far.snapshot()
    far.hold("work", taken)
    far.hold("work-before/c3", far.life.home.head)
    await far.after(far.courier(), effect, outcome)
    assert [far.at_home(name) for name in ("main", "work", "work-before/c3")] == [taken, taken, far.life.home.head]


async def test_nothing_is_sent_twice_and_nothing_of_another_agent(far: Far) -> None:
    far.make()
    far.snapshot()
    git = far.life.files.repository.git
    move_ref(git, f"{far.life.files.refs}2/main", far.life.home.head, (None,))
    courier = far.courier()
    await asyncio.gather(*(courier.deliver() for _ in range(3)))
    assert len(far.bundles) == far.questions == 1
    assert list(read_header(far.bundles[0]).refs) == [far.life.files.ref("main")]
    await far.courier().deliver()
    assert len(far.bundles) == 1, "the next incarnation begins with what the session has"


# When the way is broken


@pytest.mark.parametrize("way", ["lost", "nobody", "full", "vanishes"])
async def test_a_bundle_that_did_not_come_to_the_session_is_sent_again(way: Way, far: Far) -> None:
    far.make()
    taken = far.snapshot()
    far.ways = [way] * TRIES
    await far.courier().deliver()
    assert far.at_home("main") == taken and far.bundles == far.bundles[:1] * (TRIES + 1)
    assert far.questions == (TRIES + 1 if way == "vanishes" else 1)


async def test_a_question_whose_answer_was_lost_is_asked_again_and_was_answered_once(far: Far) -> None:
    far.make()
    taken = far.snapshot()
    far.doors = ["silent"]
    await far.courier().deliver()
    assert far.at_home("main") == taken and far.questions == 2


async def test_a_door_at_which_nobody_is_comes_back(far: Far) -> None:
    far.make()
    taken = far.snapshot()
    courier, hidden = far.courier(), far.door.with_name("hidden")
    far.door.rename(hidden)
    delivering = asyncio.ensure_future(courier.deliver())
    while len(far.bundles) < 2:
        assert not delivering.done()
        await asyncio.sleep(0)
    hidden.rename(far.door)
    await delivering
    assert far.at_home("main") == taken


async def test_what_is_refused_is_sent_again_with_all_that_the_agent_has(far: Far) -> None:
    courier = far.courier()
    far.make()
    await far.after(courier, shell(), WROTE, "c1")
    first, base = far.at_home(CAPTURED), far.life.home.head
    far.make("more\n")
    far.doors = ["refuses"]
    await far.after(courier, shell(), WROTE, "c2")
    assert far.at_home(CAPTURED) == read_ref(far.life.files.repository.git, far.life.files.ref(CAPTURED)) != first
    assert [set(read_header(bundle).builds_on) for bundle in far.bundles] == [{base}, {base, first}, {base}]


async def test_who_is_refused_each_time_stops_with_the_reason(far: Far) -> None:
    far.make()
    far.snapshot()
    far.doors = ["refuses"] * TRIES
    with pytest.raises(DeliveryFailed, match=r"What agent scout made could not be taken: No\."):
        await far.courier().deliver()
    assert len(far.bundles) == TRIES and far.at_home("main") is None


async def test_a_reference_that_is_not_as_the_session_said_is_not_overwritten(far: Far) -> None:
    courier = far.courier()
    git, ref = far.life.home.files.repository.git, far.life.home.files.ref("main")
    move_ref(git, ref, far.life.home.head, (None,))
    far.make()
    far.snapshot()
    with pytest.raises(DeliveryFailed, match="moved to"):
        await courier.deliver()
    assert far.at_home("main") == far.life.home.head


async def test_who_was_replaced_stops_at_once_and_nothing_moves(far: Far) -> None:
    far.make()
    far.snapshot()
    await far.house.grant()
    with pytest.raises(LeaseSuperseded):
        await far.courier().deliver()
    assert far.questions == 1 and far.at_home("main") is None


async def test_what_a_command_left_is_captured_under_the_lease_alone(far: Far) -> None:
    async def refuse(*_: object) -> object:
        raise LeaseSuperseded(SCOUT, 1)

    with pytest.raises(LeaseSuperseded):
        await far.after(far.courier(refuse), shell(), WROTE)
    assert far.bundles == [] and read_ref(far.life.files.repository.git, far.life.files.ref(CAPTURED)) is None
