"""The loop: stored first, then known, then done; an outcome and what follows from it are one transaction."""

import asyncio
from collections.abc import Sequence

import pytest

from agent.fakes import ScriptedWorld
from agent.folding import fold_events
from agent.loop import Loop
from agent.recovery import FilesAfter, Vanished
from agent.state import State
from eventlog.effects import CallModel, MakeWorktree, RunTool, TakeSnapshot
from eventlog.errors import LogError
from eventlog.events import Approved, Body, EffectFinished, EffectStarted, Event, Interrupted, TurnEnded, UserSaid
from eventlog.ids import CallId, CommandId, Digest
from eventlog.memory import MemoryLog
from eventlog.outcomes import Outcome, ToolSucceeded
from eventlog.redact import Redactor
from eventlog.seams import Prepared
from tests.agent.core_bodies import (
    CONTEXT,
    MAKE,
    OPENING,
    PlainPlanner,
    done,
    fold_bodies,
    interrupted,
    mode,
    model_call,
    ready,
    replied,
    said,
    started,
    taken,
    tool,
)


class CountingLog(MemoryLog):
    """Notes how many bodies each transaction held."""

    def __init__(self, fail_after: int | None = None, redactor: Redactor | None = None) -> None:
        super().__init__(fail_after=fail_after, redactor=redactor)
        self.appends: list[list[str]] = []

    async def append(self, prepared: Sequence[Prepared]) -> tuple[Event, ...]:
        self.appends.append([item.draft.body.kind for item in prepared])
        return await super().append(prepared)


class BlockingLog(CountingLog):
    """Is not durable before it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self.durable = asyncio.Event()

    async def append(self, prepared: Sequence[Prepared]) -> tuple[Event, ...]:
        await self.durable.wait()
        return await super().append(prepared)


def outcome_of(intent: EffectStarted) -> Outcome | None:
    """One edit and one command, then the end."""
    match intent.effect:
        case CallModel():
            number = int(intent.call_id[1:])
            return replied("edit", call="c1") if number == 1 else replied(text="Done.", call=intent.call_id)
        case RunTool():
            return ToolSucceeded(text="ok", wrote=True)
        case MakeWorktree():
            return ready()
        case TakeSnapshot():
            return taken("c")
        case _:
            return None


def make_loop(log: MemoryLog, world: ScriptedWorld, state: State | None = None) -> Loop:
    return Loop(log, PlainPlanner(), world, state or State(), lambda event: None)


BEGIN: tuple[Body, ...] = (CONTEXT, mode(), started("w1", MAKE), said("Do it."))


async def test_a_session_runs_to_its_end_over_a_log_in_memory() -> None:
    log, world = CountingLog(), ScriptedWorld(outcome_of)
    loop = make_loop(log, world)
    await loop.record(*BEGIN)
    state = await loop.wait()
    assert state.ending == TurnEnded(ending="done", text="Done.")
    assert [intent.call_id for intent in world.started] == ["w1", "c1", "c1_1", "c2", "s1"]
    assert fold_events(tuple(log.read())) == state


async def test_an_outcome_and_the_intents_that_follow_are_one_transaction() -> None:
    log = CountingLog()
    await (loop := make_loop(log, ScriptedWorld(outcome_of))).record(*BEGIN)
    await loop.wait()
    assert log.appends == [
        ["context_set", "mode_chosen", "effect_started", "user_said", "effect_started"],
        # What comes in meanwhile goes along: the worktree with the reply, the reply with the snapshot.
        ["effect_finished", "effect_finished", "effect_started"],
        ["effect_finished", "effect_started", "effect_started"],
        ["effect_finished", "effect_finished", "turn_ended"],
    ]


async def test_a_step_of_a_model_call_and_a_tool_costs_two_transactions() -> None:
    def five_reads(intent: EffectStarted) -> Outcome | None:
        number = int(intent.call_id.split("_")[0][1:])
        if isinstance(intent.effect, RunTool):
            return done()
        return replied("read", call=intent.call_id) if number <= 5 else replied(text="Done.", call=intent.call_id)

    log = CountingLog()
    loop = make_loop(log, ScriptedWorld(five_reads), fold_bodies(OPENING[:-1]))
    await loop.record(said("Do it."))
    state = await loop.wait()
    assert state.model_calls == 6
    assert len(log.appends) == 1 + 2 * 5 + 1


async def test_no_effect_begins_before_its_intent_is_durable() -> None:
    log, world = BlockingLog(), ScriptedWorld(outcome_of)
    loop = make_loop(log, world)
    recording = asyncio.create_task(loop.record(*BEGIN))
    for _ in range(20):
        await asyncio.sleep(0)
    assert world.started == [] and loop.state == State()
    log.durable.set()
    await recording
    assert [intent.call_id for intent in world.started] == ["w1", "c1"]


@pytest.mark.parametrize("room", range(14))
async def test_where_an_intent_cannot_be_stored_nothing_begins(room: int) -> None:
    log, world = CountingLog(fail_after=room), ScriptedWorld(outcome_of)
    loop = make_loop(log, world)
    with pytest.raises(LogError):
        await loop.record(*BEGIN)
        await loop.wait()
    announced = [event.body.call_id for event in log.read() if isinstance(event.body, EffectStarted)]
    assert [intent.call_id for intent in world.started] == announced
    assert fold_events(tuple(log.read())) == loop.state, "what is not stored is not known"


async def test_what_is_applied_is_what_is_stored() -> None:
    log = CountingLog(redactor=Redactor(["hidden-value-1234"]))
    loop = make_loop(log, ScriptedWorld(lambda intent: None))
    await loop.record(*BEGIN[:-1], said("Use hidden-value-1234 and \ud800."))
    assert "hidden-value-1234" not in str(loop.state.messages)
    assert fold_events(tuple(log.read())) == loop.state


async def test_events_are_published_in_order_and_before_their_effects_begin() -> None:
    order: list[str] = []

    def outcome(intent: EffectStarted) -> Outcome | None:
        order.append(f"begin {intent.call_id}")
        return None

    log = CountingLog()
    loop = Loop(log, PlainPlanner(), ScriptedWorld(outcome), State(), lambda event: order.append(event.body.kind))
    await loop.record(*BEGIN)
    assert order == ["context_set", "mode_chosen", "effect_started", "begin w1", "user_said", "effect_started",
                     "begin c1"]  # fmt: skip


async def test_an_interrupt_reaches_every_open_effect() -> None:
    world = ScriptedWorld(lambda intent: replied("read", "read", call="c1") if intent.call_id == "c1" else None)
    loop = make_loop(CountingLog(), world, fold_bodies(OPENING[:-1]))
    await loop.record(said("Do it."))
    reply = loop.inbox.get_nowait()
    assert isinstance(reply, EffectFinished)
    await loop.record(reply)
    await loop.record(Interrupted(id=CommandId("i")))
    assert world.interrupted == ["c1_1", "c1_2"]
    state = await loop.wait()
    assert state.ending == TurnEnded(ending="interrupted", text="Interrupted.")


async def test_an_interrupt_that_is_repeated_is_stored_and_reaches_nobody_twice() -> None:
    world = ScriptedWorld(lambda intent: None)
    loop = make_loop(CountingLog(), world, fold_bodies(OPENING[:-1]))
    await loop.record(said("Do it."))
    await loop.record(interrupted("i"))
    await loop.wait()
    await loop.record(said("Again.", "u2"))
    await loop.record(interrupted("i"))
    assert world.interrupted == ["c1"]


async def test_a_wait_returns_at_a_question_and_goes_on_with_the_answer() -> None:
    world = ScriptedWorld(lambda i: done() if i.call_id == "c1_1" else replied("shell", call="c1")
                          if i.call_id == "c1" else replied(text="Done.", call=i.call_id))  # fmt: skip
    loop = Loop(
        CountingLog(), PlainPlanner(asks=frozenset({"shell"})), world, fold_bodies(OPENING[:-1]), lambda e: None
    )
    await loop.record(said("Do it."))
    state = await loop.wait()
    assert list(state.asks) == ["c1_1_ask"]
    loop.inbox.put_nowait(Approved(id=CommandId("a"), ask=CallId("c1_1_ask"), binding=Digest("e" * 64)))
    assert (await loop.wait()).ending == TurnEnded(ending="done", text="Done.")


async def test_what_was_open_is_settled_in_the_transaction_that_takes_the_session_up() -> None:
    before = fold_bodies([*OPENING, started("c1", model_call(reserved_usd=0.5))])
    log, world = CountingLog(), ScriptedWorld(lambda i: replied(text="Done.", call=i.call_id))
    state = await make_loop(log, world, before).run(mode("auto", id="m2"))
    assert log.appends[0] == ["mode_chosen", "effect_finished", "effect_started"]
    assert [(intent.call_id, intent.attempt) for intent in world.started] == [("c1", 2)]
    assert state.spent_usd == 0.5 and state.ending is not None


async def test_an_effect_that_never_began_is_carried_out_under_its_old_intent() -> None:
    before = fold_bodies([*OPENING, started("c1", model_call())])
    before = fold_bodies([EffectFinished(call_id=CallId("c1"), attempt=1, outcome=replied("edit"))], before)
    before = fold_bodies([started("c1_1", tool("edit"))], before)
    log, world = CountingLog(), ScriptedWorld(outcome_of)
    await make_loop(log, world, before).run()
    assert [intent.call_id for intent in world.started] == ["c1_1", "c2", "s1"]
    intents = [event.body for event in log.read() if isinstance(event.body, EffectStarted)]
    assert [intent.call_id for intent in intents] == ["c2", "s1"], "it was announced long ago"


async def test_what_is_found_done_is_not_done_again() -> None:
    before = fold_bodies([*OPENING, started("c1", model_call())])
    before = fold_bodies([EffectFinished(call_id=CallId("c1"), attempt=1, outcome=replied("edit", "shell"))], before)
    before = fold_bodies([started("c1_1", tool("edit"))], before)
    world = ScriptedWorld(outcome_of, {CallId("c1_1"): FilesAfter(), CallId("c1_2"): Vanished("x")})
    state = await make_loop(CountingLog(), world, before).run()
    assert [intent.call_id for intent in world.started] == ["s1", "c1_2", "c2", "s2"]
    assert state.ending is not None


async def test_a_defect_of_the_world_ends_the_run_and_is_never_waited_for() -> None:
    loop = make_loop(CountingLog(), ScriptedWorld(lambda intent: None), fold_bodies(OPENING[:-1]))
    await loop.record(UserSaid(id=CommandId("u"), text="Do it."))
    loop.inbox.put_nowait(ZeroDivisionError("a defect"))
    with pytest.raises(ZeroDivisionError):
        await loop.wait()
