"""A session whose disk fills up at each of its steps: nothing is done whose intent is not stored, and freed space lets
it go on, with every acknowledged event and each effect once. G43.

State folder and repository are on a file system of a few megabytes. The session stops itself at a named point, the rest
of the disk is filled, and it goes on."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from actors.history import Verified, verify
from eventlog.effects import RunTool
from eventlog.events import EffectFinished, EffectStarted
from eventlog.outcomes import ToolFailed
from processes.tree import fields
from tests.chaos.arena import PROGRAM, Arena, check_acknowledged, check_log, wait_until

pytestmark = pytest.mark.timeout(240)
ALL = "THALIA_TEST_KILLS" in os.environ
SIZE = 12 * 1024 * 1024
BLOCKED = 10

UNCONFINED = "--dangerously-bypass-approvals-and-sandbox"
SETTINGS = "log_checkpoint_mib = 0.001\n"
"""Checkpoints in each quiet moment."""


def turns(folder: Path) -> list[object]:
    """Each command counts itself outside of the product and of the small disk; the third one waits for a file."""

    def run(number: int, more: str = "") -> dict[str, object]:
        command = f"echo {number} >> {folder}/ledger{more}"
        return {"tool_calls": [{"name": "shell", "arguments": {"command": command}}]}

    return [
        run(1),
        {"tool_calls": [{"name": "write", "arguments": {"path": "b.txt", "content": "new\n" * 5000}}]},
        run(2),
        run(3, f"; until test -e {folder}/go; do sleep 0.02; done; seq 1 20000"),
        run(4),
        {"text": "Done."},
    ]


@dataclass(frozen=True)
class Disk:
    folder: Path

    def fill(self) -> None:
        """To the last byte."""
        with (self.folder / "ballast").open("wb", buffering=0) as ballast:
            for size in (65536, 4096, 512, 1):
                try:
                    while True:
                        ballast.write(bytes(size))
                except OSError:
                    continue

    def free(self) -> None:
        (self.folder / "ballast").unlink()


@contextmanager
def small_disk(folder: Path) -> Iterator[Disk]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},mode=700", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("no tmpfs can be mounted here")
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class SmallArena(Arena):
    """Its home and its repository are on the small disk; what the test itself writes is not."""

    @property
    def home(self) -> Path:
        return self.folder / "disk" / "home"

    @property
    def repository(self) -> Path:
        return self.folder / "disk" / "repo"


def stopped(pid: int) -> bool:
    return fields(pid)[:1] == [b"T"]


NAMED = {
    "while an intent is appended": "before_commit:3",
    "in a checkpoint": "before_checkpoint:3",
    "while a blob is written": "before_blob_write:1",
    "while a snapshot is taken": "snapshot_before_add:1",
}
FURTHER = {
    "while a result is appended": "before_commit:4",
    "before the anchor": "before_anchor_sync:6",
    "while a file is edited": "before_write:1",
    "before the snapshot's ref": "snapshot_before_ref:1",
    "while the worktree is made": "pool_before_add:1",
}
POINTS = {**NAMED, **FURTHER} if ALL else NAMED


@dataclass
class Scene:
    arena: Arena
    disk: Disk

    def begin(self, crash_at: str = "") -> "subprocess.Popen[Any]":
        return self.arena.start("exec", "Do it.", "-m", "openai/test", UNCONFINED, crash_at=crash_at)

    def ran(self) -> list[str]:
        ledger = self.arena.folder / "ledger"
        return ledger.read_text().split() if ledger.exists() else []


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    program = ("env", "THALIA_CRASH_SIGNAL=STOP", *PROGRAM)
    with (
        small_disk(tmp_path / "disk") as disk,
        SmallArena(tmp_path, turns(tmp_path), settings=SETTINGS, program=program) as arena,
    ):
        yield Scene(arena, disk)


@pytest.mark.parametrize("name", POINTS)
def test_a_disk_that_is_full_stops_the_session_and_loses_nothing(scene: Scene, name: str) -> None:
    run = scene.begin(POINTS[name])
    (scene.arena.folder / "go").touch()
    wait_until(lambda: stopped(run.pid), 60)
    scene.disk.fill()
    run.send_signal(signal.SIGCONT)
    assert run.wait(60) == BLOCKED, scene.arena.errors()
    check_stopped(scene)
    check_goes_on(scene)


def test_a_disk_that_is_full_when_a_command_writes_keeps_the_command_from_being_run_twice(scene: Scene) -> None:
    run = scene.begin()
    wait_until(lambda: scene.ran() == ["1", "2", "3"], 60)
    scene.disk.fill()
    (scene.arena.folder / "go").touch()
    assert run.wait(60) == BLOCKED, scene.arena.errors()
    check_stopped(scene)
    check_goes_on(scene)
    assert scene.ran() == ["1", "2", "3", "4"]


def test_a_file_that_may_not_grow_is_a_full_disk_too(tmp_path: Path) -> None:
    """A limit of 560 KB on the size of a file, and a text of 600 that the log has to keep beside it."""
    limited = ("bash", "-c", 'ulimit -f 560; exec "$0" "$@"', *PROGRAM)
    text = {"path": "big.txt", "content": "x" * 600_000}
    script = [{"tool_calls": [{"name": "write", "arguments": text}]}, {"text": "Done."}]
    with Arena(tmp_path, script, program=limited) as arena:
        assert arena.start("exec", "Do it.", "-m", "openai/test").wait(60) == BLOCKED
        assert sentences(arena)[-1].startswith("The log cannot be written (File too large)")
        arena.program = PROGRAM
        assert arena.finish() == 0, arena.errors()
        assert arena.files()["big.txt"] == text["content"]
        check_log(arena.events())
        check_acknowledged(arena, arena.events())


def sentences(arena: Arena) -> list[str]:
    """What a person was told, but for the warning that nothing is confined."""
    lines = [line for line in arena.errors().splitlines() if line.strip()]
    return [line for line in lines if "bypassed" not in line]


def check_stopped(scene: Scene) -> None:
    """One sentence; and whatever ran had its intent in the log before."""
    (told,) = sentences(scene.arena)
    assert told.startswith("The log cannot be ")
    assert "No space left on device" in told
    assert "ree space" in told
    bodies = [event.body for event in scene.arena.events()]
    intents = [body for body in bodies if isinstance(body, EffectStarted) and isinstance(body.effect, RunTool)]
    shells = [body for body in intents if isinstance(body.effect, RunTool) and body.effect.tool == "shell"]
    assert len(scene.ran()) <= len(shells)


def check_goes_on(scene: Scene) -> None:
    """With the space back, to the end; each command ran once, or its model was told that it never began."""
    arena = scene.arena
    scene.disk.free()
    before = arena.events()
    assert arena.start("resume", "--last", "--merge", UNCONFINED).wait(60) == 0, arena.errors()
    events = arena.events()
    assert events[: len(before)] == before
    check_log(events)
    check_acknowledged(arena, events)
    assert isinstance(verify(events), Verified)
    ran = scene.ran()
    assert len(ran) == len(set(ran)), "a command ran twice"
    outcomes = [event.body.outcome for event in events if isinstance(event.body, EffectFinished)]
    unstarted = [one for one in outcomes if isinstance(one, ToolFailed) and ("before it started" in one.text)]
    assert len(ran) + len(unstarted) == 4
    refused = [one for one in outcomes if isinstance(one, ToolFailed) and "Nothing was changed" in one.text]
    assert ("b.txt" in arena.files()) == (not refused)
    assert arena.survivors() == []
