"""What an installation holds: our rooms and the files they read, and no name that another package has too."""

import subprocess
import sys
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {"actors", "agent", "configs", "eventlog", "frontends", "kernels", "processes", "worktrees", "cli", "thalia"}
DATA = {"configs/models.toml", "configs/demo/script.json"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The files of a wheel that is built from this tree, without a network."""
    target = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    [built] = target.glob("*.whl")
    with zipfile.ZipFile(built) as archive:
        return set(archive.namelist())


def test_a_wheel_owns_exactly_our_rooms(wheel: set[str]) -> None:
    tops = {name.split("/")[0].removesuffix(".py") for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == ROOMS


def test_a_wheel_holds_every_module_and_every_data_file(wheel: set[str]) -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    ours = {name for name in tracked.stdout.split("\0") if name.split("/")[0].removesuffix(".py") in ROOMS}
    assert ours - wheel == set()
    assert wheel >= DATA
    assert not [name for name in wheel if name.endswith((".pyc", "~")) or name.startswith("tests/")]


def test_a_wheel_installs_the_command(wheel: set[str]) -> None:
    assert [name for name in wheel if name.endswith(".dist-info/entry_points.txt")]


def test_no_other_distribution_has_our_names() -> None:
    owners = packages_distributions()
    others = {room: set(owners.get(room, ())) - {"thalia"} for room in ROOMS}
    assert {room: names for room, names in others.items() if names} == {}
