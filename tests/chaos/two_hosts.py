"""Hosts in network namespaces, each on a cable of its own to one switch: a head in A, nodes of its cluster in B and C.

Only the network is apart: they share the disk, the clock and the processes' numbers, so a test sees all of them."""

import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from configs.cluster import DEFAULT_PORT
from processes.tree import send
from tests.chaos.arena import ROOT

# Where the tests of the command line keep what they share.
sys.path.append(str(ROOT / "tests" / "cli"))
from tests.cli.cluster_stage import JoinedNode
from tests.cli.daemon_machine import Machine

ADDRESSES = {"a": "10.209.7.1", "b": "10.209.7.2", "c": "10.209.7.3"}
"""They exist in the namespaces alone, so that several of these networks are in nobody's way."""


@dataclass(frozen=True, slots=True)
class Network:
    name: str

    def space(self, host: str) -> str:
        return f"th-{host}-{self.name}"

    def inside(self, host: str) -> tuple[str, ...]:
        """What stands before a program that is to run there."""
        return ("ip", "netns", "exec", self.space(host))

    def cut(self, host: str) -> None:
        """The cable of a host is pulled: it has no carrier any more, the others hear nothing of it."""
        self._switch("link", "set", f"to-{host}", "down")

    def mend(self, host: str) -> None:
        self._switch("link", "set", f"to-{host}", "up")

    def reset(self, host: str) -> int:
        """Every connection of a host is broken, as by a firewall that forgot them: how many. The cable is as it was."""
        told = _run(*self.inside(host), "ss", "-HK", "-t", "src", ADDRESSES[host])
        return len(told.splitlines())

    def lay(self) -> None:
        self._switch("link", "add", "bridge", "type", "bridge")
        self._switch("link", "set", "bridge", "up")
        for host, address in ADDRESSES.items():
            self._switch("link", "add", f"to-{host}", "type", "veth", "peer", "name", "eth0", "netns", self.space(host))
            self._switch("link", "set", f"to-{host}", "master", "bridge", "up")
            _ip("-n", self.space(host), "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", self.space(host), "link", "set", device, "up")

    def _switch(self, *arguments: str) -> None:
        _ip("-n", self.space("switch"), *arguments)


@dataclass(slots=True)
class Host(Machine):
    """Whatever is started for it runs in one namespace."""

    inside: tuple[str, ...] = ()

    def start(self, *arguments: str, **more: Any) -> "subprocess.Popen[str]":
        return Machine.start(self, *arguments, **{"before": self.inside, **more})


@dataclass(slots=True)
class Hosts:
    network: Network
    head: Host
    nodes: dict[str, JoinedNode] = field(default_factory=dict)
    address: str = f"{ADDRESSES['a']}:{DEFAULT_PORT}"

    def join(self, host: str, labels: str) -> JoinedNode:
        """As `thalia node` on that host says that it has joined."""
        state = self.head.folder / f"node-{host}-{len(list(self.head.folder.glob('node-*')))}"
        token = str(self.head.home / "cluster.token")
        options = ("--token-file", token, "--state", str(state), "--labels", labels)
        own = {"THALIA_HOME": str(state)}
        process = self.head.start("node", ADDRESSES["a"], *options, env=own, before=self.network.inside(host))
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline() or process.stderr.read()
        found = re.search(rf"joined {self.address} as {ADDRESSES[host]} · node ([0-9a-f]+)", line)
        assert found is not None, line
        self.nodes[host] = JoinedNode(state, process, found[1])
        return self.nodes[host]

    def leave(self, host: str) -> None:
        """On whichever side of a cut it is, and also where it has ended. Nothing of it is left."""
        node = self.nodes.pop(host)
        if node.process.poll() is None:
            node.process.terminate()
            node.process.communicate(timeout=60)
        assert node.pids() == []


@contextmanager
def network() -> Iterator[Network]:
    """Nothing of it is left at its end, and nothing that still runs in it. Skips where no namespace can be made."""
    one = Network(secrets.token_hex(3))
    with ExitStack() as stack:
        for host in ("switch", *ADDRESSES):
            try:
                _ip("netns", "add", one.space(host))
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"no network namespace can be made here: {getattr(error, 'stderr', None) or error}")
            stack.callback(_remove, one.space(host))
        one.lay()
        yield one


@contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    """The daemon is up in A; nodes are not there yet. Ends with `down`."""
    with network() as net:
        head = Host(folder, inside=net.inside("a"))
        one = Hosts(net, head)
        try:
            done = head.run("up", "--cluster", ADDRESSES["a"])
            assert done.code == 0, done.err
            yield one
        finally:
            for host in list(one.nodes):
                one.leave(host)
            head.down()


def _ip(*arguments: str) -> str:
    return _run("ip", *arguments)


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout


def _remove(space: str) -> None:
    """A namespace lives for as long as a process is in it, whatever has become of its name."""
    send([int(pid) for pid in _ip("netns", "pids", space).split()], signal.SIGKILL)
    _ip("netns", "delete", space)
