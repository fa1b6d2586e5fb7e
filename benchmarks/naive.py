"""Two agent loops as short as they can be, for one command, to see what their way of keeping state is worth.

    python -m benchmarks.naive repeats|skips FILE COMMAND

`repeats` keeps a result when it has one, and runs again what has none (at least once). `skips` keeps the call before it
runs it, and never runs a kept one again (at most once). Both keep it durably in FILE. Started again, they take up what
FILE says. The command runs in the loop's own process group, as a child."""

import os
import subprocess
import sys
from pathlib import Path


def keep(file: Path, word: str) -> None:
    with file.open("a") as out:
        out.write(f"{word}\n")
        out.flush()
        os.fsync(out.fileno())


def main(way: str, name: str, command: str) -> None:
    file = Path(name)
    kept = file.read_text().split() if file.exists() else []
    if "finished" in kept or (way == "skips" and "called" in kept):
        return
    if way == "skips":
        keep(file, "called")
    subprocess.run(["/bin/bash", "-c", command], check=False)
    keep(file, "finished")


if __name__ == "__main__":
    main(*sys.argv[1:])
