"""Sessions killed at random moments, again and again, by SIGKILL of the harness, of a wrapper, or of everything."""

import os
from pathlib import Path
from random import Random

import pytest

from actors.history import Verified, verify
from tests.chaos.arena import (
    FINAL,
    SECRET,
    Arena,
    check_acknowledged,
    check_log,
    failed_calls,
    kill_at_random,
    unknown_calls,
)

KILLS_A_SESSION = 5
SESSIONS = max(int(os.environ.get("THALIA_TEST_KILLS", "30")) // KILLS_A_SESSION, 1)
SEED = int(os.environ.get("THALIA_TEST_SEED", "1"))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(SESSIONS))
def test_a_session_killed_at_random_ends_as_if_nothing_had_happened(number: int, tmp_path: Path) -> None:
    random = Random(SEED * 1000 + number)
    with Arena(tmp_path) as arena:
        kill_at_random(arena, random, KILLS_A_SESSION, ("harness", "wrapper", "everything"))
        assert arena.finish() == 0, arena.errors()
        events = arena.events()
        check_log(events)
        check_acknowledged(arena, events)
        assert isinstance(verify(events), Verified)
        assert arena.files() == FINAL or unknown_calls(events) or failed_calls(events)
        assert arena.survivors() == []
        assert_no_secret_in(arena.home)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(max(SESSIONS // 3, 1)))
def test_an_unconfined_command_is_never_done_twice(number: int, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    turns = [
        {"tool_calls": [{"name": "shell", "arguments": {"command": f"echo {index} >> {ledger}; sleep 0.1"}}]}
        for index in range(6)
    ]
    random = Random(SEED * 1000 + 500 + number)
    options = ("--dangerously-bypass-approvals-and-sandbox",)
    with Arena(tmp_path, [*turns, {"text": "Done."}], options) as arena:
        kill_at_random(arena, random, KILLS_A_SESSION, ("harness", "everything"))
        assert arena.finish() == 0, arena.errors()
        check_log(arena.events())
        done = ledger.read_text().split()
        unknown = unknown_calls(arena.events())
        assert len(done) == len(set(done)), "an effect happened twice"
        missing = {str(index) for index in range(6)} - set(done)
        assert len(missing) <= len(unknown), "an effect is missing and nobody was told"
        assert arena.survivors() == []


def assert_no_secret_in(folder: Path) -> None:
    holding = [path for path in folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert [path for path in holding if "worktrees" not in path.parts] == []
