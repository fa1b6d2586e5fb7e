"""A head and nodes that have joined it, as they are typed, on one machine."""

import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from configs.places import MARK, daemon_place
from processes.tree import carriers, read, send
from tests.actors.ray_arena import free_ports
from tests.cli.daemon_machine import Machine, machine


@dataclass(slots=True)
class JoinedNode:
    state: Path
    process: "subprocess.Popen[str]"
    id: str

    def pids(self) -> list[int]:
        return carriers(MARK, str(daemon_place(self.state / "node").folder))

    def agents(self) -> list[int]:
        return [pid for pid in self.pids() if read(f"/proc/{pid}/cmdline").startswith(b"ray::AgentWorker")]

    def lose(self) -> None:
        """As when the machine loses its power: all at once."""
        send([self.process.pid, *self.pids()], signal.SIGKILL)
        self.process.communicate(timeout=30)

    def worktrees(self) -> list[Path]:
        return [path for path in self.state.glob("node/worktrees/*/*") if (path / ".git").exists()]


@dataclass(slots=True)
class Cluster:
    head: Machine
    address: str
    nodes: dict[str, JoinedNode] = field(default_factory=dict)

    def join(self, name: str, host: str, labels: str) -> JoinedNode:
        state = self.head.folder / f"node-{name}"
        token = str(self.head.home / "cluster.token")
        options = ("--token-file", token, "--state", str(state), "--host", host, "--port", "0", "--labels", labels)
        process = self.head.start("node", self.address, *options, env={"THALIA_HOME": str(state)})
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline() or process.stderr.read()
        found = re.search(r"· node ([0-9a-f]+)", line)
        assert found is not None, line
        self.nodes[name] = JoinedNode(state, process, found[1])
        return self.nodes[name]


@contextmanager
def cluster(folder: Path, lease_s: float, env: Mapping[str, str] | None = None) -> Iterator[Cluster]:
    address = f"127.0.0.2:{free_ports()}"
    with machine(folder, env) as head:
        head.config.write_text(f"agent_lease_s = {lease_s}\n")
        done = head.run("up", "--cluster", address)
        assert done.code == 0, done.err
        one = Cluster(head, address)
        try:
            yield one
        finally:
            for node in one.nodes.values():
                if node.process.poll() is None:
                    node.process.terminate()
                    node.process.communicate(timeout=60)
                assert node.pids() == []
