"""A session with two agents in the background: one is asked, the other reports at a commit or at the end of the turn,
whichever comes first. The main agent does the same whenever it hears of that."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from eventlog.effects import WakeAgent
from eventlog.events import AgentReported, EffectStarted, Event
from eventlog.ids import AgentId
from tests.chaos.invariants import told
from tests.chaos.scenes import Scene, call, post_tool

Turns = list[object]
FINAL = {"a.py": "two\n", "b.txt": "right\n", "one.txt": "begun\nended\n"}


def turns(folder: Path) -> Turns:
    count = call("shell", command="echo begun >> one.txt; sleep 0.2; echo ended >> one.txt")
    return [
        {"tool_calls": [call("edit", path="a.py", old_text="one", new_text="two"), count]},
        {"tool_calls": [call("write", path="b.txt", content="right\n"), call("commit", message="Two")]},
        {"tool_calls": [call("ask_agent", agent="scout", question="Where?"), call("post", n=7)]},
        {"text": "Done."},
        {"text": "I heard it."},
        {"text": "That, too."},
    ]


def agents(folder: Path) -> Mapping[str, Turns]:
    """By how they are woken first."""
    here = {"tool_calls": [call("report", text="Here.", priority="low", evidence=["a.py:1"], notes="a.py")]}
    quiet = {"tool_calls": [call("stay_silent", reason="Nothing new.")]}
    found = {"tool_calls": [call("report", text="It has no test.", priority="normal", evidence=["a.py:1"])]}
    look: dict[str, object] = {"tool_calls": [call("shell", command="cat a.py; sleep 0.1"), call("read", path="a.py")]}
    reviewer: Turns = [look, found, *[quiet] * 4]
    return {
        "The session begins.": [look, quiet, *[here] * 6],
        "The main agent made a commit.": reviewer,
        "The main agent says that it is done": reviewer,
    }


def check_told(events: Sequence[Event]) -> None:
    """However often somebody was killed: each wake-up begun once, and the reviewer's one report is told once."""
    bodies = [event.body for event in events]
    begun = Counter(
        (body.effect.agent, body.effect.round)
        for body in bodies
        if isinstance(body, EffectStarted) and isinstance(body.effect, WakeAgent) and body.attempt == 1
    )
    assert set(begun.values()) == {1}, begun
    if not told(events):
        # The scout's answer is told to who asked, as the result of the call.
        reported = Counter(body.agent for body in bodies if isinstance(body, AgentReported))
        assert reported[AgentId("reviewer")] == 1, reported


BACKGROUND = Scene(
    "background",
    turns=turns,
    conversations=agents,
    settings=lambda folder: post_tool(folder) + '[permissions]\nallow = ["post"]\n',
    options=("--agent", "scout", "--agent", "reviewer"),
    attended=False,
    final=FINAL,
    ledger=(),
    posted=(7,),
    also=check_told,
)
