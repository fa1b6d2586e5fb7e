"""Definitions of background agents: Markdown with YAML front matter, as several programs write them. Pure.

    ---
    name: scout                        small letters, digits, - and _; the file's name where it is left out
    description: Knows the repository  what it is for
    tools: [read, glob, grep]          or `Read, Glob, Grep`; left out: all
    model: provider/name               left out: as the session
    wakes_on: [start, commit]          left out: only when it is asked
    budget: 0.50                       dollars an hour
    ---
    What it is told.

Keys of other programs are passed over, but for `disallowedTools`: what it forbids is not given. Finds no files: see
agent/definition_files.py."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Literal, get_args

from agent.tools.invisible import reveal
from agent.tools.schemas import OF_MAIN, SAYING, TOOLS
from eventlog.values import Value

if TYPE_CHECKING:
    from yaml import Node

Wake = Literal["start", "edit", "command", "commit", "turn_end", "question"]
Source = Literal["bundled", "user", "repository"]

MAX_CHARACTERS = 32 * 1024
"""Of a definition as a whole."""
MAX_FRONT_MATTER = 16 * 1024
MAX_DESCRIPTION = 4000
MAX_NAME = 48
MAX_BUDGET = 10_000.0
_MAX_DEPTH = 16
_MAX_NODES = 1000
# The scanner's time grows with the square of how many are open at once.
_MAX_BRACKETS = 200

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
# Ids of calls, snapshots and fan-outs and of the agents of these; see eventlog/ids.py.
_TAKEN = re.compile(r"main|setup|[csf][0-9]+(?:[-_].*)?")
_MODEL = re.compile(r"[\w.-]+/[\w./:@+-]+")
_OF_THE_SESSION = frozenset(("", "inherit", "sonnet", "opus", "haiku"))
_WAKES: tuple[Wake, ...] = get_args(Wake)

_TOOLS = tuple(tool.name for tool in TOOLS if tool.name not in (*SAYING, *OF_MAIN))
_OURS = {name: name for name in _TOOLS} | {"multiedit": "edit", "bash": "shell", "todowrite": "todo"}
_ALWAYS_THERE = frozenset(SAYING)
# Commas between brackets belong to the word: Bash(git log:*, git diff:*).
_WORD = re.compile(r"(?:[^,(]|\([^)]*\)?)+")


class AgentDefinition(Value):
    name: str
    """Safe as a file name and in a ref; no id of anything else in a session."""
    description: str
    """One line."""
    tools: tuple[str, ...] | None
    """Names of our tools, in the order of these; None: all. `report` and `stay_silent`, which each has, are not among
    them."""
    model: str | None
    """`provider/name`; None: as the session."""
    wakes_on: tuple[Wake, ...]
    budget_usd_per_hour: float | None
    """None: it sets none."""
    instructions: str
    source: Source
    path: str
    """For people: from the repository's root, with `~/`, or as the bundled ones lie. Empty where it is no file's."""
    unasked: bool
    """Whether it may be begun though the user has not named it: not where it is a repository's."""
    notes: tuple[str, ...] = ()
    """What of it is not as it was written; one sentence each."""


@dataclass(frozen=True, slots=True)
class Invalid:
    """A definition that cannot be used; `text` is one sentence for the user."""

    text: str


class _Wrong(Exception):
    """What is wrong with a definition: a clause."""


def parse_definition(
    name: str, text: str, *, source: Source = "repository", path: str = ""
) -> AgentDefinition | Invalid:
    """`name`: for one that does not say its own. Never raises."""
    try:
        return _parse(name, text, source, path)
    except _Wrong as wrong:
        return refuse(path or name, str(wrong))


def refuse(path: str, clause: str) -> Invalid:
    return Invalid(f"The agent definition {show_path(path)} cannot be used: {clause}.")


def show(text: str, most: int = 60) -> str:
    """Quoted, and cut after that many characters; nothing in it acts on a terminal."""
    return repr(text if len(text) <= most else f"{text[:most]}…")


def show_path(path: str) -> str:
    return show(path, 200)


def _parse(name: str, text: str, source: Source, path: str) -> AgentDefinition:
    if len(text) > MAX_CHARACTERS:
        raise _Wrong(f"it is longer than {MAX_CHARACTERS:,} characters")
    matter, line, body = _split(text)
    fields = _read_fields(matter, line)
    tools, notes = _tools(fields)
    model = _text(fields, "model")
    if model not in _OF_THE_SESSION and (len(model) > 200 or not _MODEL.fullmatch(model)):
        notes.append(f"Its model {show(model)} does not say a provider (provider/name): it gets the session's.")
        model = ""
    description, instructions = reveal(_description(fields)), reveal(body.strip())
    if not instructions.text:
        raise _Wrong("after its front matter stands nothing; write there what the agent is to do")
    return AgentDefinition(
        name=_checked_name(_text(fields, "name") or name),
        description=description.text,
        tools=tools,
        model=None if model in _OF_THE_SESSION else model,
        wakes_on=_wakes(fields),
        budget_usd_per_hour=_budget(fields),
        instructions=instructions.text,
        source=source,
        path=_whole(path, "its path"),
        unasked=source != "repository",
        notes=(*notes, *(shown.note for shown in (description, instructions) if shown.note)),
    )


def _split(text: str) -> tuple[str, int, str]:
    """(front matter, the number of its first line counted from 0, what stands after it)."""
    text = _whole(text, "its text").removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    begin = next((number for number, line in enumerate(lines) if line.strip()), 0)
    if lines[begin].rstrip() != "---":
        raise _Wrong("it has no front matter; begin it with a line ---, then name: and description:, then a line ---")
    end = next((number for number in range(begin + 1, len(lines)) if lines[number].rstrip() == "---"), None)
    if end is None:
        raise _Wrong("its front matter is not ended by a line ---")
    matter = "\n".join(lines[begin + 1 : end]) + "\n"
    if len(matter) > MAX_FRONT_MATTER:
        raise _Wrong(f"its front matter is longer than {MAX_FRONT_MATTER:,} characters")
    return matter, begin + 1, "\n".join(lines[end + 1 :])


def _whole(text: str, what: str) -> str:
    """With each letter that was written as two halves in one. Raises _Wrong where a half stands alone."""
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise _Wrong(f"{what} holds half a letter (a lone surrogate)") from None


def _read_fields(matter: str, line: int) -> Mapping[str, "Node"]:
    """Its keys. `line`: how many stand before it in the file."""
    from yaml import YAMLError

    if matter.count("[") + matter.count("{") > _MAX_BRACKETS:
        raise _Wrong(f"its front matter holds more than {_MAX_BRACKETS} brackets")
    try:
        return _load(matter)
    except (YAMLError, ValueError, OverflowError) as error:
        # The last two for escapes in strings that are no letter.
        said = _said(error, line)
    try:
        return _load(_quote_plain(matter))
    except (YAMLError, ValueError, OverflowError):
        raise _Wrong(said) from None


def _load(matter: str) -> Mapping[str, "Node"]:
    """Raises _Wrong for what has no place in a definition, yaml.YAMLError, ValueError, OverflowError. No value is made
    of anything: what stands there stays text."""
    from yaml import BaseLoader, MappingNode, ScalarNode, compose

    _check_events(matter)
    root = compose(matter, Loader=BaseLoader)
    if root is None:
        return {}
    if not isinstance(root, MappingNode):
        raise _Wrong("its front matter is no list of keys and values")
    fields: dict[str, Node] = {}
    for key, value in root.value:
        if isinstance(key, ScalarNode):
            if key.value in fields:
                raise _Wrong(f"{show(key.value)} stands twice in its front matter")
            fields[key.value] = value
    return fields


def _check_events(matter: str) -> None:
    """Before anything is built, which would follow aliases and call itself for each level."""
    from yaml import BaseLoader, parse
    from yaml.events import CollectionEndEvent, CollectionStartEvent, NodeEvent, ScalarEvent

    depth = 0
    for number, event in enumerate(parse(matter, Loader=BaseLoader)):
        if isinstance(event, NodeEvent) and event.anchor is not None:
            raise _Wrong("its front matter holds an anchor or an alias (& or * before a word); write the value itself")
        if isinstance(event, ScalarEvent | CollectionStartEvent) and event.tag is not None:
            raise _Wrong("its front matter holds a tag (! before a value); leave it out, or quote the value")
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > _MAX_DEPTH or number > _MAX_NODES:
            raise _Wrong("its front matter is nested too deeply or has too many parts")


_PLAIN = re.compile(r"(?m)^([A-Za-z_][\w-]*):[ \t]+([^\s\"'\[{|>&*!#].*)$")


def _quote_plain(matter: str) -> str:
    """With each value that stands unquoted in the line of its key as a quoted one: other programs write and read
    descriptions with a colon in them, which YAML does not allow."""
    return _PLAIN.sub(lambda match: f"{match[1]}: '{match[2].rstrip().replace(chr(39), chr(39) * 2)}'", matter)


def _said(error: Exception, line: int) -> str:
    from yaml import MarkedYAMLError

    if isinstance(error, MarkedYAMLError) and error.problem_mark is not None:
        place = f"line {line + error.problem_mark.line + 1}"
        return f"its front matter is no YAML at {place} ({show(error.problem or 'not readable', 100)[1:-1]})"
    return "its front matter holds a character or an escape that YAML does not allow"


def _text(fields: Mapping[str, "Node"], key: str) -> str:
    """Empty where there is none."""
    from yaml import ScalarNode

    node = fields.get(key)
    if node is None or _is_null(node):
        return ""
    if not isinstance(node, ScalarNode):
        raise _Wrong(f"its `{key}` is no single value")
    return _whole(node.value, f"its `{key}`").strip()


def _words(fields: Mapping[str, "Node"], key: str) -> list[str] | None:
    """Of a list, or of one line with commas. None where there is nothing; an empty list is one."""
    from yaml import ScalarNode, SequenceNode

    node = fields.get(key)
    if node is None or _is_null(node):
        return None
    parts = node.value if isinstance(node, SequenceNode) else [node]
    if not all(isinstance(part, ScalarNode) for part in parts):
        raise _Wrong(f"its `{key}` is neither a list of words nor one line with commas")
    texts = [_whole(part.value, f"its `{key}`") for part in parts]
    return [word.strip() for text in texts for word in _WORD.findall(text) if word.strip()]


def _is_null(node: "Node") -> bool:
    return getattr(node, "style", "") is None and node.value in ("", "~", "null")


def _checked_name(name: str) -> str:
    if len(name) > MAX_NAME or not _NAME.fullmatch(name):
        raise _Wrong(
            f"{show(name)} is no name of an agent; use up to {MAX_NAME} small letters and digits, a letter first, "
            "with single - or _ between them"
        )
    if _TAKEN.fullmatch(name):
        raise _Wrong(f"{show(name)} is a name that Thalia gives itself; choose another one")
    return name


def _description(fields: Mapping[str, "Node"]) -> str:
    text = " ".join(_text(fields, "description").split())
    if not text:
        raise _Wrong("it has no `description`; say in a line what the agent is for")
    if len(text) > MAX_DESCRIPTION:
        raise _Wrong(f"its `description` is longer than {MAX_DESCRIPTION:,} characters")
    return text


def _tools(fields: Mapping[str, "Node"]) -> tuple[tuple[str, ...] | None, list[str]]:
    """(our names, notes)."""
    words, denied = _words(fields, "tools"), _denied(_words(fields, "disallowedTools") or ())
    if words is None or "*" in words:
        return (tuple(name for name in _TOOLS if name not in denied) if denied else None), []
    given = {_OURS.get(word.lower(), "") for word in words}
    unknown = [word for word in words if word.lower() not in _OURS.keys() | _ALWAYS_THERE]
    notes = []
    if unknown:
        shown = ", ".join(show(word) for word in unknown[:8])
        more = f" and {len(unknown) - 8} more" if len(unknown) > 8 else ""
        notes.append(f"Left out of its tools, as there is none of that name: {shown}{more}.")
    return tuple(name for name in _TOOLS if name in given and name not in denied), notes


def _denied(words: Iterable[str]) -> set[str]:
    """A part of a tool (`Bash(git push:*)`) cannot be forbidden here, so the whole is."""
    denied = {_OURS.get(word.partition("(")[0].strip().lower(), "") for word in words} - {""}
    return denied | {"apply_patch"} if denied & {"write", "edit"} else denied


def _wakes(fields: Mapping[str, "Node"]) -> tuple[Wake, ...]:
    words = _words(fields, "wakes_on") or ["question"]
    if strange := [word for word in words if word not in _WAKES]:
        raise _Wrong(f"its `wakes_on` names {show(strange[0])}; there are {', '.join(_WAKES)}")
    return tuple(wake for wake in _WAKES if wake in words)


def _budget(fields: Mapping[str, "Node"]) -> float | None:
    text = _text(fields, "budget")
    if not text:
        return None
    try:
        amount = float(text.removeprefix("$"))
    except ValueError:
        amount = 0.0
    if not (isfinite(amount) and 0 < amount <= MAX_BUDGET):
        raise _Wrong(f"its `budget` {show(text)} is no number of dollars an hour above 0, up to {MAX_BUDGET:,.0f}")
    return amount
