"""What the agents of benchmarks/background.py do next. Each decides by its own conversation alone: what it has not read
or been told there it does not know."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.background_repo import BROKEN, CAPPED, UNCAPPED, module_of

Message = Mapping[str, Any]
Call = Mapping[str, Any]
Decision = Sequence[Call] | str
"""Tool calls, or last words."""

WHOLE = "python3 -B tests/run.py"
FIND = "Find where '{word}' is handled, and say it in one line. Descriptions are src/*/README.md. Change nothing."
CHECK = (
    f"Find what the changes to {{paths}} broke, and say it in one line. `{WHOLE} FILE ...` runs tests. Change nothing."
)
FANNING = "Find things and check changes with agents of fan_out."
AT_END = "Run all tests at the end"
AGAIN = {True: f"{AT_END}, again after each repair.", False: f"{AT_END}, after a repair only what failed."}
KNOWS = "I have a map of which word is handled where: ask me."

_FAILURE = re.compile(rf"{BROKEN} (\S+): .* see (\S+\.py)")
_HIT = re.compile(r"(?m)^(\S+?\.py):\d+:")


@dataclass(frozen=True, slots=True)
class Found:
    path: str
    function: str


@dataclass(frozen=True, slots=True)
class Done:
    """A call with its result."""

    name: str
    arguments: Mapping[str, Any]
    result: str


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation without its system prompt, in order; text is what the user said, or a report."""

    items: tuple[Done | str, ...]
    asked: int
    """Replies in it."""

    @property
    def told(self) -> list[str]:
        return [item for item in self.items if isinstance(item, str)]

    def calls(self, *names: str) -> list[Done]:
        return [item for item in self.items if isinstance(item, Done) and item.name in names]

    def results(self, *names: str) -> str:
        return "\n".join(done.result for done in self.calls(*names))

    def read(self, path: str) -> str | None:
        """What it was when it was read first."""
        return next((done.result for done in self.calls("read") if done.arguments["path"] == path), None)

    def edited(self, text: str) -> list[str]:
        """Files in which `text` was put."""
        return [done.arguments["path"] for done in self.calls("edit") if text in done.arguments["new_text"]]

    def last(self, name: str, text: str = "") -> int:
        """Where the last such call stands; -1: there is none."""
        found = [
            at
            for at, item in enumerate(self.items)
            if isinstance(item, Done) and item.name == name and text in json.dumps(item.arguments)
        ]
        return found[-1] if found else -1

    def after(self, at: int) -> "Talk":
        return Talk(self.items[at:], self.asked)


def read_talk(messages: Sequence[Message]) -> Talk:
    """From Chat Completions."""
    results = {message["tool_call_id"]: message["content"] for message in messages if message["role"] == "tool"}
    items: list[Done | str] = []
    for message in messages:
        if message["role"] == "user":
            items.append(message["content"])
        for called in message.get("tool_calls") or ():
            function = called["function"]
            items.append(Done(function["name"], json.loads(function["arguments"]), results[called["id"]]))
    return Talk(tuple(items), sum(message["role"] == "assistant" for message in messages))


Mind = Callable[[Talk, Collection[str]], Decision]
"""By a conversation and the names of the tools that it may use."""


def call(name: str, **arguments: object) -> Call:
    return {"name": name, "arguments": arguments}


def decide_main(talk: Talk, offered: Collection[str]) -> Decision:
    task = talk.told[0]
    if talk.read("README.md") is None:
        return [call("read", path="README.md")]
    if repair := _repair(talk):
        return repair
    word, path = _quoted(task), re.search(r"begins in (\S+\.py)", task)
    place = Found(path[1], "") if path else None
    while word or place:
        found = place or _find(talk, word, offered)
        if not isinstance(found, Found):
            return found
        text = talk.read(found.path)
        if text is None:
            return [call("read", path=found.path)]
        if found.path not in talk.edited("RATE = 7"):
            return [call("edit", path=found.path, old_text="RATE = 5\n", new_text="RATE = 7\n")]
        word, place = _quoted(text), None
    return _prove(talk, again=AGAIN[True] in task)


def _repair(talk: Talk) -> Decision | None:
    """Of what it has been told is broken, in whatever way."""
    told = "\n".join([*talk.told[1:], talk.results("shell", "fan_out")])
    for test, path in _FAILURE.findall(told):
        if path in talk.edited(CAPPED):
            continue
        if talk.read(test) is None:
            return [call("read", path=test)]
        return [call("edit", path=path, old_text=UNCAPPED, new_text=CAPPED)]
    return None


def _prove(talk: Talk, *, again: bool) -> Decision:
    """The whole suite, on what all changes have made of the files."""
    if talk.last("shell", WHOLE) < talk.last("edit", "" if again else "RATE = 7"):
        return [call("shell", command=WHOLE, timeout_s=600)]
    if talk.last("shell", WHOLE) < talk.last("edit"):
        [test] = {test for test, _ in _FAILURE.findall(talk.results("shell"))}
        return [call("shell", command=f"{WHOLE} {test}")]
    if " 0 failed" not in talk.calls("shell")[-1].result:
        raise RuntimeError(f"a failure that nobody can repair: {talk.calls('shell')[-1].result}")
    return "The rate is 7 in all that goes together, and the tests pass."


def _find(talk: Talk, word: str, offered: Collection[str]) -> Found | Decision:
    """By whoever is there to be asked; without, or where the answer is none, by itself."""
    answer = _handled(talk.results("ask_agent", "fan_out"), word)
    if answer is None:
        tried = talk.last("fan_out", f"'{word}'") >= 0 or talk.last("ask_agent", f"'{word}'") >= 0
        if FANNING in talk.told[0] and not tried:
            return [call("fan_out", tasks=[FIND.format(word=word), *_unchecked(talk)])]
        if "ask_agent" in offered and not tried and any(KNOWS in text for text in talk.told):
            return [call("ask_agent", agent="scout", question=f"Where is '{word}' handled?")]
        return search(talk, word)
    text = talk.read(answer.path)
    if text is None or f"def {answer.function}(" in text:
        return answer
    hit = re.search(rf"(?m)^(\S+?\.py):\d+:def {answer.function}\(", talk.results("grep"))
    return Found(hit[1], answer.function) if hit else [_grep(rf"def {answer.function}\(")]


def _unchecked(talk: Talk) -> list[str]:
    """A task for what was changed since somebody looked, where something was."""
    since = talk.after(talk.last("fan_out") + 1).calls("edit")
    paths = dict.fromkeys(done.arguments["path"] for done in since)
    return [CHECK.format(paths=", ".join(paths))] if paths else []


def search(talk: Talk, word: str) -> Found | Decision:
    """From the word that people use to the one of the code, description by description."""
    found = talk.results("grep", "read")
    while later := re.search(rf"'{word}' is called '(\w+)' now", found):
        word = later[1]
    if place := _handled(found, word):
        return place
    if talk.last("grep", f"'{word}' is") >= 0:
        raise RuntimeError(f"nobody says where {word!r} is handled")
    return [_grep(f"'{word}' is", "README.md")]


def _handled(text: str, word: str) -> Found | None:
    found = re.search(rf"'{word}' is handled in (\S+\.py) by (\w+)", text)
    return Found(found[1], found[2]) if found else None


def _grep(pattern: str, glob: str = "*.py") -> Call:
    return call("grep", pattern=pattern, glob=glob)


def _quoted(text: str) -> str:
    found = re.search(r"what handles '(\w+)'", text)
    return found[1] if found else ""


def check(talk: Talk, paths: Iterable[str]) -> Decision:
    """The tests of the changed modules and of what uses them. Ends with one line."""
    if not (hits := talk.calls("grep")):
        return [_grep("|".join(re.escape(module_of(path)) for path in paths))]
    users = [path for path in _HIT.findall(hits[0].result) if path.startswith("src/")]
    if users and len(hits) == 1:
        return [_grep("|".join(re.escape(module_of(path)) for path in dict.fromkeys(users)))]
    if not (runs := talk.calls("shell")):
        found = [path for hit in hits for path in _HIT.findall(hit.result)]
        tests = sorted({path for path in found if path.startswith("tests/")})
        return [call("shell", command=f"{WHOLE} {' '.join(tests)}")]
    failure = _FAILURE.search(runs[0].result)
    if failure and len(runs) == 1:
        return [call("shell", command=f"{WHOLE} {failure[1]}")]
    return failure[0] if failure else runs[0].result.splitlines()[-1]


def decide_part(talk: Talk, offered: Collection[str]) -> Decision:
    """An agent of a fan-out, which is told all that it knows."""
    task = talk.told[0]
    if word := re.search(r"Find where '(\w+)'", task):
        found = search(talk, word[1])
        return f"'{word[1]}' is handled in {found.path} by {found.function}." if isinstance(found, Found) else found
    return check(talk, re.findall(r"src/\S+?\.py", task))


def decide_checker(talk: Talk, offered: Collection[str]) -> Decision:
    wake = talk.after(max(at for at, item in enumerate(talk.items) if isinstance(item, str)))
    text = wake.told[0]
    if talk.read("README.md") is None:
        return [call("read", path="README.md")]
    if "Changed since" not in text:
        return _silent(f"`{WHOLE} FILE ...` runs tests; nothing has changed yet.")
    changes = text.partition("Changed since")[2].partition("\n\n")[0]
    said = check(wake, re.findall(r"src/\S+?\.py", changes))
    if not isinstance(said, str):
        return said
    before = [done for done in talk.calls("report") if BROKEN in done.arguments["text"]]
    if BROKEN in said:
        if any(said in done.arguments["text"] for done in before):
            return _silent("Still broken; that was reported.")
        return [call("report", text=said, priority="high", evidence=[wake.calls("shell")[-1].arguments["command"]])]
    return _silent(f"{said}.")


@dataclass(frozen=True, slots=True)
class Scout:
    """`pages`: that it reads in one reply. `misread`: words that it takes to be handled next door."""

    pages: int
    misread: Collection[str]

    def __call__(self, talk: Talk, offered: Collection[str]) -> Decision:
        if asked := re.search(r"Where is '(\w+)' handled\?", talk.told[-1]):
            return self._answer(talk, asked[1])
        if not talk.calls("glob"):
            return [call("read", path="README.md"), call("glob", pattern="src/*/README.md")]
        known = {done.arguments["path"] for done in talk.calls("read")}
        if missing := [path for path in talk.results("glob").split() if path not in known]:
            return [call("read", path=path) for path in missing[: self.pages]]
        return [call("report", text=f"{KNOWS} {WHOLE} runs all tests.", priority="normal", evidence=["README.md:1"])]

    def _answer(self, talk: Talk, word: str) -> Decision:
        found = search(talk, word)
        if not isinstance(found, Found):
            return found
        path = _next_door(found.path) if word in self.misread else found.path
        text = f"'{word}' is handled in {path} by {found.function}."
        return [call("report", text=text, priority="low", evidence=[path])]


def _next_door(path: str) -> str:
    number = int(path[-5:-3])
    return f"{path[:-5]}{number + 1 if number % 2 == 0 else number - 1:02}.py"


def _silent(reason: str) -> Decision:
    return [call("stay_silent", reason=reason)]
