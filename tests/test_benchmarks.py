"""Benchmarks are run by hand, so that they can be run at all is seen here."""

from pathlib import Path

import pytest

from benchmarks.crash import AGENTS, VICTIMS, Case, run_cases, table
from benchmarks.daemon import PARTS, Machine
from benchmarks.fanout import PARTS as FAN_PARTS
from benchmarks.fanout_git import in_threads, merge
from benchmarks.fanout_leaks import take_census
from benchmarks.fanout_work import Options, many_files, run_git
from benchmarks.quiet import Figure, used_ticks
from worktrees.pool import Pool
from worktrees.repository import open_repository
from worktrees.sample import make_repository


def test_the_figures_of_the_daemon_have_a_part_each() -> None:
    assert list(PARTS) == ["step", "cold", "session", "interrupt", "killed", "memory", "attach"]


def test_the_figures_of_a_fan_out_have_a_part_each() -> None:
    assert list(FAN_PARTS) == ["ready", "many", "merge", "six", "interrupt", "leaks"]


def test_worktrees_that_are_all_wanted_at_once_are_all_made(tmp_path: Path) -> None:
    make_repository(tmp_path / "repo", many_files(3))
    failed, ms = in_threads(tmp_path, 12)
    assert failed == 0 and ms > 0


def test_a_merge_is_measured_beside_that_of_git(capsys: pytest.CaptureFixture[str]) -> None:
    merge(Options(files=5, merges=2))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == ["git merge-tree --write-tree, alone", "PrepareMerge"]
    assert "bar 15" in lines[1]


def test_a_census_counts_what_somebody_has_and_what_nobody_knows(tmp_path: Path) -> None:
    one = Machine(tmp_path, {})
    root = tmp_path / "repo"
    make_repository(root, many_files(3))
    (one.home / "sessions" / "s1").mkdir(parents=True)
    before = take_census(one)
    pool = Pool(one.home, open_repository(root))
    tree = pool.acquire("s1+a", pool.repo.head)
    run_git(root, "update-ref", "refs/thalia/s1/main", "HEAD")
    run_git(root, "update-ref", "refs/thalia/s1+a/main", "HEAD")
    run_git(root, "update-ref", "refs/thalia/lost/x", "HEAD")
    run_git(root, "branch", "made")
    (root / ".git" / "index.lock").touch()
    found = take_census(one).added(before)
    assert found == {
        "worktrees": {tree.path.name},
        "references": {"refs/thalia/lost/x"},
        "branches": {"refs/heads/made"},
        "locks": {str(root / ".git" / "index.lock")},
        "commands": set(),
    }
    (root / ".git" / "index.lock").unlink()
    pool.release(tree, now_s=1)
    assert take_census(one).added(before)["worktrees"] == set(), "a warm one is no leak"


def test_a_figure_says_its_middle_its_tail_the_load_and_its_bar() -> None:
    floor, figure = Figure("floor"), Figure("measured", bar=3.5)
    for value in range(1, 12):
        floor.add(2.0, 0.0)
        figure.add(float(value), 0.25)
    line = " ".join(figure.line(floor).split())
    assert line == "measured 6.0 ms p90 10.0 of 11 load 25 % 3.00 x bar 3.5: MISSED"


def test_no_more_of_the_cores_time_is_used_than_there_is() -> None:
    used, whole = used_ticks()
    assert 0 < used <= whole


@pytest.mark.timeout(300)
def test_a_command_killed_in_its_middle_is_done_once_where_it_is_confined_and_told_of_where_not() -> None:
    cases = [Case(agent, victims, wait_s=2.0) for agent in AGENTS for victims in VICTIMS]
    results = run_cases(cases, jobs=4)
    endings = {(case.agent, case.victims): ending for case, ending in results}
    assert {ending for (agent, _), ending in endings.items() if agent == "confined"} == {"exact"}
    assert endings["unconfined", "process"] == endings["unconfined", "group"] == "exact"
    assert endings["unconfined", "everything"] == "told"
    # The loops beside it can fail, so the work can tell agents apart.
    assert endings["repeats", "everything"] == "doubled" and endings["skips", "everything"] == "half"
    assert "1 told" in table(results) and "1 doubled" in table(results)
