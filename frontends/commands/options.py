"""Options and arguments that several commands share, and how a command ends."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

ModeName = Literal["plan", "ask", "auto", "bypass"]
SandboxName = Literal["read-only", "workspace-write", "off"]
FormatName = Literal["text", "json", "stream-json"]

Model = Annotated[str | None, typer.Option("-m", "--model", help="provider/name, e.g. openai/gpt-5.")]
Fallback = Annotated[str | None, typer.Option("--fallback-model", help="Answers where --model does not.")]
Output = Annotated[FormatName, typer.Option("--output-format", help="What to print.")]
Turns = Annotated[int | None, typer.Option("--max-turns", min=1, help="Model calls in this turn.")]
Budget = Annotated[float | None, typer.Option("--max-budget-usd", min=0.0, help="Money for the whole session.")]
PermissionMode = Annotated[ModeName | None, typer.Option("--permission-mode", help="When to ask.")]
Sandbox = Annotated[SandboxName | None, typer.Option("-s", "--sandbox", help="What can happen.")]
Folder = Annotated[Path, typer.Option("-C", "--cd", help="Work on the repository here.")]
AddDir = Annotated[list[Path], typer.Option("--add-dir", help="Another folder that commands may read.")]
Allowed = Annotated[list[str], typer.Option("--allowedTools", help="Rule, e.g. 'shell(npm test:*)'.")]
Denied = Annotated[list[str], typer.Option("--disallowedTools", help="Rule, e.g. 'read(./secrets/**)'.")]
Agent = Annotated[list[str], typer.Option("--agent", help="An agent in the background, e.g. scout; none: no agent.")]
Schema = Annotated[str | None, typer.Option("--json-schema", help="Schema of the reply: a file or JSON.")]
Merge = Annotated[bool, typer.Option("--merge", help="Bring the result to the checkout when done.")]
InPlace = Annotated[bool, typer.Option("--in-place", help="In the checkout itself; never restored.")]
Worktree = Annotated[bool, typer.Option("-w", "--worktree", help="In a worktree of its own: the default.")]
Clean = Annotated[bool, typer.Option("--clean", help="From HEAD, without uncommitted changes.")]
Snapshots = Annotated[bool, typer.Option("--snapshots/--no-snapshots", help="Snapshot between steps.")]
Bypass = Annotated[
    bool, typer.Option("--dangerously-bypass-approvals-and-sandbox", help="No question, no sandbox, for this run.")
]
AcceptDamage = Annotated[bool, typer.Option("--accept-damage", help="Go on without the events that are lost.")]
TakeOver = Annotated[bool, typer.Option("--take-over", help="End the process that writes it, if one does.")]
Detach = Annotated[bool, typer.Option("--detach", help="Begin it and come back at once.")]
NoDaemon = Annotated[bool, typer.Option("--no-daemon", help="Run it in this process; it ends with the terminal.")]
SessionName = Annotated[str | None, typer.Argument(help="Session id, or the beginning of one.")]
Last = Annotated[bool, typer.Option("--last", help="The session that changed last.")]


class Stop(Exception):
    """An end with an exit code and one sentence."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        super().__init__(text)


def read_prompt(given: str) -> str:
    text = sys.stdin.read() if given == "-" else given
    if not text.strip():
        raise Stop(2, "The prompt is empty; say what to do, or give - and write it to standard input.")
    # Bytes of an argument that are no text stand in it as halves of surrogate pairs.
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def split_agent(name: str | None) -> tuple[str | None, str | None]:
    """ID/AGENT as (ID, AGENT)."""
    session, _, agent = (name or "").partition("/")
    return session or None, agent or None


def split_name(name: str) -> tuple[str, int | None]:
    """ID or ID@SEQ."""
    session, at, seq = name.partition("@")
    if at and not seq.isdecimal():
        raise Stop(2, f"{name!r} is not ID@SEQ: after the @ stands the number of an event.")
    return session, int(seq) if at else None


def is_attended(output: FormatName) -> bool:
    return output == "text" and sys.stdin.isatty() and sys.stdout.isatty()
