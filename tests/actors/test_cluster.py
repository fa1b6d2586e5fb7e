"""Several nodes, here on one machine: each has its own address on loopback, its own folder and its own processes."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from actors.head import Head, HeadError, start_head
from actors.joining import check_head, join_head
from actors.ray_command import HeadFiles, HeadSize, Reach, head_command, head_environment
from configs.cluster import NODE_LABEL, PORTS
from configs.version import VERSION
from processes import tree
from tests.actors.ray_arena import drive, free_ports, module_head, run_driver, short_folder

pytestmark = [pytest.mark.xdist_group("cluster"), pytest.mark.timeout(120)]
ONE_WORKER = HeadSize(workers=1)


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with module_head(ONE_WORKER, Reach("127.0.0.2", free_ports())) as running:
        yield running


def secret(head: Head) -> str:
    return head.files.token.read_text()


@asynccontextmanager
async def joined(head: Head, host: str, **labels: str) -> AsyncIterator[Head]:
    with short_folder() as files:
        reach = Reach(host, 0, head.address, secret(head))
        size = HeadSize(workers=0, cpus=3, labels={**labels, NODE_LABEL: VERSION})
        node = await join_head(files, os.environ, size, reach, thalia=False)
        try:
            yield node
        finally:
            await node.stop()


def named(node: Head, name: str) -> int:
    return next(pid for pid in node.pids if tree.read(f"/proc/{pid}/comm").decode().strip() == name)


async def ask(head: Head, driver: str, *arguments: str) -> Any:
    return await asyncio.to_thread(drive, head, driver, *arguments)


def test_the_command_of_a_node_names_its_head_and_none_of_what_only_heads_are_asked() -> None:
    files, reach = HeadFiles(Path("/run/thalia")), Reach("", 7000, "10.0.0.1:7330", "secret")
    command = head_command(files, HeadSize(cpus=None), reach)
    assert "--address=10.0.0.1:7330" in command
    assert not [
        word for word in command if word.startswith(("--head", "--port", "--node-ip", "--include-dash", "--num"))
    ]
    assert {"--node-manager-port=7001", "--object-manager-port=7002"} <= set(command)
    assert {"--min-worker-port=7010", f"--max-worker-port={7000 + PORTS - 1}"} <= set(command)
    environment = head_environment({}, files, HeadSize(), "m", reach)
    assert environment["RAY_AUTH_MODE"] == "token"
    assert "secret" not in [*command, *environment.values()]
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in environment


async def test_what_is_placed_on_one_of_three_nodes_runs_there_until_that_node_is_lost(head: Head) -> None:
    async with joined(head, "127.0.0.3", zone="b") as second, joined(head, "127.0.0.4", zone="c", disk="big") as third:
        before = [row for row in await ask(head, "list_nodes") if row["ended_us"] is None]
        assert [row["address"] for row in before] == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
        assert [row["state"] for row in before] == ["alive"] * 3
        assert [row["own"] for row in before] == [True, False, False]
        assert [row["labels"] for row in before] == [{}, {"zone": "b"}, {"zone": "c", "disk": "big"}]
        assert [row["cores"] for row in before] == [os.cpu_count(), 3, 3]
        placed = await ask(head, "place_each", '{"zone": "b"}', '{"disk": "big"}', "{}")
        assert [chosen for chosen, _, _ in placed] == [reported for _, reported, _ in placed]
        assert [mark for _, _, mark in placed] == [node.files.mark.read_text() for node in (second, third, head)]
        after = [row for row in await ask(head, "list_nodes") if row["ended_us"] is None]
        assert [row["agents"] for row in after] == [1, 1, 1]
        check_token_hidden(secret(head), head, second, third)
        began_us = time.time_ns() // 1000
        os.kill(named(third, "raylet"), signal.SIGKILL)
        assert "ended." in await asyncio.wait_for(third.died(), 30)
        row, created = await ask(head, "wait_lost", before[2]["id"])
        assert (row["state"], row["agents"], created) == ("lost", 0, "WorkerLost")
        assert began_us - 1_000_000 < row["ended_us"] <= time.time_ns() // 1000


def check_token_hidden(token: str, *nodes: Head) -> None:
    """Each has it in a file of its own, and shows it to nobody."""
    for node in nodes:
        assert node.files.token.stat().st_mode & 0o777 == 0o600
        assert node.files.token.read_text() == token
        for pid in node.pids:
            assert token.encode() not in tree.read(f"/proc/{pid}/cmdline") + tree.read(f"/proc/{pid}/environ")


def test_a_driver_without_the_token_is_refused_off_loopback_too(head: Head, tmp_path: Path) -> None:
    stranger = HeadFiles(tmp_path)
    stranger.nowhere.mkdir()
    stranger.token.write_text("0" * 64)
    outcome = run_driver(head.address, tmp_path, "list_nodes")
    assert outcome.returncode == 1
    assert f"Ray at {head.address} cannot be joined" in outcome.stderr


async def test_a_wrong_token_is_refused_before_anything_is_started(head: Head) -> None:
    with short_folder() as files:
        with pytest.raises(HeadError, match=rf"^The head at {head.address} refuses the token; copy the one"):
            await join_head(files, os.environ, ONE_WORKER, Reach("127.0.0.7", 0, head.address, "0" * 64), thalia=False)
        assert not files.folder.exists()


def test_another_version_of_thalia_or_ray_is_refused_with_both(head: Head) -> None:
    there = f"The head at {head.address} runs"
    nobody, older, same, ray = drive(head, "refusals", "", "0.0.9", VERSION, f"{VERSION}/2.55.0")
    assert nobody.startswith(f"Ray answers at {head.address}, but no daemon is there;")
    assert older == f"{there} thalia 0.0.9, and this is thalia {VERSION}; install the same here."
    assert same is None
    assert ray == f"{there} Ray 2.55.0, and this is Ray {version('ray')}; install the same here."


async def test_an_address_where_nothing_listens_is_told_at_once() -> None:
    with pytest.raises(HeadError, match=r"^Nothing answers at 127\.0\.0\.2:\d+; see whether the head runs"):
        await check_head(f"127.0.0.2:{free_ports()}", "0" * 64, thalia=False)


async def test_ports_that_somebody_has_are_named_and_nothing_is_started(head: Head) -> None:
    port = int(head.address.rpartition(":")[2])
    with short_folder() as files:
        with pytest.raises(HeadError, match=rf"^Port {port} of this machine is in use; choose other ports\.$"):
            await start_head(files, os.environ, ONE_WORKER, Reach("127.0.0.2", port))
        assert not files.token.exists()


async def test_a_head_that_asks_for_no_token_is_not_joined() -> None:
    with short_folder() as files:
        files.folder.mkdir(mode=0o700)
        reach = Reach("127.0.0.2", free_ports())
        mark = "open" + "0" * 20
        files.mark.write_text(mark)
        environment = head_environment(os.environ, files, ONE_WORKER, mark, reach)
        del environment["RAY_AUTH_TOKEN_PATH"]
        environment["RAY_AUTH_MODE"] = "disabled"
        with subprocess.Popen(  # noqa: ASYNC220 - returns at once
            head_command(files, ONE_WORKER, reach),
            env=environment,
            cwd=files.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            open_head = Head(files, mark, f"127.0.0.2:{reach.port}", process)
            try:
                await open_head.wait_ready()
                with pytest.raises(HeadError, match=r"asks nobody for a token; start it with RAY_AUTH_MODE=token\.$"):
                    await check_head(open_head.address, "0" * 64, thalia=False)
            finally:
                await open_head.stop()
