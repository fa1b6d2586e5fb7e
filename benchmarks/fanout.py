"""What a fan-out costs: worktrees for its agents, merges, six tasks beside one, an interrupt, kills.

    python -m benchmarks.fanout [ready many merge six interrupt leaks] [--files 20000] [--rounds 5] [--merges 50]
                                [--at-once 64] [--trials 10] [--fanouts 10] [--seed 1]

Fan-outs go through the command line and a daemon, as a person's do; times within them are those of their log. Each part
has its bar, and its peer or its floor in the same run; a sample begins when the cores are idle (benchmarks/quiet.py),
and the load before it stands beside the figure."""

import argparse
import signal
import sys
from collections.abc import Callable
from dataclasses import fields

from benchmarks.fanout_daemon import interrupt, ready, six
from benchmarks.fanout_git import many, merge
from benchmarks.fanout_leaks import leaks
from benchmarks.fanout_work import Options
from benchmarks.quiet import show_machine

PARTS: dict[str, Callable[[Options], None]] = {
    part.__name__: part for part in (ready, many, merge, six, interrupt, leaks)
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    for field in fields(Options):
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=int, default=field.default)
    chosen = vars(parser.parse_args())
    parts = chosen.pop("parts") or list(PARTS)
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    # So that a daemon is ended too where a limit of time ends this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    show_machine()
    for name in parts:
        print(f"-- {name}", flush=True)
        PARTS[name](Options(**chosen))


if __name__ == "__main__":
    main()
