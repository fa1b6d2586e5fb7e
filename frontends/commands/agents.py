"""`agents`: what each agent of a session's fan-outs is, and where its work is."""

import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from frontends.commands.options import Last, SessionName
from frontends.commands.running import find_daemon

if TYPE_CHECKING:
    from agent.roster import AgentLine
    from eventlog.events import Event
    from eventlog.ids import SessionId

Read = Callable[[str | None, bool], "tuple[SessionId, Iterable[Event]]"]
"""A session's id and its events, by what was typed."""


def add_agents(app: typer.Typer, read: Read) -> None:
    """`read` as for the other commands that show a session."""

    @app.command()
    def agents(
        session: SessionName = None,
        last: Last = False,
        output: Annotated[Literal["text", "json"], typer.Option("--output-format", help="What to print.")] = "text",
        as_json: Annotated[bool, typer.Option("--json", help="The same as --output-format json.")] = False,
    ) -> None:
        """The agents of a session's fan-outs: what each does or did, what it cost, where its work is."""
        from agent.roster import list_agents
        from eventlog.seams import SystemClock

        name, events = read(session, last)
        lines = list_agents(events)
        if as_json or output == "json":
            rows = [agent_json(line) for line in lines]
        else:
            now_us = SystemClock().now_us()
            rows = [row for line in lines for row in agent_rows(line, now_us)] or [f"{name} has had no fan-out."]
            rows += _word_on_rest(name, lines)
        if rows:
            print("\n".join(rows))


def agent_rows(line: "AgentLine", now_us: int) -> list[str]:
    """For a person: one line with what it is, and one each for what it does, its worktree and its commit."""
    from frontends.terminal.escape import safe_line, shorten

    # The clock may have been set back meanwhile.
    since = "" if line.since_us is None else f"{max(now_us - line.since_us, 0) // 1_000_000} s"
    cost = "cost unknown" if line.cost_usd is None else f"${line.cost_usd:.4f}"
    task = shorten(safe_line(first_line(line.task)), 60)
    more = (("now", doing(line)), ("worktree", line.worktree or ""), ("commit", line.commit or ""))
    return [
        f"{safe_line(line.agent):<8} {line.stage:<10} round {line.round} {since:>8} {cost:>12}  {task}",
        *(f"         {title:<10} {safe_line(text)}" for title, text in more if text),
    ]


def agent_json(line: "AgentLine") -> str:
    return json.dumps(
        {
            "agent": line.agent,
            "stage": line.stage,
            "round": line.round,
            "doing": doing(line),
            "since_us": line.since_us,
            "cost_usd": line.cost_usd,
            "worktree": line.worktree,
            "commit": line.commit,
            "task": first_line(line.task),
        },
        ensure_ascii=False,
    )


def doing(line: "AgentLine") -> str:
    from eventlog.effects import RunTool
    from frontends.terminal.lines import call_line

    if line.doing is None:
        return ""
    return (
        call_line(line.doing.tool, line.doing.arguments) if isinstance(line.doing, RunTool) else "waits for the model"
    )


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def _word_on_rest(session: "SessionId", lines: "Sequence[AgentLine]") -> list[str]:
    """What a log alone does not say of agents that are not at their end: whether anybody runs them."""
    from agent.fans import SETTLED
    from eventlog.checking import LOCK
    from eventlog.lock import is_held

    folder = find_daemon().place.state_folder / "sessions" / session
    if all(line.stage in SETTLED for line in lines) or is_held(folder / LOCK):
        return []
    return [f"Nobody runs this session; `thalia resume {session}` goes on."]
