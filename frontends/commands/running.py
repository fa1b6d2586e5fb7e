"""What commands share: the daemon, requests to it, and this process where it cannot carry them out."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from configs.places import config_file, daemon_place, read_variables, state_folder, wants_daemon
from configs.version import new_command_name
from eventlog.errors import LogBusy
from frontends.commands.options import FormatName, Stop

if TYPE_CHECKING:
    from frontends.client import Daemon

RunHere = Callable[[Mapping[str, Any], FormatName], int]
DETACHED = 130


def find_daemon() -> "Daemon":
    from frontends.client import Daemon

    variables = read_variables()
    return Daemon(daemon_place(state_folder(variables)), variables)


def find_name(session: str | None, last: bool) -> str:
    """Raises LogNotFound."""
    from eventlog.finding import choose_session

    return choose_session(state_folder(read_variables()) / "sessions", session, last or session is None)


@contextmanager
def writing(session: str) -> "Iterator[None]":
    """Around what needs the session's log for itself: where the daemon runs it, a person is told what to do."""
    try:
        yield
    except LogBusy:
        _check_not_hosted(session)
        raise


def _check_not_hosted(session: str) -> None:
    """Raises Stop where the daemon runs it."""
    daemon = find_daemon()
    if daemon.runs() and session in daemon.ask("GET", "/status")["hosted"]:
        text = f"`thalia attach {session}` shows it; `thalia stop {session}` ends it, then ask again."
        raise Stop(10, f"Session {session} runs in the daemon: {text}")


def make_request(
    session: str,
    kind: Literal["new", "resumed", "attached"],
    options: Mapping[str, Any],
    prompt: str | None = None,
    merge: bool = False,
) -> dict[str, Any]:
    """JSON of an actors.hosting.RunRequest. Paths become absolute: who carries it out is in another folder."""
    model = options.get("model")
    if model is not None and model.startswith("scripted/"):
        options = {**options, "model": f"scripted/{Path(model.removeprefix('scripted/')).absolute()}"}
    folder = Path(options.get("folder", ".")).absolute()
    add_dirs = [str(path.absolute()) for path in options.get("add_dirs", ())]
    return {
        "session": session,
        "kind": kind,
        "command_id": new_command_name(),
        "options": {**options, "folder": str(folder), "add_dirs": add_dirs},
        "config_file": str(config_file(read_variables()).absolute()),
        "prompt": prompt,
        "merge": merge,
    }


def run_request(
    request: Mapping[str, Any],
    output: FormatName,
    detach: bool,
    no_daemon: bool,
    run_here: RunHere,
    after: int | None = 0,
) -> int:
    """The exit code. Where the daemon cannot start, `run_here` carries it out, and the person is told."""
    from frontends.client import DaemonRefused, DaemonUnreachable
    from frontends.running import Wish, begin, run

    if no_daemon or not wants_daemon(read_variables()):
        if detach:
            raise Stop(2, "Without the daemon nothing can go on by itself; leave out --detach.")
        if request["options"].get("take_over"):
            # Whoever is ended there is replaced at once.
            _check_not_hosted(request["session"])
        with writing(request["session"]):
            return run_here(request, output)
    daemon = find_daemon()
    if request["kind"] == "new":
        _check_apart(Path(request["options"]["folder"]), daemon.place.state_folder)
    wish = Wish(request, output, request["options"].get("attended", False), after)
    try:
        if detach:
            daemon.start()
            begin(daemon, wish)
            print(f"{wish.session} runs; `thalia attach {wish.session}` shows it, `thalia stop {wish.session}` ends it")
            return 0
        return run(daemon, wish)
    except (DaemonRefused, DaemonUnreachable) as error:
        if isinstance(error, DaemonRefused) and error.kinds[:1] != ("NoRay",):
            raise
        if detach:
            raise
        print(f"{error} The session runs in this process and ends with it.", file=sys.stderr)
    return run_here(request, output)


def _check_apart(folder: Path, state_folder: Path) -> None:
    """Starting the daemon makes the state folder: not in the checkout, where each `git add` would take it. Raises
    Stop."""
    here = folder.resolve()
    root = next((path for path in (here, *here.parents) if (path / ".git").exists()), None)
    if root is not None and state_folder.resolve().is_relative_to(root):
        raise Stop(2, f"The state folder {state_folder} is inside the checkout; set THALIA_HOME to another place.")
