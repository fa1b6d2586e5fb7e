"""A cluster as it is typed: `up --cluster`, `node`, `status`. Each node has its own address on loopback."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from cli_program import WORK, Result, shell, wait_until
from daemon_machine import Machine, machine
from daemon_watch import LOOPBACK, look_into_workers, open_to_others

from actors.head import NOWHERE
from actors.ray_command import MARK_VARIABLE, HeadSize, Reach
from configs.places import MARK, daemon_place
from processes.tree import carriers, is_alive, read
from tests.actors.ray_arena import free_ports, module_head

pytestmark = [pytest.mark.xdist_group("cluster-program"), pytest.mark.timeout(180)]
WAITS = shell("until [ -e gate ]; do sleep 0.05; done")


@pytest.fixture(scope="module")
def address() -> str:
    return f"127.0.0.2:{free_ports()}"


@pytest.fixture(scope="module")
def computer(tmp_path_factory: pytest.TempPathFactory, address: str) -> Iterator[Machine]:
    """The head."""
    with machine(tmp_path_factory.mktemp("head"), {"THALIA_IDLE_S": "1"}) as one:
        done = one.run("up", "--cluster", address)
        assert done.code == 0, done.err
        assert done.out.splitlines()[1] == f"head of the cluster {address} · token {token_of(one)}"
        yield one


def token_of(computer: Machine) -> Path:
    return computer.home / "cluster.token"


def begin_node(computer: Machine, address: str, name: str, host: str, *more: str) -> "subprocess.Popen[str]":
    folder = computer.folder / name
    options = ("--token-file", str(token_of(computer)), "--state", str(folder), "--host", host, "--port", "0")
    return computer.start("node", address, *options, *more)


@contextmanager
def node(computer: Machine, address: str, name: str, host: str, *more: str) -> Iterator["subprocess.Popen[str]"]:
    """One that has joined; nothing of it is left afterwards."""
    with begin_node(computer, address, name, host, *more) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            assert f"joined {address} as {host} · node " in (process.stdout.readline() or process.stderr.read())
            yield process
        finally:
            process.terminate()
    check_gone(computer.folder / name)


def check_gone(state: Path) -> None:
    place = daemon_place(state / "node")
    assert not place.folder.exists()
    assert carriers(MARK, str(place.folder)) == []


def nodes(computer: Machine) -> dict[str, dict[str, Any]]:
    return {row["address"]: row for row in json.loads(computer.run("status", "--json").out)["nodes"]}


def is_shown(computer: Machine, host: str, state: str) -> bool:
    return nodes(computer)[host]["state"] == state


def test_status_lists_the_nodes_and_says_how_each_ended(computer: Machine, address: str) -> None:
    with ExitStack() as joined:
        second = joined.enter_context(node(computer, address, "n2", "127.0.0.3", "--labels", "zone=b,disk=big"))
        third = joined.enter_context(node(computer, address, "n3", "127.0.0.4"))
        found = nodes(computer)
        assert list(found) == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
        assert [(row["state"], row["own"], row["agents"]) for row in found.values()] == [
            ("alive", True, 0),
            ("alive", False, 0),
            ("alive", False, 0),
        ]
        assert found["127.0.0.3"]["labels"] == {"zone": "b", "disk": "big"}
        assert [row["cores"] for row in found.values()] == [os.cpu_count()] * 3
        lines = computer.run("status").out.splitlines()
        assert lines[1] == f"head of the cluster {address} · token {token_of(computer)}"
        assert [line.split()[:3:2] for line in lines[2:5]] == [
            ["127.0.0.2", "here"],
            ["127.0.0.3", "alive"],
            ["127.0.0.4", "alive"],
        ]
        assert lines[3].endswith("disk=big zone=b")

        second.terminate()
        out, err = second.communicate(timeout=30)
        assert (second.returncode, out, err) == (0, "", "")
        wait_until(lambda: is_shown(computer, "127.0.0.3", "left"))

        os.kill(raylet_of(computer.folder / "n3"), signal.SIGKILL)
        out, err = third.communicate(timeout=30)
        assert (third.returncode, out) == (10, "")
        assert f"ended. The head at {address} is there, or a new one: start `thalia node` again" in err
        wait_until(lambda: is_shown(computer, "127.0.0.4", "lost"))
        assert any("lost" in line and " at " in line for line in computer.run("status").out.splitlines())


def raylet_of(state: Path) -> int:
    place = daemon_place(state / "node")
    return next(
        pid
        for pid in carriers(MARK, str(place.folder))
        if b"--raylet_socket_name=" in read(f"/proc/{pid}/cmdline") and read(f"/proc/{pid}/comm").strip() == b"raylet"
    )


def test_no_session_is_ever_coordinated_on_a_joined_node(computer: Machine, address: str) -> None:
    """More of them than there are warm processes, with the joined node as idle as can be."""
    with node(computer, address, "n4", "127.0.0.5"):
        model = computer.script({"tool_calls": [WAITS]}, {"text": "Done."})
        for _ in range(3):
            assert computer.run("exec", "wait", "-m", model, "--detach").code == 0
        wait_until(lambda: [one["state"] for one in computer.status()["hosted"].values()] == ["open"] * 3)
        hosts = [json.loads(lock.read_bytes())["pid"] for lock in computer.home.glob("sessions/*/writer.lock")]
        assert len(hosts) == 3 and set(hosts) <= set(computer.pids())
        inside = look_into_workers(address, computer.daemon_place.ray)
        assert {one.pid for one in inside} >= set(hosts)
        # On the path of every worker, also on other machines: no folder that somebody could make there.
        assert {one.path[0] for one in inside} == {NOWHERE}
        found = nodes(computer)
        assert found["127.0.0.2"]["workers"] >= 3
        assert found["127.0.0.5"]["workers"] == 0
        refused = computer.run("up", "--cluster", f"127.0.0.2:{free_ports()}")
        assert refused.code == 10
        assert refused.err == "The daemon runs 3 sessions; let them end or say `thalia down`, then ask again.\n"
    computer.put_aside()


def test_a_wrong_token_is_refused_with_a_sentence_and_leaves_nothing(computer: Machine, address: str) -> None:
    wrong = computer.folder / "wrong.token"
    wrong.touch(0o600)
    wrong.write_text("f" * 64)
    state = computer.folder / "n5"
    done = computer.run("node", address, "--token-file", str(wrong), "--state", str(state), "--port", "0")
    assert (done.code, done.out) == (10, "")
    assert done.err == f"The head at {address} refuses the token; copy the one that `thalia up` names there.\n"
    check_gone(state)


def test_a_second_node_in_the_same_folder_is_refused_with_the_pid_of_the_first(computer: Machine, address: str) -> None:
    with node(computer, address, "n6", "127.0.0.6") as first:
        second = begin_node(computer, address, "n6", "127.0.0.7")
        out, err = second.communicate(timeout=30)
        assert (second.returncode, out) == (10, "")
        assert f"(process {first.pid}); give another one with --state." in err


def test_a_daemon_that_dies_is_the_same_head_again_and_only_down_forgets_it(computer: Machine, address: str) -> None:
    """And it does not end by itself, however idle: THALIA_IDLE_S is one second here."""
    token = token_of(computer).read_text()
    computer.kill("all")
    done = computer.run("up")
    assert (done.code, done.err) == (0, "")
    assert f"head of the cluster {address}" in done.out
    assert token_of(computer).read_text() == token
    assert open_to_others(computer.pids())[0] - LOOPBACK != set()
    assert computer.run("down").code == 0
    assert computer.run("up").out.count("\n") == 1
    wait_until(lambda: open_to_others(computer.pids())[1] >= 4)
    assert open_to_others(computer.pids())[0] == set()
    assert "cluster" not in computer.status()["ray"]


def test_a_machine_joins_a_head_that_somebody_else_runs_and_leaves_it_running(tmp_path: Path) -> None:
    with module_head(HeadSize(workers=0), Reach("127.0.0.2", free_ports())) as theirs, machine(tmp_path) as one:
        given = tmp_path / "given.token"
        given.touch(0o600)
        given.write_text(theirs.files.token.read_text())
        done = one.run("up", "--cluster", theirs.address, "--join", "--token-file", str(given))
        assert done.code == 0, done.err
        assert f"node of {theirs.address} · token {one.home / 'joined.token'}" in done.out
        own, *others = nodes(one).values()
        assert (own["own"], [other["address"] for other in others]) == (True, ["127.0.0.2"])
        session = one.run("exec", "change it", "-m", one.script(*WORK))
        assert (session.code, session.err) == (0, "")
        [host] = {event.body.pid for event in one.events() if event.body.kind == "session_opened"}
        assert host in one.pids() and host not in theirs.pids
        assert MARK_VARIABLE.encode() in read(f"/proc/{host}/environ")
        assert one.run("down").code == 0
        assert not (one.home / "joined.token").exists()
        assert len(theirs.pids) >= 3 and all(map(is_alive, theirs.pids))


def test_what_cannot_be_is_refused_with_a_sentence_and_forgotten(tmp_path: Path) -> None:
    with machine(tmp_path) as one:
        assert said(one.run("up", "--join")) == (2, "--join and --token-file belong to --cluster HOST:PORT.")
        for wrong, text in (
            ("127.0.0.1", "127.0.0.1 is this machine for itself;"),
            ("192.0.2.1", "192.0.2.1 is no address of this machine;"),
            ("ray://127.0.0.2:10001", "An address is HOST:PORT of the head itself"),
        ):
            code, sentence = said(one.run("up", "--cluster", wrong))
            assert code == 2 and sentence.startswith(text)
        joining = one.run("up", "--cluster", "127.0.0.2", "--join")
        assert said(joining) == (2, "To join a head its token is needed; name the file with --token-file.")
        given = tmp_path / "given.token"
        given.touch(0o600)
        given.write_text("f" * 64)
        nobody = f"127.0.0.2:{free_ports()}"
        code, sentence = said(one.run("up", "--cluster", nobody, "--join", "--token-file", str(given)))
        assert code == 10 and sentence.startswith(f"Nothing answers at {nobody};")
        assert sentence.endswith("The daemon is down.")
        assert json.loads(one.run("status", "--json").out) == {"hosted": {}, "ray": {"state": "down"}, "nodes": []}
        assert not (one.home / "cluster.json").exists()


def said(done: Result) -> tuple[int, str]:
    return done.code, done.err.strip()
