"""Sessions in which every crash point is reached: what the model says, what is done before, how it is gone on with.

Each ends with the same files whoever was killed in it. What an outsider can count stands in a ledger outside."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from eventlog.events import EffectFinished, Event, Rewound
from eventlog.outcomes import ToolSucceeded
from tests.chaos.arena import COUNT, EDIT, ROOT, SECRET, Arena

PATCH = """*** Begin Patch
*** Update File: a.py
@@
-two
+three
*** Add File: folder/c.txt
+added
*** End Patch
"""
LEDGER = """import os, sys, time
number, folder = sys.argv[1], os.path.dirname(os.path.abspath(__file__))
descriptor = os.open(os.path.join(folder, "ledger"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
os.write(descriptor, (number + "\\n").encode())
os.fsync(descriptor)
time.sleep(0.1)
print("counted", number)
"""
BIG = "A line of a file that is too long for the log.\n" * 500
FINAL = {
    "a.py": "three\n",
    "b.txt": "new\n",
    "counter.txt": "begun\nended\n",
    "big.txt": BIG,
    "folder/c.txt": "added\n",
}
REWOUND = {"a.py": "two\n"}
Command = tuple[str, ...]


def call(name: str, **arguments: object) -> dict[str, object]:
    return {"name": name, "arguments": arguments}


def count_outside(folder: Path, number: int) -> dict[str, object]:
    """A command that leaves the sandbox, since it reads what is outside: it is asked for, and runs unconfined."""
    return call("shell", command=f"cat {folder}/note.txt && python3 {folder}/ledger.py {number}")


def short_turns(folder: Path) -> list[object]:
    return [{"tool_calls": [EDIT, call("shell", command=COUNT)]}, {"text": "Done."}]


def post_tool(folder: Path) -> str:
    """Settings with a tool outside, which can be asked what became of a call."""
    program, posted = str(ROOT / "tests" / "chaos" / "ledger_tool.py"), str(folder / "posted")
    return f"""[tools.post]
description = "Posts a number."
command = {json.dumps([sys.executable, program, "post", posted])}
find = {json.dumps([sys.executable, program, "find", posted])}
"""


def unconfined_turns(folder: Path) -> list[object]:
    return [*({"tool_calls": [count_outside(folder, number)]} for number in range(6)), {"text": "Done."}]


def turns(folder: Path) -> list[object]:
    return [
        {"tool_calls": [call("read", path="a.py"), call("grep", pattern="one")]},
        {"tool_calls": [EDIT, call("shell", command=COUNT)]},
        {"text": "I count.", "tool_calls": [count_outside(folder, 1), call("read", path="a.py")]},
        {"tool_calls": [call("write", path="b.txt", content="new\n"), call("commit", message="Both")]},
        # More than the log holds itself: a blob.
        {"tool_calls": [call("write", path="big.txt", content=BIG)]},
        {"tool_calls": [call("apply_patch", patch=PATCH), count_outside(folder, 2)]},
        {"tool_calls": [call("post", n=7)]},
        {"tool_calls": [call("shell", command=f"cat counter.txt; echo {SECRET[:9]}'{SECRET[9:]}'")]},
        {"text": "Done."},
    ]


@dataclass(frozen=True, slots=True)
class Scene:
    name: str
    wrapper: str = ""
    """Where the process around a command ends itself in each run that is killed: what leads to a restore."""
    begin: Callable[[Arena], None] = lambda arena: None
    """Without kills, before the rest."""
    next: Callable[[Arena, Sequence[Event]], Command] = field(default=lambda arena, events: ())
    """The command that goes on, from what the log holds; empty for what is always done."""
    turns: Callable[[Path], list[object]] = turns
    conversations: Callable[[Path], Mapping[str, Sequence[object]]] = lambda folder: {}
    """Of agents, by words of their tasks."""
    settings: Callable[[Path], str] = post_tool
    options: tuple[str, ...] = ()
    """Of each run."""
    attended: bool = True
    also: Callable[[Sequence[Event]], None] = lambda events: None
    """What else must hold at the end."""
    final: Mapping[str, str] = field(default_factory=lambda: FINAL)
    ledger: tuple[str, ...] = ("1", "2")
    posted: tuple[int, ...] = (7,)

    def make(self, folder: Path, program: tuple[str, ...] | None = None) -> Arena:
        """Not yet entered."""
        outside = folder / "outside"
        outside.mkdir()
        (outside / "note.txt").write_text("A note.\n")
        (outside / "ledger.py").write_text(LEDGER)
        settings = "log_checkpoint_mib = 0.02\n" + self.settings(outside)
        arena = Arena(
            folder,
            self.turns(outside),
            settings=settings,
            attended=self.attended,
            conversations=self.conversations(outside),
        )
        if program is not None:
            arena.program = program
        return arena

    def go_on(self, arena: Arena) -> Command:
        folder = arena.session_folder()
        own = self.next(arena, arena.events() if folder is not None else ())
        if own:
            return own
        if folder is None:
            return ("exec", "Do it.", "-m", "openai/test", *self.options, "--merge")
        return ("resume", folder.name, *self.options, "--merge")


def ledger(arena: Arena) -> list[str]:
    file = arena.folder / "outside" / "ledger"
    return file.read_text().split() if file.exists() else []


def posted(arena: Arena) -> list[int]:
    file = arena.folder / "outside" / "posted"
    return [json.loads(line)["arguments"]["n"] for line in file.read_text().splitlines()] if file.exists() else []


def work_before(arena: Arena) -> None:
    """Another session, whose worktree is given back and taken by the one that is killed."""
    script = arena.folder / "before.json"
    script.write_text(json.dumps({"turns": [{"tool_calls": [call("read", path="a.py")]}, {"text": "Read."}]}))
    assert arena.start("exec", "Look.", "-m", f"scripted/{script}", "--merge").wait(60) == 0, arena.errors()
    arena.past |= {path.name for path in arena.home.glob("sessions/*")}


def work_to_rewind(arena: Arena) -> None:
    assert arena.start("exec", "Do it.", "-m", "openai/test").wait(60) == 0, arena.errors()


def rewind_next(arena: Arena, events: Sequence[Event]) -> Command:
    """Back to behind the edit and before the command, whose traces go."""
    if not any(isinstance(event.body, Rewound) for event in events):
        outcomes = {event.seq: event.body.outcome for event in events if isinstance(event.body, EffectFinished)}
        first = next(seq for seq, outcome in outcomes.items() if isinstance(outcome, ToolSucceeded))
        folder = arena.session_folder()
        assert folder is not None
        return ("rewind", f"{folder.name}@{first}")
    return ()


def rewind_and_die(arena: Arena) -> None:
    work_to_rewind(arena)
    assert arena.start(*rewind_next(arena, arena.events()), crash_at="restore_after_read_tree:1").wait(60) < 0


SCENES = (
    Scene("whole"),
    Scene("restored", wrapper="before_done:1"),
    Scene("warm", begin=work_before),
    Scene("rewinding", begin=work_to_rewind, next=rewind_next, turns=short_turns, final=REWOUND, ledger=(), posted=()),
    Scene("rewound", begin=rewind_and_die, turns=short_turns, final=REWOUND, ledger=(), posted=()),
)
UNCONFINED = Scene("unconfined", turns=unconfined_turns, final={"a.py": "one\n"}, ledger=tuple("012345"), posted=())
"""All its commands are: the hardest to be honest about."""
