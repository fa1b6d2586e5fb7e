"""The command line. Thin: options to values, a room's function, an exit code. What is slow to import comes late."""

import io
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from configs.version import VERSION, new_session_name

if TYPE_CHECKING:
    from actors.building import Parts
    from actors.local import Run
    from actors.sessions import Options
    from configs.settings import Environment
    from frontends.terminal.screen import Screen

ModeName = Literal["plan", "ask", "auto", "bypass"]
SandboxName = Literal["read-only", "workspace-write", "off"]
FormatName = Literal["text", "json", "stream-json"]

app = typer.Typer(
    name="thalia",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Model = Annotated[str | None, typer.Option("-m", "--model", help="provider/name, e.g. openai/gpt-5.")]
Output = Annotated[FormatName, typer.Option("--output-format", help="What to print.")]
Turns = Annotated[int | None, typer.Option("--max-turns", min=1, help="Model calls in this turn.")]
Budget = Annotated[float | None, typer.Option("--max-budget-usd", min=0.0, help="Money for the whole session.")]
PermissionMode = Annotated[ModeName | None, typer.Option("--permission-mode", help="When to ask.")]
Sandbox = Annotated[SandboxName | None, typer.Option("-s", "--sandbox", help="What can happen.")]
Folder = Annotated[Path, typer.Option("-C", "--cd", help="Work on the repository here.")]
AddDir = Annotated[list[Path], typer.Option("--add-dir", help="Another folder that commands may read.")]
Allowed = Annotated[list[str], typer.Option("--allowedTools", help="Rule, e.g. 'shell(npm test:*)'.")]
Denied = Annotated[list[str], typer.Option("--disallowedTools", help="Rule, e.g. 'read(./secrets/**)'.")]
Merge = Annotated[bool, typer.Option("--merge", help="Bring the result to the checkout when done.")]
Bypass = Annotated[
    bool, typer.Option("--dangerously-bypass-approvals-and-sandbox", help="No question, no sandbox, for this run.")
]
AcceptDamage = Annotated[bool, typer.Option("--accept-damage", help="Go on without the events that are lost.")]
SessionName = Annotated[str | None, typer.Argument(help="Session id, or the beginning of one.")]
Last = Annotated[bool, typer.Option("--last", help="The session that changed last.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"thalia {VERSION}")
        raise typer.Exit


@app.callback()
def thalia(
    version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show it.")] = False,
) -> None:
    """A coding agent whose every step is logged before it happens."""


@app.command("exec")
def exec_(
    prompt: Annotated[str, typer.Argument(help="What to do; - reads it from standard input.")],
    model: Model = None,
    output: Output = "text",
    max_turns: Turns = None,
    budget: Budget = None,
    mode: PermissionMode = None,
    sandbox: Sandbox = None,
    folder: Folder = Path(),
    add_dir: AddDir = [],  # noqa: B006 - typer reads the default, nobody changes it
    allowed: Allowed = [],  # noqa: B006
    denied: Denied = [],  # noqa: B006
    schema: Annotated[str | None, typer.Option("--json-schema", help="Schema of the reply: a file or JSON.")] = None,
    merge: Merge = False,
    in_place: Annotated[bool, typer.Option("--in-place", help="In the checkout itself; never restored.")] = False,
    worktree: Annotated[bool, typer.Option("-w", "--worktree", help="In a worktree of its own: the default.")] = True,
    clean: Annotated[bool, typer.Option("--clean", help="From HEAD, without uncommitted changes.")] = False,
    snapshots: Annotated[bool, typer.Option("--snapshots/--no-snapshots", help="Snapshot between steps.")] = True,
    bypass: Bypass = False,
) -> None:
    """Do one task, unattended where there is no terminal. (Also: thalia -p PROMPT)"""
    session = new_session_name()
    if output == "text":
        print(f"thalia {VERSION} · session {session}", flush=True)
    options = _options(
        output, bypass, mode, sandbox,
        folder=folder, model=model, max_turns=max_turns, max_budget_usd=budget, clean=clean,
        in_place=in_place or not worktree, snapshots=snapshots, allowed=tuple(allowed), denied=tuple(denied),
        add_dirs=tuple(add_dir), schema=schema,
    )  # fmt: skip
    from actors.local import run_new
    from eventlog.ids import SessionId

    parts, run = _run(session, output, merge, options.attended)
    raise typer.Exit(run_new(parts, SessionId(session), options, _read_prompt(prompt), run))


@app.command()
def resume(
    session: SessionName = None,
    prompt: Annotated[str | None, typer.Argument(help="What to say; nothing just goes on.")] = None,
    last: Last = False,
    model: Model = None,
    output: Output = "text",
    max_turns: Turns = None,
    budget: Budget = None,
    mode: PermissionMode = None,
    sandbox: Sandbox = None,
    merge: Merge = False,
    bypass: Bypass = False,
    accept_damage: AcceptDamage = False,
) -> None:
    """Go on with a session: one that was killed, stopped at a limit, or is done and gets another task."""
    if last and session is not None and prompt is None:
        session, prompt = None, session
    options = _options(
        output, bypass, mode, sandbox,
        folder=Path(), model=model, max_turns=max_turns, max_budget_usd=budget, accept_damage=accept_damage,
    )  # fmt: skip
    from actors.local import run_resumed
    from actors.sessions import resolve_session

    name = resolve_session(_parts(), session, last or session is None)
    parts, run = _run(name, output, merge, options.attended)
    said = _read_prompt(prompt) if prompt is not None else None
    raise typer.Exit(run_resumed(parts, name, options, said, run))


@app.command()
def fork(session: Annotated[str, typer.Argument(help="ID or ID@SEQ.")]) -> None:
    """A new session with the past of another, up to an event."""
    from actors import branching
    from actors.sessions import resolve_session
    from eventlog.ids import SessionId

    (name, seq), parts, target = _split(session), _parts(), SessionId(new_session_name())
    at = branching.fork(parts, resolve_session(parts, name, False), seq, target)
    print(f"forked {name} at event {at}: {target}\ngo on with: thalia resume {target} [PROMPT]")


@app.command()
def rewind(session: Annotated[str, typer.Argument(help="ID@SEQ: the event to go back to.")]) -> None:
    """Take a session's conversation and worktree back to an event. What was is kept."""
    from actors import branching
    from actors.sessions import resolve_session

    name, seq = _split(session)
    if seq is None:
        raise Stop(2, "Name the event to go back to, ID@SEQ; `thalia log ID` shows them.")
    parts = _parts()
    saved = branching.rewind(parts, resolve_session(parts, name, False), seq)
    print(f"back at event {seq}; the files as they were are kept as commit {saved}")


@app.command()
def sessions(output: Output = "text") -> None:
    """All sessions, the one that changed last first."""
    from eventlog.catalogue import list_sessions
    from frontends.terminal.tables import session_rows

    listed = list_sessions(_parts().environment.sessions)
    print("\n".join(session_rows(listed, output)) or "No session yet; `thalia exec PROMPT` begins one.")


@app.command()
def log(
    session: SessionName = None,
    last: Last = False,
    output: Output = "text",
    export: Annotated[Path | None, typer.Option("--export", help="Write .jsonl or .parquet here.")] = None,
    trajectory: Annotated[bool, typer.Option("--trajectory", help="Export the conversation only.")] = False,
) -> None:
    """The events of a session."""
    from actors.local import read_session
    from eventlog import export as exports
    from frontends.terminal.tables import event_line

    _, events = read_session(_parts(), session, last or session is None)
    if export is not None:
        if not export.absolute().parent.is_dir():
            raise Stop(2, f"The folder of {export} is not there; make it, or export to another file.")
        kind = "trajectory" if trajectory else "parquet" if export.suffix == ".parquet" else "jsonl"
        exports.export(events, export, kind)
        print(f"wrote {len(events)} events to {export}")
        return
    for event in events:
        print(event_line(event) if output == "text" else event.model_dump_json())


@app.command()
def sql(
    query: Annotated[str, typer.Argument(help="One SELECT over log, model_calls, tool_runs, approvals, events.")],
    output: Output = "text",
) -> None:
    """SQL over all sessions."""
    from eventlog.catalogue import union_view
    from frontends.terminal.tables import result_rows

    folder = _parts().environment.sessions
    with union_view(sorted(folder.iterdir()) if folder.is_dir() else []) as view:
        for path, why in view.skipped:
            print(f"left out {path.name}: {why}", file=sys.stderr)
        try:
            columns, rows = view.query(query)
        except ValueError as error:
            raise Stop(2, f"The query was not run: {str(error).splitlines()[0]}") from error
    print("\n".join(result_rows(columns, rows, output)))


@app.command()
def replay(
    session: SessionName = None,
    last: Last = False,
    verify: Annotated[bool, typer.Option("--verify", help="Rebuild each request and compare.")] = False,
    until: Annotated[int | None, typer.Option("--until", min=1, help="Stop at this event.")] = None,
    checkout: Annotated[Path | None, typer.Option("--checkout", help="Write the tree at that event here.")] = None,
) -> None:
    """Go through a session again from its log alone: no model, no command, no network."""
    from actors import history, local
    from frontends.terminal.tables import difference_lines, play_lines

    parts = _parts()
    name, events = local.read_session(parts, session, last or session is None)
    past = history.up_to(events, until) if until is not None else list(events)
    if checkout is not None:
        history.checkout_at(local.files_of(parts, name, past), past, past[-1].seq, checkout)
        print(f"the tree at event {past[-1].seq} is in {checkout}")
    if verify:
        result = history.verify(past)
        if isinstance(result, history.Difference):
            raise Stop(14, "\n".join(difference_lines(result)))
        print(f"replay verified: {result.events} events, {result.requests} requests")
    elif checkout is None:
        print("\n".join(play_lines(past)))


@app.command()
def diff(session: SessionName = None, last: Last = False) -> None:
    """What a session changed."""
    from actors import local
    from frontends.terminal.escape import safe

    parts = _parts()
    name, events = local.read_session(parts, session, last or session is None)
    text = local.diff_session(parts, name, events)
    print(safe(text) if sys.stdout.isatty() else text, end="")


@app.command()
def merge(session: SessionName = None, last: Last = False) -> None:
    """Bring a session's result to your checkout, as uncommitted changes."""
    from actors import local
    from actors.sessions import Options, resolve_session
    from eventlog.outcomes import Refused
    from frontends.terminal.tables import merge_lines

    parts = _parts()
    name = resolve_session(parts, session, last or session is None)
    done = local.merge_session(parts, name, Options(folder=Path(), mode="ask", sandbox="off"))
    print("\n".join(merge_lines(done)))
    raise typer.Exit(10 if isinstance(done, Refused) else 0)


@app.command()
def doctor(output: Output = "text") -> None:
    """Check what Thalia needs on this machine."""
    from actors.health import examine
    from frontends.terminal.tables import finding_rows

    findings = examine(_environment())
    print("\n".join(finding_rows(findings, output)))
    raise typer.Exit(0 if all(finding.ok or not finding.needed for finding in findings) else 10)


@app.command()
def gc(dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False) -> None:
    """Give back what no session needs. Work that is not merged is kept under a ref and named."""
    from actors.health import reclaim

    print("\n".join(reclaim(_parts(), dry_run)) or "Nothing to give back.")


@app.command()
def demo(keep: Annotated[bool, typer.Option("--keep", help="Leave the sample repository there.")] = False) -> None:
    """A scripted model fixes a failing test, is killed in the middle, resumes; then the log is verified."""
    from frontends.demo import run_demo

    raise typer.Exit(run_demo(keep))


class Stop(Exception):
    """An end with an exit code and one sentence."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        super().__init__(text)


def _options(output: str, bypass: bool, mode: ModeName | None, sandbox: SandboxName | None, **chosen: Any) -> "Options":
    """`chosen` are fields of Options."""
    from actors.finishing import read_schema
    from actors.sessions import Options

    schema = chosen.pop("schema", None)
    if schema is not None:
        file = Path(schema)
        schema = read_schema(schema, file.read_text() if len(schema) < 4096 and file.is_file() else None)
    if bypass:
        mode, sandbox = "bypass", "off"
        print("All approvals and the sandbox are bypassed in this run.", file=sys.stderr)
    elif mode == "bypass":
        raise Stop(2, "Mode bypass needs its own flag, --dangerously-bypass-approvals-and-sandbox.")
    attended = output == "text" and sys.stdin.isatty() and sys.stdout.isatty()
    return Options(mode=mode, sandbox=sandbox, attended=attended, schema=schema, **chosen)


def _read_prompt(given: str) -> str:
    text = sys.stdin.read() if given == "-" else given
    if not text.strip():
        raise Stop(2, "The prompt is empty; say what to do, or give - and write it to standard input.")
    return text


def _environment() -> "Environment":
    from configs.settings import read_environment

    return read_environment()


def _parts(screen: "Screen | None" = None) -> "Parts":
    from actors.building import Parts
    from agent.models.client import ignore_delta
    from configs.settings import load_settings
    from eventlog.seams import SystemClock

    environment = _environment()
    return Parts(environment, load_settings(environment), SystemClock(), screen.on_delta if screen else ignore_delta)


def _run(session: str, output: FormatName, merge: bool, attended: bool) -> "tuple[Parts, Run]":
    from actors.local import Run
    from frontends.terminal.driver import ask_on_terminal, drive
    from frontends.terminal.screen import Screen, exit_code_of

    screen, answer = Screen(session, output), ask_on_terminal if attended else None
    return _parts(screen), Run(screen, lambda one, go: drive(one, go, screen, answer), exit_code_of, merge)


def _split(name: str) -> tuple[str, int | None]:
    session, at, seq = name.partition("@")
    if at and not seq.isdecimal():
        raise Stop(2, f"{name!r} is not ID@SEQ: after the @ stands the number of an event.")
    return session, int(seq) if at else None


def _accept_any_text() -> None:
    """A terminal of another encoding, or bytes that are no text, are no reason to stop."""
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def main() -> None:
    """The only place where an exception becomes a sentence and an exit code."""
    os.umask(0o077)
    _accept_any_text()
    arguments = sys.argv[1:]
    if arguments[:1] in (["-p"], ["--print"]):
        arguments[:1] = ["exec"]
    elif arguments[:1] in (["-c"], ["--continue"]):
        arguments[:1] = ["resume", "--last"]
    elif arguments[:1] in (["-r"], ["--resume"]):
        arguments[:1] = ["resume"]
    try:
        try:
            app(arguments, prog_name="thalia")
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        # Whoever read is gone; what is left to flush goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(1)
    except Exception as error:
        from frontends.terminal.escape import safe
        from frontends.terminal.failures import explain

        code, text = explain(error, _environment().state_folder)
        print(safe(text), file=sys.stderr)
        sys.exit(code)


if __name__ == "__main__":
    main()
