"""SIGKILL at each named point between a session and its agents on other nodes, also while one of these is lost.

As test_daemon_crash_points.py, on a cluster. Killed is whoever reaches the point: the session's process, an agent's on
its node, or what carries between them."""

import os
from collections.abc import Iterator
from random import Random

import pytest

from configs.crash import DAEMON_POINTS, FAR_POINTS, POINTS
from tests.chaos.daemon_scenes import DaemonScene, check, strike
from tests.chaos.far_scenes import SCENES, FarStage, check_nodes, far_staging

pytestmark = [pytest.mark.xdist_group("far-crash-points"), pytest.mark.timeout(600)]
ALL = "THALIA_TEST_KILLS" in os.environ
SEED = int(os.environ.get("THALIA_TEST_SEED", "1"))
OF_AGENTS = {*FAR_POINTS, "before_lease", "after_lease", "before_fence", "after_fence", "before_run_tool"}
OF_AGENTS |= {"after_run_tool", "snapshot_before_ref", "snapshot_after_ref", "result_before_ref", "result_after_ref"}
NUMBERS = range(2 * len(OF_AGENTS) if ALL else 2)
Points = dict[str, list[tuple[DaemonScene, str]]]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FarStage]:
    with far_staging(tmp_path_factory.mktemp("stage")) as one:
        yield one


@pytest.fixture(scope="module")
def points(stage: FarStage) -> Points:
    """By name, each occurrence in each scene, which plays without kills here."""
    found: Points = {}
    for scene in SCENES:
        scene.prepare(stage)
        scene.play(stage)
        check(stage, scene, ())
        check_nodes(stage)
        reached = stage.reached()
        for name in sorted(set(reached)):
            found.setdefault(name, []).extend((scene, f"{name}:{n + 1}") for n in range(reached.count(name)))
    return found


def test_every_point_of_agents_elsewhere_is_reached(points: Points) -> None:
    never = set(FAR_POINTS) - set(points)
    undeclared = set(points) - {*FAR_POINTS, *DAEMON_POINTS, *POINTS}
    assert not never and not undeclared, f"never reached: {never}; not declared: {undeclared}"


@pytest.mark.parametrize("number", NUMBERS)
def test_an_agent_elsewhere_recovers_from_a_kill_at_a_point_and_from_another_meanwhile(
    number: int, stage: FarStage, points: Points
) -> None:
    random, names = Random(SEED * 1000 + number), sorted(OF_AGENTS & set(points))
    name = names[number % len(names)] if ALL else random.choice(names)
    scene, place = random.choice(points[name])
    reached = [one for one in strike(stage, scene, place) if one.partition(":")[0] in OF_AGENTS]
    check_nodes(stage)
    # An agent may die twice in a round; in the other scene its node does, too.
    if reached and scene.exact:
        strike(stage, scene, place, random.choice(reached))
        check_nodes(stage)
