"""One command that writes, waits and writes; killed while it waits; taken up again: is it done exactly once?

    python -m benchmarks.crash [--trials 10] [--wait 2] [--jobs 4]

SIGKILL goes to the agent's process alone, to its process group, or to every process that it started, grandchildren too.
Then the same agent takes its session up, and the file is read when no process is left. The command of ours is confined
to its worktree, or unconfined with the file outside. Beside it in the same run: two loops as short as can be
(naive.py). A trial ends

    exact     begun once and ended once
    told      half done, and the session's log and the model say that the outcome is unknown
    half      begun and not ended, and nobody is told
    doubled   begun more than once"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Literal, assert_never, get_args

from benchmarks.place import ROOT, Place
from eventlog.events import EffectFinished
from eventlog.opening import read_log
from eventlog.outcomes import OutcomeUnknown

Agent = Literal["confined", "unconfined", "repeats", "skips"]
Victims = Literal["process", "group", "everything"]
Ending = Literal["exact", "told", "half", "doubled"]
AGENTS, VICTIMS, ENDINGS = get_args(Agent), get_args(Victims), get_args(Ending)
NAMES: dict[Agent, str] = {
    "confined": "thalia, confined",
    "unconfined": "thalia, unconfined",
    "repeats": "bare loop, repeats",
    "skips": "bare loop, skips",
}
BYPASS = "--dangerously-bypass-approvals-and-sandbox"
PATIENCE_S = 60.0
GIVEN = """As given for other agents, 10 trials of this work each, not measured here: Codex 0 to 1 exact, the rest half
done; Claude Code 0, all doubled; pi 10 where only its own process group dies, 0 where every process dies."""
_MAKING = Lock()
"""The library that makes a repository changes the working folder of the whole process meanwhile."""


@dataclass(frozen=True, slots=True)
class Case:
    agent: Agent
    victims: Victims
    wait_s: float = 2.0


def trial(case: Case, folder: Path) -> Ending:
    place = Place(folder)
    with _MAKING:
        place.make()
    file = "done.txt" if case.agent == "confined" else str(folder / "done.txt")
    command = f"echo begun >> {file}; sleep {case.wait_s}; echo ended >> {file}"
    call = {"name": "shell", "arguments": {"command": command, "timeout_s": PATIENCE_S}}
    with place.model([{"tool_calls": [call]}, {"text": "Done."}]):
        run = _start(place, case.agent, command, again=False)
        try:
            _wait_for(lambda: _lines(place, case.agent) == ["begun"] or run.poll() is not None)
        finally:
            _kill(place, run, case.victims)
        again = _start(place, case.agent, command, again=True)
        if again.wait(PATIENCE_S) != 0:
            raise SystemExit(f"{case}: it could not be taken up again: {place.errors()}")
        _wait_for(lambda: place.left() == [])
    return _ending(_lines(place, case.agent), _is_told(place, case.agent))


def _start(place: Place, agent: Agent, command: str, *, again: bool) -> "subprocess.Popen[bytes]":
    out = place.folder / "out"
    match agent:
        case "confined" | "unconfined":
            flags = (BYPASS,) if agent == "unconfined" else ()
            begin = ("resume", "--last") if again else ("exec", "Do it.", "-m", "openai/bench")
            return place.start(*begin, *flags, out=out)
        case "repeats" | "skips":
            return place.run("-m", "benchmarks.naive", agent, str(place.folder / "kept"), command, cwd=ROOT, out=out)
        case _:
            assert_never(agent)


def _kill(place: Place, run: "subprocess.Popen[bytes]", victims: Victims) -> None:
    # Those that outlive it must be known, to wait for their end.
    place.belonging(run.pid)
    match victims:
        case "process":
            run.kill()
        case "group":
            os.killpg(run.pid, signal.SIGKILL)
        case "everything":
            place.kill_everything(run.pid)
        case _:
            assert_never(victims)
    run.wait()


def _lines(place: Place, agent: Agent) -> list[str]:
    found = place.home.glob("worktrees/*/thalia-*/done.txt") if agent == "confined" else [place.folder / "done.txt"]
    return [line for path in found if path.exists() for line in path.read_text().split()]


def _is_told(place: Place, agent: Agent) -> bool:
    if agent in ("repeats", "skips"):
        return False
    bodies = (event.body for event in read_log(place.session))
    return any(isinstance(body, EffectFinished) and isinstance(body.outcome, OutcomeUnknown) for body in bodies)


def _ending(lines: Sequence[str], told: bool) -> Ending:
    match lines.count("begun"), lines.count("ended"):
        case 1, 1:
            return "exact"
        case ((0 | 1), _):
            return "told" if told else "half"
        case _:
            return "doubled"


def _wait_for(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not true():
        if time.monotonic() > give_up:
            raise SystemExit(f"Nothing came of it within {PATIENCE_S:.0f} s.")
        time.sleep(0.02)


def run_cases(cases: Iterable[Case], jobs: int) -> list[tuple[Case, Ending]]:
    """Each in a place of its own; `jobs` at the same time, for most of a trial is waiting."""

    def one(case: Case) -> tuple[Case, Ending]:
        with tempfile.TemporaryDirectory(prefix="thalia-bench-") as name:
            return case, trial(case, Path(name))

    with ThreadPoolExecutor(jobs) as threads:
        return list(threads.map(one, cases))


def table(results: Iterable[tuple[Case, Ending]]) -> str:
    counts: dict[tuple[Agent, Victims], Counter[Ending]] = {}
    for case, ending in results:
        counts.setdefault((case.agent, case.victims), Counter())[ending] += 1
    lines = [f"{'killed with SIGKILL':<22}" + "".join(f"{'its ' + v if v != 'everything' else v:>22}" for v in VICTIMS)]
    for agent in AGENTS:
        cells = (_cell(counts[agent, victims]) for victims in VICTIMS if (agent, victims) in counts)
        lines.append(f"{NAMES[agent]:<22}" + "".join(f"{cell:>22}" for cell in cells))
    return "\n".join(lines)


def _cell(endings: Counter[Ending]) -> str:
    return ", ".join(f"{endings[ending]} {ending}" for ending in ENDINGS if endings[ending])


def exact(results: Iterable[tuple[Case, Ending]], agent: Agent) -> int:
    return sum(case.agent == agent and ending == "exact" for case, ending in results)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--wait", type=float, default=2.0, help="seconds between the two writes")
    parser.add_argument("--jobs", type=int, default=4)
    chosen = parser.parse_args()
    cases = [Case(a, v, chosen.wait) for _ in range(chosen.trials) for a in AGENTS for v in VICTIMS]
    results = run_cases(cases, chosen.jobs)
    print(table(results))
    ours, floor = exact(results, "confined"), max(exact(results, "repeats"), exact(results, "skips"))
    print(
        f"exact, confined, of {3 * chosen.trials}: {ours}; the better bare loop: {floor}; {ours / max(floor, 1):.1f} x"
    )
    print(GIVEN)
    return 0 if ours == 3 * chosen.trials else 1


if __name__ == "__main__":
    sys.exit(main())
