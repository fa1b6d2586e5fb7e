"""What differs where a daemon runs sessions is only what has to: another version, no Ray, a log that is in use."""

import os
import resource
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_program import WORK, Place, objects, serving, shell
from daemon_machine import Machine, machine

from configs.version import VERSION
from eventlog.events import SessionOpened

pytestmark = pytest.mark.xdist_group("daemon-alike")
SOURCE = Path(__file__).parents[2]
ROOMS = ("actors", "agent", "configs", "eventlog", "frontends", "kernels", "processes", "worktrees")
WAITS = shell("sleep 300")


@pytest.fixture(scope="module")
def computer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("machine")) as one:
        yield one


@pytest.fixture
def fresh(computer: Machine) -> Iterator[Machine]:
    yield computer
    computer.put_aside()


@pytest.fixture(scope="module")
def later_version(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command line of an installation of its own, which is version 99.0.0."""
    folder = tmp_path_factory.mktemp("later")
    for room in ROOMS:
        shutil.copytree(SOURCE / room, folder / "lib" / room, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SOURCE / "cli.py", folder / "lib")
    version = folder / "lib" / "configs" / "version.py"
    version.write_text(version.read_text().replace(f'"{VERSION}"', '"99.0.0"'))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    [packages] = (folder / "venv" / "lib").glob("*/site-packages")
    (packages / "later.pth").write_text(f"{folder / 'lib'}\n{sysconfig.get_path('purelib')}\n{own_packages()}\n")
    return [str(folder / "venv" / "bin" / "python"), "-I", "-m", "cli"]


def own_packages() -> str:
    """Where the libraries are that the tests run with."""
    import pydantic

    return str(Path(pydantic.__file__).parents[1])


def test_an_idle_daemon_of_another_version_is_replaced(fresh: Machine, later_version: list[str]) -> None:
    assert fresh.run("exec", "Do it.", "-m", fresh.script(*WORK)).code == 0
    assert fresh.status()["version"] == VERSION
    done = fresh.run("exec", "Do it.", "-m", fresh.script(*WORK), program=later_version)
    assert (done.code, done.err) == (0, "")
    assert fresh.status()["version"] == "99.0.0"
    assert len(fresh.find("supervisor")) == 1


def test_a_daemon_of_another_version_that_is_busy_is_left_alone(fresh: Machine, later_version: list[str]) -> None:
    fresh.run("up")
    fresh.run("exec", "wait", "-m", fresh.script({"tool_calls": [WAITS]}), "--detach")
    fresh.wait_started("sleep 300")
    before = fresh.status()
    done = fresh.run("exec", "Do it.", "-m", fresh.script(*WORK), program=later_version)
    assert (done.code, done.err.count("\n")) == (10, 1), done
    for word in (f"thalia {VERSION}", "1 session,", "thalia 99.0.0", "thalia down"):
        assert word in done.err
    assert fresh.status() == before
    [session] = before["hosted"]
    watching = fresh.start("attach", session, program=later_version)
    assert fresh.run("stop", session, program=later_version).code == 0
    assert watching.wait(30) == 130
    watching.communicate()


def test_a_log_that_the_daemon_writes_is_refused_with_what_to_do(fresh: Machine) -> None:
    fresh.run("exec", "wait", "-m", fresh.script({"tool_calls": [WAITS]}), "--detach")
    fresh.wait_started("sleep 300")
    name = fresh.session()
    for command in (("resume", name, "More.", "--no-daemon"), ("merge", name), ("rewind", f"{name}@9")):
        done = fresh.run(*command)
        assert (done.code, done.err.count("\n")) == (10, 1), done
        assert f"`thalia attach {name}`" in done.err
        assert f"`thalia stop {name}`" in done.err
    again = fresh.run("resume", name, "More.", "--merge")
    assert (again.code, "stop it first" in again.err) == (10, True), again
    assert fresh.run("fork", name).code == 0
    for command in (("diff", name), ("replay", name), ("replay", name, "--verify"), ("gc",)):
        done = fresh.run(*command)
        assert (done.code, done.err) == (0, ""), done
    export = fresh.run("log", name, "--export", str(fresh.folder / "log.jsonl"))
    assert (export.code, export.err) == (0, "")
    assert fresh.run("stop", name).code == 0
    assert fresh.run("rewind", f"{name}@9").code == 0
    assert "running" not in fresh.run("merge", name).err


def test_what_exec_ended_can_be_written_at_once(fresh: Machine) -> None:
    assert fresh.run("exec", "Do it.", "-m", fresh.script(*WORK, {"text": "More."})).code == 0
    name = fresh.session()
    last = len(fresh.events())
    for command in (("rewind", f"{name}@{last}"), ("resume", name, "--no-daemon"), ("merge", name)):
        done = fresh.run(*command)
        assert (done.code, done.err) == (0, ""), done


@pytest.mark.parametrize("format", ["text", "stream-json"])
def test_attach_shows_how_a_session_ended_and_adds_nothing_to_its_log(fresh: Machine, format: str) -> None:
    with serving(*WORK) as server:
        fresh.use(server)
        done = fresh.run("exec", "Do it.", "-m", "openai/test", "--output-format", format)
    fresh.env.pop("OPENAI_API_KEY")
    events = fresh.events()
    shown = fresh.run("attach", "--last", "--output-format", format)
    assert (shown.code, shown.err) == (0, ""), shown
    if format == "text":
        assert "── done · 2 model calls" in done.out
        assert "── done · 2 model calls" in shown.out
    else:
        assert objects(shown.out)[:-1] == [event.model_dump(mode="json") for event in events]
    assert fresh.events() == events


def test_a_resumed_session_is_shown_from_where_it_goes_on(fresh: Machine) -> None:
    fresh.run("exec", "First.", "-m", fresh.script({"text": "One."}, {"text": "Two."}))
    done = fresh.run("resume", "--last", "Second.")
    assert (done.code, "First." in done.out, "Two." in done.out) == (0, False, True), done


def test_a_variable_that_is_no_text_stops_nothing(fresh: Machine) -> None:
    run = fresh.start("exec", "Do it.", "-m", fresh.script(*WORK), env={"ODD": "\udcff\udcfe"})
    _, err = run.communicate(timeout=60)
    assert (run.returncode, err) == (0, "")
    assert hosted_elsewhere(fresh, run.pid)


def hosted_elsewhere(fresh: Machine, own: int) -> bool:
    """Whether another process than the one that was asked has run the session."""
    opened = fresh.events()[0].body
    return isinstance(opened, SessionOpened) and opened.pid != own


@pytest.mark.parametrize(
    ("limit", "least"),
    [(resource.RLIMIT_FSIZE, 50_000_000), (resource.RLIMIT_NOFILE, 40)],
    ids=["no file as large as the object store", "few open files"],
)
def test_where_ray_cannot_start_the_session_runs_here_and_says_so(tmp_path: Path, limit: int, least: int) -> None:
    with machine(tmp_path / "machine") as one:
        done = one.run(
            *("exec", "Do it.", "-m", one.script(*WORK)), preexec_fn=lambda: resource.setrlimit(limit, (least, least))
        )
        assert done.code == 0, done
        assert (one.repository / "a.py").read_text() == "one\n"
        assert done.err.startswith("Ray")
        assert done.err.endswith("The session runs in this process and ends with it.\n")
        assert "30 s" not in done.err
        detached = one.run("exec", "Do it.", "-m", one.script(*WORK), "--detach")
        assert (detached.code, detached.err.count("\n")) == (10, 1), detached


def test_a_state_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    place = Place(tmp_path, {"THALIA_DAEMON": "on"}, Path("/proc/state"))
    done = place.run("exec", "Do it.", "-m", place.script(*WORK))
    assert (done.code, done.err.count("\n")) == (10, 1), done
    assert "/proc/state" in done.err
    assert "THALIA_HOME" in done.err


def test_without_a_home_and_from_relative_paths_it_is_the_same(fresh: Machine) -> None:
    fresh.script(*WORK)
    script = max(fresh.folder.glob("script-*"), key=lambda path: path.stat().st_mtime_ns).name
    (fresh.folder / "own.toml").write_text("max_turns = 1\n")
    env = {"THALIA_CONFIG": "own.toml", "THALIA_HOME": os.path.relpath(fresh.home, fresh.folder)}
    without = fresh.env.pop("HOME")
    try:
        run = fresh.start(
            "exec", "Do it.", "-m", f"scripted/{script}", "-C", "project", "--add-dir", ".", cwd=fresh.folder, env=env
        )
        _, err = run.communicate(timeout=60)
    finally:
        fresh.env["HOME"] = without
    assert (run.returncode, err) == (12, "")
    assert hosted_elsewhere(fresh, run.pid)
