"""A cluster of three nodes on one machine, whose processes have a plan: an agent works on one of the two that are not
its session's, and in one scene that node is lost in the middle."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from processes.tree import descendants
from tests.chaos.arena import EDIT, SECRET
from tests.chaos.daemon_arena import serving_conversations
from tests.chaos.daemon_scenes import DaemonScene, Stage, line_of
from tests.chaos.scenes import call
from tests.cli.cli_program import FILES
from tests.cli.cluster_stage import Cluster, JoinedNode, cluster

LEASE_S = 5
HOSTS = {"b": "127.0.0.3", "c": "127.0.0.4"}
LABELS = "disk=big"
TURNS: list[object] = [
    {"tool_calls": [EDIT]},
    {"tool_calls": [call("shell", command="echo begun > one.txt; sleep 0.3; echo ended >> one.txt; rm -f b.txt")]},
    {"tool_calls": [call("write", path="two.txt", content="2\n")]},
    {"tool_calls": [call("commit", message="Two")]},
    {"tool_calls": [call("shell", command="sleep 1.7; cat a.py one.txt two.txt > all.txt")]},
    {"text": "Done."},
]
FINAL: Mapping[str, str] = {
    **FILES,
    "a.py": "two\n",
    "one.txt": "begun\nended\n",
    "two.txt": "2\n",
    "all.txt": "two\nbegun\nended\n2\n",
}


class FarStage(Stage):
    """`cluster`: the head is the stage's machine."""

    def __init__(self, one: Cluster, folder: Path) -> None:
        super().__init__(one.head, folder)
        self.cluster = one
        self.lost = 0

    def join(self) -> None:
        """Those that are not there."""
        for name, host in HOSTS.items():
            node = self.cluster.nodes.get(name)
            if node is None or node.process.poll() is not None:
                self.cluster.join(name, host, LABELS)

    def working(self) -> JoinedNode | None:
        """The node on which the last command runs."""
        for node in self.cluster.nodes.values():
            if any("sleep 1.7" in line_of(pid) for agent in node.agents() for pid in descendants(agent)):
                return node
        return None


def fan_out(stage: Stage, *, lose: bool) -> None:
    """To the end and the merge."""
    assert isinstance(stage, FarStage)
    stage.join()
    lost: list[JoinedNode] = []

    def look() -> None:
        if lose and not lost and (node := stage.working()) is not None:
            lost.append(node)
            node.lose()

    code = stage.attend("fanout", "Do it far.", "--labels", LABELS, "-m", "openai/test", "--merge", meanwhile=look)
    assert code == 0, stage.trouble()
    stage.settle()
    assert bool(lost) == lose, "the command was never seen"


SCENES = (
    DaemonScene("far", lambda stage: fan_out(stage, lose=False), FINAL),
    DaemonScene("lost", lambda stage: fan_out(stage, lose=True), FINAL, exact=False, slow=True),
)


@contextmanager
def far_staging(folder: Path) -> Iterator[FarStage]:
    """Ends with `down`, which leaves nothing."""
    with serving_conversations(folder, {"Do it far.": TURNS}) as url:
        env = {
            "OPENAI_BASE_URL": url,
            "OPENAI_API_KEY": SECRET,
            "THALIA_CRASH_PLAN": str(folder / "plan"),
            "THALIA_CRASH_TRACE": str(folder / "trace"),
        }
        with cluster(folder / "machine", LEASE_S, env) as one:
            stage = FarStage(one, folder)
            stage.join()
            yield stage


def check_nodes(stage: FarStage) -> None:
    """No secret on any node's disk; nothing of the session but what waits for the next one."""
    for node in stage.cluster.nodes.values():
        files = [path for path in (node.state / "node").rglob("*") if path.is_file()]
        assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
        if node.process.poll() is None:
            records = [json.loads(path.read_text()) for path in (node.state / "node").glob("worktrees/*/*.json")]
            owned = [one["key"] for one in records if one["state"] != "free"]
            assert [key for key in owned if key.startswith(stage.session)] == [], owned
