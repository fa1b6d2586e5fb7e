"""What a killed process leaves in the temporary folder is removed by the next one, and what a living one has is not."""

import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from configs.scratch import PREFIX, remove_abandoned, scratch

ROOT = Path(__file__).resolve().parents[2]
HOLDS = """
import sys
from configs.scratch import scratch
with scratch("test") as folder:
    (folder / "large").write_text("x")
    print(folder, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path):
    with hold(tmp_path) as held:
        yield held


@contextmanager
def hold(tmp_path: Path):
    """A process that has a scratch folder, until it is ended."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS], cwd=ROOT, env={"TMPDIR": str(tmp_path)}, stdin=-1, stdout=-1, text=True
    ) as process:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
        process.kill()


def test_a_living_processs_folder_is_left_alone_and_a_killed_ones_is_removed(holder, tmp_path: Path) -> None:
    process, folder = holder
    assert folder.parent == tmp_path and folder.name.startswith(PREFIX)
    assert remove_abandoned(tmp_path) == [] and (folder / "large").exists()
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert remove_abandoned(tmp_path) == [folder] and list(tmp_path.iterdir()) == []


def test_the_first_folder_of_a_process_comes_with_the_removal_of_what_others_left(holder, tmp_path: Path) -> None:
    process, folder = holder
    process.kill()
    process.wait()
    with hold(tmp_path) as (other, mine):
        assert list(tmp_path.iterdir()) == [mine] and mine.stat().st_mode & 0o077 == 0
        assert other.stdin is not None
        other.stdin.close()
        assert other.wait(30) == 0
    assert not folder.exists() and list(tmp_path.iterdir()) == []


def test_folders_of_others_and_links_are_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.mkdir()
    (tmp_path / f"{PREFIX}link").symlink_to(target)
    (tmp_path / "thalia-other").mkdir()
    (tmp_path / f"{PREFIX}file").write_text("no folder")
    assert remove_abandoned(tmp_path) == []
    assert len(list(tmp_path.iterdir())) == 4


def test_a_folder_elsewhere_comes_each_time_with_the_removal_of_what_dead_ones_left_there(
    holder, tmp_path: Path
) -> None:
    with scratch("test", tmp_path) as mine:
        process, others = holder
        assert sorted(tmp_path.iterdir()) == sorted((mine, others)) and mine.stat().st_mode & 0o077 == 0
        process.kill()
        process.wait()
        with scratch("test", tmp_path) as second:
            assert sorted(tmp_path.iterdir()) == sorted((mine, second))
    assert list(tmp_path.iterdir()) == []
