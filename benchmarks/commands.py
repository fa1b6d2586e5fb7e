"""What durability and confinement add to one command. Run: python -m benchmarks.commands [ITERATIONS]

Four ways to run `true` in bash, interleaved: plain subprocess, plain bubblewrap, durable, durable and confined.
Prints milliseconds (p50, p99) and what each median adds to, and multiplies, the plain subprocess.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from processes.commands import Command, Confinement, Limits, shell_argv
from processes.environment import child_env
from processes.etc import prepare_etc
from processes.runner import BASH, Runner
from processes.sandbox import find_host, sandbox_argv

TEXT = "true"
BUDGET_MS = {"durable": 4.0, "durable, confined": 7.0}


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


async def measure(folder: Path, iterations: int) -> dict[str, list[float]]:
    """Milliseconds a command, by way, in the order in which they ran."""
    work = folder / "work"
    work.mkdir()
    env = child_env(os.environ, {})
    confinement = Confinement(writable=(work,))
    argv = shell_argv(BASH, TEXT, Limits())
    confined_argv = sandbox_argv(find_host(), prepare_etc(folder), confinement, env, work, argv)
    plain, confined = Command(TEXT, work, env), Command(TEXT, work, env, confinement=confinement)
    runner = Runner()
    await runner.start()
    times: dict[str, list[float]] = {"plain": [], "bubblewrap": [], "durable": [], "durable, confined": []}
    for number in range(iterations):
        for way, series in times.items():
            begin = time.perf_counter()
            match way:
                case "plain":
                    subprocess.run(["bash", "-c", TEXT], check=True)  # noqa: ASYNC221 - it is what we compare with
                case "bubblewrap":
                    subprocess.run(confined_argv, check=True)  # noqa: ASYNC221 - it is what we compare with
                case "durable":
                    await runner.run(folder / f"d{number}", plain)
                case _:
                    await runner.run(folder / f"c{number}", confined)
            series.append((time.perf_counter() - begin) * 1000)
    await runner.close()
    return times


def report(times: dict[str, list[float]]) -> str:
    base = percentile(times["plain"], 0.5)
    lines = [f"{'':20}{'p50 ms':>9}{'p99 ms':>9}{'added':>9}{'ratio':>8}"]
    for way, series in times.items():
        middle = percentile(series, 0.5)
        line = f"{way:20}{middle:9.2f}{percentile(series, 0.99):9.2f}{middle - base:9.2f}{middle / base:8.2f}"
        budget = BUDGET_MS.get(way)
        lines.append(line if budget is None else f"{line}  (budget: {budget:.0f} ms added)")
    return "\n".join(lines)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
        print(report(asyncio.run(measure(Path(name), count))))
