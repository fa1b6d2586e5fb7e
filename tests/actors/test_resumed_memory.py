"""What a session that was taken up keeps in memory does not grow with its past."""

import asyncio
import gc
from pathlib import Path

from actors.local import Unreachable
from actors.sessions import prepare_resumed
from eventlog.events import Event
from tests.actors.playing import DONE, SESSION, Stage, shell, turn


def test_the_events_of_a_session_that_was_taken_up_are_left_to_the_disk(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.start(*[turn(shell("true"))] * 5, DONE, mode="bypass", sandbox="off")
    gc.unfreeze()  # Opening a log hides what it read from the collector.
    others = {id(one) for one in gc.get_objects() if isinstance(one, Event)}
    ready = prepare_resumed(stage.parts, SESSION, stage.options(), None, Unreachable())
    try:
        gc.unfreeze()
        kept = [one for one in gc.get_objects() if isinstance(one, Event) and id(one) not in others]
        assert len(kept) <= 1
        assert ready.coordinator.state.model_calls == 6
    finally:
        asyncio.run(ready.coordinator.close())
