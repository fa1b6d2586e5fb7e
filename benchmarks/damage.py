"""How many cuts of a WAL are noticed, where each one takes acknowledged events away.

    python -m benchmarks.damage [--cuts 40|all] [--seed 1]

A writer appends, one event a transaction, and is copied as a kill would leave it; the copy's WAL is cut and opened.
The peer is a plain DuckDB table with the same rows, one a transaction, copied and cut at the same shares of its WAL.
Counted are those that opened as if nothing were missing, those that refused, and of the refusals whether the number of
lost events they name is right."""

import argparse
import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import duckdb

from eventlog.errors import LogDamaged
from eventlog.events import Draft, UserSaid
from eventlog.ids import CommandId, SessionId
from eventlog.opening import create_log, open_log
from eventlog.redact import Redactor
from eventlog.seams import SystemClock

EVENTS = 60
SESSION = SessionId("bench")
TEXT = "I look at it. " * 40
WAL = "log.duckdb.wal"


def text_of(number: int) -> str:
    return f"{number} {TEXT}"


def make_log(folder: Path, image: Path) -> None:
    """All events acknowledged, all in the WAL."""
    opened = create_log(folder, SESSION, SystemClock(), Redactor())

    async def fill() -> None:
        for number in range(EVENTS):
            body = UserSaid(id=CommandId(f"u{number}"), text=text_of(number))
            await opened.log.append([opened.log.prepare(Draft(body=body))])

    asyncio.run(fill())
    shutil.copytree(folder, image)
    opened.close()


def make_table(folder: Path, image: Path) -> None:
    """The same rows in a table that nobody watches."""
    folder.mkdir()
    connection = duckdb.connect(str(folder / "log.duckdb"), config={"checkpoint_threshold": "1TB"})
    connection.execute("CREATE TABLE events (seq BIGINT, text VARCHAR)")
    connection.execute("CHECKPOINT")
    for number in range(EVENTS):
        connection.execute("INSERT INTO events VALUES (?, ?)", [number + 1, text_of(number)])
    shutil.copytree(folder, image)
    connection.close()


def look_at_log(folder: Path) -> str:
    try:
        opened = open_log(folder, SESSION, SystemClock(), Redactor())
    except LogDamaged as damage:
        opened = open_log(folder, SESSION, SystemClock(), Redactor(), accept_damage=True)
        opened.close()
        assert opened.lost is not None
        kept = opened.lost.first - 1
        return "refused, the loss counted right" if damage.lost == EVENTS - kept else "refused, the loss counted wrong"
    opened.close()
    return "opened, all there" if opened.log.head.seq == EVENTS else "opened in silence, rows missing"


def look_at_table(folder: Path) -> str:
    try:
        with duckdb.connect(str(folder / "log.duckdb")) as connection:
            (count,) = connection.execute("SELECT count(*) FROM events").fetchall()[0]
    except duckdb.Error:
        return "refused"
    return "opened, all there" if count == EVENTS else "opened in silence, rows missing"


def cut_each(image: Path, work: Path, shares: Sequence[float], look: Callable[[Path], str]) -> Counter[str]:
    wal = (image / WAL).read_bytes()
    seen = Counter[str]()
    for share in shares:
        shutil.copytree(image, work)
        (work / WAL).write_bytes(wal[: int(len(wal) * share)])
        seen[look(work)] += 1
        shutil.rmtree(work)
    return seen


def choose(cuts: str, size: int, random: Random) -> list[float]:
    """Shares of the WAL, below the whole: each takes at least the end of the last transaction."""
    if cuts == "all":
        return [length / size for length in range(size)]
    return sorted(random.random() for _ in range(int(cuts)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cuts", default="40", help="how many, drawn, or `all`")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        make_log(base / "log", base / "log-image")
        make_table(base / "table", base / "table-image")
        size = (base / "log-image" / WAL).stat().st_size
        shares = choose(options.cuts, size, Random(options.seed))
        print(f"{len(shares)} cuts of a WAL of {size} bytes, {EVENTS} acknowledged events, DuckDB {duckdb.__version__}")
        report("Thalia", cut_each(base / "log-image", base / "cut", shares, look_at_log), len(shares))
        report("plain DuckDB", cut_each(base / "table-image", base / "cut", shares, look_at_table), len(shares))


def report(name: str, seen: Counter[str], cuts: int) -> None:
    noticed = sum(count for what, count in seen.items() if what.startswith("refused"))
    print(f"{name:14} noticed {noticed} of {cuts} ({100 * noticed / cuts:.0f} %)")
    for what, count in sorted(seen.items()):
        print(f"{'':14}   {count:6} {what}")


if __name__ == "__main__":
    main()
