"""The tools as the model sees them: names, arguments, descriptions; and reading back what it wrote.

Pure. Nothing here runs a tool or judges a call."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field, ValidationError
from pydantic_core import from_json

from configs.tools import OwnTool
from eventlog.effects import EffectClass
from eventlog.values import Value

MAX_ARGUMENTS = 32 * 1024 * 1024
"""Characters of JSON."""

_PathText = Annotated[str, Field(min_length=1, max_length=4096)]
_Pattern = Annotated[str, Field(min_length=1, max_length=4096)]
_FileText = Annotated[str, Field(max_length=MAX_ARGUMENTS)]


class ReadArguments(Value):
    path: Annotated[_PathText, Field(description="File or folder, relative to the worktree.")]
    offset: Annotated[int | None, Field(ge=1, le=10**9, description="First line to show, from 1.")] = None
    limit: Annotated[int | None, Field(ge=1, le=100_000, description="Lines to show; 2000 if left out.")] = None


class WriteArguments(Value):
    path: Annotated[_PathText, Field(description="File, relative to the worktree; missing folders are made.")]
    content: Annotated[_FileText, Field(description="The whole new content.")]


class EditArguments(Value):
    path: Annotated[_PathText, Field(description="File, relative to the worktree.")]
    old_text: Annotated[_FileText, Field(description="Exact text of the file, without the line numbers of read.")]
    new_text: Annotated[_FileText, Field(description="What takes its place.")]
    replace_all: Annotated[bool, Field(description="Replace every match; otherwise there must be exactly one.")] = False


class PatchArguments(Value):
    patch: Annotated[str, Field(min_length=1, max_length=MAX_ARGUMENTS, description="The whole patch.")]


class GlobArguments(Value):
    pattern: Annotated[_Pattern, Field(description="Like *.py (at any depth), src/**/*.ts, *.{c,h}.")]
    path: Annotated[_PathText | None, Field(description="Folder to look in; the worktree if left out.")] = None


class GrepArguments(Value):
    pattern: Annotated[_Pattern, Field(description="Regular expression, matched line by line.")]
    path: Annotated[_PathText | None, Field(description="File or folder; the worktree if left out.")] = None
    glob: Annotated[_Pattern | None, Field(description="Only files that match, like *.py.")] = None


class ShellArguments(Value):
    command: Annotated[str, Field(min_length=1, max_length=256 * 1024, description="Bash, run in the worktree.")]
    timeout_s: Annotated[int | None, Field(ge=1, le=86_400, description="Seconds until it is ended.")] = None


class CommitArguments(Value):
    message: Annotated[str, Field(min_length=1, max_length=20_000, description="Subject line, blank line, body.")]


class FanOutArguments(Value):
    tasks: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=20_000)], ...],
        Field(min_length=1, max_length=64, description="One text for each agent: all that it needs to know."),
    ]
    check: Annotated[
        str | None, Field(min_length=1, max_length=4096, description="Bash that must succeed on the merged files.")
    ] = None
    jobs: Annotated[int | None, Field(ge=1, le=64, description="Agents at work at a time; 8 if left out.")] = None


class TodoItem(Value):
    text: Annotated[str, Field(min_length=1, max_length=1000)]
    status: Literal["pending", "in_progress", "done"]


class TodoArguments(Value):
    items: Annotated[tuple[TodoItem, ...], Field(max_length=200, description="The whole list; it replaces the last.")]


class ReportArguments(Value):
    text: Annotated[str, Field(min_length=1, max_length=20_000, description="What the main agent must know.")]
    priority: Annotated[
        Literal["low", "normal", "high"],
        Field(description="high: its present step is lost work; normal: it changes what it does next; low: can wait."),
    ]
    evidence: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=2000)], ...],
        Field(min_length=1, max_length=20, description="What shows it: path:line, a command and what it printed."),
    ]
    notes: Annotated[
        str | None, Field(max_length=20_000, description="What you want to know when you are woken next.")
    ] = None


class SilenceArguments(Value):
    reason: Annotated[str, Field(min_length=1, max_length=4000, description="What you looked at, why it is nothing.")]
    notes: Annotated[
        str | None, Field(max_length=20_000, description="What you want to know when you are woken next.")
    ] = None


class AskAgentArguments(Value):
    agent: Annotated[str, Field(min_length=1, max_length=100, description="Its name.")]
    question: Annotated[str, Field(min_length=1, max_length=20_000, description="All that it needs to know.")]


ReadingArguments = ReadArguments | GlobArguments | GrepArguments | TodoArguments
SayingArguments = ReportArguments | SilenceArguments
EditingArguments = WriteArguments | EditArguments | PatchArguments
Arguments = (
    ReadingArguments
    | EditingArguments
    | SayingArguments
    | ShellArguments
    | CommitArguments
    | FanOutArguments
    | AskAgentArguments
)


@dataclass(frozen=True, slots=True)
class Tool:
    name: str
    arguments: type[Arguments]
    effect_class: EffectClass
    description: str


@dataclass(frozen=True, slots=True)
class Invalid:
    """A call that cannot be run as written; `text` is one sentence for the model."""

    text: str


TOOLS = (
    Tool(
        "read",
        ReadArguments,
        "read",
        "Show a text file with line numbers (number, tab, line), or list a folder. Paths are relative to the worktree. "
        "Long files come in parts: go on with offset.",
    ),
    Tool(
        "write",
        WriteArguments,
        "edit",
        "Create a file, or replace the whole content of one that you have read and that has not changed since. "
        "To change a part of a file use edit.",
    ),
    Tool(
        "edit",
        EditArguments,
        "edit",
        "Replace old_text by new_text in a file. old_text must be in the file exactly once, white space included, "
        "unless replace_all is set; give enough lines around it to make it unique. Line ends are kept.",
    ),
    Tool(
        "apply_patch",
        PatchArguments,
        "edit",
        "Change several files at once: all of them or none. Takes a unified diff, or *** Begin Patch, then "
        "*** Update File: PATH (with @@ lines and ' ', '-', '+' lines, and *** Move to: PATH after the header), "
        "*** Add File: PATH, *** Delete File: PATH, and *** End Patch. Context must match the file.",
    ),
    Tool(
        "glob",
        GlobArguments,
        "read",
        "List files by name pattern, sorted. Hidden files are seen, ignored ones and .git are not.",
    ),
    Tool(
        "grep",
        GrepArguments,
        "read",
        "Search file contents; gives path:line:text. Hidden files are seen, ignored and binary ones and .git are not.",
    ),
    Tool(
        "shell",
        ShellArguments,
        "command",
        "Run a Bash command in the worktree and show its output and exit code. It has no terminal and no input; "
        "all its processes end with the command. .git is read-only here: to commit use commit. "
        "Long output is shown as head and tail, the whole is kept in a file.",
    ),
    Tool(
        "commit",
        CommitArguments,
        "commit",
        "Commit every change in the worktree with this message.",
    ),
    Tool(
        "todo",
        TodoArguments,
        "read",
        "Note the steps of longer work and where they stand. Keep one item in_progress.",
    ),
    Tool(
        "fan_out",
        FanOutArguments,
        "spawn",
        "Have several agents work at the same time, each on one task, in a worktree of its own that begins as yours is "
        "now. They see nothing of this conversation and cannot ask. What each makes is merged into your worktree when "
        "the check passes on it; conflicts and failures go back to the agent first. For independent tasks only.",
    ),
    Tool(
        "ask_agent",
        AskAgentArguments,
        "spawn",
        "Ask one of the agents that work beside you in the background, and wait for its answer. It sees the files as "
        "they are now and remembers what it has seen before.",
    ),
    Tool(
        "report",
        ReportArguments,
        "read",
        "Tell the main agent something that changes what it does next, with what shows it. Ends this wake-up.",
    ),
    Tool(
        "stay_silent",
        SilenceArguments,
        "read",
        "Say nothing to the main agent this time, and why. Ends this wake-up.",
    ),
)
SAYING = ("report", "stay_silent")
"""Only for background agents."""
OF_MAIN = ("fan_out", "ask_agent")
"""Only for the main agent."""
_BY_NAME = {tool.name: tool for tool in TOOLS}


@lru_cache(maxsize=64)
def offered_tools(tools: str) -> tuple[str, ...]:
    """The names in a `tools` array, in its order."""
    return tuple(tool["function"]["name"] for tool in orjson.loads(tools))


def tool_named(name: str) -> Tool | None:
    return _BY_NAME.get(name)


def tools_json(
    names: Iterable[str], own: Mapping[str, OwnTool] | None = None, agents: Mapping[str, str] | None = None
) -> str:
    """The `tools` array of Chat Completions for these names, in the order of TOOLS: the same names, the same bytes.
    After them the user's `own`, as the settings have them. `agents`: whom `ask_agent` can ask, and what each is for.

    Raises ValueError for an unknown name."""
    wanted = set(names)
    if unknown := wanted - _BY_NAME.keys():
        raise ValueError(f"There is no tool named {', '.join(sorted(unknown))}.")
    more = {"ask_agent": _who(agents)}
    ours = [_as_function(tool, more.get(tool.name, "")) for tool in TOOLS if tool.name in wanted]
    theirs = [_function(name, tool.description, dict(tool.parameters)) for name, tool in (own or {}).items()]
    return orjson.dumps(ours + theirs).decode()


def _who(agents: Mapping[str, str] | None) -> str:
    return "".join(f"\n- {name}: {description}" for name, description in (agents or {}).items())


def _as_function(tool: Tool, more: str) -> dict[str, Any]:
    schema = tool.arguments.model_json_schema()
    definitions = schema.pop("$defs", {})
    return _function(tool.name, tool.description + more, _plain(schema, definitions))


def _function(name: str, description: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


# Servers that turn a schema into a grammar fail on large bounds; the bounds are kept by `parse_arguments`.
_LEFT_OUT = {"title", "default", "minLength", "maxLength", "minItems", "maxItems", "minimum", "maximum"}


def _plain(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Without titles, bounds, references and the null alternative of what may be left out."""
    if "$ref" in node:
        node = definitions[node["$ref"].rpartition("/")[2]]
    if "anyOf" in node:
        (only,) = [choice for choice in node["anyOf"] if choice.get("type") != "null"]
        node = {**{key: value for key, value in node.items() if key != "anyOf"}, **only}
    plain = {key: value for key, value in node.items() if key not in _LEFT_OUT}
    if "properties" in plain:
        plain["properties"] = {name: _plain(value, definitions) for name, value in plain["properties"].items()}
    if "items" in plain:
        plain["items"] = _plain(plain["items"], definitions)
    order = ("type", "description", "enum", "properties", "required", "items", "additionalProperties")
    return {key: plain[key] for key in order if key in plain}


def parse_arguments(name: str, text: str) -> Arguments | Invalid:
    """The arguments of a call as the model wrote them. Never raises; whole numbers may come as strings."""
    tool = _BY_NAME.get(name)
    if tool is None:
        return Invalid(f"There is no tool named {name[:80]!r}; the tools are {', '.join(_BY_NAME)}.")
    usage = _usage(tool)
    data = parse_object(name, text, usage)
    if isinstance(data, Invalid):
        return data
    try:
        return tool.arguments.model_validate(data)
    except ValidationError as error:
        return Invalid(f"The arguments of {name} are wrong: {_problems(error)}; send {usage}.")


def parse_object(name: str, text: str, usage: str) -> dict[str, Any] | Invalid:
    """The JSON object that the arguments of a call are. Never raises."""
    if len(text) > MAX_ARGUMENTS:
        return Invalid(f"The arguments of {name} are longer than {MAX_ARGUMENTS:,} characters; send less at once.")
    try:
        data = from_json(text or "{}", allow_inf_nan=False)
    except ValueError as error:
        return Invalid(f"The arguments of {name} are not valid JSON ({_reason(error)}); send {usage}.")
    if not isinstance(data, dict):
        return Invalid(f"The arguments of {name} are a JSON {_json_type(data)}; send {usage}.")
    return data


def _usage(tool: Tool) -> str:
    fields = tool.arguments.model_fields
    required = [name for name, field in fields.items() if field.is_required()]
    optional = [name for name, field in fields.items() if not field.is_required()]
    also = f" and, if wanted, {', '.join(optional)}" if optional else ""
    return f"one JSON object with {', '.join(required)}{also}"


def _reason(error: ValueError) -> str:
    return re.sub(r"[^ -~]", "?", str(error))[:120]


def _json_type(data: Any) -> str:
    names = {list: "list", str: "string", bool: "boolean", int: "number", float: "number"}
    return names.get(type(data), "null")


def _problems(error: ValidationError) -> str:
    """The input itself is not repeated: it may be long, and may hold a secret."""
    found: list[str] = []
    for item in error.errors(include_url=False, include_context=False, include_input=False)[:3]:
        where = re.sub(r"[^ -~]", "?", ".".join(str(part) for part in item["loc"]))[:80]
        match item["type"]:
            case "missing":
                found.append(f"{where} is missing")
            case "extra_forbidden":
                found.append(f"{where} is not known")
            case _:
                message = item["msg"][:1].lower() + item["msg"][1:]
                found.append(f"{where}: {message}")
    return ", ".join(found)
