"""Benchmarks are run by hand, so that they can be run at all is seen here."""

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
