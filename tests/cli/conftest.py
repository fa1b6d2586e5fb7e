"""A place of their own for each test, and nothing left of it afterwards."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_program import Place


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    yield made
    for pid in made.survivors():
        os.kill(pid, signal.SIGKILL)
