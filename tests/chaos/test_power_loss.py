"""A session on each disk that a loss of power could leave of it: nothing that was told is lost, and it goes on.

One run is recorded down to its writes and syncs (power_record.py); what may be on a disk at each moment follows from
them (power_disk.py). A seeded part in `make test`, all moments in `make crash`."""

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from agent.apply import TORN_TEXT
from agent.folding import fold_events
from eventlog.messages import UserMessage
from tests.chaos.arena import FINAL, ROOT, unknown_calls
from tests.chaos.invariants import check_session
from tests.chaos.power_arena import PowerArena, recorded
from tests.chaos.power_checks import look, shown_events
from tests.chaos.power_disk import Disk, Loss, Rule
from tests.chaos.power_ops import Named, Node, Recording, Synced, Wrote

ALL = "THALIA_TEST_KILLS" in os.environ
SEED = int(os.environ.get("THALIA_TEST_SEED", "1"))
RULES: tuple[Rule, ...] = ("strict", "ordered")
LOOKS, RESUMES = 24, 2
pytestmark = [pytest.mark.xdist_group("power"), pytest.mark.timeout(3600 if ALL else 300)]


@pytest.fixture(scope="module")
def power() -> Iterator[PowerArena]:
    with recorded() as arena:
        yield arena


def losses(disk: Disk, rule: Rule, part: int) -> list[Loss]:
    random = Random(SEED)
    found = [loss for at in disk.moments for loss in disk.losses(at, rule, random, 3)]
    return found if ALL else random.sample(found, part)


def test_the_recording_knows_every_way_in_which_the_session_writes(power: PowerArena) -> None:
    # The event loop's own ring holds no file: it is about readiness alone.
    assert set(power.disk.not_modelled) <= {"io_uring_setup"}
    assert len(power.disk.moments) > 50


@pytest.mark.parametrize("rule", RULES)
def test_no_loss_of_power_takes_what_was_told_or_what_the_log_names(power: PowerArena, rule: Rule) -> None:
    for loss in losses(power.disk, rule, LOOKS):
        power.lose(loss, rule)
        found = look(power.disk, loss, power.arena.home, power.arena.repository)
        assert found.wrong == (), f"{loss.name}, before operation {loss.at}"


@pytest.mark.parametrize("rule", RULES)
def test_a_session_goes_on_after_a_loss_of_power(power: PowerArena, rule: Rule) -> None:
    for loss in losses(power.disk, rule, 400)[:: 40 if ALL else 400 // RESUMES]:
        power.lose(loss, rule)
        where = f"{loss.name}, before operation {loss.at}"
        assert power.resume() == 0, f"{where}: {power.arena.errors()}"
        events = power.arena.events()
        check_session(events)
        stored = {event.seq: event.model_dump(mode="json") for event in events}
        shown = shown_events(power.disk.told(loss.at, "shown"))
        assert {seq: stored.get(seq) for seq in shown} == shown, where
        assert power.arena.files() == FINAL or unknown_calls(events) or is_warned(power), where
        assert power.arena.survivors() == []


def is_warned(power: PowerArena) -> bool:
    """The model was told that what its last command wrote may be gone."""
    messages = fold_events(power.arena.events()).messages
    return any(isinstance(message, UserMessage) and message.text == TORN_TEXT for message in messages)


def test_a_name_that_was_not_synced_may_be_gone_and_its_data_may_be_there(tmp_path: Path) -> None:
    """The model itself: a file of 1,024 bytes whose content was synced, and whose name was not."""
    before = {1: Node("folder", 0o700), 2: Node("file", 0o600)}
    operations = (Named(1, b"file", 2), Wrote(2, 0, b"x" * 1024), Synced(2, 2), Wrote(2, 1024, b"y" * 512))
    disk = Disk(Recording({"disk": 1}, before, operations))
    assert disk.unsynced(4, "strict") == (0, 3)
    assert disk.unsynced(4, "ordered") == (3,)
    disk.build(Loss(4, {}, "nothing"), "strict", {"disk": tmp_path / "strict"})
    disk.build(Loss(4, {3: "length"}, "length"), "ordered", {"disk": tmp_path / "ordered"})
    assert list((tmp_path / "strict").iterdir()) == []
    assert (tmp_path / "ordered" / "file").read_bytes() == b"x" * 1024 + bytes(512)


def test_the_recorder_sees_what_a_child_writes_by_an_inherited_descriptor(tmp_path: Path) -> None:
    disk, recording = tmp_path / "disk", tmp_path / "recording"
    disk.mkdir()
    script = "echo one > a; (exec 3>>a; echo two >&3; mv a b; ln b c; rm b); mkdir d; sync c"
    command = [sys.executable, "-m", "tests.chaos.power_record", str(recording), "--disk", str(disk), "--"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([*command, "/bin/bash", "-c", script], cwd=disk, env=environment, check=True, timeout=60)
    found = Disk(pickle.loads(recording.read_bytes()))
    whole = Loss(len(found.operations), dict.fromkeys(range(len(found.operations)), "whole"), "all")
    found.build(whole, "strict", {str(disk): tmp_path / "again"})
    assert {path.name for path in (tmp_path / "again").iterdir()} == {"c", "d"}
    assert (tmp_path / "again" / "c").read_text() == "one\ntwo\n"
    assert any(isinstance(item, Synced) for item in found.operations)
