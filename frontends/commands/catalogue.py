"""Commands over all sessions: `sessions` and `sql`. What runs is asked of the daemon, the rest is read here."""

import sys
from typing import Annotated, Any

import typer

from frontends.commands.options import Output, Stop
from frontends.commands.running import find_daemon

catalogue = typer.Typer(rich_markup_mode=None)


@catalogue.command()
def sessions(output: Output = "text") -> None:
    """All sessions, the one that changed last first."""
    from frontends.commands.reading import list_hosted
    from frontends.terminal.tables import session_rows

    daemon = find_daemon()
    listed = list_hosted(daemon)
    if listed is None:
        from eventlog.catalogue import list_sessions

        listed = list_sessions(daemon.place.state_folder / "sessions")
    print("\n".join(session_rows(listed, output)) or "No session yet; `thalia exec PROMPT` begins one.")


@catalogue.command()
def sql(
    query: Annotated[str, typer.Argument(help="One SELECT over log, model_calls, tool_runs, approvals, events.")],
    output: Output = "text",
) -> None:
    """SQL over all sessions."""
    from frontends.terminal.tables import result_rows

    daemon = find_daemon()
    if daemon.runs():
        answer: dict[str, Any] = daemon.ask("POST", "/sql", {"query": query}, limit_s=None)
    else:
        from eventlog.querying import run_query

        answer = run_query(daemon.place.state_folder / "sessions", query)
    for name, why in answer["skipped"]:
        print(f"left out {name}: {why}", file=sys.stderr)
    if answer["error"] is not None:
        raise Stop(2, f"The query was not run: {answer['error'].splitlines()[0]}")
    print("\n".join(result_rows(answer["columns"], answer["rows"], output)))
