"""Benchmarks are run by hand, so that they can be run at all is seen here."""

import pytest

from benchmarks.crash import AGENTS, VICTIMS, Case, run_cases, table
from benchmarks.daemon import PARTS
from benchmarks.quiet import Figure, used_ticks


def test_the_figures_of_the_daemon_have_a_part_each() -> None:
    assert list(PARTS) == ["step", "cold", "session", "interrupt", "killed", "memory", "attach"]


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
