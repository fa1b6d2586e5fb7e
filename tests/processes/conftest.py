"""One folder of calls and one of work for each test, and a runner that is closed after it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from processes.runner import Runner
from tests.processes.running import open_runner


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def call_dir(tmp_path: Path) -> Path:
    (tmp_path / "calls").mkdir()
    return tmp_path / "calls" / "c1_1"


@pytest.fixture
async def runner() -> AsyncIterator[Runner]:
    async with open_runner() as opened:
        yield opened
