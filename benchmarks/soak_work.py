"""The work of a soak, and what its runs say of it."""

import json
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

KINDS_OF_STEP = 25
COUNTED = frozenset((0, 3, 6, 9, 11, 16, 22, 23))
"""Of so many steps, those that add the number of their call to a file; most others change nothing."""


@dataclass(frozen=True, slots=True)
class Plan:
    steps: int
    turn: int
    kill_every_s: float
    look_every_s: float


@dataclass(slots=True)
class Told:
    """What the runs have printed: acknowledged, so it must be in the log for ever."""

    digests: dict[int, bytes] = field(default_factory=dict)
    """Of each event, by seq."""
    steps: int = 0
    """Tools that ended, in all."""
    said: int = 0
    unknown: set[str] = field(default_factory=set)
    read_to: int = 0

    def read(self, out: Path) -> bool:
        """Whole lines that came since; whether there were any."""
        with out.open("rb") as file:
            file.seek(self.read_to)
            *lines, rest = file.read().split(b"\n")
            self.read_to = file.tell() - len(rest)
        for one in lines:
            self._note(one)
        return bool(lines)

    def _note(self, one: bytes) -> None:
        event = json.loads(one)
        if "seq" not in event:
            return  # The word at the end.
        body = event["body"]
        self.digests[event["seq"]] = digest(one)
        self.said += body["kind"] == "user_said"
        if body["kind"] == "effect_finished" and "_" in body["call_id"]:
            self.steps += body["outcome"]["kind"] != "attempt_lost"
            if body["outcome"]["kind"] == "outcome_unknown":
                self.unknown.add(body["call_id"])


def digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=8).digest()


def script(plan: Plan, target: str) -> list[object]:
    """The session's beginning, then a turn. `target` is the file to which each command adds the number of its call."""
    return [{"text": "Ready."}, *(step(number, target) for number in range(plan.turn)), {"text": "Done."}]


def step(number: int, target: str) -> object:
    count = f"echo $THALIA_CALL >> {target}"
    match number % KINDS_OF_STEP:
        case 5:
            done = number // KINDS_OF_STEP
            arguments = {"path": "a.py", "old_text": f"count = {done}\n", "new_text": f"count = {done + 1}\n"}
            calls = [{"name": "edit", "arguments": arguments}]
        case 10:
            calls = [{"name": "commit", "arguments": {"message": f"Step {number}"}}]
        case 15:
            reading = {"name": "read", "arguments": {"path": "a.py"}}
            calls = [reading, {"name": "grep", "arguments": {"pattern": "count"}}]
        case 20:
            # More than an event holds: it goes to the blobs, where the same content is kept once.
            text = f"{number} of a long text\n" * 1000
            calls = [{"name": "write", "arguments": {"path": f"long{number}.txt", "content": text}}]
        case 22:
            # More than the model is shown, so the middle is left out.
            calls = [shell(f"{count}; for i in $(seq 2000); do echo $i $THALIA_CALL of a long output; done")]
        case other if other in COUNTED:
            calls = [shell(count)]
        case _:
            calls = [shell("true")]
    return {"tool_calls": calls}


def shell(command: str) -> object:
    return {"name": "shell", "arguments": {"command": command}}


def commands_of(plan: Plan) -> int:
    """In one turn, each of which counts itself."""
    return sum(number % KINDS_OF_STEP in COUNTED for number in range(plan.turn))


def edits_of(plan: Plan) -> int:
    return sum(number % KINDS_OF_STEP == 5 for number in range(plan.turn))
