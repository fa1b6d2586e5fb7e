"""What an installation holds: our rooms and the files they read, and no name that another package has too."""

import subprocess
import sys
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.cli.installing import LAUNCHER, give_dependencies, make_environment

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {"actors", "agent", "configs", "eventlog", "frontends", "kernels", "processes", "worktrees", "cli", "thalia"}
AGENTS = {f"configs/agents/{name}.md" for name in ("checker", "reviewer", "scout")}
DATA = {"configs/models.toml", "configs/demo/game.toml"} | AGENTS
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("wheel"), "wheel")


@pytest.fixture(scope="module")
def wheel(built: Path) -> set[str]:
    """The names of its files."""
    with zipfile.ZipFile(built) as archive:
        return set(archive.namelist())


def build(target: Path, kind: str) -> Path:
    """A wheel of this tree, as an installer would ask for it, without a network."""
    ask = f"from hatchling.build import build_{kind}; import sys; build_{kind}(sys.argv[1])"
    subprocess.run([sys.executable, "-c", ask, str(target)], cwd=ROOT, check=True, capture_output=True)
    [file] = target.glob("*.whl")
    return file


def test_a_wheel_owns_exactly_our_rooms(wheel: set[str]) -> None:
    tops = {name.split("/")[0].removesuffix(".py") for name in wheel}
    assert {top for top in tops if not top.endswith((".dist-info", ".data"))} == ROOMS
    assert [name.split("/", 1)[1] for name in wheel if ".data/" in name] == ["scripts/thalia"]


def test_a_wheel_holds_every_module_and_every_data_file(wheel: set[str]) -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    ours = {name for name in tracked.stdout.split("\0") if name.split("/")[0].removesuffix(".py") in ROOMS}
    assert ours - wheel == set()
    assert wheel >= DATA
    assert not [name for name in wheel if name.endswith((".pyc", "~")) or name.startswith("tests/")]


@pytest.mark.parametrize("kind", ["wheel", "editable"])
def test_an_installation_has_the_launcher_as_its_only_command(kind: str, tmp_path: Path) -> None:
    """As `pip install .` and `pip install -e .` make it; pipx and uv put a link to it on the PATH."""
    programs = make_environment(tmp_path / "an environment")
    before = {path.name for path in programs.iterdir()}
    install = [*PIP, "--python", str(programs / "python"), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(build(tmp_path, kind))], check=True, capture_output=True)
    assert {path.name for path in programs.iterdir()} - before == {"thalia"}
    assert (programs / "thalia").read_text() == LAUNCHER.read_text()
    give_dependencies(programs.parent)
    done = subprocess.run([programs / "thalia", "--version"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("thalia ")


def test_no_other_distribution_has_our_names() -> None:
    owners = packages_distributions()
    others = {room: set(owners.get(room, ())) - {"thalia"} for room in ROOMS}
    assert {room: names for room, names in others.items() if names} == {}
