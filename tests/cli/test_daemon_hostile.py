"""A repository, an environment and neighbours that mean harm: nothing of theirs runs in the daemon, none gets in."""

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from cli_program import KEY, WORK, Result, shell
from daemon_machine import Machine, machine
from daemon_watch import Watch, arguments, look_into_workers, open_to_others, with_descendants
from installing import install

from eventlog.events import EffectFinished
from eventlog.outcomes import ToolFailed, ToolSucceeded
from processes.commands import Confinement, SandboxMissing
from processes.sandbox import keep_daemons_out
from processes.tree import read

pytestmark = pytest.mark.xdist_group("daemon-hostile")
MODULES = (
    "httpx", "ray", "duckdb", "cli", "sitecustomize", "usercustomize", "starlette", "json", "uvicorn", "pydantic",
    "orjson", "typer", "site", "planted",
)  # fmt: skip
PACKAGES = ("kernels", "actors", "processes", "eventlog")
SECRETS = {
    "OPENAI_API_KEY": KEY,
    "GITHUB_TOKEN": "ghp_" + "a1B2c3D4e5F6" * 3,
    "DATABASE": "postgres://a:pa55-w0rd@b/c",
    "THALIA_MINE_API_KEY": "one-of-our-own-name",
}
REACH = """
import os, socket
print([name for name in os.listdir("/tmp") if name.startswith("thalia-")])
try:
    socket.socket(socket.AF_UNIX).connect({gateway!r})
    print("reached")
except OSError as error:
    print("refused:", error.strerror)
"""


@dataclass(frozen=True, slots=True)
class Trapped:
    """A machine whose repository and environment are full of traps; each leaves its name in `canary`."""

    machine: Machine
    thalia: Path
    elsewhere: Path
    """Named by the environment alone: nobody has a reason to look into it."""
    canary: Path
    stray: socket.socket
    """Where RAY_ADDRESS leads."""
    watch: Watch

    @property
    def planted(self) -> tuple[str, str]:
        return str(self.elsewhere), str(self.machine.repository)

    def run(self, *words: str) -> Result:
        return self.machine.run(*words, program=(str(self.thalia),))

    def session_of(self, result: Result) -> str:
        assert result.code == 0, result.err
        return result.out.split("session ")[1].split()[0]

    def check_untouched(self) -> None:
        assert not self.canary.exists(), self.canary.read_text()
        assert not self.watch.seen()
        with pytest.raises(BlockingIOError):
            self.stray.accept()


@pytest.fixture(scope="module")
def trapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trapped]:
    folder = tmp_path_factory.mktemp("hostile")
    elsewhere, canary = folder / "elsewhere", folder / "canary"
    with socket.create_server(("127.0.0.1", 0)) as stray, machine(folder / "machine", SECRETS) as one:
        stray.setblocking(False)
        for place in (elsewhere, one.repository):
            plant(place, canary)
        (one.repository / "reach.py").write_text(REACH.format(gateway=str(one.daemon_place.gateway)))
        one.git("add", "-A")
        one.git("commit", "-qm", "Traps")
        one.env |= hostile_variables(one, elsewhere, stray)
        watch = Watch([elsewhere])
        yield Trapped(one, install(folder / "environment"), elsewhere, canary, stray, watch)
        watch.close()


def plant(place: Path, canary: Path) -> None:
    text = f"with open({str(canary)!r}, 'a') as canary: canary.write(__name__ + ' ')\nraise RuntimeError('a trap')\n"
    for name in (*(f"{module}.py" for module in MODULES), *(f"{package}/__init__.py" for package in PACKAGES)):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


def hostile_variables(one: Machine, elsewhere: Path, stray: socket.socket) -> dict[str, str]:
    return {
        "PATH": f"{sys.base_prefix}/bin:{one.env['PATH']}",
        "PYTHONPATH": f"{elsewhere}:{one.repository}:.:",
        "PYTHONSTARTUP": str(elsewhere / "planted.py"),
        "PYTHONUSERBASE": str(elsewhere),
        "PYTHONWARNINGS": "ignore::planted.Trap",
        "PYTHONBREAKPOINT": "planted.trap",
        "RAY_ADDRESS": f"127.0.0.1:{stray.getsockname()[1]}",
        "RAY_START_HOOK": "planted.trap",
        "RAY_RUNTIME_ENV_HOOK": "planted.trap",
    }


@pytest.fixture
def at_work(trapped: Trapped) -> Iterator[Trapped]:
    """While a command of a session runs."""
    model = trapped.machine.script({"tool_calls": [shell("sleep 300")]}, {"text": "Done."})
    begun = trapped.run("exec", "wait", "-m", model, "--detach")
    session = trapped.session_of(begun)
    trapped.machine.wait_started("sleep 300")
    yield trapped
    assert trapped.run("stop", session).code == 0
    trapped.machine.wait_over(session)


def test_the_traps_would_catch_a_python_that_is_not_careful(trapped: Trapped) -> None:
    computer = trapped.machine
    careless = [sys.executable, "-c", "import ray"]
    subprocess.run(careless, cwd=computer.folder, env=computer.env, capture_output=True, check=False)
    assert "ray" in trapped.canary.read_text().split()
    assert trapped.watch.seen()
    trapped.canary.unlink()


def test_a_session_works_among_traps_and_none_is_touched(trapped: Trapped) -> None:
    computer = trapped.machine
    session = trapped.session_of(trapped.run("exec", "change it", "-m", computer.script(*WORK)))
    assert computer.status()["ray"]["address"] != computer.env["RAY_ADDRESS"]
    assert [event.body.kind for event in computer.events(session)].count("effect_finished") >= 4
    alone = trapped.run("exec", "change it", "-m", computer.script(*WORK), "--no-daemon")
    trapped.session_of(alone)
    for words in (("sql", "SELECT 1"), ("sessions",), ("replay", session, "--verify")):
        done = trapped.run(*words)
        assert done.code == 0, done
    trapped.check_untouched()


def test_no_process_of_the_daemon_has_a_module_or_a_path_from_there(at_work: Trapped) -> None:
    computer = at_work.machine
    workers = look_into_workers(computer.status()["ray"]["address"], computer.daemon_place.ray)
    # The one at work, and another kept warm.
    assert len(workers) >= 2
    for worker in workers:
        named = [*worker.path, *worker.modules, worker.cwd, *worker.environment.values()]
        assert len(worker.modules) > 200
        assert [text for text in named if any(place in text for place in at_work.planted)] == []
        assert not {"", "."} & set(worker.path)
    everyone = with_descendants(computer.pids())
    assert {worker.pid for worker in workers} < set(everyone)
    for pid in everyone:
        held = read(f"/proc/{pid}/maps") + read(f"/proc/{pid}/environ")
        with suppress(FileNotFoundError):  # Of a child that ended meanwhile.
            held += os.fsencode(Path(f"/proc/{pid}/cwd").readlink())
        assert not any(place.encode() in held for place in at_work.planted), arguments(pid)
    at_work.check_untouched()


def test_python_is_started_so_that_no_variable_steers_it(at_work: Trapped) -> None:
    computer = at_work.machine
    everyone = with_descendants(computer.pids())
    helpers = [pid for pid in everyone if any("processes.helper" in word for word in arguments(pid))]
    # The helper itself, the wrapper of the command and the one that waits for the next.
    assert len(helpers) >= 3
    for pid in helpers:
        assert read(f"/proc/{pid}/environ") == f"PATH={os.defpath}\0".encode()
    for pid in (*computer.find("supervisor"), *computer.find("gateway"), *helpers):
        assert arguments(pid)[1] == "-I"


def test_the_daemon_can_be_reached_from_this_machine_alone(at_work: Trapped) -> None:
    beyond, looked = open_to_others(with_descendants(at_work.machine.pids()))
    assert looked >= 4
    assert beyond == set()


def test_no_secret_stands_in_an_environment_or_an_argument_list(at_work: Trapped) -> None:
    for pid in with_descendants(at_work.machine.pids()):
        shown = read(f"/proc/{pid}/environ") + read(f"/proc/{pid}/cmdline")
        assert not any(secret.encode() in shown for secret in SECRETS.values()), arguments(pid)


def test_sockets_and_their_folder_are_the_users_alone(at_work: Trapped) -> None:
    place = at_work.machine.daemon_place
    sockets = [place.gateway, *place.doors.iterdir()]
    assert len(sockets) == 2
    assert {stat.S_IMODE(path.lstat().st_mode) for path in sockets} == {0o600}
    assert {stat.S_IMODE(path.lstat().st_mode) for path in (place.folder, place.doors, place.ray)} == {0o700}


def try_to_reach(trapped: Trapped, *options: str) -> str:
    """What a command of a session says that lists the daemons' folders and knocks at the gateway."""
    computer = trapped.machine
    # Our Python is where the sandbox does not look by itself.
    model = computer.script({"tool_calls": [shell("python3 -I -S reach.py")]}, {"text": "Done."})
    session = trapped.session_of(trapped.run("exec", "reach", "-m", model, "--add-dir", sys.base_prefix, *options))
    ends = [event.body for event in computer.events(session) if isinstance(event.body, EffectFinished)]
    [said] = [end.outcome.text for end in ends if isinstance(end.outcome, ToolSucceeded | ToolFailed)]
    return said


def test_a_confined_command_neither_sees_nor_reaches_the_daemon(trapped: Trapped) -> None:
    said = try_to_reach(trapped)
    assert said.splitlines()[-2:] == ["[]", "refused: No such file or directory"]


def test_an_unconfined_command_that_was_allowed_reaches_it(trapped: Trapped) -> None:
    """So the one before proves something. docs/security.md says it."""
    said = try_to_reach(trapped, "--dangerously-bypass-approvals-and-sandbox")
    assert said.splitlines()[-1] == "reached"
    assert trapped.machine.daemon_place.folder.name in said


def test_a_folder_that_shows_the_daemon_is_not_added_to_a_sandbox(trapped: Trapped) -> None:
    link = trapped.machine.folder / "link"
    link.symlink_to("/tmp")
    for folder in ("/tmp", str(link)):
        said = try_to_reach(trapped, "--add-dir", folder)
        assert said.startswith(f"No sandbox can show {folder}")
    link.unlink()


@pytest.mark.parametrize("shown", ["/", "/tmp", "/tmp/../tmp", "{daemon}", "{daemon}/doors", "{another}"])
def test_no_mount_brings_a_daemon_into_reach(shown: str, tmp_path: Path) -> None:
    another = f"/tmp/thalia-{os.getuid()}-00000000"
    path = Path(shown.format(daemon=Machine(tmp_path / "m").daemon_place.folder, another=another))
    for confinement in (Confinement((path,)), Confinement((), (path,)), Confinement((), binds=((path, Path("/x")),))):
        with pytest.raises(SandboxMissing, match="where daemons have their sockets"):
            keep_daemons_out(confinement)


@pytest.mark.parametrize("shown", ["/tmp/project", "/tmp/thalia-", "/usr", "/var/tmp"])
def test_what_shows_no_daemon_may_be_mounted(shown: str) -> None:
    keep_daemons_out(Confinement((Path(shown),), (Path(shown),)))


@pytest.mark.parametrize("made", ["open", "link", "file", "of another"])
@pytest.mark.parametrize("words", [("exec", "x"), ("status",), ("down",)], ids=" ".join)
def test_a_folder_that_somebody_else_made_is_refused(tmp_path: Path, made: str, words: tuple[str, ...]) -> None:
    computer = Machine(tmp_path / "machine")
    folder = computer.daemon_place.folder
    match made:
        case "open":
            folder.mkdir(mode=0o700)
            folder.chmod(0o750)
        case "link":
            (tmp_path / "private").mkdir(mode=0o700)
            folder.symlink_to(tmp_path / "private")
        case "file":
            folder.touch(mode=0o600)
        case _:
            folder.mkdir(mode=0o700)
            # Only root can give a folder away; anybody else makes one that is wrong in another way.
            os.chown(folder, 65534, -1) if os.getuid() == 0 else folder.chmod(0o701)
    try:
        model = ("-m", computer.script(*WORK)) if words[0] == "exec" else ()
        done = computer.run(*words, *model)
        assert done.code == 10
        assert f"{folder} is not a private folder of yours; remove it" in done.err
        assert done.err.count("\n") == 1
        assert computer.pids() == []
        assert computer.sessions() == []
    finally:
        folder.rmdir() if folder.is_dir() and not folder.is_symlink() else folder.unlink()
