"""One SELECT over all sessions, as plain values: what `thalia sql` prints.

As a program (`python -I -m eventlog.querying`) it takes one JSON object on standard input, {"sessions": FOLDER,
"query": SQL, "exports": {ID: FILE}}, and prints the answer: a query is not run in a process that others need."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from eventlog.catalogue import union_view


def run_query(sessions: Path, query: str, exports: Mapping[str, Path] | None = None) -> dict[str, Any]:
    """`columns`, `rows`, `skipped` (name and reason of sessions that are left out), and `error`, None or a sentence.
    `exports` are snapshots of sessions that are being written, by their id."""
    folders = sorted(sessions.iterdir()) if sessions.is_dir() else []
    with union_view(folders, exports or {}) as view:
        skipped = [(path.name, why) for path, why in view.skipped]
        try:
            columns, rows = view.query(query)
        except ValueError as error:
            return {"columns": [], "rows": [], "skipped": skipped, "error": str(error)}
    plain = [[_plain(value) for value in row] for row in rows]
    return {"columns": columns, "rows": plain, "skipped": skipped, "error": None}


def _plain(value: object) -> object:
    """As JSON has it: other types, and numbers that other programs would round, become their text."""
    fits = value is None or isinstance(value, (bool, float, str)) or (isinstance(value, int) and abs(value) < 2**53)
    return value if fits else str(value)


def main() -> None:
    asked = orjson.loads(sys.stdin.buffer.read())
    exports = {name: Path(file) for name, file in asked["exports"].items()}
    answer = run_query(Path(asked["sessions"]), asked["query"], exports)
    sys.stdout.buffer.write(orjson.dumps(answer))


if __name__ == "__main__":
    main()
