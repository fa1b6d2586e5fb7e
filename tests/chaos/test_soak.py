"""A short soak: killed as the long one is, looked at as the long one is."""

from pathlib import Path

import pytest

from benchmarks.place import Place
from benchmarks.soak import Broken, Soak
from benchmarks.soak_samples import judge, judge_disk, leaks, line
from benchmarks.soak_work import Plan
from tests.chaos.invariants import check_session

PLAN = Plan(steps=50, turn=25, kill_every_s=1.0, look_every_s=0.2)


@pytest.mark.timeout(300)
def test_two_turns_with_a_kill_a_second_lose_double_and_leave_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path)
    place.make("max_turns = 100\n")
    soak = Soak(place, PLAN)
    soak.run()
    events = soak.check_log()
    assert soak.told.steps >= PLAN.steps and sum(soak.kills.values()) >= 2
    # The last turn was taken back, which is in the log and was not shown.
    check_session(events)
    assert len(events) > soak.events and events[-1].body.kind == "effect_finished"
    assert leaks(judge_disk(soak.disks)) == []
    assert place.left() == []
    assert list(place.temporary.iterdir()) == []


def test_an_effect_that_happened_twice_and_one_that_is_missing_break_the_soak(tmp_path: Path) -> None:
    soak = Soak(Place(tmp_path), PLAN)
    once = [f"c{number}_1.1" for number in range(8)]
    soak.check_effects("\n".join(once), 0, confined=True)
    # A second attempt that ran after the first was taken back counts as one.
    soak.check_effects("\n".join(["c0_1.2", *once[1:]]), 0, confined=True)
    # Nobody can tell about an unconfined one, and says so.
    soak.check_effects("\n".join(once[1:]), 1, confined=False)
    with pytest.raises(Broken, match="twice"):
        soak.check_effects("\n".join([*once, "c3_1.2"]), 0, confined=True)
    for unknown, confined in ((0, False), (1, True)):
        with pytest.raises(Broken, match="7 of 8"):
            soak.check_effects("\n".join(once[1:]), unknown, confined=confined)


def test_what_grows_without_a_reason_is_a_leak_and_what_only_wavers_is_not() -> None:
    growing = judge("temporary files", [(step, step / 100) for step in range(0, 2000, 100)], noise=3.0)
    wavering = judge("open files", [(step, 20 + step % 3) for step in range(0, 2000, 100)], noise=3.0)
    owed = judge("log", [(step, 8192.0 * step) for step in range(0, 2000, 100)], noise=1024)
    assert leaks([growing, wavering, owed]) == ["temporary files"]
    assert growing.per_step == pytest.approx(0.01)
    assert "A LEAK" in line(growing) and "flat" in line(wavering) and "events" in line(owed)
