"""Fold many events without the collector: it would walk the growing heap again and again and find nothing."""

import gc
from collections.abc import Callable, Iterable
from typing import TypeVar

State = TypeVar("State")
Item = TypeVar("Item")


def fold(apply: Callable[[State, Item], State], state: State, items: Iterable[Item]) -> State:
    was_on = gc.isenabled()
    gc.disable()
    try:
        for item in items:
            state = apply(state, item)
    finally:
        if was_on:
            gc.enable()
    return state
