"""Many rewinds in one log: what stands in the end is what each of them, taken by itself, says."""

from random import Random

import pytest

from agent.apply import apply
from agent.folding import fold_events, rewind
from agent.state import State
from eventlog.events import Body, Event, Rewound
from tests.agent.core_bodies import OPENING, finished, model_call, replied, said, started, stored


def by_definition(past: list[Event]) -> State:
    """Each rewind folds what it goes back to anew."""
    state = State()
    for index, event in enumerate(past):
        match event.body:
            case Rewound() as body:
                target = by_definition([one for one in past[:index] if one.seq <= body.to_seq])
                state = rewind(target, state, body)
            case body:
                state = apply(state, body)
    return state


def turn(number: int) -> list[Body]:
    call = f"c{number}"
    return [said(f"Task {number}.", f"t{number}"), started(call, model_call()), finished(call, replied(text="Well."))]


def back(to: int) -> Body:
    return Rewound(to_seq=to, saved=None, restored=None)


@pytest.mark.parametrize("seed", range(20))
def test_rewinds_in_one_pass_are_the_rewinds_by_definition(seed: int) -> None:
    random, story = Random(seed), list(OPENING)
    for number in range(2, 9):
        story += turn(number)
        if random.random() < 0.7:
            story.append(back(random.randint(1, len(story))))
    past = stored(story)
    assert fold_events(past) == by_definition(past)


@pytest.mark.timeout(30)
def test_two_hundred_rewinds_each_to_the_event_before_it_are_known_again_at_once() -> None:
    story = list(OPENING)
    for number in range(2, 202):
        story += turn(number)
        story.append(back(len(story)))
    assert fold_events(stored(story)).model_calls == 200
