"""The local Ray head: ours alone, on loopback, behind a token, noticed when it dies, and gone without a trace."""

import asyncio
import json
import os
import signal
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from actors.head import (
    FOLDER_BYTES,
    MARK_VARIABLE,
    Head,
    HeadError,
    HeadFiles,
    HeadSize,
    head_command,
    head_environment,
    marked,
    start_head,
)
from processes import tree
from tests.actors.ray_arena import (
    ROOT,
    drive,
    listening,
    module_head,
    run_driver,
    running_head,
    short_folder,
)

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F"}
"""127.0.0.1 and the same inside IPv6, as the kernel shows them."""
PLANTED = ("httpx.py", "ray.py", "sitecustomize.py", "usercustomize.py", "cli.py", "kernels/__init__.py", "json.py")


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    with module_head() as running:
        yield running


def named(head: Head, name: str) -> int:
    return next(pid for pid in head.pids if tree.read(f"/proc/{pid}/comm").decode().strip() == name)


def leader(head: Head) -> int:
    return next(pid for pid in head.pids if os.getsid(pid) == pid)


def test_the_environment_keeps_what_commands_need_and_loses_what_steers_ray_or_python() -> None:
    base = {
        "PATH": "/usr/bin",
        "CUDA_VISIBLE_DEVICES": "3",
        "PYTHONPATH": "/planted",
        "PYTHONSTARTUP": "/planted/x.py",
        "RAY_ADDRESS": "10.0.0.1:6379",
        "RAY_START_HOOK": "planted.hook",
        MARK_VARIABLE: "another",
    }
    files = HeadFiles(Path("/run/thalia"))
    made = head_environment(base, files, HeadSize(workers=5), "m")
    assert made["PATH"] == "/usr/bin" and made["CUDA_VISIBLE_DEVICES"] == "3"
    assert not {"PYTHONPATH", "PYTHONSTARTUP", "RAY_ADDRESS", "RAY_START_HOOK"} & made.keys()
    assert made["RAY_AUTH_MODE"] == "token" and made["RAY_AUTH_TOKEN_PATH"] == "/run/thalia/token"
    assert made["RAY_USAGE_STATS_ENABLED"] == "0"
    assert made["RAY_num_workers_soft_limit"] == "5" and made[MARK_VARIABLE] == "m"


def test_the_command_names_loopback_and_leaves_every_port_to_the_system() -> None:
    command = head_command(
        HeadFiles(Path("/run/thalia")), HeadSize(gpus=1, resources={"b": 1, "a": 2}, labels={"k": "v"})
    )
    assert command[:2] == [sys.executable, "-I"]
    assert "--node-ip-address=127.0.0.1" in command and "--port=0" in command
    assert command[-3:] == ["--num-gpus=1", '--resources={"a": 2, "b": 1}', "--labels=k=v"]


def test_every_listening_socket_of_the_head_and_its_workers_is_on_loopback(head: Head) -> None:
    drive(head, "leave_an_actor", "listening")
    sockets = listening(set(head.pids))
    assert int(head.address.rpartition(":")[2]) in {port for _, port in sockets}
    assert len(sockets) >= 4
    assert {address for address, _ in sockets} <= LOOPBACK


def test_every_process_of_the_heads_session_carries_its_mark(head: Head) -> None:
    actor = drive(head, "leave_an_actor", "marked")
    session = leader(head)
    everyone = {pid for pid in tree.pids() if tree.fields(pid)[3:4] == [str(session).encode()] and tree.is_alive(pid)}
    assert actor in everyone
    assert everyone <= set(head.pids)


def test_what_others_could_open_stands_in_a_folder_that_is_ours_alone(head: Head) -> None:
    assert stat.S_IMODE(head.files.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(head.files.token.stat().st_mode) == 0o600
    token = head.files.token.read_text()
    assert len(token) == 64
    for pid in head.pids:
        assert token.encode() not in tree.read(f"/proc/{pid}/cmdline") + tree.read(f"/proc/{pid}/environ")


@pytest.mark.parametrize("token", [None, "0" * 64])
def test_a_driver_without_the_token_is_refused(head: Head, token: str | None, tmp_path: Path) -> None:
    stranger = HeadFiles(tmp_path)
    stranger.nowhere.mkdir()
    if token is not None:
        stranger.token.write_text(token)
    outcome = run_driver(head.address, tmp_path, "which_cluster")
    assert outcome.returncode == 1
    assert f"Ray at {head.address} cannot be joined" in outcome.stderr
    assert drive(head, "which_cluster")[0] == head.address


def test_the_door_for_environments_of_workers_refuses_strangers(head: Head) -> None:
    agent = next(pid for pid in head.pids if b"RuntimeEnvAgent" in tree.read(f"/proc/{pid}/cmdline"))
    ((_, port),) = listening({agent})
    request = urllib.request.Request(f"http://127.0.0.1:{port}/get_or_create_runtime_env", data=b"", method="POST")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with pytest.raises(urllib.error.HTTPError) as refused:
        opener.open(request, timeout=5)
    with refused.value:
        assert refused.value.code == 401


def test_an_actor_outlives_its_driver_and_is_found_by_the_next(head: Head) -> None:
    left = drive(head, "leave_an_actor", "outliving")
    assert drive(head, "find_the_actor", "outliving") == left
    assert left in head.pids


async def test_a_stray_cluster_is_never_joined(head: Head) -> None:
    astray = {**os.environ, "RAY_ADDRESS": head.address}
    async with running_head(environment=astray) as ours:
        joined, namespace, folder = drive(ours, "which_cluster", environment=astray)
        assert ours.address != head.address
        assert (joined, namespace, folder) == (ours.address, "thalia", str(ours.files.nowhere))


@pytest.mark.parametrize("victim", ["gcs_server", "raylet", "start command"])
async def test_a_death_is_told_at_once_and_stop_leaves_nothing(victim: str) -> None:
    async with running_head() as head:
        actor = drive(head, "leave_an_actor", "left")
        everyone = {pid: tree.start_time(pid) for pid in head.pids}
        pid = leader(head) if victim == "start command" else named(head, victim)
        began = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        told = await asyncio.wait_for(head.died(), 5)
        assert time.monotonic() - began < 5
        # The others end with the start command, and may be seen first.
        assert told == f"Ray's {victim} (process {pid}) ended." or victim == "start command"
        assert actor in everyone
        await head.stop()
        assert [pid for pid, start in everyone.items() if tree.is_alive(pid) and tree.start_time(pid) == start] == []
        assert not head.files.folder.exists()
        assert [entry.name for entry in Path("/dev/shm").iterdir() if "plasma" in entry.name] == []


async def test_waiting_for_a_death_ends_when_we_stop_the_head_ourselves() -> None:
    async with running_head() as head:
        waiting = asyncio.create_task(head.died())
        await head.stop()
        assert await waiting == "Ray was stopped."


def test_files_of_a_hostile_folder_are_imported_by_none_of_our_processes(tmp_path: Path) -> None:
    for name in PLANTED:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('planted')\n")
    hostile = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": str(tmp_path / "httpx.py")}
    with short_folder() as files:
        address = start_and_leave(files, hostile, tmp_path)
        outcome = run_driver(address, files.folder, "look_at_worker", environment=hostile, cwd=tmp_path)
        assert outcome.returncode == 0, outcome.stderr
        seen = json.loads(outcome.stdout)
    planted = str(tmp_path)
    assert [file for file in seen["modules"].values() if file.startswith(planted)] == []
    assert [entry for entry in seen["path"] if not entry or entry.startswith(planted)] == []
    assert seen["path"][0] == str(files.nowhere) == seen["cwd"]
    assert seen["named"][0] == str(ROOT / "cli.py") and seen["named"][2] == str(ROOT / "kernels/__init__.py")
    assert "PYTHONPATH" not in seen["environment"] and seen["environment"]["PYTHONSAFEPATH"] == "1"
    assert seen["nice"] == os.nice(0)


async def test_a_new_head_ends_what_an_earlier_one_left_in_its_folder() -> None:
    with short_folder() as files:
        start_and_leave(files, os.environ, ROOT)
        mark = files.mark.read_text()
        assert marked(mark)
        head = await start_head(files, os.environ)
        try:
            assert marked(mark) == []
            await head.wait_ready()
        finally:
            await head.stop()


async def test_a_start_that_fails_says_why_and_leaves_nothing() -> None:
    with short_folder() as files:
        with pytest.raises(HeadError, match=r"^Ray ended while it started: .*"):
            await start_head(files, os.environ, HeadSize(labels={"": "no name"}))
        assert not files.folder.exists()


async def test_a_folder_that_is_too_long_for_sockets_or_open_to_others_is_refused(tmp_path: Path) -> None:
    deep = HeadFiles(tmp_path / ("d" * FOLDER_BYTES))
    with pytest.raises(HeadError, match=r"must be an absolute path of at most 41 bytes\.$"):
        await start_head(deep, os.environ)
    with short_folder() as files:
        files.folder.mkdir(mode=0o700)
        files.folder.chmod(0o755)
        with pytest.raises(HeadError, match=r"is open to others; remove it"):
            await start_head(files, os.environ)


def start_and_leave(files: HeadFiles, environment: Mapping[str, str], cwd: Path) -> str:
    """A head whose starter is gone, as after a supervisor's death; its address."""
    outcome = subprocess.run(
        [sys.executable, "-I", "-W", "ignore", "-c", STARTER, str(ROOT), str(files.folder)],
        env=dict(environment),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return outcome.stdout.strip()


STARTER = """
import asyncio, os, sys
sys.path.append(sys.argv[1])
from pathlib import Path
from actors.head import HeadFiles, start_head

async def main():
    head = await start_head(HeadFiles(Path(sys.argv[2])), os.environ)
    await head.wait_ready()
    print(head.address)

asyncio.run(main())
"""
