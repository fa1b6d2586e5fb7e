"""Commands that talk to the daemon and need nothing else: `up`, `down`, `status`, `attach`, `stop`; and `node`."""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from configs.cluster import forget_cluster
from configs.version import new_command_name
from frontends.commands.cluster import become_node, choose, cluster_lines, give_up
from frontends.commands.options import Last, Output, SessionName, Stop, is_attended, split_agent
from frontends.commands.reading import hosted_events
from frontends.commands.running import find_daemon, find_name, make_request

if TYPE_CHECKING:
    from frontends.client import Daemon

daemon = typer.Typer(rich_markup_mode=None)
_USE_S = 60.0
"""How long the gateway may take to join; one second is usual."""


@daemon.command()
def up(
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="HOST[:PORT] of this machine: others can join, until `down`.")
    ] = None,
    join: Annotated[bool, typer.Option("--join", help="HOST:PORT is a head that somebody else runs.")] = False,
    token: Annotated[Path | None, typer.Option("--token-file", help="With --join: the token of that head.")] = None,
) -> None:
    """Start the daemon, and wait until it can run sessions."""
    one = find_daemon()
    chosen = choose(one, cluster, join, token)
    one.start()
    one.renew()
    ray = _wait_for_ray(one)
    if ray["state"] == "failed":
        if chosen is not None:
            give_up(one)
            raise Stop(10, f"{ray['text']} The daemon is down.")
        raise Stop(10, f"{ray['text']} Sessions run in the process that asks for them.")
    print(f"the daemon is up; its folder is {one.place.folder}")
    print("".join(f"{line}\n" for line in cluster_lines(one, ray, [])), end="")


def _wait_for_ray(one: "Daemon") -> dict[str, str]:
    """What became of it. In a cluster it is of no use before the daemon has announced itself. Raises Stop."""
    give_up: float | None = None
    while True:
        found = one.insist("GET", "/status?nodes=1")
        ray = found["ray"]
        if ray["state"] == "failed" or (ray["state"] == "up" and ("cluster" not in ray or found["nodes"])):
            return ray
        if ray["state"] == "up":
            give_up = give_up or time.monotonic() + _USE_S
            if time.monotonic() > give_up:
                raise Stop(10, f"Ray is up, but the daemon has not come to use it; see {one.place.log}.")
        time.sleep(0.05)


@daemon.command()
def down() -> None:
    """Stop all sessions and end the daemon. Nothing of it is left running."""
    one = find_daemon()
    forget_cluster(one.place.state_folder)
    ran = one.runs()
    for session in one.end():
        print(f"stopped {session}; `thalia resume {session}` goes on")
    print("the daemon is down" if ran else "no daemon was running")


@daemon.command()
def node(
    address: Annotated[str, typer.Argument(help="HOST[:PORT] of the head, as `thalia up --cluster` was told it.")],
    token: Annotated[Path, typer.Option("--token-file", help="A copy of the head's token.")],
    labels: Annotated[str, typer.Option("--labels", help="What is here: NAME=VALUE,…")] = "",
    state: Annotated[Path | None, typer.Option("--state", help="The node's own folder.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="The address by which others reach this machine.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", min=0, help="The first of its ports, if not the head's; 0: any.")
    ] = None,
) -> None:
    """Make this machine a node of a cluster, in the foreground, until it is told to end."""
    become_node(address, token, labels, state, host, port)


@daemon.command()
def status(
    output: Output = "text",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output-format json.")] = False,
) -> None:
    """What the daemon is doing, and which nodes it has."""
    one = find_daemon()
    found = one.ask("GET", "/status?nodes=1") if one.runs() else None
    if as_json or output != "text":
        print(json.dumps(found or {"hosted": {}, "ray": {"state": "down"}, "nodes": []}))
        return
    if found is None:
        print("no daemon is running; the next session starts it")
        return
    print(f"daemon {found['version']} · gateway {found['pid']} · Ray {found['ray']['state']} · {one.place.folder}")
    print("".join(f"{line}\n" for line in cluster_lines(one, found["ray"], found.get("nodes", ()))), end="")
    for session, entry in sorted(found["hosted"].items()):
        print(f"   {session}  {entry['state']}")


@daemon.command()
def attach(session: SessionName = None, last: Last = False, output: Output = "text") -> None:
    """Come back to a session: see what it does, answer its questions. Ctrl-C twice leaves it running."""
    from frontends.running import Wish, run

    session, agent = split_agent(session)
    name, attended = find_name(session, last), is_attended(output)
    request = make_request(name, "attached", {"attended": attended})
    raise typer.Exit(run(find_daemon(), Wish(request, output, attended, agent=agent)))


def _check_works(session: str, agent: str) -> None:
    """Raises Stop where there is no such agent at work."""
    from agent.fans import SETTLED
    from agent.roster import Roster

    roster = Roster()
    for event in hosted_events(find_daemon(), session, False) or ():
        roster.take(event)
    at_work = [line.agent for line in roster.lines() if line.stage not in SETTLED]
    at_work += [line.agent for line in roster.background() if line.at_work is not None]
    if agent not in at_work:
        raise Stop(2, f"No agent {agent} of session {session} is at work; `thalia agents {session}` lists them.")


@daemon.command()
def stop(session: SessionName = None, last: Last = False) -> None:
    """Interrupt a session that the daemon runs, and close it; or, as ID/AGENT, what one of its other agents does."""
    session, agent = split_agent(session)
    one, name = find_daemon(), find_name(session, last)
    if not one.runs():
        raise Stop(2, f"Session {name} is not running: there is no daemon.")
    if agent is not None:
        _check_works(name, agent)
        told = {"kind": "interrupted", "id": new_command_name(), "agent": agent}
        one.ask("POST", f"/sessions/{name}/commands", told)
        print(f"agent {agent} stops; what it made is kept")
        return
    one.ask("POST", f"/sessions/{name}/stop")
    print(f"stopped {name}; `thalia resume {name}` goes on")
