"""SIGKILL at each named point of a daemon's processes, and once more during the recovery.

One run of each scene without kills lists the points that it reaches. `make crash` kills at each name twice, at drawn
occurrences, `make test` where it once broke and at one that is drawn; then again, with a second kill at a point that
the recovery reached."""

import os
from collections.abc import Iterator
from random import Random

import pytest

from configs.crash import DAEMON_POINTS, POINTS
from tests.chaos.daemon_scenes import SCENES, DaemonScene, Stage, check, staging, strike
from tests.chaos.invariants import shared_memory
from tests.cli.cli_program import wait_until

pytestmark = [pytest.mark.xdist_group("daemon-crash-points"), pytest.mark.timeout(600)]
ALL = "THALIA_TEST_KILLS" in os.environ
SEED = int(os.environ.get("THALIA_TEST_SEED", "1"))
NUMBERS = range(2 * len(POINTS + DAEMON_POINTS) if ALL else 1)
PLAYED = [scene for scene in SCENES if ALL or not scene.slow]
IN_SLOW_SCENES = set[str]() if ALL else {"before_cut", "after_cut"}
ONCE_BROKEN = {
    "after_gateway": "a daemon that dies as soon as it listens is started again by whoever asked",
    "after_request": "a session runs with the variables of who asked for it, whichever gateway gives it to a worker",
    "after_forget": "an end that the terminal did not hear is shown, though the worktree has been given back",
    "before_stop": "`down` ends a daemon whose gateway dies under the question",
}
Points = dict[str, list[tuple[DaemonScene, str]]]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    before = shared_memory()
    with staging(tmp_path_factory.mktemp("stage")) as one:
        yield one
    # Others may use some of it for a moment.
    wait_until(lambda: shared_memory() <= before)


@pytest.fixture(scope="module")
def points(stage: Stage) -> Points:
    """By name, each occurrence in the first scene that reaches it, which plays without kills here."""
    found: Points = {}
    for scene in PLAYED:
        scene.prepare(stage)
        scene.play(stage)
        check(stage, scene, ())
        reached = stage.reached()
        for name in set(reached) - set(found):
            found[name] = [(scene, f"{name}:{count + 1}") for count in range(reached.count(name))]
    return found


def test_every_point_of_the_daemon_is_reached(points: Points) -> None:
    never = set(DAEMON_POINTS) - set(points) - IN_SLOW_SCENES
    undeclared = set(points) - {*DAEMON_POINTS, *POINTS}
    assert not never and not undeclared, f"never reached: {never}; not declared: {undeclared}"


@pytest.mark.parametrize("name", ONCE_BROKEN)
def test_a_kill_at_a_point_where_it_once_mattered_is_noticed_by_nobody(name: str, stage: Stage, points: Points) -> None:
    scene, place = points[name][0]
    assert strike(stage, scene, place), ONCE_BROKEN[name]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_daemon_recovers_from_a_kill_at_a_point_and_from_another_meanwhile(
    number: int, stage: Stage, points: Points
) -> None:
    random, names = Random(SEED * 1000 + number), sorted(points)
    name = names[number % len(names)] if ALL else random.choice(names)
    scene, place = random.choice(points[name])
    reached = strike(stage, scene, place)
    if reached:
        second = random.choice(sorted({one.partition(":")[0] for one in reached}))
        strike(stage, scene, place, random.choice([one for one in reached if one.partition(":")[0] == second]))
