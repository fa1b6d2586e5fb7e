"""The program with a bad line to its model: killed while it is bad, and given up with a sentence."""

import asyncio
import signal
import subprocess
from pathlib import Path
from random import Random

import pytest

from agent.models.wires import WIRES
from configs import crash
from configs.models import Protocol
from eventlog.opening import read_log
from eventlog.outcomes import AttemptLost
from tests.actors.playing import Played, Recorder
from tests.chaos.faulty_server import (
    Exchange,
    Spoil,
    Where,
    cut,
    middle,
    reset,
    status,
)
from tests.chaos.faulty_sessions import ALL, KEY, MODEL, SEED, attempts, check_done, talk


def killing(where: Where, random: Random, victims: "list[subprocess.Popen[str]]") -> Spoil:
    """The session's process is ended at a moment after these bytes have gone, and then the connection is."""

    async def play(exchange: Exchange) -> None:
        await exchange.say(exchange.good[: where(exchange.good)])
        await asyncio.sleep(random.uniform(0, 0.03))
        victims[-1].kill()
        await exchange.hold()

    return play


def drawn(random: Random) -> Where:
    return lambda good: random.randrange(len(good))


PLACES = ("before_call_model", "after_call_model", "within a reply")


def chosen() -> list[tuple[Protocol, str, int]]:
    """Every place in every protocol, some times; or each place once."""
    if ALL:
        return [(protocol, place, number) for protocol in WIRES for place in PLACES for number in range(6)]
    return [(list(WIRES)[(SEED + at) % 3], place, SEED) for at, place in enumerate(PLACES)]


@pytest.mark.parametrize(("protocol", "place", "number"), chosen())
def test_a_kill_and_a_bad_line_together_do_nothing_twice(
    protocol: Protocol, place: str, number: int, tmp_path: Path
) -> None:
    random = Random(f"{SEED} {place} {protocol} {number}")
    victims: list[subprocess.Popen[str]] = []
    spoils = {at: [reset(drawn(random)) for _ in range(random.randint(1, 2))] for at in range(3)}
    if place == "within a reply":
        spoils[random.randrange(3)].append(killing(drawn(random), random, victims))
    with talk(tmp_path, protocol, spoils) as held:
        point = f"{place}:{random.randint(1, 3)}" if place in crash.POINTS else ""
        victims.append(held.start("exec", "Do it.", "-m", MODEL, THALIA_CRASH_AT=point))
        _, said = victims[0].communicate(timeout=90)
        assert victims[0].returncode == -signal.SIGKILL, said
        before = read_log(held.session_folder)
        played = held.go_on()
        check_done(played, held.server, killed=True)
    assert played.events[: len(before)] == before
    lost = [one for one in attempts(played) if isinstance(one, AttemptLost)]
    assert len(lost) <= 1
    assert all(one.charged_usd > 0 for one in lost)


@pytest.mark.parametrize("protocol", WIRES if ALL else ["responses"])
def test_the_program_gives_a_server_up_with_a_sentence_and_goes_on_later(protocol: Protocol, tmp_path: Path) -> None:
    spoils = {0: [cut(0)], 1: [reset(middle), status(500), status(500)]}
    with talk(tmp_path, protocol, spoils, settings={"max_attempts": 3}) as held:
        given_up = held.start("exec", "Do it.", "-m", MODEL)
        out, err = given_up.communicate(timeout=90)
        assert given_up.returncode == 13, err
        assert "could not be reached in 3 attempts" in out + err
        assert "thalia resume" in out + err
        assert KEY not in out + err
        going_on = held.start("resume", "--last")
        _, err = going_on.communicate(timeout=90)
        assert going_on.returncode == 0, err
        check_done(Played(0, Recorder(), read_log(held.session_folder)), held.server)
