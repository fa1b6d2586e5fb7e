"""The command line. Thin: options to values, a room's function, an exit code. What is slow to import comes late."""

import gc as collector
import io
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from configs.version import VERSION, new_session_name
from eventlog.ids import SessionId
from frontends.commands.agents import add_agents
from frontends.commands.catalogue import catalogue
from frontends.commands.daemon import daemon
from frontends.commands.fanout import add_fanout
from frontends.commands.models import models
from frontends.commands.options import (
    AcceptDamage,
    AddDir,
    Agent,
    Allowed,
    Budget,
    Bypass,
    Clean,
    Denied,
    Detach,
    Fallback,
    Folder,
    FormatName,
    InPlace,
    Last,
    Merge,
    Model,
    ModeName,
    NoDaemon,
    Output,
    PermissionMode,
    Sandbox,
    SandboxName,
    Schema,
    SessionName,
    Snapshots,
    Stop,
    TakeOver,
    Turns,
    Worktree,
    is_attended,
    read_prompt,
    split_name,
)
from frontends.commands.reading import hosted_events
from frontends.commands.running import find_daemon, find_name, make_request, run_request, writing

if TYPE_CHECKING:
    from actors.building import Parts
    from configs.settings import Environment
    from eventlog.events import Event
    from frontends.terminal.screen import Screen

app = typer.Typer(
    name="thalia", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
)

for part in (daemon, catalogue):
    app.registered_commands += part.registered_commands
app.add_typer(models, name="models")


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
    fallback: Fallback = None,
    output: Output = "text",
    max_turns: Turns = None,
    budget: Budget = None,
    mode: PermissionMode = None,
    sandbox: Sandbox = None,
    folder: Folder = Path(),
    add_dir: AddDir = [],  # noqa: B006 - typer reads the default, nobody changes it
    allowed: Allowed = [],  # noqa: B006
    denied: Denied = [],  # noqa: B006
    schema: Schema = None,
    agent: Agent = [],  # noqa: B006
    merge: Merge = False,
    in_place: InPlace = False,
    worktree: Worktree = True,
    clean: Clean = False,
    snapshots: Snapshots = True,
    bypass: Bypass = False,
    detach: Detach = False,
    no_daemon: NoDaemon = False,
) -> None:
    """Do one task, unattended where there is no terminal. (Also: thalia -p PROMPT)"""
    session = new_session_name()
    if output == "text":
        print(f"thalia {VERSION} · session {session}", flush=True)
    options = _options(
        bypass, mode, sandbox, schema, attended=is_attended(output) and not detach,
        folder=folder, model=model, fallback=fallback, max_turns=max_turns, max_budget_usd=budget, clean=clean,
        in_place=in_place or not worktree, snapshots=snapshots, allowed=allowed, denied=denied,
        add_dirs=add_dir, agents=agent or None,
    )  # fmt: skip
    request = make_request(session, "new", options, read_prompt(prompt), merge)
    raise typer.Exit(run_request(request, output, detach, no_daemon, _run_here))


@app.command()
def resume(
    session: SessionName = None,
    prompt: Annotated[str | None, typer.Argument(help="What to say; nothing just goes on.")] = None,
    last: Last = False,
    model: Model = None,
    fallback: Fallback = None,
    output: Output = "text",
    max_turns: Turns = None,
    budget: Budget = None,
    mode: PermissionMode = None,
    sandbox: Sandbox = None,
    agent: Agent = [],  # noqa: B006
    merge: Merge = False,
    bypass: Bypass = False,
    accept_damage: AcceptDamage = False,
    take_over: TakeOver = False,
    detach: Detach = False,
    no_daemon: NoDaemon = False,
) -> None:
    """Go on with a session: one that was killed, stopped at a limit, or is done and gets another task."""
    if last and session is not None and prompt is None:
        session, prompt = None, session
    options = _options(
        bypass, mode, sandbox, None, attended=is_attended(output) and not detach,
        model=model, fallback=fallback, max_turns=max_turns, max_budget_usd=budget, accept_damage=accept_damage,
        take_over=take_over, agents=agent or None,
    )  # fmt: skip
    name = find_name(session, last)
    request = make_request(name, "resumed", options, read_prompt(prompt) if prompt is not None else None, merge)
    raise typer.Exit(run_request(request, output, detach, no_daemon, _run_here, after=None))


@app.command()
def fork(session: Annotated[str, typer.Argument(help="ID or ID@SEQ.")]) -> None:
    """A new session with the past of another, up to an event."""
    from actors import branching
    from actors.sessions import resolve_session

    (name, seq), parts, target = split_name(session), _parts(), SessionId(new_session_name())
    at = branching.fork(parts, resolve_session(parts, name, False), seq, target)
    print(f"forked {name} at event {at}: {target}\ngo on with: thalia resume {target} [PROMPT]")


@app.command()
def rewind(session: Annotated[str, typer.Argument(help="ID@SEQ: the event to go back to.")]) -> None:
    """Take a session's conversation and worktree back to an event. What was is kept."""
    from actors import branching
    from actors.sessions import resolve_session

    name, seq = split_name(session)
    if seq is None:
        raise Stop(2, "Name the event to go back to, ID@SEQ; `thalia log ID` shows them.")
    parts = _parts()
    found = resolve_session(parts, name, False)
    with writing(found):
        saved = branching.rewind(parts, found, seq)
    print(f"back at event {seq}; the files as they were are kept as commit {saved}")


@app.command()
def log(
    session: SessionName = None,
    last: Last = False,
    output: Output = "text",
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Show what comes until the session ends.")] = False,
    export: Annotated[Path | None, typer.Option("--export", help="Write .jsonl or .parquet here.")] = None,
    trajectory: Annotated[bool, typer.Option("--trajectory", help="Export the conversation only.")] = False,
) -> None:
    """The events of a session."""
    from eventlog import export as exports
    from frontends.terminal.tables import event_line

    _, events = _read(session, last, follow)
    if export is not None:
        if not export.absolute().parent.is_dir():
            raise Stop(2, f"The folder of {export} is not there; make it, or export to another file.")
        kind = "trajectory" if trajectory else "parquet" if export.suffix == ".parquet" else "jsonl"
        whole = tuple(events)
        exports.export(whole, export, kind)
        print(f"wrote {len(whole)} events to {export}")
        return
    for event in events:
        print(event_line(event) if output == "text" else event.model_dump_json(), flush=follow)


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
    name, events = _read(session, last)
    past = history.up_to(tuple(events), until) if until is not None else list(events)
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
    name, events = _read(session, last)
    text = local.diff_session(parts, name, tuple(events))
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
    with writing(name):
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


def _options(
    bypass: bool, mode: ModeName | None, sandbox: SandboxName | None, schema: str | None, **chosen: Any
) -> dict[str, Any]:
    """`chosen` are fields of actors.sessions.Options; those that are None stay out."""
    if schema is not None:
        from actors.finishing import read_schema

        file = Path(schema)
        chosen["schema"] = read_schema(schema, file.read_text() if len(schema) < 4096 and file.is_file() else None)
    if bypass:
        mode, sandbox = "bypass", "off"
        print("All approvals and the sandbox are bypassed in this run.", file=sys.stderr)
    elif mode == "bypass":
        raise Stop(2, "Mode bypass needs its own flag, --dangerously-bypass-approvals-and-sandbox.")
    return {name: value for name, value in (chosen | {"mode": mode, "sandbox": sandbox}).items() if value is not None}


def _run_here(request: Mapping[str, Any], output: FormatName) -> int:
    """In this process."""
    from actors import local
    from actors.hosting import decode_request
    from frontends.terminal.driver import ask_on_terminal, drive
    from frontends.terminal.screen import make_screen

    wanted = decode_request(json.dumps(request).encode())
    screen, answer = make_screen(wanted.session, output), ask_on_terminal if wanted.options.attended else None
    run = local.Run(screen, lambda one, go: drive(one, go, screen, answer, one.opened.log.read), wanted.merge)
    parts = _parts(screen)
    if wanted.kind == "new":
        return local.run_new(parts, wanted.session, wanted.options, wanted.prompt or "", run)
    return local.run_resumed(parts, wanted.session, wanted.options, wanted.prompt, run)


add_fanout(app, _options, _run_here)


def _read(session: str | None, last: bool, follow: bool = False) -> "tuple[SessionId, Iterable[Event]]":
    """A session's id and its events: of one that runs from its writer, of another from its files."""
    name = find_name(session, last)
    events = hosted_events(find_daemon(), name, follow)
    if events is not None:
        return SessionId(name), events
    from actors.local import read_session

    return read_session(_parts(), name, False)


add_agents(app, _read)


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


def _accept_any_text() -> None:
    """A terminal of another encoding, or bytes that are no text, are no reason to stop."""
    for stream, errors in ((sys.stdin, "replace"), (sys.stdout, "backslashreplace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)


def main() -> None:
    """The only place where an exception becomes a sentence and an exit code."""
    collector.freeze()
    collector.enable()
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
