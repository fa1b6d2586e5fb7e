"""The harness goes red where the product is broken: in a copy of the tree one safeguard is removed, and the tests that
rest on it, which pass here, must fail there for the reason that they are about."""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.chaos.arena import ROOT

ROOMS = ("actors", "agent", "configs", "eventlog", "frontends", "processes", "tests", "worktrees")
FILES = ("cli.py", "pyproject.toml")


@dataclass(frozen=True, slots=True)
class Sabotage:
    name: str
    file: str
    safeguard: str
    """Stands in the file once."""
    instead: str
    test: str
    """A node id, or a beginning of one."""
    reason: str
    """What the failure says."""


SABOTAGES = (
    Sabotage(
        name="no anchor check",
        file="eventlog/checking.py",
        safeguard="trouble = trouble or broken or _compare(reading, head)",
        instead="trouble = trouble or broken",
        test="tests/chaos/test_log_faults.py::test_a_wal_cut_at_any_length_loses_nothing_silently",
        reason="acknowledged events are missing, and nobody was told",
    ),
    Sabotage(
        name="no lease check in the log",
        file="eventlog/leases.py",
        safeguard="if draft.lease != lease.number:",
        instead="if draft.lease == 0:",
        test="tests/chaos/test_superseded.py::test_who_wakes_up_replaced_performs_nothing",
        reason="house.errors.read_text()) ==",
    ),
    Sabotage(
        name="no pre-image check",
        file="agent/tools/files.py",
        safeguard='"before" if found == change.before else "other"',
        instead='"before"',
        test="tests/chaos/test_left_behind.py::test_an_edit_does_not_overwrite_what_somebody_wrote_meanwhile",
        reason="isinstance(outcome, Conflicted)",
    ),
    Sabotage(
        name="no inherited lock",
        file="processes/wrapper.py",
        safeguard="os.set_inheritable(self.lock, True)",
        instead="pass",
        test="tests/chaos/test_left_behind.py::test_a_command_whose_wrapper_died_is_over_when_the_session_goes_on",
        reason="['begun', 'after', 'ended']",
    ),
)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda one: one.name.replace(" ", "-"))
def test_without_a_safeguard_the_tests_that_rest_on_it_fail(sabotage: Sabotage, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    for room in ROOMS:
        shutil.copytree(ROOT / room, copy / room, ignore=shutil.ignore_patterns("__pycache__"))
    for file in FILES:
        shutil.copy(ROOT / file, copy / file)
    target = copy / sabotage.file
    text = target.read_text()
    assert text.count(sabotage.safeguard) == 1
    target.write_text(text.replace(sabotage.safeguard, sabotage.instead))
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "THALIA"))}
    # Short: the path of a socket may have 100 bytes.
    with tempfile.TemporaryDirectory(prefix="t-") as short:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", "--basetemp",
             short, sabotage.test],
            cwd=copy, env=own, capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert sabotage.reason in done.stdout, done.stdout
