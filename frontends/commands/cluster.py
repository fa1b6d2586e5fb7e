"""What `up`, `node` and `status` say and ask about a cluster."""

import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from configs.cluster import (
    Cluster,
    ClusterRefused,
    check_own,
    forget_cluster,
    keep_joined_token,
    make_token,
    parse_address,
    parse_labels,
    read_cluster,
    read_token,
    remember_cluster,
    token_file,
)
from configs.places import read_variables, state_folder
from frontends.commands.options import Stop

if TYPE_CHECKING:
    from frontends.client import Daemon


def choose(one: "Daemon", address: str | None, join: bool, token: Path | None) -> Cluster | None:
    """What `up` was told, remembered; a daemon that runs otherwise is ended, if it hosts nothing. None: nothing new.

    Raises Stop."""
    folder = one.place.state_folder
    if address is None:
        if join or token is not None:
            raise Stop(2, "--join and --token-file belong to --cluster HOST:PORT.")
        return None
    try:
        wanted = _check(address, join)
        secret = _check_token(wanted, token)
        if wanted == read_cluster(folder):
            return None
    except ClusterRefused as error:
        raise Stop(2, str(error)) from error
    if one.runs():
        hosted = one.insist("GET", "/status")["hosted"]
        if hosted:
            many = f"{len(hosted)} session{'s' if len(hosted) > 1 else ''}"
            raise Stop(10, f"The daemon runs {many}; let them end or say `thalia down`, then ask again.")
        one.end()
    if secret is not None:
        keep_joined_token(folder, secret)
    else:
        make_token(folder)
    remember_cluster(folder, wanted)
    return wanted


def give_up(one: "Daemon") -> None:
    """What was chosen just now does not work: as it was before, without a daemon."""
    forget_cluster(one.place.state_folder)
    one.end()


def _check(address: str, join: bool) -> Cluster:
    """Raises ClusterRefused, Stop."""
    if address.startswith("ray://"):
        raise Stop(2, "An address is HOST:PORT of the head itself, not of a server for Ray's clients.")
    wanted = parse_address(address)
    if join:
        return Cluster(wanted.address, True)
    check_own(wanted.host)
    return wanted


def _check_token(wanted: Cluster, token: Path | None) -> str | None:
    """That of the head which is joined. Raises ClusterRefused, Stop."""
    if wanted.join and token is None:
        raise Stop(2, "To join a head its token is needed; name the file with --token-file.")
    if not wanted.join and token is not None:
        raise Stop(2, "--token-file is for --join; a head of our own makes its token itself.")
    return read_token(token) if token is not None else None


def become_node(address: str, token: Path, labels: str, state: Path | None, host: str | None, port: int | None) -> None:
    """Replaces this process. Raises Stop."""
    try:
        head = parse_address(address)
        parse_labels(labels)
        read_token(token)
        own = parse_address(host).host if host is not None else ""
        if own:
            check_own(own)
    except ClusterRefused as error:
        raise Stop(2, str(error)) from error
    variables = read_variables()
    folder = state.absolute() if state is not None else state_folder(variables)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    first = head.port if port is None else port
    os.execve(
        sys.executable,
        [
            *(sys.executable, "-I", "-m", "actors.node", head.address, str(folder), str(token.absolute())),
            *(f"--host={own}", f"--labels={labels}", f"--port={first}"),
        ],
        variables,
    )


def cluster_lines(one: "Daemon", ray: Mapping[str, str], nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """None where the daemon is alone, and Ray runs."""
    if ray["state"] == "failed":
        return [ray["text"]]
    if "cluster" not in ray:
        return []
    joined = ray["mode"] == "node"
    what = "node of" if joined else "head of the cluster"
    token = token_file(one.place.state_folder, joined)
    return [f"{what} {ray['cluster']} · token {token}", *(node_line(node) for node in nodes)]


def node_line(node: Mapping[str, Any]) -> str:
    from frontends.terminal.escape import safe_line

    size = f"{node['cores']} cores" + (f", {node['gpus']} GPUs" if node["gpus"] else "")
    labels = " ".join(f"{name}={value}" for name, value in sorted(node["labels"].items()))
    state, when = ("here" if node["own"] else "alive"), f"since {_time(node['since_us'])}"
    if node["ended_us"] is not None:
        state, when = node["state"], f"at {_time(node['ended_us'])}"
    name = safe_line(f"{node['address']:<15} {node['host']:<12}")
    return f"   {name} {state:<6} {size:<18} {node['agents']:>3} agents  {when}  {safe_line(labels)}".rstrip()


def _time(us: int) -> str:
    return f"{datetime.fromtimestamp(us / 1_000_000, UTC):%Y-%m-%d %H:%M:%S}Z"
