"""The parts of benchmarks/fanout.py that measure fan-outs in a daemon: their worktrees, their length, their end."""

import hashlib
import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from threading import Thread

from benchmarks.daemon import STUBBORN, WILLING, Machine, living, machine, sleepers, wait_for
from benchmarks.fanout_work import (
    Done,
    Options,
    Turns,
    begin_fan_out,
    fan_out,
    many_files,
    moments_of,
    pack,
    run_git,
    shell,
    show_count,
    write_script,
)
from benchmarks.quiet import Figure, show, wait_quiet
from eventlog.events import EffectFinished, Event, FanOutAsked, TurnEnded
from eventlog.opening import read_log
from eventlog.outcomes import AgentEnded, AgentsRetired, BranchAdvanced

AGENTS = 8
PATIENCE_S = 120.0
MODULES = ("parse", "plan", "apply", "store", "load", "show")
THINK_MS = 300
CHECK = "sh check.sh"
WARM_UP_MS = 20_000
"""So that no agent ends before the last of them has a process of its own."""
STOP_MS = 300
SLOWER = 1.5
"""How much longer than its slowest task a fan-out may take."""


def ready(chosen: Options) -> None:
    """From the session's word that an agent begins to the agent's worktree; the pool and the processes are warm."""
    tasks = [f"Task {number}." for number in range(AGENTS)]
    one, eight = Figure("one agent has its worktree", 150), Figure(f"the last of {AGENTS} has its worktree", 1500)
    peer, peers = Figure("git worktree add"), Figure(f"git worktree add, {AGENTS} one after the other")
    names = ("it has a lease", "its process knows its task", "it has its worktree")
    parts = [Figure(f"   of {AGENTS}, each: until {name}") for name in names]
    with machine(many_files(chosen.files)) as here:
        pack(here.folder / "repo")
        # All think meanwhile, as models do: none ends while another begins.
        model = write_script(here, {"Task": [{"text": "Done.", "delay_ms": 3000}]})
        cold = fan_out(
            here, write_script(here, {"Task": [{"text": "Done.", "delay_ms": WARM_UP_MS}]}), *tasks, "--merge"
        )
        print(f"the first fan-out, whose worktrees and processes are new: {last_ready_ms(here, cold):.0f} ms")
        for _ in range(chosen.rounds):
            for figure, some in ((one, tasks[:1]), (eight, tasks)):
                load = wait_quiet()
                done = fan_out(here, model, *some, "--merge")
                figure.add(last_ready_ms(here, done), load)
                if some is tasks:
                    add_parts(here, done, parts, load)
            load = wait_quiet()
            times = add_plainly(here.folder / "repo", AGENTS)
            for ms in times:
                peer.add(ms, load)
            peers.add(sum(times), load)
    show((peer, one), peer)
    show((peers, eight), peers)
    show(parts)


def events_of(one: Machine, session: str) -> tuple[Event, ...]:
    return read_log(one.home / "sessions" / session)


def last_ready_ms(one: Machine, done: Done) -> float:
    found = moments_of(events_of(one, done.session)).values()
    return (max(agent.ready for agent in found) - min(agent.begun for agent in found)) / 1000


def add_parts(one: Machine, done: Done, parts: Sequence[Figure], load: float) -> None:
    for agent in moments_of(events_of(one, done.session)).values():
        times = (agent.begun, agent.leased, agent.woken, agent.ready)
        for part, before, after in zip(parts, times, times[1:], strict=False):
            part.add((after - before) / 1000, load)


def add_plainly(root: Path, count: int) -> list[float]:
    """ms of each; none is left."""
    times = []
    for number in range(count):
        begin = time.perf_counter()
        run_git(root, "worktree", "add", "--quiet", "-b", f"plain-{number}", f"../plain-{number}")
        times.append((time.perf_counter() - begin) * 1000)
    for number in range(count):
        run_git(root, "worktree", "remove", "--force", f"../plain-{number}")
        run_git(root, "branch", "--quiet", "-D", f"plain-{number}")
    # What is measured next does not wait for what these have left to write.
    os.sync()
    return times


def six(chosen: Options) -> None:
    """Six tasks on modules that use each other, with a check on each merge, beside each of them alone."""
    with machine(project()) as here:
        model = write_script(here, {f"Change {name}.": turns_for(name) for name in MODULES})
        tasks = [f"Change {name}." for name in MODULES]
        check = ("--check", CHECK)
        root, changed = here.folder / "repo", 0
        alone = {task: Figure(f"alone: {task}") for task in tasks}
        all_six = Figure("six tasks at once")
        names = ("all agents have ended", "all is merged, checked", "worktrees are given back", "the session ends")
        parts = [Figure(f"   by its log: until {name}") for name in names]
        fan_out(here, model, *tasks, *check)
        before = state_of(root)
        for _ in range(chosen.rounds):
            for task, figure in alone.items():
                load = wait_quiet()
                figure.add(check_done(fan_out(here, model, task, *check)).ms, load)
                changed += state_of(root) != before
            load = wait_quiet()
            done = check_done(fan_out(here, model, *tasks, *check))
            all_six.add(done.ms, load)
            add_phases(events_of(here, done.session), parts, load)
            changed += state_of(root) != before
        here.run("merge", check_done(fan_out(here, model, *tasks, *check)).session)
        merged = run_git(root, "diff", "--name-only", "HEAD").split()
    slowest = max(alone.values(), key=lambda figure: figure.middle)
    all_six.bar = round(SLOWER * slowest.middle)
    show((slowest, all_six), slowest)
    show(parts)
    show_count("fan-outs that changed the checkout by themselves", changed, chosen.rounds * 7)
    show_count("files that thalia merge did not bring", len(MODULES) + 1 - len(merged), len(MODULES) + 1)


def project() -> dict[str, str]:
    files = {f"{name}.sh": f". ./table.sh\n{name}() {{ echo $1 1; }}\n" for name in MODULES}
    # Far enough from each other that git merges changes of two.
    table = "".join(f"{name.upper()}=1\n# ...\n# ...\n# ...\n# ...\n" for name in MODULES)
    loads = "".join(f". ./{name}.sh\n" for name in MODULES)
    asks = "".join(f'test "$({name} x)" = "x $((0 + {name.upper()}))" || exit 1\n' for name in MODULES)
    return files | {"table.sh": table, "check.sh": f"sleep 0.1\n{loads}{asks}"}


def turns_for(name: str) -> Turns:
    """It reads, changes its own module and its line of the table that all use, and runs the check."""

    def edit(path: str, old: str, new: str) -> dict[str, object]:
        return {"name": "edit", "arguments": {"path": path, "old_text": old, "new_text": new}}

    reads = [{"name": "read", "arguments": {"path": path}} for path in (f"{name}.sh", "table.sh")]
    edits = [
        edit(f"{name}.sh", "echo $1 1", "echo $1 2"),
        edit("table.sh", f"{name.upper()}=1", f"{name.upper()}=2"),
    ]
    return [
        {"tool_calls": reads, "delay_ms": THINK_MS},
        {"tool_calls": edits, "delay_ms": THINK_MS},
        shell(CHECK, THINK_MS),
        {"text": "Done.", "delay_ms": THINK_MS},
    ]


def check_done(done: Done) -> Done:
    """Raises SystemExit where not all is merged."""
    if done.code != 0 or "merged, checked" not in done.said["result"] or "not merged" in done.said["result"]:
        raise SystemExit(f"The fan-out ended as {done.said}.")
    return done


def state_of(root: Path) -> str:
    """sha256 of each file, of the index, of HEAD and of the branches."""
    digest = hashlib.sha256()
    own = [path for path in sorted(root.rglob("*")) if path.is_file() and ".git" not in path.relative_to(root).parts]
    for path in (*own, root / ".git" / "index", root / ".git" / "HEAD"):
        digest.update(f"{path} {path.stat().st_mode} ".encode() + hashlib.sha256(path.read_bytes()).digest())
    digest.update(run_git(root, "for-each-ref", "refs/heads").encode())
    return digest.hexdigest()


def add_phases(events: Sequence[Event], parts: Sequence[Figure], load: float) -> None:
    [asked] = [event.ts_us for event in events if isinstance(event.body, FanOutAsked)]
    outcomes = [(event.ts_us, event.body.outcome) for event in events if isinstance(event.body, EffectFinished)]
    times = [asked]
    for kind in (AgentEnded, BranchAdvanced, AgentsRetired):
        times.append(max(ts_us for ts_us, outcome in outcomes if isinstance(outcome, kind)))
    times.append(max(event.ts_us for event in events if isinstance(event.body, TurnEnded)))
    for part, before, after in zip(parts, times, times[1:], strict=False):
        part.add((after - before) / 1000, load)


def interrupt(chosen: Options) -> None:
    """Each agent runs a command whose processes leave its group and carry no mark; every other time they ignore
    SIGTERM. From `thalia stop`, as the gateway gets it and as it is typed, to the last of these processes gone."""
    look, floor = Figure("one look at all processes"), Figure("thalia status, typed, to its end")
    told = Figure(f"stop: all processes of {AGENTS} agents are gone", STOP_MS)
    typed, over = Figure("   from the start of the typed command"), Figure("   until the session is over, too")
    survivors = 0
    tasks = [f"Task {number}." for number in range(AGENTS)]
    with machine() as here:
        for trial in range(chosen.trials):
            number = int(f"{os.getpid()}{trial:04d}")
            command = (WILLING, STUBBORN)[trial % 2].format(number)
            session = begin_fan_out(here, write_script(here, {"Task": [shell(command), {"text": "Done."}]}), *tasks)
            wait_for(partial(has_begun, number), PATIENCE_S)
            by_hand = trial // 2 % 2 == 1
            load, begin = wait_quiet(), time.perf_counter()
            stopping = Thread(target=stop, args=(here, session, by_hand))
            stopping.start()
            wait_for(lambda session=session, number=number: not living(session, number), PATIENCE_S)
            (typed if by_hand else told).add((time.perf_counter() - begin) * 1000, load)
            stopping.join()
            over.add((time.perf_counter() - begin) * 1000, load)
            here.wait_idle()
            begin = time.perf_counter()
            survivors += len(living(session, number))
            look.add((time.perf_counter() - begin) * 1000, load)
            begin = time.perf_counter()
            here.run("status")
            floor.add((time.perf_counter() - begin) * 1000, load)
    show((look, floor, told, typed, over))
    show_count("processes that survived", survivors, chosen.trials * AGENTS * WILLING.count("sleep "))


def has_begun(number: int) -> bool:
    return len(sleepers(number)) == AGENTS * WILLING.count("sleep ")


def stop(one: Machine, session: str, by_hand: bool) -> None:
    if by_hand:
        one.run("stop", session)
    else:
        one.daemon.ask("POST", f"/sessions/{session}/stop")
