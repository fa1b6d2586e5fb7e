"""Sessions that are interrupted, left, lost or owned by somebody else, and how each goes on."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from actors.coordinator import Coordinator
from actors.sessions import prepare_new
from agent.models.client import Delta
from eventlog.effects import RunTool
from eventlog.errors import LogBusy
from eventlog.events import Approved, Continued, Denied, EffectStarted, Event, UserSaid
from eventlog.ids import CommandId
from eventlog.messages import ToolMessage
from eventlog.opening import open_log
from eventlog.outcomes import Cancelled, OutcomeUnknown, ToolSucceeded
from eventlog.redact import Redactor
from eventlog.seams import SystemClock
from processes.calls import end_tree
from tests.actors.playing import (
    DONE,
    SESSION,
    Recorder,
    Stage,
    Watch,
    call,
    check_conversation,
    check_replay,
    shell,
    starts,
    tree,
    turn,
    wait_until,
)

ROOT = Path(__file__).resolve().parents[2]
EDIT = call("edit", path="a.txt", old_text="one", new_text="two")
LONG = shell("echo begun > begun.txt; sleep 60; echo ended > ended.txt")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def is_start(event: Event, call_id: str) -> bool:
    return isinstance(event.body, EffectStarted) and event.body.call_id == call_id


def interrupt_when(call_id: str, seen: str | None) -> Watch:
    """Interrupts once a call has begun and, where named, its file stands in the worktree."""

    def watch(coordinator: Coordinator, event: Event) -> None:
        if not is_start(event, call_id):
            return
        if seen is None:
            coordinator.interrupt(CommandId("stop"))
            return
        when_there(coordinator, event, call_id, seen, lambda: coordinator.interrupt(CommandId("stop")))

    return watch


def when_there(coordinator: Coordinator, event: Event, call_id: str, name: str, then: Callable[[], None]) -> None:
    """Once the call has begun and its file stands in the worktree."""
    if not is_start(event, call_id):
        return
    loop, worktree = asyncio.get_running_loop(), coordinator.state.worktree
    assert worktree is not None
    path = Path(worktree.path) / name

    def wait() -> None:
        wait_until(path.exists)
        loop.call_soon_threadsafe(then)

    threading.Thread(target=wait).start()


def marked(session: str) -> list[int]:
    """Processes that carry the session's mark."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"THALIA_RUN={session}\0".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def test_an_interrupt_of_three_calls_ends_what_runs_and_never_starts_what_waits(stage: Stage) -> None:
    turns = (turn(call("read", path="a.txt"), LONG, EDIT), DONE)
    played = stage.start(*turns, screen=Recorder(watch=interrupt_when("c1_2", "begun.txt")))
    assert (played.code, played.ending) == (130, "interrupted")
    assert isinstance(played.outcome("c1_1"), ToolSucceeded)
    cancelled = played.outcome("c1_2")
    assert isinstance(cancelled, Cancelled) and cancelled.started and cancelled.wrote
    assert len(played.results) == 3 and played.results[2].startswith("Not started")
    check_conversation(played.state)
    wait_until(lambda: not marked(SESSION))
    assert tree(played.worktree) == {"a.txt": "one\n", "b.txt": "b\n", "begun.txt": "begun\n"}


def test_an_interrupted_session_goes_on_when_it_is_resumed(stage: Stage) -> None:
    turns = (turn(LONG), DONE)
    stage.start(*turns, screen=Recorder(watch=interrupt_when("c1_1", "begun.txt")))
    played = stage.resume(merge=True)
    assert (played.code, played.ending) == (0, "done")
    assert any(isinstance(event.body, Continued) for event in played.events)
    assert tree(stage.repository)["begun.txt"] == "begun\n", "what the command had written is part of the work"
    check_replay(played.events)


def test_an_interrupt_in_the_moment_a_command_begins_is_not_overlooked(stage: Stage) -> None:
    begin = time.monotonic()
    played = stage.start(turn(LONG), DONE, screen=Recorder(watch=interrupt_when("c1_1", None)))
    assert played.ending == "interrupted" and time.monotonic() - begin < 20
    wait_until(lambda: not marked(SESSION))


def test_an_interrupt_while_the_model_writes_ends_the_turn_at_once(stage: Stage) -> None:
    slow = {**DONE, "delay_ms": 60_000}
    played = stage.start(slow, screen=Recorder(watch=interrupt_when("c1", None)))
    assert (played.code, played.kinds("c1")) == (130, ["cancelled"])
    assert stage.resume(DONE).code == 0


def test_what_is_said_with_an_interrupt_is_answered(stage: Stage) -> None:
    inner = interrupt_when("c1_1", "begun.txt")

    def watch(coordinator: Coordinator, event: Event) -> None:
        inner(coordinator, event)
        if is_start(event, "c1_1"):
            coordinator.send(UserSaid(id=CommandId("other"), text="Rather this."))

    played = stage.start(turn(LONG), DONE, screen=Recorder(watch=watch))
    assert played.ending == "done"
    assert [message.role for message in played.state.messages] == ["user", "assistant", "tool", "user", "assistant"]


def test_a_session_left_during_a_command_finds_its_result_and_does_not_run_it_again(stage: Stage) -> None:
    count = shell("echo x >> count.txt; until [ -e go.txt ]; do sleep 0.02; done; cat count.txt")
    screen = Recorder(
        watch=lambda coordinator, event: when_there(coordinator, event, "c1_2", "count.txt", screen.leave)
    )
    left = stage.start(turn(EDIT, count), DONE, screen=screen)
    assert left.ending is None
    (left.worktree / "go.txt").write_text("")
    played = stage.resume()
    assert played.kinds("c1_2") == ["tool_succeeded"] and played.ending == "done"
    assert tree(played.worktree)["count.txt"] == "x\n"
    check_replay(played.events)


def test_a_session_left_before_a_read_reads_again_as_the_next_attempt(stage: Stage) -> None:
    stage.start(turn(call("read", path="a.txt")), DONE, screen=Recorder(until=starts("read")))
    played = stage.resume()
    assert played.kinds("c1_1") in (["attempt_lost", "tool_succeeded"], ["tool_succeeded"])
    assert played.ending == "done"


def test_a_session_left_while_the_model_was_asked_asks_again_and_counts_both(stage: Stage) -> None:
    slow = {**DONE, "delay_ms": 60_000}
    stage.start(slow, screen=Recorder(until=starts("model")))
    played = stage.resume(DONE)
    assert played.kinds("c1") == ["attempt_lost", "model_replied"]
    check_replay(played.events)


def lose(times: int) -> Watch:
    """Kills the first runs of a command, wrapper and all, each once it has written."""

    def watch(coordinator: Coordinator, event: Event) -> None:
        body = event.body
        if not (isinstance(body, EffectStarted) and isinstance(body.effect, RunTool) and body.effect.tool == "shell"):
            return
        if body.attempt > times:
            return
        folder = coordinator.opened.log.folder / "calls" / f"{body.call_id}.{body.attempt}"

        def kill() -> None:
            wait_until(lambda: (folder / "output").exists() and b"begun" in (folder / "output").read_bytes())
            end_tree(folder)

        threading.Thread(target=kill).start()

    return watch


WRITES = shell("echo x >> count.txt; echo begun; sleep 0.3; cat count.txt")


def test_a_lost_command_is_set_back_and_run_again(stage: Stage) -> None:
    played = stage.start(turn(EDIT, WRITES), DONE, screen=Recorder(watch=lose(2)))
    assert played.kinds("c1_2") == ["attempt_lost", "attempt_lost", "tool_succeeded"]
    assert tree(played.worktree) == {"a.txt": "two\n", "b.txt": "b\n", "count.txt": "x\n"}
    check_replay(played.events)


def test_a_command_that_is_lost_three_times_ends_unknown_and_is_told_so(stage: Stage) -> None:
    played = stage.start(turn(WRITES), DONE, screen=Recorder(watch=lose(9)))
    assert played.kinds("c1_1") == ["attempt_lost", "attempt_lost", "outcome_unknown"]
    assert isinstance(played.outcome("c1_1"), OutcomeUnknown) and "begun" in played.results[0]
    assert played.ending == "done"
    check_conversation(played.state)


def test_a_command_outside_the_sandbox_that_is_lost_is_never_run_again(stage: Stage) -> None:
    played = stage.start(turn(WRITES), DONE, screen=Recorder(watch=lose(9)), mode="bypass", sandbox="off")
    assert played.kinds("c1_1") == ["outcome_unknown"]
    assert tree(played.worktree)["count.txt"] == "x\n"


def test_two_owners_of_one_session_are_never_allowed(stage: Stage) -> None:
    stage.start(DONE)
    opened = open_log(stage.session_folder(), SESSION, SystemClock(), Redactor())
    try:
        begin = time.monotonic()
        with pytest.raises(LogBusy) as refused:
            stage.resume(DONE, prompt="More.")
        assert time.monotonic() - begin < 10
        assert str(os.getpid()) in str(refused.value)
    finally:
        opened.close()
    assert stage.resume(DONE, DONE, prompt="More.").code == 0


HOLD = """
import sys
from pathlib import Path
from eventlog.ids import SessionId
from eventlog.opening import open_log
from eventlog.redact import Redactor
from eventlog.seams import SystemClock
opened = open_log(Path(sys.argv[1]), SessionId("s1"), SystemClock(), Redactor())
print("held", flush=True)
sys.stdin.read()
"""


def test_the_pid_of_another_process_is_named_and_its_death_frees_the_session(stage: Stage) -> None:
    stage.start(DONE)
    command = [sys.executable, "-c", HOLD, str(stage.session_folder())]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None and owner.stdout.readline() == b"held\n"
        with pytest.raises(LogBusy, match=str(owner.pid)):
            stage.resume(DONE, prompt="More.")
        owner.kill()
        owner.wait()
    assert stage.resume(DONE, DONE, prompt="More.").code == 0


def test_a_question_is_waited_for_and_answered_in_a_later_run(stage: Stage) -> None:
    asked = stage.start(turn(shell("echo x > x.txt")), DONE, mode="ask", attended=True)
    assert (asked.code, asked.ending) == (10, None)
    (ask, question), *_ = asked.state.asks.items()

    def answer(coordinator: Coordinator, event: Event) -> None:
        if event.body.kind == "session_opened":
            coordinator.send(Approved(id=CommandId("yes"), ask=ask, binding=question.binding))

    played = stage.resume(screen=Recorder(watch=answer), attended=True)
    assert (played.code, played.ending) == (0, "done")
    assert tree(played.worktree)["x.txt"] == "x\n"


def test_a_denied_call_never_runs_and_the_turn_goes_on(stage: Stage) -> None:
    def answer(coordinator: Coordinator, event: Event) -> None:
        if is_start(event, "c1_1_ask"):
            coordinator.send(Denied(id=CommandId("no"), ask=event.body.call_id, reason="Not here."))  # type: ignore[union-attr] # is_start

    played = stage.start(turn(EDIT), DONE, screen=Recorder(watch=answer), mode="ask", attended=True)
    assert played.ending == "done" and "Not here." in played.results[0]
    assert tree(played.worktree) == {"a.txt": "one\n", "b.txt": "b\n"}


def test_an_interrupt_at_a_question_leaves_no_question_behind(stage: Stage) -> None:
    def stop(coordinator: Coordinator, event: Event) -> None:
        if is_start(event, "c1_1_ask"):
            coordinator.interrupt(CommandId("stop"))

    played = stage.start(turn(EDIT), DONE, screen=Recorder(watch=stop), mode="ask", attended=True)
    assert (played.code, played.ending) == (130, "interrupted")
    assert played.state.asks == {}
    assert stage.resume(attended=True).ending == "done"


def test_a_worktree_that_vanishes_under_a_session_is_told_and_not_waited_for(stage: Stage) -> None:
    def lose_worktree(coordinator: Coordinator, event: Event) -> None:
        if is_start(event, "c1_1"):
            for record in stage.environment.worktrees.rglob("thalia-*.json"):
                record.unlink()

    played = stage.start(turn(call("read", path="a.txt")), DONE, screen=Recorder(watch=lose_worktree))
    assert "is gone" in played.results[0] and played.ending == "done"


def test_a_defect_ends_the_run_and_the_session_can_be_taken_up(stage: Stage) -> None:
    def fail(delta: Delta) -> None:
        raise ZeroDivisionError("a defect")

    ready = prepare_new(replace(stage.parts, on_delta=fail), SESSION, stage.options(model=stage.script(DONE)), "Do it.")

    async def go() -> None:
        try:
            await ready.go()
        finally:
            await ready.coordinator.close()

    with pytest.raises(ZeroDivisionError):
        asyncio.run(go())
    assert stage.resume().code == 0


def test_results_of_an_interrupted_turn_are_whole_messages(stage: Stage) -> None:
    turns = (turn(LONG, EDIT), DONE)
    played = stage.start(*turns, screen=Recorder(watch=interrupt_when("c1_1", "begun.txt")))
    texts = [message.text for message in played.state.messages if isinstance(message, ToolMessage)]
    assert len(texts) == 2 and all(texts)
