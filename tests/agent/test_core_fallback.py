"""A model that fails for good, and another that answers for the rest of the turn. Decided from the fold alone."""

from collections.abc import Sequence

from agent.folding import fold_events
from agent.state import State
from eventlog.effects import CallModel
from eventlog.events import (
    Body,
    ContextSet,
    Continued,
    EffectStarted,
    FallbackSet,
    ModelRoute,
    Rewound,
    TurnEnded,
)
from eventlog.ids import CommandId
from eventlog.outcomes import AttemptLost, ModelFailed
from tests.agent.core_bodies import (
    CONTEXT,
    OPENING,
    PlainPlanner,
    done,
    finished,
    fold_bodies,
    go_on,
    interrupted,
    limits,
    model_call,
    replied,
    said,
    started,
    stored,
)

ROUTE = ModelRoute(
    builder="messages/1", model="q/n", wire_model="n", parameters='{"a":1}', window=7, input_usd=1.0, cached_usd=0.1,
    output_usd=2.0, warning="It learns.",
)  # fmt: skip
SPARE = FallbackSet(route=ROUTE)
REFUSED = ModelFailed(fault="refused", text="No.", retry=False)
BUSY = ModelFailed(fault="overloaded", text="Busy.", retry=True, wait_ms=50)
BEGUN: tuple[Body, ...] = (SPARE, *OPENING, started("c1", model_call()))


def after(bodies: Sequence[Body], planner: PlainPlanner | None = None) -> tuple[State, list[Body]]:
    return go_on(fold_bodies(bodies), planner or PlainPlanner())


def test_what_a_person_can_do_nothing_about_goes_to_the_fallback_at_once() -> None:
    state, (switched, called) = after([*BEGUN, finished("c1", REFUSED)])
    assert isinstance(switched, ContextSet) and isinstance(called, EffectStarted)
    assert switched == CONTEXT.model_copy(update={**ROUTE.model_dump(), "instead_of": "p/m"})
    assert (called.call_id, called.attempt) == ("c2", 1), "its attempts are counted anew"
    assert isinstance(called.effect, CallModel) and called.effect.delay_ms == 0
    assert (state.context, state.chosen, state.turn_calls) == (switched, CONTEXT, 1)


def test_a_busy_model_is_tried_as_often_as_it_may_be_before_another_is_asked() -> None:
    state, (again,) = after([limits(max_attempts=2), *BEGUN, finished("c1", BUSY)])
    assert isinstance(again, EffectStarted) and (again.call_id, again.attempt) == ("c1", 2)
    _, (switched, called) = go_on(fold_bodies([finished("c1", BUSY, attempt=2)], state), PlainPlanner())
    assert isinstance(switched, ContextSet) and switched.model == "q/n"
    assert isinstance(called, EffectStarted) and (called.call_id, called.attempt) == ("c2", 1)


def test_the_fallback_falls_to_nobody_and_the_turn_ends() -> None:
    state, _ = after([*BEGUN, finished("c1", REFUSED)])
    state, (end,) = go_on(fold_bodies([finished("c2", REFUSED)], state), PlainPlanner())
    assert isinstance(end, TurnEnded) and end.ending == "model_unavailable"


def test_without_a_fallback_or_with_one_that_was_taken_away_the_turn_ends() -> None:
    for bodies in (BEGUN[1:], (*BEGUN, FallbackSet(route=None))):
        _, (end,) = after([*bodies, finished("c1", REFUSED)])
        assert isinstance(end, TurnEnded) and end.text == "No."


def test_a_fallback_that_is_the_model_itself_is_none() -> None:
    same = FallbackSet(route=ROUTE.model_copy(update={"model": "p/m"}))
    _, (end,) = after([*BEGUN, same, finished("c1", REFUSED)])
    assert isinstance(end, TurnEnded)


def test_the_whole_turn_stays_with_the_fallback_and_the_next_begins_with_the_chosen_model() -> None:
    state, _ = after([*BEGUN, finished("c1", REFUSED)])
    state, _ = go_on(fold_bodies([finished("c2", replied("read", call="c2"))], state), PlainPlanner())
    state, (called,) = go_on(fold_bodies([finished("c2_1", done())], state), PlainPlanner())
    assert isinstance(called, EffectStarted) and called.call_id == "c3"
    state, (end,) = go_on(fold_bodies([finished("c3", replied(text="Done."))], state), PlainPlanner())
    assert isinstance(end, TurnEnded) and end.ending == "done"
    state, (back, _) = go_on(fold_bodies([said("More.", "u2")], state), PlainPlanner())
    assert back == CONTEXT
    assert (state.context, state.chosen) == (CONTEXT, None)
    _, (switched, _) = go_on(fold_bodies([finished("c4", REFUSED)], state), PlainPlanner())
    assert isinstance(switched, ContextSet) and switched.instead_of == "p/m", "each turn may fall back once"


def test_a_turn_that_both_failed_begins_with_the_chosen_model_when_it_is_taken_up_again() -> None:
    state, _ = after([*BEGUN, finished("c1", REFUSED)])
    state, _ = go_on(fold_bodies([finished("c2", REFUSED)], state), PlainPlanner())
    state, (back, called) = go_on(fold_bodies([Continued(id=CommandId("k"))], state), PlainPlanner())
    assert back == CONTEXT
    assert isinstance(called, EffectStarted) and called.call_id == "c3"


def test_a_model_that_a_person_chooses_meanwhile_stays() -> None:
    state, _ = after([*BEGUN, finished("c1", REFUSED)])
    mine = CONTEXT.model_copy(update={"model": "r/o"})
    state, _ = go_on(fold_bodies([mine, finished("c2", replied(text="Done."))], state), PlainPlanner())
    state, decided = go_on(fold_bodies([said("More.", "u2")], state), PlainPlanner())
    assert (state.context, [body.kind for body in decided]) == (mine, ["effect_started"])


def test_the_call_that_is_made_again_counts_once_in_the_turn() -> None:
    state, decided = after([limits(max_turns=1), *BEGUN, finished("c1", REFUSED)])
    assert [body.kind for body in decided] == ["context_set", "effect_started"]
    state, _ = go_on(fold_bodies([finished("c2", replied("read", call="c2"))], state), PlainPlanner())
    _, (end,) = go_on(fold_bodies([finished("c2_1", done())], state), PlainPlanner())
    assert isinstance(end, TurnEnded) and end.ending == "out_of_turns"


def test_a_fallback_that_could_pass_the_budget_is_not_called() -> None:
    _, (switched, end) = after(
        [limits(max_budget_usd=1.0), *BEGUN, finished("c1", REFUSED)], PlainPlanner(reserved_usd=2.0)
    )
    assert isinstance(switched, ContextSet)
    assert isinstance(end, TurnEnded) and end.ending == "out_of_budget"


def test_an_interrupted_turn_asks_nobody_else() -> None:
    _, (end,) = after([*BEGUN, interrupted(), finished("c1", REFUSED)])
    assert isinstance(end, TurnEnded) and end.ending == "interrupted"


def test_a_log_that_ends_with_the_failure_decides_as_the_living_session_did() -> None:
    bodies = [*BEGUN, finished("c1", REFUSED)]
    _, lived = after(bodies)
    _, resumed = go_on(fold_events(stored(bodies)), PlainPlanner())
    assert resumed == lived


def test_a_call_of_the_fallback_that_a_crash_took_is_made_again_with_the_fallback() -> None:
    state, _ = after([*BEGUN, finished("c1", REFUSED)])
    state, (again,) = go_on(fold_bodies([finished("c2", AttemptLost(evidence="gone"))], state), PlainPlanner())
    assert isinstance(again, EffectStarted) and (again.call_id, again.attempt) == ("c2", 2)
    assert state.context is not None and state.context.model == "q/n"


def test_a_rewind_keeps_the_fallback_of_the_present() -> None:
    bodies: list[Body] = [*OPENING, started("c1", model_call()), finished("c1", replied(text="Done.")), SPARE]
    back = Rewound(to_seq=len(OPENING), saved=None, restored=None)
    assert fold_events(stored([*bodies, back])).fallback == ROUTE
