"""How soon `thalia exec` says something, and how long one step takes from the command line.

    python -m benchmarks.start [--rounds 10]

Beside a Python that does nothing and one that only imports typer. Times in ms from the start of the process."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from worktrees.sample import make_repository


def run(command: list[str], env: dict[str, str], folder: Path) -> tuple[float, float]:
    """(ms to the first line, ms to the end)."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert process.stdout is not None
    process.stdout.readline()
    first = (time.perf_counter() - begin) * 1000
    process.stdout.read()
    assert process.wait() == 0
    return first, (time.perf_counter() - begin) * 1000


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="thalia-bench-") as name:
        folder = Path(name)
        make_repository(folder / "repo", {f"src/file{i}.py": f"x = {i}\n" for i in range(20)})
        script = folder / "script.json"
        step = {"tool_calls": [{"name": "shell", "arguments": {"command": "true"}}]}
        script.write_text(json.dumps({"turns": [step, {"text": "Done."}]}))
        env = {
            "PATH": os.environ["PATH"],
            "HOME": name,
            "THALIA_HOME": f"{name}/home",
            "THALIA_DAEMON": "off",
            "THALIA_CONFIG": f"{name}/none",
        }
        python = [sys.executable, "-I"]
        ways = {
            "python -c print": [*python, "-c", "print(1)"],
            "python -c 'import typer'": [*python, "-c", "import typer; print(1)"],
            "thalia exec, one step": [*python, "-m", "cli", "exec", "go", "-m", f"scripted/{script}"],
        }
        times: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
        for _ in range(chosen.rounds):
            for way, command in ways.items():
                times[way].append(run(command, env, folder / "repo"))
    for way, found in times.items():
        first, whole = (statistics.median(values) for values in zip(*found, strict=True))
        print(f"{way:<28} first line {first:7.0f} ms   end {whole:7.0f} ms")


if __name__ == "__main__":
    main()
