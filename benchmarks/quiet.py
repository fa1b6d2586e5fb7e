"""Wait for cores that nobody uses, and say how much of them others used while something was measured.

A core counts as idle in the time that Linux calls idle or waiting for a disk (/proc/stat, in ticks of 10 ms)."""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

QUIET = 0.15
"""Of all cores' time, in use by others: below it the machine is called quiet."""
LOOK_S = 0.3
PATIENCE_S = 3.0
"""For one sample; what is measured after it is measured under load, and says so."""


def used_ticks() -> tuple[int, int]:
    """(in use, all) of all cores since the machine started."""
    user, nice, system, idle, waiting, *rest = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9])
    used = user + nice + system + sum(rest)
    return used, used + idle + waiting


def wait_quiet(patience_s: float = PATIENCE_S) -> float:
    """The share of the cores that was in use in the last moment: less than QUIET, or what it is after all patience."""
    give_up = time.monotonic() + patience_s
    while True:
        before = used_ticks()
        time.sleep(LOOK_S)
        after = used_ticks()
        share = (after[0] - before[0]) / max(after[1] - before[1], 1)
        if share < QUIET or time.monotonic() > give_up:
            return share


@dataclass(slots=True)
class Figure:
    """Samples of one quantity, each with the load right before it."""

    name: str
    bar: float | None = None
    unit: str = "ms"
    values: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    def add(self, value: float, load: float) -> None:
        self.values.append(value)
        self.loads.append(load)

    @property
    def middle(self) -> float:
        return statistics.median(self.values)

    def line(self, floor: "Figure | None" = None) -> str:
        values = sorted(self.values)
        p90 = values[round(0.9 * (len(values) - 1))]
        load = 100 * statistics.median(self.loads)
        text = f"{self.name:<50} {self.middle:8.1f} {self.unit}  p90 {p90:8.1f}  of {len(values):3}  load {load:3.0f} %"
        if floor is not None:
            text += f"  {self.middle / floor.middle:5.2f} x"
        if self.bar is not None:
            text += f"  bar {self.bar:g}: {'met' if self.middle <= self.bar else 'MISSED'}"
        return text


def show(figures: Sequence[Figure], floor: Figure | None = None) -> None:
    for figure in figures:
        if figure.values:
            print(figure.line(floor), flush=True)


def show_machine() -> None:
    text = (
        f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the beginning; load: cores' time in use by"
    )
    print(f"{text} others right before each sample, median")
