"""Commands that talk to the daemon and need nothing else: `up`, `down`, `status`, `attach`, `stop`."""

import json
import time

import typer

from configs.version import new_command_name
from frontends.commands.options import Last, Output, SessionName, Stop, is_attended, split_agent
from frontends.commands.reading import hosted_events
from frontends.commands.running import find_daemon, find_name, make_request

daemon = typer.Typer(rich_markup_mode=None)


@daemon.command()
def up() -> None:
    """Start the daemon, and wait until it can run sessions."""
    one = find_daemon()
    one.start()
    one.renew()
    ray = one.insist("GET", "/status")["ray"]
    while ray["state"] == "starting":
        time.sleep(0.05)
        ray = one.insist("GET", "/status")["ray"]
    if ray["state"] == "failed":
        raise Stop(10, f"{ray['text']} Sessions run in the process that asks for them.")
    print(f"the daemon is up; its folder is {one.place.folder}")


@daemon.command()
def down() -> None:
    """Stop all sessions and end the daemon. Nothing of it is left running."""
    one = find_daemon()
    ran = one.runs()
    for session in one.end():
        print(f"stopped {session}; `thalia resume {session}` goes on")
    print("the daemon is down" if ran else "no daemon was running")


@daemon.command()
def status(output: Output = "text") -> None:
    """What the daemon is doing."""
    one = find_daemon()
    found = one.ask("GET", "/status") if one.runs() else None
    if output != "text":
        print(json.dumps(found or {"hosted": {}, "ray": {"state": "down"}}))
        return
    if found is None:
        print("no daemon is running; the next session starts it")
        return
    print(f"daemon {found['version']} · gateway {found['pid']} · Ray {found['ray']['state']} · {one.place.folder}")
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
    from agent.roster import list_agents

    lines = list_agents(hosted_events(find_daemon(), session, False) or ())
    if agent not in [line.agent for line in lines if line.stage not in SETTLED]:
        raise Stop(2, f"No agent {agent} of session {session} is at work; `thalia agents {session}` lists them.")


@daemon.command()
def stop(session: SessionName = None, last: Last = False) -> None:
    """Interrupt a session that the daemon runs, and close it; or, as ID/AGENT, one agent of its fan-out."""
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
