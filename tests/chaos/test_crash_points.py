"""SIGKILL at each named point of a session, and once more during the recovery.

One run without kills lists the points. Of each name the first, the last and a drawn occurrence are killed at; a seeded
part in `make test`, all of them in `make crash`."""

import os
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from actors.history import Verified, verify
from tests.chaos.arena import FINAL, Arena, check_acknowledged, check_log, failed_calls, kill, unknown_calls

ALL = "THALIA_TEST_KILLS" in os.environ
SEED = int(os.environ.get("THALIA_TEST_SEED", "1"))
SEEDED = 14
WRAPPER = ("before_lock", "after_lock", "after_start", "after_spawn", "before_done", "after_done_tmp", "after_done")
EXPECTED = {
    "before_commit",
    "after_commit",
    "after_anchor",
    "before_call_model",
    "after_call_model",
    "before_run_tool",
    "after_run_tool",
    "before_make_worktree",
    "after_make_worktree",
    "before_take_snapshot",
    "after_take_snapshot",
    "before_merge_work",
    "after_merge_work",
    "before_rename",
    "after_rename",
    "snapshot_before_ref",
    "snapshot_after_ref",
    "commit_before_ref",
    "commit_after_ref",
}


@cache
def points() -> tuple[str, ...]:
    """`name:count` for each occurrence that is killed at."""
    with TemporaryDirectory() as folder, Arena(Path(folder)) as arena:
        trace = Path(folder) / "trace"
        options = ("exec", "Do it.", "-m", "openai/test", "--merge")
        assert arena.start(*options, trace=trace).wait(120) == 0, arena.errors()
        seen: dict[str, int] = {}
        for line in trace.read_text().split():
            name, _, count = line.partition(":")
            seen[name] = int(count)
    missing = EXPECTED - seen.keys()
    assert not missing, f"these points were never reached: {sorted(missing)}"
    random = Random(SEED)
    chosen = [f"{n}:{c}" for n, last in sorted(seen.items()) for c in {1, last, random.randint(1, last)}]
    return (*chosen, *(f"wrapper:{name}" for name in WRAPPER))


def numbers() -> range:
    return range(len(points())) if ALL else range(SEEDED)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", numbers())
def test_a_kill_at_a_point_and_another_in_its_recovery_change_nothing(number: int, tmp_path: Path) -> None:
    found = points()
    point = found[number] if ALL else Random(SEED * 100 + number).choice(found)
    second = Random(SEED * 100 + number + 7).choice(found)
    with Arena(tmp_path) as arena:
        for place in (point, second):
            run = arena.go_on(crash_at=place, last=True)
            run.wait(120)
            kill(run, "everything")
        assert arena.finish() == 0, f"{point}, then {second}: {arena.errors()}"
        events = arena.events()
        check_log(events)
        check_acknowledged(arena, events)
        assert isinstance(verify(events), Verified)
        # Where every wrapper of a run dies at this point, the model is told: unknown, or failed before it began.
        told = "wrapper" in point + second and bool(unknown_calls(events) or failed_calls(events))
        assert arena.files() == FINAL or told, f"{point}, then {second}"
        assert arena.survivors() == []
