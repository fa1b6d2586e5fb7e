"""Whether agents in the background pay: one task done alone, with a scout and a checker beside, and with agents of
`fan_out` that are begun for each question and each check.

    python -m benchmarks.background [task first last short few many large easy wrong late narrow]
                                    [--seeds 5] [--jobs 3] [--scale N]

The models are scripted policies (background_minds.py) that know what stands in their conversation and nothing else;
each reply takes 2 s and 20 ms a token, the whole suite 60 s. The three ways end with the same files, or this ends with
an error. Times are those of models and tests, by a clock that is turned when all wait for it (background_clock.py);
with --scale they are the machine's own, so many times faster, and Thalia's own time counts so many times too much.
Ratios are to the same seed done alone: median, least and most."""

import argparse
import signal
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context

from benchmarks.background_repo import Case
from benchmarks.background_run import AGENTS, FIRST_S, MODEL, TOKEN_S, Came, run_session

ARMS = ("alone", "background", "subagents")


@dataclass(frozen=True, slots=True)
class Part:
    text: str
    case: Case
    arms: tuple[str, ...] = ARMS


PARTS: Mapping[str, Part] = {
    "task": Part("6 places in 2,000 files, any change breaks a far test", Case(), tuple(AGENTS)),
    "first": Part("as task, the first change breaks it", Case(breaks="first"), tuple(AGENTS)),
    "last": Part("as task, the last change breaks it", Case(breaks="last")),
    "short": Part("one named file, nothing breaks", Case(places=1, named=True, breaks="never")),
    "few": Part("2 places", Case(places=2)),
    "many": Part("12 places", Case(places=12)),
    "large": Part("8,000 files", Case(files=8_000)),
    "easy": Part("each place is one search away", Case(hops=(1, 1))),
    "wrong": Part("the scout has half of the places wrong", Case(right=0.5)),
    "late": Part("the scout reads three descriptions at a time, not ten", Case(pages=3)),
    "narrow": Part("after a repair only what failed is run again", Case(whole_again=False)),
}
Column = tuple[str, Callable[[Came], float], str]
COLUMNS: Sequence[Column] = (
    ("wall s", lambda came: came.wall_s, "8.0f"),
    ("main", lambda came: came.main_calls, "6.0f"),
    ("others", lambda came: came.other_calls, "7.0f"),
    ("fresh k", lambda came: came.fresh / 1000, "8.1f"),
    ("cached k", lambda came: came.cached / 1000, "9.1f"),
    ("out k", lambda came: came.output / 1000, "7.1f"),
    ("USD", lambda came: came.usd, "7.3f"),
    ("known s", lambda came: came.known_s or 0.0, "8.0f"),
)
"""`known`: when the main agent knew of the broken test; 0 where none broke."""
RATIOS: Sequence[Column] = (
    ("wall", lambda came: came.wall_s, ".2f"),
    ("calls", lambda came: came.main_calls + came.other_calls, ".2f"),
    ("main's", lambda came: came.main_calls, ".2f"),
    ("USD", lambda came: came.usd, ".2f"),
    ("known", lambda came: came.known_s or 0.0, ".2f"),
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=None)
    chosen = parser.parse_args()
    if unknown := set(chosen.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    clock = "turned" if chosen.scale is None else f"the machine's, {chosen.scale:g} times faster"
    print(f"a reply takes {FIRST_S:g} s and {TOKEN_S * 1000:g} ms a token; prices of {MODEL}; the clock is {clock}")
    # So that what is under way is brought to its end where a limit of time ends this.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Each session in a process of its own: it sets its loop and its collector up for itself.
    pool = ProcessPoolExecutor(chosen.jobs, get_context("spawn"), max_tasks_per_child=1)
    try:
        for name in chosen.parts or PARTS:
            show(name, run_part(pool, name, chosen.seeds, chosen.scale))
    finally:
        pool.shutdown(cancel_futures=True)


def run_part(pool: ProcessPoolExecutor, name: str, seeds: int, scale: float | None) -> dict[str, list[Came]]:
    """By arm, in the order of the seeds. The arms of a seed run side by side."""
    part = PARTS[name]
    cases = [replace(part.case, seed=seed) for seed in range(1, seeds + 1)]
    begun: list[tuple[str, Future[Came]]] = [
        (arm, pool.submit(run_session, case, arm, scale)) for case in cases for arm in part.arms
    ]
    found: dict[str, list[Came]] = {arm: [] for arm in part.arms}
    for arm, future in begun:
        found[arm].append(future.result())
    return found


def show(name: str, found: Mapping[str, Sequence[Came]]) -> None:
    alone = found["alone"]
    print(f"\n-- {name}: {PARTS[name].text}; medians of {len(alone)} seeds", flush=True)
    print(f"{'':<12}" + "".join(f"{title:>{_width(form)}}" for title, _, form in COLUMNS))
    for arm, came in found.items():
        print(f"{arm:<12}" + "".join(f"{middle(came, value):{form}}" for _, value, form in COLUMNS))
    for arm, came in found.items():
        ratios = [f"{title} {ratio(came, alone, value)}" for title, value, _ in RATIOS if any(map(value, alone))]
        if arm != "alone":
            print(f"{arm:<11} x {', '.join(ratios)}", flush=True)


def middle(came: Sequence[Came], value: Callable[[Came], float]) -> float:
    return statistics.median(map(value, came))


def ratio(came: Sequence[Came], alone: Sequence[Came], value: Callable[[Came], float]) -> str:
    """Seed by seed."""
    found = [value(one) / value(other) for one, other in zip(came, alone, strict=True)]
    return f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def _width(form: str) -> str:
    return form.partition(".")[0]


if __name__ == "__main__":
    main()
