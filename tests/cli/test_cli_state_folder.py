"""The state folder: full, read-only, open to others, damaged. Nothing acknowledged is lost, and a sentence says so."""

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_program import WORK, Place, serving, shell, wait_until

from eventlog.events import DamageAccepted


@contextmanager
def mounted(target: Path, options: str) -> Iterator[None]:
    """A file system of its own. Needs root."""
    target.mkdir(mode=0o700, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(target)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)


def test_a_full_disk_stops_the_session_and_space_lets_it_go_on(place: Place) -> None:
    """G43."""
    turn = {"text": "x" * 60_000, "tool_calls": [shell("head -c 200000 /dev/urandom | base64")]}
    with mounted(place.home, "size=5m,mode=700"), serving(*[turn] * 40, {"text": "Done."}) as server:
        place.use(server)
        ballast = place.home / "ballast"
        ballast.write_bytes(b"\0" * 1_000_000)
        result = place.run("exec", "Do it.", "-m", "openai/test", "--max-turns", "30")
        assert result.code == 10, result
        assert result.err.count("\n") == 1, result.err
        assert "cannot be written" in result.err
        ballast.unlink()
        before = place.events()
        assert len(before) > 10
        result = place.run("resume", "--last", "--max-turns", "1")
        assert place.events()[: len(before)] == before
        assert result.code in (10, 12), result


@pytest.mark.alone("the daemon that it starts inherits the limit, and then Ray cannot start")
def test_a_limit_on_the_size_of_files_is_a_full_disk_too(place: Place) -> None:
    turns = [{"tool_calls": [shell("head -c 9000 /dev/urandom | base64")]}] * 60
    model = place.script(*turns)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (700_000, 700_000))

    result = place.run("exec", "Do it.", "-m", model, preexec_fn=limit)
    assert result.code == 10, result
    assert result.err.count("\n") == 1, result.err
    assert "cannot be written" in result.err
    before = place.events()
    assert place.run("resume", "--last", "--max-turns", "1").code == 12
    assert place.events()[: len(before)] == before


def test_a_read_only_state_folder_is_named(place: Place) -> None:
    with mounted(place.home, "ro,mode=700"):
        result = place.run("exec", "Do it.", "-m", place.script(*WORK))
        assert (result.code, result.err.count("\n")) == (10, 1), result
        assert str(place.home) in result.err
        assert "THALIA_HOME" in result.err
        assert place.run("sessions").code == 0
        assert place.run("doctor").code == 10
    assert place.worktrees() == []


def test_a_session_that_others_can_read_is_refused(place: Place) -> None:
    assert place.run("exec", "Do it.", "-m", place.script(*WORK)).code == 0
    place.session_folder().chmod(0o755)
    for command in ("resume", "log", "merge"):
        result = place.run(command)
        assert (result.code, result.err.count("\n")) == (10, 1), result
        assert "chmod" in result.err
    place.session_folder().chmod(0o700)
    assert place.run("log").code == 0


def test_in_a_state_folder_that_others_can_read_sessions_are_closed(place: Place) -> None:
    place.home.mkdir(mode=0o755)
    place.home.chmod(0o755)
    result = place.run("exec", "Do it.", "-m", place.script(*WORK))
    assert result.code == 0
    for path in [place.home / "sessions", place.home / "worktrees"]:
        assert path.stat().st_mode & 0o077 == 0, path
    assert "chmod 700" in place.run("doctor").out


def test_everything_in_the_state_folder_is_the_users_alone(place: Place) -> None:
    """G21, with a permissive umask and a kill."""
    turn = {"tool_calls": [shell("seq 200000; sleep 60")]}
    with serving(turn) as server:
        place.use(server)
        with place.start("exec", "Do it.", "-m", "openai/test", umask=0o000) as run:
            wait_until(lambda: any(place.home.glob("sessions/*/calls/*/start")))
            run.kill()
            run.communicate(timeout=30)
    # The project's files keep the project's modes, and the sandbox's /etc those of /etc; the folders around are closed.
    apart = [place.home / "worktrees", *place.home.glob(".etc-*")]
    open_to_others = [
        path
        for path in (place.home, *place.home.rglob("*"))
        if not path.is_symlink() and path.stat().st_mode & 0o077 and not any(map(path.is_relative_to, apart))
    ]
    assert open_to_others == []
    assert apart[0].stat().st_mode & 0o077 == 0


def damaged_session(place: Place) -> int:
    """A session that was killed, so that its last events are in the WAL alone. Their number."""
    crash = {"THALIA_CRASH_AT": "before_call_model:2"}
    assert place.run("exec", "Do it.", "-m", place.script(*WORK), "--no-daemon", env=crash).code == -9
    return len(place.events())


def test_lost_events_are_counted_and_can_be_given_up(place: Place) -> None:
    whole = damaged_session(place)
    assert whole > 5
    wal = place.session_folder() / "log.duckdb.wal"
    kept = wal.read_bytes()
    wal.unlink()
    for command in ("resume", "log", "replay", "fork", "merge"):
        result = place.run(command, place.session())
        assert (result.code, result.err.count("\n")) == (10, 1), result
        assert f"{whole} acknowledged events lost" in result.err, result.err
        assert "--accept-damage" in result.err
    assert f"{whole} acknowledged events lost" in place.run("sessions").out
    wal.write_bytes(kept)
    assert len(place.events()) == whole


@pytest.mark.both_ways
def test_accepted_damage_goes_on_without_the_lost_events(place: Place) -> None:
    assert place.run("exec", "Do it.", "-m", place.script(*WORK)).code == 0
    finished, folder = place.events(), place.session_folder()
    wal = folder / "log.duckdb.wal"
    length = wal.stat().st_size
    crash = {"THALIA_CRASH_AT": "before_call_model:1"}
    assert place.run("resume", "--last", "More.", "--no-daemon", env=crash).code == -9
    lost = len(place.events()) - len(finished)
    assert lost > 0
    os.truncate(wal, length)
    result = place.run("resume", "--last")
    assert f"{lost} acknowledged event" in result.err
    result = place.run("resume", "--last", "Again.", "--accept-damage")
    assert (result.code, result.err) == (0, ""), result
    assert f"! events {len(finished) + 1} to {len(finished) + lost} are lost" in result.out
    events = place.events()
    assert events[: len(finished)] == finished
    assert isinstance(events[len(finished)].body, DamageAccepted)
    assert list(folder.glob("damaged/*/log.duckdb"))


def test_a_missing_anchor_is_damage_of_unknown_size(place: Place) -> None:
    assert place.run("exec", "Do it.", "-m", place.script(*WORK)).code == 0
    before = place.events()
    (place.session_folder() / "head").unlink()
    result = place.run("resume", "--last")
    assert (result.code, result.err.count("\n")) == (10, 1), result
    assert "anchor" in result.err
    assert "an unknown number of acknowledged events lost" in result.err
    assert place.run("resume", "--last", "--accept-damage").code == 0
    assert place.events()[: len(before)] == before


def test_a_folder_that_is_no_session_does_not_hide_the_others(place: Place) -> None:
    assert place.run("exec", "Do it.", "-m", place.script(*WORK)).code == 0
    name = place.session()
    shutil.copytree(place.session_folder(), place.home / "sessions" / "broken")
    (place.home / "sessions" / "broken" / "log.duckdb").write_bytes(b"nonsense")
    (place.home / "sessions" / "stray").mkdir()
    (place.home / "sessions" / "file").write_text("x")
    result = place.run("sessions")
    assert (result.code, result.err) == (0, "")
    assert name in result.out
    assert "broken  ! The log is damaged" in result.out
    assert place.run("log", "--last").code == 0
    result = place.run("sql", "SELECT count(*) AS n FROM log")
    assert result.code == 0, result
    assert "left out broken" in result.err
