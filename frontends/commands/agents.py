"""`agents`: what each of a session's other agents is, and where its work is; which there are in the background."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from frontends.commands.options import Folder, Last, SessionName
from frontends.commands.running import find_daemon

if TYPE_CHECKING:
    from agent.roster import AgentLine, BackgroundLine
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
        available: Annotated[bool, typer.Option("--available", help="Those that --agent can name.")] = False,
        folder: Folder = Path(),
    ) -> None:
        """A session's agents beside the main one: what each does or did, what it cost, where its work is."""
        from agent.roster import Roster
        from eventlog.seams import SystemClock

        if available:
            print("\n".join(_available_rows(folder.absolute())))
            return
        name, events = read(session, last)
        roster = Roster()
        for event in events:
            roster.take(event)
        lines, crew = roster.lines(), roster.background()
        if as_json or output == "json":
            rows = [*map(agent_json, lines), *map(background_json, crew)]
        else:
            now_us = SystemClock().now_us()
            rows = [row for line in crew for row in background_rows(line, now_us)]
            rows += [row for line in lines for row in agent_rows(line, now_us)]
            rows = rows or [f"{name} has no agents beside the main one, and has had no fan-out."]
            rows += _word_on_rest(name, lines)
        if rows:
            print("\n".join(rows))


def agent_rows(line: "AgentLine", now_us: int) -> list[str]:
    """For a person: one line with what it is, and one each for what it does, its worktree and its commit."""
    from frontends.terminal.escape import safe_line, shorten
    from frontends.terminal.fan_table import doing, first_line

    # The clock may have been set back meanwhile.
    since = "" if line.since_us is None else f"{max(now_us - line.since_us, 0) // 1_000_000} s"
    cost = "cost unknown" if line.cost_usd is None else f"${line.cost_usd:.4f}"
    task = shorten(safe_line(first_line(line.task)), 60)
    at = f"{line.host}:{line.worktree}" if line.host and line.worktree else line.worktree or ""
    more = (("now", doing(line)), ("worktree", at), ("commit", line.commit or ""))
    return [
        f"{safe_line(line.agent):<8} {line.stage:<10} round {line.round} {since:>8} {cost:>12}  {task}",
        *(f"         {title:<10} {safe_line(text)}" for title, text in more if text),
    ]


def background_rows(line: "BackgroundLine", now_us: int) -> list[str]:
    """As agent_rows; the last row is what it said last."""
    from frontends.terminal.escape import safe_line, shorten
    from frontends.terminal.fan_table import doing

    since = "" if line.since_us is None else f"{max(now_us - line.since_us, 0) // 1_000_000} s"
    cost = "cost unknown" if line.cost_usd is None else f"${line.cost_usd:.4f}"
    stage = f"looks ({', '.join(line.at_work.reasons)})" if line.at_work is not None else "rests"
    said = _said(line)
    more = (("now", doing(line)), ("worktree", line.worktree or ""), (said[0], shorten(safe_line(said[1]), 200)))
    return [
        f"{safe_line(line.agent):<8} {stage:<10} wake-up {line.round} {since:>8} {cost:>12}  "
        f"{shorten(safe_line(line.description), 60)}",
        *(f"         {title:<10} {safe_line(text)}" for title, text in more if text),
    ]


def _said(line: "BackgroundLine") -> tuple[str, str]:
    """How, and what."""
    from agent.background import text_of
    from frontends.terminal.fan_table import first_line

    if line.said is None:
        return "", ""
    return ("reported" if line.said.kind == "report" else "silent"), first_line(text_of(line.said))


def background_json(line: "BackgroundLine") -> str:
    from frontends.terminal.fan_table import doing

    return json.dumps(
        {
            "agent": line.agent,
            "background": True,
            "stage": "working" if line.at_work is not None else "resting",
            "woken_by": line.at_work.reasons if line.at_work is not None else (),
            "round": line.round,
            "doing": doing(line),
            "since_us": line.since_us,
            "cost_usd": line.cost_usd,
            "worktree": line.worktree,
            "said": line.said.model_dump(mode="json") if line.said is not None else None,
            "task": line.description,
        },
        ensure_ascii=False,
    )


def _available_rows(folder: Path) -> list[str]:
    """What there is for the repository here, from where, and what is wrong with the others."""
    from agent.definition_files import look_for_definitions
    from frontends.terminal.escape import safe_line, shorten

    root = next((one for one in (folder, *folder.parents) if (one / ".git").exists()), folder)
    found = look_for_definitions(Path.home(), root)
    rows: list[str] = []
    for one in found.definitions:
        named = "" if one.unasked else "; counts where it is named"
        rows.append(f"{one.name:<12} {shorten(safe_line(one.description), 80)}")
        rows.append(f"{'':<12} {safe_line(one.path)}{named}; wakes on {', '.join(one.wakes_on)}")
        rows += [f"{'':<12} {safe_line(note)}" for note in one.notes]
    return [*rows, *(f"! {safe_line(problem)}" for problem in found.problems)]


def agent_json(line: "AgentLine") -> str:
    from frontends.terminal.fan_table import doing, first_line

    return json.dumps(
        {
            "agent": line.agent,
            "stage": line.stage,
            "round": line.round,
            "doing": doing(line),
            "since_us": line.since_us,
            "cost_usd": line.cost_usd,
            "host": line.host,
            "worktree": line.worktree,
            "commit": line.commit,
            "task": first_line(line.task),
        },
        ensure_ascii=False,
    )


def _word_on_rest(session: "SessionId", lines: "Sequence[AgentLine]") -> list[str]:
    """What a log alone does not say of agents that are not at their end: whether anybody runs them."""
    from agent.fans import SETTLED
    from eventlog.checking import LOCK
    from eventlog.lock import is_held

    folder = find_daemon().place.state_folder / "sessions" / session
    if all(line.stage in SETTLED for line in lines) or is_held(folder / LOCK):
        return []
    return [f"Nobody runs this session; `thalia resume {session}` goes on."]
