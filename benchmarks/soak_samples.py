"""What a soak looks at, from outside: sizes of a process, of its files and of what it leaves; and whether they grow."""

import os
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.place import Place

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class Process:
    """One look at the process of a session that works."""

    step: int
    """All steps of the session so far."""
    events: int
    life: int
    """Number of the process, from 0."""
    since: int
    """Steps that this process has made."""
    bytes: int
    """Memory that is its alone: anonymous pages, not what it shares with other programs."""
    files: int
    threads: int
    processes: int


@dataclass(frozen=True, slots=True)
class Disk:
    """One look at what lies on the disk while nothing runs: allocated bytes, or numbers."""

    step: int
    sizes: Mapping[str, int]


def look_at_process(place: Place, pid: int, step: int, events: int, life: int, since: int) -> Process | None:
    """None where it ended meanwhile."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        [anonymous] = (int(line.split()[1]) for line in rollup if line.startswith("Anonymous:"))
        files = len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - a number is wanted
        threads = len(os.listdir(f"/proc/{pid}/task"))  # noqa: PTH208
    except (OSError, ValueError):
        return None
    return Process(step, events, life, since, anonymous * KIB, files, threads, len(place.belonging(pid)))


def look_at_disk(place: Place, step: int) -> Disk:
    session, git = place.session, place.repository / ".git"
    log, calls, blobs = session / "log.duckdb", session / "calls", session / "blobs"
    # Loose and packed alike: each is named in one of the two.
    packed = git / "packed-refs"
    refs = sum(1 for path in (git / "refs").rglob("*") if path.is_file())
    refs += packed.read_bytes().count(b"refs/thalia/") if packed.exists() else 0
    pools = list(place.home.glob("worktrees/*"))
    return Disk(
        step,
        {
            "log": _allocated([log]) + _allocated(session.glob("log.duckdb.*")),
            "calls": _allocated(calls.rglob("*")),
            "folders of calls": sum(1 for _ in calls.iterdir()),
            "blobs": _allocated(blobs.rglob("*")),
            "other files of the session": sum(1 for _ in session.iterdir()),
            "git objects": _allocated((git / "objects").rglob("*")),
            "loose git objects": sum(1 for path in (git / "objects").glob("??/*")),
            "git references": refs,
            "reference logs": _allocated((git / "logs").rglob("*")),
            "pool of worktrees": sum(_allocated(pool.rglob("*")) for pool in pools),
            "files of the pool": sum(1 for pool in pools for _ in pool.iterdir()),
            "temporary files": sum(1 for _ in place.temporary.iterdir()),
            "state folder, beside": sum(1 for _ in place.home.iterdir()),
            "shared memory segments": sum(1 for _ in Path("/dev/shm").iterdir()),
            "processes left": len(place.left()),
        },
    )


def _allocated(paths: Iterable[Path]) -> int:
    """Bytes on the disk; of folders too, for thousands of them are what costs."""
    total = 0
    for path in paths:
        try:
            total += path.lstat().st_blocks * 512
        except FileNotFoundError:
            continue
    return total


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the least squares line through (x, y)."""
    if len({x for x, _ in points}) < 2:
        return 0.0
    return statistics.linear_regression(*zip(*points, strict=True)).slope


@dataclass(frozen=True, slots=True)
class Verdict:
    name: str
    first: float
    last: float
    per_step: float
    flat: bool


def judge(name: str, points: Sequence[tuple[float, float]], noise: float) -> Verdict:
    """Flat: the line through all looks but the first tenth rises by less than `noise` from one end to the other."""
    kept = points[len(points) // 10 :] or points
    rise = slope(kept)
    span = kept[-1][0] - kept[0][0]
    return Verdict(name, points[0][1], points[-1][1], rise, rise * span < noise)


NOISE: Mapping[str, float] = {
    "git objects": 256 * KIB,
    "pool of worktrees": 256 * KIB,
    "log": 256 * KIB,
    "calls": 256 * KIB,
    "blobs": 256 * KIB,
    "reference logs": 16 * KIB,
}
"""By how much what does not grow may rise, bytes; what is counted may by less than 3."""

OWED: Mapping[str, str] = {
    "log": "events, which are kept",
    "calls": "one folder a command: its `start` keeps a wrapper that comes late from running it again",
    "folders of calls": "one a command",
    "blobs": "texts over 16 KB, which events name",
    "git objects": "snapshots, which the log names",
    "loose git objects": "snapshots, which the log names",
    "shared memory segments": "the whole machine, others too",
    "git references": "one for each rewind of this soak, which keeps what it took back",
}
"""What may grow: the record of the session itself, and what is not its own. All else is a leak."""


def judge_disk(looks: Sequence[Disk]) -> list[Verdict]:
    return [
        judge(name, [(look.step, look.sizes[name]) for look in looks], NOISE.get(name, 3.0)) for name in looks[0].sizes
    ]


def judge_processes(looks: Sequence[Process], warm: int) -> list[Verdict]:
    """Over the whole soak, of looks at processes that have made `warm` steps; and of memory also what a process adds to
    what its first look found."""
    grown = [look for look in looks if look.since >= warm] or list(looks)
    first: dict[int, int] = {}
    added = sorted((look.since, float(look.bytes - first.setdefault(look.life, look.bytes))) for look in looks)
    of: Mapping[str, tuple[Callable[[Process], float], float]] = {
        "memory of a process": (lambda look: look.bytes, 8 * MIB),
        "open files": (lambda look: look.files, 3.0),
        "threads": (lambda look: look.threads, 3.0),
        "processes": (lambda look: look.processes, 3.0),
    }
    whole = [judge(name, [(look.step, read(look)) for look in grown], noise) for name, (read, noise) in of.items()]
    return [judge("memory that it adds", added, 8 * MIB), *whole]


def leaks(verdicts: Iterable[Verdict]) -> list[str]:
    return [one.name for one in verdicts if not one.flat and one.name not in OWED]


def line(one: Verdict) -> str:
    small = one.last < 10_000 and one.first < 10_000
    first, last = (f"{value:,.0f}" if small else f"{value / MIB:,.1f} MiB" for value in (one.first, one.last))
    if one.flat:
        return f"{one.name:<28} {first:>12} {last:>12}   flat"
    return (
        f"{one.name:<28} {first:>12} {last:>12}   grows by {one.per_step:,.3g} a step: {OWED.get(one.name, 'A LEAK')}"
    )
