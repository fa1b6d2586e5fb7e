"""Replies of the model cut at every byte of the raw answer, its head too, in all three protocols.

A seeded part in `make test`, every byte where THALIA_TEST_KILLS is set."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from agent.models.wires import WIRES
from configs.models import Protocol
from eventlog.outcomes import ModelFailed, ModelReplied
from tests.chaos.faulty_server import (
    Spoil,
    cut,
    ending_at,
)
from tests.chaos.faulty_sessions import ALL, SEED, attempts, check_done, talk

MOST_CUTS = 60
"""Of one reply, in a session of the whole matrix."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of the server, and from which byte on it says how the reply ended."""

    good: bytes
    ending: int

    @property
    def head(self) -> int:
        """Bytes before the body."""
        return self.good.index(b"\r\n\r\n") + 4


@cache
def replies(protocol: Protocol) -> tuple[Reply, ...]:
    """What the server says where nothing goes wrong: the same bytes in every session."""
    with TemporaryDirectory() as folder, talk(Path(folder), protocol, {}) as held:
        check_done(held.begin(), held.server)
        return tuple(Reply(good, ending_at(good, protocol)) for good in held.server.goods)


@dataclass(frozen=True, slots=True)
class Cuts:
    """Of one reply in one session: attempts that are lost, then one that is cut behind its end, or whole."""

    lost: tuple[int, ...]
    late: int | None

    @property
    def spoils(self) -> list[Spoil]:
        return [cut(at) for at in (*self.lost, *(() if self.late is None else (self.late,)))]


def every_cut(protocol: Protocol) -> list[tuple[Cuts, ...]]:
    """Sessions in which each reply is cut at each of its bytes once."""
    said = replies(protocol)
    count = max(max(len(one.good) - one.ending, -(-one.ending // MOST_CUTS)) for one in said)
    return [tuple(share(one, number, count) for one in said) for number in range(count)]


def share(reply: Reply, number: int, count: int) -> Cuts:
    late = reply.ending + number
    return Cuts(tuple(range(number, reply.ending, count)), late if late < len(reply.good) else None)


def some_cuts(protocol: Protocol, number: int) -> tuple[Cuts, ...]:
    """Where something begins or ends, and bytes that are drawn."""
    random = Random(SEED * 100 + number)
    found: list[Cuts] = []
    for one in replies(protocol):
        drawn = random.sample(range(one.ending), 6)
        edges = (0, one.head - 1, one.head, *inner_edges(one), one.ending - 1) if number == 0 else ()
        found.append(Cuts((*edges, *drawn), one.ending if number == 0 else random.randrange(one.ending, len(one.good))))
    return tuple(found)


def inner_edges(reply: Reply) -> list[int]:
    """Within a tool's name, where its arguments begin, within them, behind them, and before the end."""
    marks = (b"shell", b'arguments":"', b'partial_json":"', b"cou", b"nter.txt", b'"}', b"ead", b"It is")
    return [at + 1 for mark in marks if 0 < (at := reply.good.find(mark)) < reply.ending - 1]


def play_cuts(folder: Path, protocol: Protocol, cuts: Sequence[Cuts]) -> None:
    said = replies(protocol)
    with talk(folder, protocol, {turn: one.spoils for turn, one in enumerate(cuts)}) as held:
        played = held.begin()
        check_done(played, held.server)
    made, kept = iter(attempts(played)), False
    for one, reply in zip(cuts, said, strict=True):
        for at in one.lost:
            lost = next(made)
            assert isinstance(lost, ModelFailed), f"cut at {at} of {reply.good!r}"
            assert (lost.fault, lost.retry) == ("cut" if at >= reply.head else "network", True)
            # Before its head is whole, an answer on a kept connection cannot be told from a server that had closed it.
            assert lost.charged_usd > 0 or (kept and at < reply.head), f"cut at {at}"
            kept = False
        assert isinstance(next(made), ModelReplied), f"cut at {one.late} of {reply.good!r}"
        kept = one.late is None
    assert next(made, None) is None


PARTS = 24
"""The whole matrix in so many tests."""


@pytest.mark.parametrize("number", range(PARTS if ALL else 2))
@pytest.mark.parametrize("protocol", WIRES)
def test_a_reply_that_is_cut_at_any_byte_is_asked_for_again(protocol: Protocol, number: int, tmp_path: Path) -> None:
    sessions = every_cut(protocol)[number::PARTS] if ALL else [some_cuts(protocol, number)]
    for session, cuts in enumerate(sessions):
        folder = tmp_path / str(session)
        folder.mkdir()
        play_cuts(folder, protocol, cuts)
