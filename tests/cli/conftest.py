"""A place of their own for each test, and nothing left of it afterwards.

`both_ways` runs a test twice: with sessions in the process that asks for them, and in a daemon that its module shares.
With THALIA_TEST_DAEMON=on every test runs through a daemon of its own instead (`make daemon-tests`); left out are those
of `alone`, which are about the process itself."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_program import Place
from daemon_machine import Machine, machine

from processes.tree import send

THROUGH_A_DAEMON = os.environ.get("THALIA_TEST_DAEMON") == "on"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "both_ways: runs without a daemon and through one")
    config.addinivalue_line("markers", "alone(reason): is about the process that a session runs in without a daemon")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place" not in metafunc.fixturenames or metafunc.definition.get_closest_marker("both_ways") is None:
        return
    if not THROUGH_A_DAEMON:
        daemon = pytest.param("daemon", marks=pytest.mark.xdist_group("both-ways"))
        metafunc.parametrize("place", ["alone", daemon], indirect=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if THROUGH_A_DAEMON:
        left_out = [item for item in items if item.get_closest_marker("alone")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine whose daemon the tests of a module share."""
    with machine(tmp_path_factory.mktemp("shared")) as one:
        yield one


@pytest.fixture
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Place]:
    if getattr(request, "param", "alone") == "daemon":
        shared: Machine = request.getfixturevalue("shared")
        made = Place(tmp_path, {"THALIA_DAEMON": "on"}, shared.home)
        yield made
        shared.put_aside()
    elif THROUGH_A_DAEMON:
        with machine(tmp_path) as made:
            yield made
    else:
        made = Place(tmp_path)
        yield made
        send(made.survivors(), signal.SIGKILL)
