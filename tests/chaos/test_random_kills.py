"""Sessions killed at random moments, again and again, by SIGKILL of the program, of the processes around its commands,
or of everything that carries the run's mark."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from eventlog.anchor import Head
from processes.tree import send
from tests.chaos.arena import Arena, Kind, kill
from tests.chaos.background_scene import BACKGROUND
from tests.chaos.fan_scene import FANNING, FANNING_UNCONFINED
from tests.chaos.judging import check_end, look_after_kill
from tests.chaos.scenes import SCENES, UNCONFINED

KILLS_A_SESSION = 5
KILLS = int(os.environ.get("THALIA_TEST_KILLS", "28")) * 9 // 10
"""The others are for parts of a daemon."""
SESSIONS = max(KILLS // KILLS_A_SESSION, 1)
SEED = int(os.environ.get("THALIA_TEST_SEED", "1"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(SESSIONS))
def test_a_session_killed_at_random_ends_as_if_nothing_had_happened(number: int, tmp_path: Path) -> None:
    random = Random(SEED * 1000 + number)
    scene = (SCENES[0], UNCONFINED, FANNING, random.choice(SCENES), FANNING_UNCONFINED, BACKGROUND)[number % 6]
    with scene.make(tmp_path) as arena:
        scene.begin(arena)
        heads: list[Head] = []
        for _ in range(KILLS_A_SESSION):
            kill_once(arena, scene.go_on(arena), random, ("harness", "wrapper", "everything"))
            head = look_after_kill(arena)
            heads += [head] if head is not None else []
        while True:
            command = scene.go_on(arena)
            assert arena.start(*command).wait(120) == 0, arena.errors()
            if command[0] != "rewind":
                break
        check_end(scene, arena, heads)


def kill_once(arena: Arena, command: Sequence[str], random: Random, kinds: Sequence[Kind]) -> None:
    """At a random moment after the start. Without its wrapper the session lives on and deals with it: it is ended too,
    somewhat later."""
    run = arena.start(*command)
    wait_a_while(run.poll, random.uniform(0.05, 3.0))
    kind = random.choice(list(kinds))
    kill(run, kind)
    if kind == "wrapper":
        wait_a_while(run.poll, random.uniform(0.0, 1.0))
        kill(run, "everything")
    if kind != "harness":
        # Whatever carries the mark, be it no descendant any more.
        send(arena.survivors(), signal.SIGKILL)
    run.wait()


def wait_a_while(ended: Callable[[], int | None], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end and ended() is None:
        time.sleep(0.005)
