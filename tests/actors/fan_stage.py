"""A stage on which a session fans out: a script for the session, and one for each agent by words of its task."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from actors.local import Run, run_new, run_resumed
from eventlog.effects import SpawnAgent
from eventlog.events import EffectStarted, Event
from tests.actors.playing import DONE, SESSION, Played, Recorder, Stage, call, turn

Turns = Sequence[Mapping[str, object]]

CONFLICT: Mapping[str, Turns] = {
    "upper": [turn(call("read", path="a.txt")), turn(call("write", path="a.txt", content="ONE\n")), DONE],
    "double": [
        turn(call("read", path="a.txt")),
        turn(call("edit", path="a.txt", old_text="one", new_text="one one"), call("shell", command="sleep 0.5")),
        {"text": "Doubled."},
        turn(call("shell", command="cat a.txt; printf 'ONE ONE\\n' > a.txt")),
        {"text": "Both."},
    ],
}
"""The second is ready after the first, and resolves the conflict in its second round."""
CONFLICTING = ("Make it upper case.", "Say it double.")


def fan_out(*tasks: str, **more: object) -> dict[str, object]:
    return turn(call("fan_out", tasks=list(tasks), **more))


def writing(path: str, content: str, text: str = "Done.") -> Turns:
    return [turn(call("write", path=path, content=content)), {"text": text}]


def script(stage: Stage, main: Turns, agents: Mapping[str, Turns]) -> str:
    """The name of a model: an agent's turns are found by words of its task."""
    stage.scripts += 1
    path = stage.folder / f"fan-{stage.scripts}.json"
    conversations = [{"when": when, "turns": list(turns)} for when, turns in agents.items()]
    path.write_text(json.dumps({"turns": list(main), "conversations": conversations}))
    return f"scripted/{path}"


def begin(stage: Stage, model: str, screen: Recorder | None = None, **options: Any) -> Played:
    screen = screen or Recorder()
    chosen = stage.options(model=model, **options)
    return Played(
        run_new(stage.parts, SESSION, chosen, "Do it.", Run(screen, screen.drive, False)), screen, stage.events()
    )


def go_on(stage: Stage, model: str, screen: Recorder | None = None, prompt: str | None = None) -> Played:
    screen = screen or Recorder()
    chosen = stage.options(model=model)
    return Played(
        run_resumed(stage.parts, SESSION, chosen, prompt, Run(screen, screen.drive, False)), screen, stage.events()
    )


def play(stage: Stage, main: Turns, agents: Mapping[str, Turns], **options: Any) -> Played:
    return begin(stage, script(stage, main, agents), **options)


def leave_after(count: int) -> Recorder:
    """The process leaves the session when it has seen so many events."""
    screen = Recorder(until=lambda body: len(screen.events) >= count)
    return screen


def spawned(events: Sequence[Event]) -> list[SpawnAgent]:
    bodies = [event.body for event in events if isinstance(event.body, EffectStarted)]
    return [body.effect for body in bodies if isinstance(body.effect, SpawnAgent)]


def rounds(events: Sequence[Event]) -> list[tuple[str, int]]:
    return sorted((one.agent, one.round) for one in spawned(events))


def owners(stage: Stage) -> list[str]:
    """Whose the worktrees below the state folder are, those that are nobody's left out."""
    records = [json.loads(path.read_text()) for path in (stage.folder / "state" / "worktrees").glob("*/*.json")]
    return sorted(record["key"] for record in records if record["state"] != "free")
