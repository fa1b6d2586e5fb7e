"""Sessions in a daemon of which anything is killed at random moments: the terminal, each of its processes, or all."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from actors.history import Verified, verify
from eventlog.events import EffectFinished, Event
from eventlog.outcomes import ModelFailed
from tests.chaos.arena import SECRET, failed_calls, unknown_calls
from tests.chaos.daemon_arena import (
    AGAIN,
    COMMANDS,
    KILL,
    WAYS,
    DaemonArena,
    Kill,
    Person,
    Way,
    deal,
    serving_conversations,
    turns_of,
)
from tests.chaos.invariants import check_outcomes
from tests.cli.cli_program import objects
from tests.cli.daemon_machine import machine

pytestmark = pytest.mark.xdist_group("daemon-random-kills")
KILLS_A_SESSION = 2
KILLS = int(os.environ.get("THALIA_TEST_KILLS", "80")) // 10
SESSIONS = max(KILLS // KILLS_A_SESSION, 1)
SEED = int(os.environ.get("THALIA_TEST_SEED", "1"))
HANDS = deal(Random(SEED), SESSIONS * KILLS_A_SESSION)


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonArena]:
    """Ends with `down`, which leaves no process, lock, socket or folder."""
    folder = tmp_path_factory.mktemp("arena")
    scripts = {f"Do number {n}.": turns_of(way_of(n), folder / f"ledger-{n}") for n in range(SESSIONS + 2)}
    with serving_conversations(folder, scripts) as url:
        env = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": SECRET}
        with machine(folder / "machine", env) as one:
            yield DaemonArena(one, folder)


@pytest.fixture(scope="module")
def undisturbed(arena: DaemonArena) -> dict[Way, dict[str, str]]:
    """The files that each session ends with when nothing is killed."""
    files: list[dict[str, str]] = []
    for number in (SESSIONS, SESSIONS + 1):
        with arena.person(number, way_of(number)) as person:
            person.finish()
            files.append(arena.files(person))
            check_effects(arena, person, arena.machine.events(person.session))
    return {"watched": files[0], "detached": files[0], "unconfined": files[1], "asked": files[1]}


def way_of(number: int) -> Way:
    """Behind the sessions that are killed come two that are not, of which one is confined."""
    return WAYS[number % len(WAYS)] if number < SESSIONS else ("detached", "unconfined")[number - SESSIONS]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(SESSIONS))
def test_a_session_ends_as_if_no_part_of_the_daemon_had_been_killed(
    number: int, arena: DaemonArena, undisturbed: dict[Way, dict[str, str]]
) -> None:
    random, hands = Random(SEED * 1000 + number), HANDS[number * KILLS_A_SESSION :][:KILLS_A_SESSION]
    with arena.person(number, way_of(number)) as person:
        kills = arena.kill_at_random(person, random, hands)
        person.finish()
        events = arena.machine.events(person.session)
        check_outcomes(events)
        # No server fails here, so nothing is asked for twice but what a kill took.
        assert not any(isinstance(e.body, EffectFinished) and isinstance(e.body.outcome, ModelFailed) for e in events)
        check_shown(person, events)
        check_effects(arena, person, events)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert isinstance(verify(events), Verified)
        assert arena.files(person) == undisturbed[person.way] or unknown_calls(events) or failed_calls(events)
        check_goes_on(arena, person, events)
    assert arena.holding(SECRET.encode()) == []
    report(timed(kill, person, events) for kill in kills)


def check_shown(person: Person, events: Sequence[Event]) -> None:
    """Each terminal shows the log from its beginning, event by event, as it is stored; the last one all of it."""
    stored = [event.model_dump(mode="json") for event in events]
    for watch in person.watches:
        shown = [value for _, value in watch.shown]
        assert shown == stored[: len(shown)]
    assert len(person.watches[-1].shown) == len(stored)
    assert person.watches[-1].lines[-1][1]["state"] == "done"


def check_effects(arena: DaemonArena, person: Person, events: Sequence[Event]) -> None:
    """As counted outside: a confined command left both its lines, an unconfined one was never done twice, and of one
    that is missing it is told."""
    told = len(unknown_calls(events)) + len(failed_calls(events))
    match person.way:
        case "watched" | "detached":
            assert arena.files(person)["counter.txt"] == "begun\nended\n" or told
        case "unconfined" | "asked":
            done = arena.ledger(person.number).read_text().split()
            assert len(done) == len(set(done)), "an effect happened twice"
            assert COMMANDS - len(done) <= told, "an effect is missing and nobody was told"


def check_goes_on(arena: DaemonArena, person: Person, events: Sequence[Event]) -> None:
    """It is idle, and takes another word."""
    assert not arena.machine.state(person.session).active
    done = arena.machine.run("resume", person.session, "Again?", "--output-format", "json")
    assert (done.code, objects(done.out)[-1]["result"]) == (0, AGAIN), done.err
    assert arena.machine.events(person.session)[: len(events)] == events


def timed(kill: Kill, person: Person, events: Sequence[Event]) -> Kill:
    """With how long it took until the next event stood in the log, and until a terminal showed one that is new."""
    logged = min((event.ts_us / 1e6 for event in events if event.ts_us / 1e6 > kill.at), default=None)
    shown = person.first_shown(kill.at)
    return replace(
        kill,
        logged_s=None if logged is None else round(logged - kill.at, 3),
        shown_s=None if shown is None else round(shown - kill.at, 3),
    )


def report(kills: Iterable[Kill]) -> None:
    """To the file that THALIA_TEST_REPORT names."""
    if name := os.environ.get("THALIA_TEST_REPORT"):
        with Path(name).open("a") as file:
            file.writelines(KILL.dump_json(kill).decode() + "\n" for kill in kills)
