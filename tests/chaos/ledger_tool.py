"""A tool outside, with a ledger that no session can touch: what it did stands there once for each time that it did it.

  post FILE [--gate GATE] [--wait SECONDS]   takes a call: waits for GATE, appends the key, waits, prints a result;
            [--die]                          with --die it ends by a signal instead of the last two
  find FILE [--dumb]                         0 and that result where the key stands in FILE, 3 where it does not; with
                                             --dumb it can tell nothing

As a program of the settings: `[sys.executable, this file, "post", FILE]`."""

import argparse
import json
import os
import signal
import sys
import time
from pathlib import Path


def main() -> int:
    options = argparse.ArgumentParser()
    options.add_argument("act", choices=("post", "find"))
    options.add_argument("file", type=Path)
    options.add_argument("--gate", type=Path)
    options.add_argument("--wait", type=float, default=0.0)
    options.add_argument("--die", action="store_true")
    options.add_argument("--dumb", action="store_true")
    given = options.parse_args()
    call = json.load(sys.stdin)
    if given.act == "find":
        return find(given.file, call, given.dumb)
    post(given.file, call, given.gate)
    if given.die:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(given.wait)
    print(f"posted {call['key']}", flush=True)
    return 0


def post(file: Path, call: dict[str, object], gate: Path | None) -> None:
    """On the disk before it says so, in one write: two that post at once never mix."""
    while gate is not None and not gate.exists():
        time.sleep(0.01)
    line = json.dumps({"key": call["key"], "again": os.environ["THALIA_IDEMPOTENCY"], "arguments": call["arguments"]})
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.fsync(descriptor)
    os.close(descriptor)


def find(file: Path, call: dict[str, object], dumb: bool) -> int:
    if dumb:
        print("the ledger does not answer")
        return 1
    lines = file.read_text().splitlines() if file.exists() else []
    if call["key"] not in [json.loads(line)["key"] for line in lines]:
        return 3
    print(f"posted {call['key']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
