"""What benchmarks/thousand_agents.py says can be relied on: what its agents append, its figures, and that it can be
run."""

from cProfile import Profile
from itertools import islice
from pathlib import Path

import pytest

from benchmarks.thousand_agents import Crowds, Plan, Run, conclude, hosted, measure, watched
from benchmarks.thousand_coordinator import Look, find_floor, parts_of_a_row, session_folder, shares_of
from benchmarks.thousand_work import EVENTS_A_STEP, Done, Piece, intent, pieces_of_steps
from eventlog.events import Body, EffectFinished, EffectStarted
from eventlog.ids import CallId
from eventlog.opening import read_log

BEFORE = Look(at=10.0, cpu=1.0, loop_cpu=0.5, events=100, groups=10, wal=1000, memory=50 << 20)
AFTER = Look(at=12.0, cpu=2.0, loop_cpu=1.0, events=1100, groups=60, wal=1_001_000, memory=60 << 20)


def run_of(agents: int, ms: float, *, thinking: bool = True) -> Run:
    return Run(agents, thinking, Done([ms] * 500, appends=500, steps=200), BEFORE, AFTER, 0.1)


def of_steps(count: int, *, apart: bool = False) -> list[Piece]:
    found: list[Piece] = []
    for piece, last in pieces_of_steps(apart=apart):
        found.append(piece)
        count -= last
        if count == 0:
            break
    return found


def bodies_of(pieces: list[Piece]) -> list[Body]:
    return [body for piece in pieces for body in piece.bodies]


def name_of(body: Body) -> str:
    match body:
        case EffectStarted(effect=effect):
            return effect.kind
        case EffectFinished(outcome=outcome):
            return outcome.kind
        case _:
            return body.kind


def test_a_step_appends_what_a_session_does_an_outcome_with_what_follows_from_it() -> None:
    pieces = of_steps(2)
    assert [piece.wait for piece in pieces] == ["model", "tool", "model", "tool", "snapshot"]
    kinds = [[name_of(body) for body in piece.bodies] for piece in pieces]
    assert kinds[:2] == [["model_replied", "run_tool"], ["tool_succeeded", "call_model"]]
    assert kinds[3:] == [["tool_succeeded", "call_model", "take_snapshot"], ["snapshot_taken"]]
    assert len(bodies_of(of_steps(10))) == 10 * EVENTS_A_STEP


def test_each_effect_is_begun_once_before_it_ends() -> None:
    opened, ended = list[CallId](), list[CallId]()
    for body in [intent(1), *bodies_of(of_steps(6))]:
        match body:
            case EffectStarted(call_id=call):
                assert call not in opened
                opened.append(call)
            case EffectFinished(call_id=call):
                assert call in opened and call not in ended
                ended.append(call)
            case _:
                raise AssertionError(body)
    assert len(opened) == len(ended) + 1, "the model is called for the next step"


def test_events_apart_are_the_same_each_in_an_append_of_its_own() -> None:
    together, apart = of_steps(4), of_steps(4, apart=True)
    assert bodies_of(apart) == bodies_of(together)
    assert {len(piece.bodies) for piece in apart} == {1}
    # Only the first of what goes together is waited for.
    assert [piece.wait for piece in apart if piece.wait] == [piece.wait for piece in together]


def test_the_figures_of_a_run_are_those_of_its_time_alone() -> None:
    run = run_of(64, 5.0)
    assert (run.rate, run.events, run.group, run.cpu) == (250.0, 500.0, 20.0, 0.5)
    line = " ".join(run.line().split())
    assert line.startswith("thinking 64 250 100 5.0 5.0 5 500 50%( 25%) 2,000 60 5,000 20.0 ")


def test_the_limit_is_the_last_size_under_the_bar() -> None:
    runs = [run_of(64, 5.0), run_of(1000, 20.0), run_of(2000, 150.0)]
    flat = [run_of(8, 5.0, thinking=False)]
    shares = {"hash": 0.75, "the rest": 0.25}
    assert conclude(runs, flat, shares, shares).startswith(
        "limit: 1,000 thinking agents keep the p99 of an append at 20.0 ms (bar 100), at 2,000 it is 150 ms; flat out "
    )
    assert "more were not tried" in conclude(runs[:2], flat, shares, shares)
    assert conclude(runs, flat, shares, {"hash": 2.0}).endswith(
        "most of the loop's time is hash 75 %, the rest 25 %; most of the writer's for an event is hash 2.0 us"
    )


def test_shares_of_a_profile_are_one_together() -> None:
    def inner() -> int:
        return sum(range(100_000))

    profile = Profile()
    profile.enable()
    inner()
    sorted(range(1000))
    profile.disable()
    shares = shares_of(profile, {(Path(__file__).name, "inner"): "inner", ("none.py", "none"): "none"})
    assert sum(shares.values()) == pytest.approx(1)
    assert 0.5 < shares["inner"] < 1 and shares["none"] == 0


def test_leases_of_more_agents_cost_the_writer_more() -> None:
    few, many = (list(parts_of_a_row(agents, 0.02).values()) for agents in (1, 20_000))
    assert min(*few, *many) > 0
    assert many[0] > 2 * few[0]


def test_a_floor_has_three_parts(tmp_path: Path) -> None:
    floor = find_floor(tmp_path / "floor", 3, 0.05)
    assert min(floor.log, floor.rows, floor.sync_ms) > 0


@pytest.mark.timeout(120)
def test_agents_in_other_processes_append_by_the_door_while_somebody_watches(tmp_path: Path) -> None:
    plan = Plan(seconds=0.5, processes=2, apart=False)
    crowds = Crowds(plan.processes)
    with hosted(tmp_path, 3) as host, watched(host.path, host.ask("look").events) as seen:
        run = measure(host, crowds, 3, False, plan)
        end = host.ask("look").events
        stored = read_log(session_folder(host.folder))
    crowds.close()
    assert run.done.appends > 0 and len(run.done.times) >= run.done.appends
    assert 0 < run.after.groups - run.before.groups <= run.after.events - run.before.events
    agents = [f"a{number}" for number in range(3)]
    assert {event.actor for event in stored if event.actor_seq is not None} == set(agents)
    # A lease and an opening of two events each, then what was acknowledged.
    per_append = {agent: [event.body for event in stored if event.actor == agent][2:] for agent in agents}
    for bodies in per_append.values():
        assert bodies == list(islice(bodies_of(of_steps(len(bodies))), len(bodies)))
    assert len(stored) == end and seen[0] > 0
