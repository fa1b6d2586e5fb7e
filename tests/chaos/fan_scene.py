"""Sessions that fan out: agents that work beside each other, a conflict, a red check, a tool outside.

Whichever of the first two agents is merged second has the conflict, so both know how to resolve it; the tree at the end
does not tell which it was."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from eventlog.effects import PrepareMerge, SpawnAgent
from eventlog.events import EffectFinished, EffectStarted, Event
from eventlog.ids import MAIN
from eventlog.outcomes import ToolSucceeded
from tests.chaos.invariants import told
from tests.chaos.scenes import Scene, call, count_outside, post_tool

Turns = list[object]
BYPASS = "--dangerously-bypass-approvals-and-sandbox"
TASKS = ("Make two of it.", "Make three of it.", "Write the third file.")
CHECK = "test ! -e c.txt || grep -q right c.txt"
RESOLVE = "printf 'two three\\n' > a.py; echo resolved >> resolved.txt"
FINAL = {
    "a.py": "two three\n",
    "b.txt": "mine\n",
    "c.txt": "right\n",
    "one.txt": "begun\nended\n",
    "resolved.txt": "resolved\n",
}
"""Each line of it once: who appends twice shows."""


def edit(path: str, old: str, new: str) -> dict[str, object]:
    return call("edit", path=path, old_text=old, new_text=new)


def fan_out(*tasks: str, **more: object) -> Turns:
    return [{"tool_calls": [call("fan_out", tasks=list(tasks), **more)]}, {"text": "Done."}]


def turns(folder: Path) -> Turns:
    return fan_out(*TASKS, check=CHECK)


def agents(folder: Path) -> Mapping[str, Turns]:
    """By words of their tasks. The last two turns of the first two are for the one that has the conflict."""
    count = call("shell", command="echo begun >> one.txt; sleep 0.2; echo ended >> one.txt")
    resolved: Turns = [{"tool_calls": [call("shell", command=RESOLVE)]}, {"text": "Both of it."}]
    return {
        TASKS[0]: [
            {"tool_calls": [edit("a.py", "one", "two"), count]},
            {"tool_calls": [call("commit", message="Two"), call("post", n=1)]},
            {"text": "Two of it."},
            *resolved,
        ],
        TASKS[1]: [
            {"tool_calls": [edit("a.py", "one", "three"), call("write", path="b.txt", content="mine\n")]},
            {"tool_calls": [call("shell", command="sleep 0.5")]},
            {"text": "Three of it."},
            *resolved,
        ],
        TASKS[2]: [
            {"tool_calls": [call("write", path="c.txt", content="wrong\n"), call("post", n=2)]},
            {"text": "Written."},
            {"tool_calls": [edit("c.txt", "wrong", "right")]},
            {"text": "Mended."},
        ],
    }


def unconfined_agents(folder: Path) -> Mapping[str, Turns]:
    """Each counts three times outside, and writes a file."""

    def counting(path: str, numbers: Sequence[int]) -> Turns:
        write = call("write", path=path, content="counted\n")
        return [*({"tool_calls": [count_outside(folder, number)]} for number in numbers), {"tool_calls": [write]}]

    return {"the first": counting("b.txt", (0, 1, 2)), "the second": counting("c.txt", (3, 4, 5))}


def settings(folder: Path) -> str:
    """Nobody is asked for an agent, so a rule lets it use the tool outside."""
    return post_tool(folder) + '[permissions]\nallow = ["post"]\n'


def check_rounds(events: Sequence[Event]) -> None:
    """Each round of an agent was begun once, however often somebody was killed; and where nobody is told of anything,
    all three are merged in five rounds, and no work was merged twice onto the same."""
    started = [event.body.effect for event in events if isinstance(event.body, EffectStarted)]
    rounds = Counter((effect.agent, effect.round) for effect in started if isinstance(effect, SpawnAgent))
    merges = Counter((effect.agent, effect.work, effect.onto) for effect in started if isinstance(effect, PrepareMerge))
    assert set(rounds.values()) == {1}, rounds
    if not told(events):
        assert len(rounds) == 5 and set(merges.values()) == {1}, (rounds, merges)
        assert said_at_the_end(events).startswith("3 of 3 merged."), said_at_the_end(events)


def said_at_the_end(events: Sequence[Event]) -> str:
    """What the session's model was told of the fan-out."""
    found = [
        event.body.outcome.text
        for event in events
        if event.actor == MAIN and isinstance(event.body, EffectFinished)
        and isinstance(event.body.outcome, ToolSucceeded)
    ]  # fmt: skip
    return found[-1] if found else ""


FANNING = Scene(
    "fanning",
    turns=turns,
    conversations=agents,
    settings=settings,
    attended=False,
    final=FINAL,
    ledger=(),
    posted=(1, 2),
    also=check_rounds,
)
FANNING_UNCONFINED = Scene(
    "fanning unconfined",
    turns=lambda folder: fan_out("Count the first.", "Count the second."),
    conversations=unconfined_agents,
    options=(BYPASS,),
    attended=False,
    final={"a.py": "one\n", "b.txt": "counted\n", "c.txt": "counted\n"},
    ledger=tuple("012345"),
    posted=(),
)
