"""Sessions of a machine that was started anew: killed or at rest, their files torn or a person's, taken up again."""

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from actors.restarting import restore_first
from agent.apply import TORN_TEXT
from agent.fakes import ScriptedWorld
from agent.folding import fold_events
from agent.loop import Loop
from agent.state import State
from eventlog.effects import RestoreTree, RunTool
from eventlog.events import Body, EffectFinished, EffectStarted, Event, SessionOpened
from eventlog.ids import CallId
from eventlog.memory import MemoryLog
from eventlog.messages import UserMessage
from eventlog.outcomes import SnapshotTaken
from frontends.terminal.lines import Seen, lines_of
from tests.agent.core_bodies import (
    BASE,
    OPENING,
    PlainPlanner,
    asked_for,
    fold_bodies,
    interrupted,
    said,
    started,
    taken,
    tool,
)
from tests.chaos.arena import COUNT, EDIT, FINAL, PROGRAM, Arena
from tests.chaos.invariants import check_session
from tests.worktrees.repositories import plain_git

pytestmark = [pytest.mark.xdist_group("restarting"), pytest.mark.timeout(120)]
TORN = "\0\0\0\0"
KEPT = "before-restart"
TURNS = [
    {"tool_calls": [EDIT, {"name": "shell", "arguments": {"command": COUNT}}]},
    {"tool_calls": [{"name": "write", "arguments": {"path": "b.txt", "content": "new\n"}}]},
    {"text": "Done."},
]
RESTORE = RestoreTree(commit=BASE, kept_as="before-restart/2")


class Machine(Arena):
    """An arena that can be switched off."""

    def boot(self, name: str) -> None:
        self.program = ("/usr/bin/env", f"THALIA_CRASH_BOOT={name}", *PROGRAM)

    def die(self, point: str) -> None:
        assert self.go_on(crash_at=point).wait(60) == -signal.SIGKILL, self.errors()

    def rest(self) -> None:
        """To the end of the turn; nothing is merged."""
        assert self.go_on().wait(60) == 0, self.errors()

    @property
    def worktree(self) -> Path:
        ready = fold_events(self.events()).worktree
        assert ready is not None
        return Path(ready.path)

    def tear(self, name: str = "a.py") -> None:
        """As long and as old as it was, and empty."""
        path = self.worktree / name
        times = path.stat()
        path.write_text(TORN)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def kept(self) -> list[str]:
        """Each content of a.py that a ref before a restore holds, from the first."""
        refs = plain_git(self.repository, "for-each-ref", "--format=%(refname)", "refs/thalia").split()
        kept, others = [ref for ref in refs if KEPT in ref], [f"^{ref}" for ref in refs if KEPT not in ref]
        commits = plain_git(self.repository, "rev-list", "--reverse", *kept, *others).split() if kept else []
        return [plain_git(self.repository, "show", f"{commit}:a.py") for commit in commits]

    def restored(self) -> list[SnapshotTaken]:
        finished = [event.body for event in self.events() if isinstance(event.body, EffectFinished)]
        outcomes = [body.outcome for body in finished if body.call_id.startswith("r")]
        return [outcome for outcome in outcomes if isinstance(outcome, SnapshotTaken)]

    def warnings(self) -> list[str]:
        seen = Seen()
        return [line for event in self.events() for line in lines_of(event, seen) if line.startswith("!")]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path, TURNS)
    machine.boot("first")
    with machine:
        yield machine


def told(events: Sequence[Event]) -> list[str]:
    return [message.text for message in fold_events(events).messages if isinstance(message, UserMessage)]


def attempts(events: Sequence[Event], command: str) -> int:
    bodies = [event.body for event in events if isinstance(event.body, EffectStarted)]
    tools = [body.effect for body in bodies if isinstance(body.effect, RunTool)]
    return sum(command.splitlines()[0][:12] in effect.arguments for effect in tools)


def test_a_session_that_lost_power_while_a_command_ended_runs_it_again_on_whole_files(machine: Machine) -> None:
    machine.die("after_run_tool:2")
    assert (machine.worktree / "counter.txt").read_text() == "begun\nended\n"
    machine.tear()
    machine.boot("second")
    assert machine.finish() == 0, machine.errors()
    assert machine.files() == FINAL
    assert attempts(machine.events(), COUNT) == 2
    assert machine.kept() == [TORN]
    assert len(machine.warnings()) == 1 and KEPT in machine.warnings()[0]
    assert TORN_TEXT not in told(machine.events())
    check_session(machine.events())


def test_on_the_same_boot_what_had_ended_counts_and_nothing_is_set_back(machine: Machine) -> None:
    machine.die("after_run_tool:2")
    assert machine.finish() == 0, machine.errors()
    assert machine.files() == FINAL
    assert attempts(machine.events(), COUNT) == 1
    assert (machine.kept(), machine.restored(), machine.warnings()) == ([], [], [])


def test_a_snapshot_that_the_log_does_not_know_of_says_what_the_files_were(machine: Machine) -> None:
    machine.die("after_take_snapshot:2")
    machine.tear()
    (machine.worktree / "counter.txt").unlink()
    machine.boot("second")
    assert machine.finish() == 0, machine.errors()
    assert machine.files() == FINAL
    assert attempts(machine.events(), COUNT) == 1
    assert machine.kept() == [TORN] and TORN_TEXT not in told(machine.events())
    check_session(machine.events())


def test_where_nobody_knows_what_a_command_had_written_the_model_is_told(machine: Machine) -> None:
    machine.die("before_take_snapshot:2")
    machine.boot("second")
    machine.die("before_take_snapshot:1")
    assert machine.finish() == 0, machine.errors()
    assert machine.files() == FINAL
    assert told(machine.events()).count(TORN_TEXT) == 1
    assert len(machine.warnings()) == 1 and machine.restored() == []
    check_session(machine.events())


@pytest.mark.parametrize(
    ("point", "kept"),
    [("restore_after_remove:1", [TORN, TORN]), ("after_restore_tree:1", [TORN])],
    ids=["begun", "done"],
)
def test_a_restore_that_is_killed_is_done_again_and_forgets_nothing(
    point: str, kept: list[str], machine: Machine
) -> None:
    machine.die("after_run_tool:2")
    machine.tear()
    machine.boot("second")
    machine.die(point)
    machine.boot("third")
    assert machine.finish() == 0, machine.errors()
    assert machine.files() == FINAL
    assert machine.kept() == kept and len(machine.restored()) == 1
    check_session(machine.events())


@pytest.mark.parametrize("at_rest", [True, False])
def test_an_orderly_restart_is_silent(at_rest: bool, machine: Machine) -> None:
    machine.rest() if at_rest else machine.die("after_call_model:3")
    machine.boot("second")
    assert machine.finish() == 0, machine.errors()
    assert machine.files() == FINAL
    assert [outcome.changed for outcome in machine.restored()] == [False]
    assert (machine.kept(), machine.warnings()) == ([], [])
    assert told(machine.events()) == ["Do it."]


def test_what_a_person_changed_while_nothing_ran_stays_theirs(machine: Machine) -> None:
    machine.rest()
    (machine.worktree / "a.py").write_text("mine\n")
    (machine.worktree / "new.txt").write_text("mine too\n")
    machine.boot("second")
    machine.rest()
    assert (machine.worktree / "a.py").read_text() == "mine\n"
    assert (machine.worktree / "new.txt").read_text() == "mine too\n"
    assert (machine.kept(), machine.warnings()) == ([], [])


@pytest.mark.parametrize(("gone", "kept"), [(False, TORN), (True, "two")], ids=["torn", "gone"])
def test_what_was_torn_right_after_the_end_of_a_turn_is_whole_again(gone: bool, kept: str, machine: Machine) -> None:
    machine.rest()
    (machine.worktree / "b.txt").unlink() if gone else machine.tear()
    (machine.worktree / "new.txt").write_text("mine\n")
    machine.boot("second")
    machine.rest()
    assert (machine.worktree / "a.py").read_text() == FINAL["a.py"]
    assert (machine.worktree / "b.txt").read_text() == FINAL["b.txt"]
    assert machine.kept() == [kept] and len(machine.warnings()) == 1
    [ref] = [outcome.kept_at for outcome in machine.restored()]
    assert plain_git(machine.repository, "show", f"{ref}:new.txt") == "mine"


def test_an_edit_whose_file_was_torn_is_made_on_the_file_as_it_was(tmp_path: Path) -> None:
    machine = Machine(tmp_path, [{"tool_calls": [EDIT]}, {"text": "Done."}])
    machine.boot("first")
    with machine:
        machine.die("after_run_tool:1")
        machine.tear()
        machine.boot("second")
        assert machine.finish() == 0, machine.errors()
        assert machine.files() == {"a.py": "two\n"}
        assert machine.kept() == [TORN]


def running(boot: str) -> State:
    """A command is under way."""
    opening = [boots(boot, 1), *OPENING]
    command = tool("shell", confined=True, snapshot=BASE)
    return fold_bodies([started("c1_1", command)], asked_for("shell", opening=opening))


def boots(name: str, epoch: int = 2) -> SessionOpened:
    return SessionOpened(epoch=epoch, version="0", pid=1, host="h", boot=name)


async def let_it_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def loop_and_world(state: State) -> tuple[Loop, ScriptedWorld, MemoryLog]:
    world, log = ScriptedWorld(lambda intent: None), MemoryLog(epoch=2)
    return Loop(log, PlainPlanner(), world, state, lambda event: None), world, log


def kinds(log: MemoryLog) -> list[str]:
    return [event.body.kind for event in log.read()]


async def test_nothing_is_settled_or_heard_before_the_tree_is_set_back() -> None:
    loop, world, log = loop_and_world(running("before"))
    opened = boots("after")
    intent = EffectStarted(call_id=CallId("r2"), attempt=1, effect=RESTORE)
    first = asyncio.create_task(restore_first(loop, world, opened, intent))
    await let_it_run()
    heard: list[Body] = [said("More.", "u2"), interrupted(), said("And more.", "u3")]
    for body in heard[:2]:
        loop.inbox.put_nowait(body)
    await let_it_run()
    assert kinds(log) == ["session_opened", "effect_started"] and world.interrupted == []
    world.finish(CallId("r2"), taken("c"))
    loop.inbox.put_nowait(heard[2])
    await first
    assert kinds(log) == ["session_opened", "effect_started", "effect_finished"]
    assert [loop.inbox.get_nowait() for _ in heard] == heard
    assert [one.call_id for one in world.started] == ["r2"]


async def test_a_restore_that_was_left_open_is_carried_on_with_under_its_intent() -> None:
    left = fold_bodies([started("r2", RESTORE)], running("before"))
    loop, world, log = loop_and_world(left)
    opened, intent = boots("after", 3), EffectStarted(call_id=CallId("r2"), attempt=1, effect=RESTORE)
    first = asyncio.create_task(restore_first(loop, world, opened, intent))
    await let_it_run()
    world.finish(CallId("r2"), taken("c"))
    await first
    assert kinds(log) == ["session_opened", "effect_finished"]
    assert loop.state.open.keys() == {"c1_1"}


async def test_a_defect_while_the_tree_is_set_back_ends_the_run() -> None:
    loop, world, _ = loop_and_world(running("before"))
    opened, intent = boots("after"), EffectStarted(call_id=CallId("r2"), attempt=1, effect=RESTORE)
    loop.inbox.put_nowait(ValueError("a defect"))
    with pytest.raises(ValueError, match="a defect"):
        await restore_first(loop, world, opened, intent)
