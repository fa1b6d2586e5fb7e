"""`fanout`: several agents at once. What it is given, as a part of a request."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from configs.cluster import ClusterRefused, parse_labels
from configs.version import VERSION, new_session_name
from frontends.commands.options import (
    Allowed,
    Budget,
    Bypass,
    Denied,
    Detach,
    Folder,
    Merge,
    Model,
    NoDaemon,
    Output,
    PermissionMode,
    Sandbox,
    Stop,
    Turns,
)
from frontends.commands.running import RunHere, make_request, run_request

EXAMPLE = 'check = "pytest -q"\n\n[[task]]\ntext = "…"'


def read_tasks(
    given: list[str], file: Path | None, jobs: int | None, check: str | None, labels: str | None = None
) -> dict[str, Any]:
    """JSON of an actors.sessions.FanRequest. What is typed counts before what the file says. Raises Stop."""
    said = _read(file) if file is not None else {}
    tasks = [*map(_as_text, given), *said.get("tasks", [])]
    if not tasks:
        raise Stop(2, "Name at least one task: thalia fanout 'Add a test for …', or --file tasks.toml.")
    if not all(task.strip() for task in tasks):
        raise Stop(2, "A task is empty; say what its agent is to do.")
    return {
        "tasks": tasks,
        "jobs": jobs if jobs is not None else said.get("jobs"),
        "check": _as_text(check) if check is not None else said.get("check", ""),
        "labels": _read_labels(labels if labels is not None else said.get("labels", "")),
    }


def _read_labels(text: str) -> list[str]:
    try:
        return [f"{name}={value}" for name, value in sorted(parse_labels(text).items())]
    except ClusterRefused as error:
        raise Stop(2, str(error)) from error


def _as_text(given: str) -> str:
    """Bytes of an argument that are no text stand in it as halves of surrogate pairs."""
    return given.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _read(file: Path) -> dict[str, Any]:
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise Stop(2, f"{file} cannot be read as TOML ({why}).") from error
    if wrong := _find_wrong(tree):
        raise Stop(2, f"{file} is not a list of tasks ({wrong}); it should look like this:\n{EXAMPLE}")
    jobs, check, labels = tree.get("jobs"), tree.get("check", ""), tree.get("labels", "")
    # A truth value is an int, too.
    number = isinstance(jobs, int) and not isinstance(jobs, bool) and jobs > 0
    if not (jobs is None or number) or not isinstance(check, str) or not isinstance(labels, str):
        raise Stop(2, f"In {file} `jobs` must be a number from 1 on, `check` a command and `labels` NAME=VALUE,….")
    tasks = [task["text"] if isinstance(task, dict) else task for task in tree.get("task", [])]
    return {"tasks": tasks, "jobs": jobs, "check": check, "labels": labels}


def _find_wrong(tree: dict[str, Any]) -> str:
    """Of what is not as in the example, the first. Empty where all is."""
    tasks = tree.get("task", [])
    if unknown := sorted(tree.keys() - {"task", "jobs", "check", "labels"}):
        return f"{unknown[0]!r} is not known there"
    if not isinstance(tasks, list):
        return "each task begins with [[task]]"
    for task in tasks:
        if isinstance(task, dict) and (unknown := sorted(task.keys() - {"text"})):
            return f"{unknown[0]!r} of a task is not known"
        text = task.get("text") if isinstance(task, dict) else task
        if not isinstance(text, str) or not text.strip():
            return "each task needs a text"
    return ""


def add_fanout(app: typer.Typer, make_options: Callable[..., dict[str, Any]], run_here: RunHere) -> None:
    """`make_options` and `run_here` as for the other commands that run a session."""

    @app.command()
    def fanout(
        tasks: Annotated[list[str] | None, typer.Argument(help="What one agent is to do; as many as you like.")] = None,
        file: Annotated[Path | None, typer.Option("--file", help="Tasks from a TOML file.")] = None,
        jobs: Annotated[int | None, typer.Option("--jobs", min=1, help="Agents at work at the same time; 8.")] = None,
        check: Annotated[str | None, typer.Option("--check", help="Must succeed on each merge.")] = None,
        labels: Annotated[
            str | None, typer.Option("--labels", help="NAME=VALUE,… that a node of the cluster must have.")
        ] = None,
        base: Annotated[str | None, typer.Option("--base", help="Begin with this commit, not what you see.")] = None,
        model: Model = None,
        output: Output = "text",
        max_turns: Turns = None,
        budget: Budget = None,
        mode: PermissionMode = None,
        sandbox: Sandbox = None,
        folder: Folder = Path(),
        allowed: Allowed = [],  # noqa: B006
        denied: Denied = [],  # noqa: B006
        merge: Merge = False,
        bypass: Bypass = False,
        detach: Detach = False,
        no_daemon: NoDaemon = False,
    ) -> None:
        """Several agents at once, each on one task; what they make is merged one after the other."""
        fan = read_tasks(tasks or [], file, jobs, check, labels)
        session = new_session_name()
        if output == "text":
            print(f"thalia {VERSION} · session {session}", flush=True)
        options = make_options(
            bypass, mode, sandbox, None, attended=False, folder=folder, model=model, max_turns=max_turns,
            max_budget_usd=budget, base=base, fan=fan, allowed=allowed, denied=denied,
        )  # fmt: skip
        request = make_request(session, "new", options, None, merge)
        raise typer.Exit(run_request(request, output, detach, no_daemon, run_here))
