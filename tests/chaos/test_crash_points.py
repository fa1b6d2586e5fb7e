"""SIGKILL at each named point of a session, and once more during the recovery.

One run of each scene without kills lists the points that it reaches. Each occurrence is killed at, `make crash` does
them all, `make test` a seeded part; then again, with a second kill at a point that the recovery reached."""

import os
import signal
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from configs.crash import POINTS, WRAPPER_POINTS
from eventlog.anchor import Head
from eventlog.events import EffectFinished, Event
from eventlog.outcomes import ToolFailed
from processes.tree import send
from tests.chaos.arena import Arena
from tests.chaos.background_scene import BACKGROUND
from tests.chaos.fan_scene import FANNING
from tests.chaos.invariants import told
from tests.chaos.judging import check_end, look_after_kill
from tests.chaos.scenes import SCENES, Scene, ledger, posted

ALL = "THALIA_TEST_KILLS" in os.environ
SEED = int(os.environ.get("THALIA_TEST_SEED", "1"))
SEEDED = 10
COMMANDS = ((SCENES[0], 5), (FANNING, 9))
"""Of a session: each has a process around it."""


@cache
def points() -> tuple[tuple[Scene, str], ...]:
    """Each occurrence, `name:count`, by the scene that reaches it; one that an earlier scene has is not repeated."""
    found: list[tuple[Scene, str]] = []
    known: set[str] = set()
    for scene in (*SCENES, FANNING, BACKGROUND):
        for name in trace_of(scene):
            if name not in known:
                known.add(name)
                found.append((scene, name))
    names = {name.partition(":")[0] for name in known}
    assert names == set(POINTS), f"never reached: {set(POINTS) - names}; not declared: {names - set(POINTS)}"
    wrappers: list[tuple[Scene, str]] = []
    for scene, commands in COMMANDS:
        for name in WRAPPER_POINTS:
            wrappers += [(scene, f"wrapper:{name}:{number}") for number in range(1, commands + 1)]
            wrappers += [(scene, f"wrapper:{name}")]
    return (*found, *wrappers)


def trace_of(scene: Scene) -> list[str]:
    with TemporaryDirectory() as folder, scene.make(Path(folder)) as arena:
        scene.begin(arena)
        trace = Path(folder) / "trace"
        # A run after another: what goes on after the first is reached too.
        crash_at = f"wrapper:{scene.wrapper}" if scene.wrapper else ""
        assert arena.start(*scene.go_on(arena), crash_at=crash_at, trace=trace).wait(120) == 0, arena.errors()
        return trace.read_text().split()


def cases() -> list[object]:
    """By the scene and the place where all are done: `-k fanning` does one scene's."""
    if not ALL:
        return list(range(SEEDED))
    return [pytest.param(number, id=f"{scene.name}-{place}") for number, (scene, place) in enumerate(points())]


def chosen(number: int) -> tuple[Scene, str]:
    if ALL:
        return points()[number]
    # Each name as often as the other, be it reached once or forty times.
    random = Random(SEED * 100 + number)
    name = random.choice(sorted({place.rpartition(":")[0] for _, place in points()}))
    found = [(scene, place) for scene, place in points() if place.rpartition(":")[0] == name]
    # What a shorter scene reaches too is killed there.
    return random.choice([one for one in found if one[0] is not FANNING] or found)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", cases())
def test_a_kill_at_a_point_changes_nothing(number: int, tmp_path: Path) -> None:
    scene, point = chosen(number)
    reached = die_and_recover(scene, tmp_path, point)
    assert reached, f"{point} was not reached"
    # Nobody survives the second kill: nothing can be adopted.
    assert die_and_recover(scene, tmp_path, point, Random(SEED * 100 + number).choice(reached))


def die_and_recover(scene: Scene, tmp_path: Path, *places: str) -> list[str]:
    """The points that the recovery reached. How often a run commits depends on what comes in at once, so a point that
    this one did not reach is tried at its turn before; empty where that was its first."""
    folder = tmp_path / "-".join(places).replace(":", ".")
    folder.mkdir()
    with scene.make(folder) as arena:
        scene.begin(arena)
        heads: list[Head] = []
        for number, place in enumerate(places):
            if not die(scene, arena, place) and number == 0:
                break
            send(arena.survivors() if number else [], signal.SIGKILL)
            head = look_after_kill(arena)
            heads += [head] if head is not None else []
        else:
            reached = recover(scene, arena, folder / "trace")
            check(scene, arena, heads, places)
            return reached
    name, _, count = places[0].rpartition(":")
    return die_and_recover(scene, tmp_path, f"{name}:{int(count) - 1}", *places[1:]) if int(count) > 1 else []


def die(scene: Scene, arena: Arena, place: str) -> bool:
    """Whether it died there. Where the process around a command does, the session lives on and deals with it."""
    crash_at = f"{place} wrapper:{scene.wrapper}" if scene.wrapper else place
    code = arena.start(*scene.go_on(arena), crash_at=crash_at).wait(120)
    return code == -signal.SIGKILL or "wrapper:" in place


def recover(scene: Scene, arena: Arena, trace: Path) -> list[str]:
    """Go on without kills to the end and the merge."""
    while True:
        command = scene.go_on(arena)
        assert arena.start(*command, trace=trace).wait(120) == 0, arena.errors()
        if command[0] in ("exec", "resume"):
            return trace.read_text().split()


def denied(events: Sequence[Event]) -> bool:
    """Whether the log says that what was to be done outside was not done."""
    ends = [event.body.outcome for event in events if isinstance(event.body, EffectFinished)]
    return any(
        isinstance(end, ToolFailed) and "Asked by its key afterwards, it was not done." in end.text for end in ends
    )


def check(scene: Scene, arena: Arena, heads: Sequence[Head], places: Sequence[str]) -> None:
    check_end(scene, arena, heads)
    if "wrapper" not in " ".join(places):
        # Whoever died: the other side knows what became of it. A program that was hit itself is not begun again.
        assert sorted(posted(arena)) == ([] if denied(arena.events()) else list(scene.posted))
    if len(places) == 1 and "wrapper" not in places[0]:
        # What was under way lived on, was adopted, and nobody needs to be told of anything.
        assert told(arena.events()) == []
        assert ledger(arena) == list(scene.ledger)
