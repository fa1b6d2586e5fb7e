"""Whole sessions with a model server, or what stands before it, that fails in every way but a cut, in all three
protocols: silent, reset, endless, rubbish, refusing, in disorder; and all of that mixed."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from time import process_time

import pytest

from agent.models.http import Timeouts
from agent.models.wires import WIRES
from configs.models import Protocol
from eventlog.messages import AssistantMessage
from eventlog.outcomes import ModelFailed, ModelReplied
from tests.actors.playing import Played, call, shell, tree, turn
from tests.chaos.faulty_server import (
    Spoil,
    after,
    cut,
    endless,
    faulty,
    head,
    in_chunks,
    in_events,
    instead,
    middle,
    raw,
    reset,
    silence,
    squeezed,
    status,
    stream,
)
from tests.chaos.faulty_sessions import (
    ALL,
    FINAL,
    KEY,
    SEED,
    TURNS,
    USED,
    attempts,
    calls_of,
    check_done,
    check_honest,
    talk,
    tool_intents,
)

HALF = instead(lambda exchange: stream(exchange.body[: len(exchange.body) // 2], b"content-length: 2147483648"))
PASSING: Mapping[str, tuple[Spoil, str]] = {
    "closed at once": (cut(0), "network"),
    "reset at once": (reset(lambda good: 0), "network"),
    "reset in its head": (reset(lambda good: 20), "network"),
    "reset in its middle": (reset(middle), "cut"),
    "no HTTP": (raw(b"\x15\x03\x01\x00\x02\x02\x28"), "network"),
    "a page": (raw(stream(b"<!doctype html><html><body>Sign in</body></html>")), "malformed"),
    "binary": (raw(stream(bytes(range(256)) * 8)), "cut"),
    "an object that is no reply": (raw(stream(b'{"ok": true}')), "cut"),
    "a list": (raw(stream(b"[]")), "cut"),
    "an event that is no object": (raw(stream(b"data: 7\n\n")), "malformed"),
    "nothing": (raw(stream(b"", b"content-length: 0")), "malformed"),
    "no content": (status(204), "malformed"),
    "half of a length of 2 GB": (HALF, "cut"),
    "a chunk without a size": (raw(stream(b"zz\r\ndata: {}\r\n", b"transfer-encoding: chunked")), "cut"),
    "a chunk of a size without end": (raw(stream(b"f" * 99 + b"\r\n", b"transfer-encoding: chunked")), "cut"),
    "chunks of false sizes": (
        instead(lambda exchange: stream(b"9\r\n" + exchange.body, b"transfer-encoding: chunked")),
        "cut",
    ),
    "a broken gzip": (raw(stream(b"\x1f\x8b\x08rubbish", b"content-encoding: gzip")), "cut"),
    "a head without end": (endless(b"HTTP/1.1 200 OK\r\n", b"x-more: " + b"y" * 1000 + b"\r\n"), "network"),
    "101": (status(101), "network"),
    "408": (status(408), "timeout"),
    "409": (status(409), "server"),
    "429, to wait a moment": (status(429, retry_after="0.02"), "rate_limited"),
    "429, to wait until a time that is past": (
        status(429, retry_after="Thu, 01 Jan 2026 00:00:00 GMT"),
        "rate_limited",
    ),
    "429, to wait for nonsense": (status(429, retry_after="soon"), "rate_limited"),
    "500": (status(500, b"\xff\xfe"), "server"),
    "502 with a page": (status(502, b"<html>Bad gateway</html>"), "server"),
    "503": (status(503), "overloaded"),
    "529": (status(529, b'{"error": {"type": "overloaded_error"}}'), "overloaded"),
    "400, to be tried again": (status(400, x_should_retry="true"), "refused"),
}
BOUNDLESS: Mapping[str, tuple[Spoil, str]] = {
    "a gzip that was not asked for, of 80 MB": (instead(lambda _: squeezed(b"data: " + bytes(80 << 20))), "malformed"),
    "a line without end": (endless(stream(b"data: "), b"x" * 65536), "malformed"),
    "blanks without end": (endless(stream(b""), b" " * 65536), "malformed"),
}
SLOW: Mapping[str, tuple[Spoil, str]] = {
    "silence at once": (silence(lambda good: 0), "timeout"),
    "silence after its head": (silence(head), "timeout"),
    "silence in its middle": (silence(middle), "timeout"),
    "comments without end": (endless(stream(b""), b": still here\n\n", 0.05), "timeout"),
    "continue without end": (endless(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.05), "timeout"),
}
ODD: Mapping[str, Spoil] = {
    "HTTP/1.0": instead(lambda exchange: stream(exchange.body).replace(b"/1.1", b"/1.0", 1)),
    "continue first": after(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "hints first": after(b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n"),
    "gzip": instead(lambda exchange: squeezed(exchange.body)),
    "chunks of a byte": instead(lambda exchange: in_chunks(exchange.body, 1)),
    "a length of 2 GB": instead(lambda exchange: stream(exchange.body, b"content-length: 2147483648")),
    "lines that end in CRLF": instead(lambda exchange: stream(exchange.body.replace(b"\n", b"\r\n"))),
    "comments between": instead(lambda exchange: stream(exchange.body.replace(b"\n\n", b"\n\n: here\n\n"))),
    "a mark of the byte order": instead(lambda exchange: stream(b"\xef\xbb\xbf" + exchange.body)),
    "blank lines first": instead(lambda exchange: stream(b"\r\n \n" * 99 + exchange.body)),
    "rubbish behind its end": instead(lambda exchange: stream(exchange.body + b"data: {]\n\n<html>")),
    "its end twice": instead(lambda exchange: stream(exchange.body + exchange.body[-200:])),
}


def deal(spoils: Sequence[Spoil]) -> dict[int, list[Spoil]]:
    """In turn, to each reply of the session."""
    return {number: list(spoils[number :: len(TURNS)]) for number in range(len(TURNS))}


def check_faults(played: Played, expected: Sequence[tuple[Spoil, str]], turns: int = len(TURNS)) -> None:
    failed = [one.fault for one in attempts(played) if isinstance(one, ModelFailed)]
    assert failed == [kind for number in range(turns) for _, kind in expected[number::turns]]


@pytest.mark.parametrize("protocol", WIRES)
def test_a_fault_that_passes_costs_an_attempt_and_nothing_else(protocol: Protocol, tmp_path: Path) -> None:
    faults = list(PASSING.values())
    with talk(tmp_path, protocol, deal([spoil for spoil, _ in faults])) as held:
        played = held.begin()
        check_done(played, held.server)
    check_faults(played, faults)


@pytest.mark.parametrize("protocol", list(WIRES) if ALL else ["chat"])
def test_an_answer_without_end_is_neither_kept_nor_looked_at_again_and_again(
    protocol: Protocol, tmp_path: Path
) -> None:
    faults = list(BOUNDLESS.values())
    with talk(tmp_path, protocol, deal([spoil for spoil, _ in faults])) as held:
        began, memory = process_time(), fresh_peak()
        played = held.begin()
        assert peak() - memory < 400 << 20
        assert process_time() - began < 20
        check_done(played, held.server)
    check_faults(played, faults)


@pytest.mark.parametrize("protocol", list(WIRES) if ALL else ["messages"])
def test_a_server_that_keeps_the_line_and_says_nothing_is_given_up(protocol: Protocol, tmp_path: Path) -> None:
    faults = list(SLOW.values())
    quick = Timeouts(silence_s=1.0, total_s=2.0)
    with talk(tmp_path, protocol, deal([spoil for spoil, _ in faults]), timeouts=quick) as held:
        played = held.begin()
        check_done(played, held.server)
    check_faults(played, faults)


@pytest.mark.parametrize("protocol", WIRES)
def test_an_answer_that_is_odd_and_whole_is_a_reply(protocol: Protocol, tmp_path: Path) -> None:
    looks = [turn(call("read", path="a.txt"), text=f"Look {number}.", usage=USED) for number in range(len(ODD))]
    spoils = {number: [spoil] for number, spoil in enumerate(ODD.values())}
    with talk(tmp_path, protocol, spoils, [*looks, *TURNS]) as held:
        played = held.begin()
        check_done(played, held.server, [*looks, *TURNS])
    assert all(isinstance(one, ModelReplied) for one in attempts(played))


# Events twice, gone, or in another order.


def fresh_peak() -> int:
    """Resident bytes now; what `peak` says is from here on."""
    Path("/proc/self/clear_refs").write_text("5")
    return resident("VmRSS")


def peak() -> int:
    return resident("VmHWM")


def resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) << 10


def twice(events: list[bytes]) -> list[bytes]:
    return [event for event in events for _ in range(2)]


def shuffled(random: Random) -> Callable[[list[bytes]], list[bytes]]:
    """The first and the last stay."""

    def shuffle(events: list[bytes]) -> list[bytes]:
        inner = events[1:-1]
        random.shuffle(inner)
        return [*events[:1], *inner, *events[-1:]]

    return shuffle


def swapped(random: Random) -> Callable[[list[bytes]], list[bytes]]:
    def swap(events: list[bytes]) -> list[bytes]:
        at = random.randrange(len(events) - 1)
        return [*events[:at], events[at + 1], events[at], *events[at + 2 :]]

    return swap


def thinned(random: Random) -> Callable[[list[bytes]], list[bytes]]:
    def thin(events: list[bytes]) -> list[bytes]:
        gone = random.randrange(len(events))
        return [*events[:gone], *events[gone + 1 :]]

    return thin


def same_ids(events: list[bytes]) -> list[bytes]:
    """All calls of a reply have one id."""
    return [re.sub(rb'"(call|toolu)_\d+_\d+"', b'"call_0"', event) for event in events]


@pytest.mark.parametrize("change", [twice, same_ids])
@pytest.mark.parametrize("protocol", WIRES)
def test_events_that_come_twice_or_share_their_ids_do_nothing_twice(
    protocol: Protocol, change: Callable[[list[bytes]], list[bytes]], tmp_path: Path
) -> None:
    with talk(tmp_path, protocol, {at: [in_events(change)] for at in range(3)}) as held:
        played = held.begin()
        assert played.code == 0
        check_honest(played, held.server)
    check_exact(played)


@pytest.mark.parametrize("number", range(30 if ALL else 2))
@pytest.mark.parametrize("protocol", WIRES)
def test_events_in_disorder_leave_a_session_that_goes_on(protocol: Protocol, number: int, tmp_path: Path) -> None:
    """Only Responses says everything again at its end; in the others a piece that is lost within a text shows nowhere.
    No reasoning: a seal that is broken so is refused, as it should be."""
    random = Random(SEED * 1000 + number)
    changes = [shuffled(random), swapped(random), thinned(random)]
    spoils = {at: [in_events(random.choice(changes))] for at in range(3)}
    turns = [{**one, "reasoning": "", "hide_reasoning": False} for one in TURNS]
    with talk(tmp_path, protocol, spoils, turns) as held:
        played = held.begin()
        assert played.code == 0
        check_honest(played, held.server)
    if protocol == "responses":
        check_exact(played)


def check_exact(played: Played) -> None:
    """What was done is what the model asked for, once; some of it may not have been done."""
    assert all(intent in calls_of(TURNS) for intent in tool_intents(played))
    files = tree(played.worktree)
    assert files["a.txt"] in {"one\n", FINAL["a.txt"]}
    assert files.get("counter.txt") in {None, FINAL["counter.txt"]}
    replies = [message for message in played.state.messages if isinstance(message, AssistantMessage)]
    assert all(made.arguments != "{}" for reply in replies for made in reply.tool_calls), "nothing stands for a part"


# Where the server does not recover.

HOPELESS: Mapping[str, tuple[Spoil, int]] = {
    "500 for ever": (status(500), 4),
    "529 for ever": (status(529), 4),
    "reset for ever": (reset(middle), 4),
    "400": (status(400, b'{"error": {"message": "no such thing"}}'), 1),
    "401": (status(401, f'{{"error": {{"message": "no such key: {KEY}"}}}}'.encode()), 1),
    "404": (status(404), 1),
    "429, the quota is used up": (status(429, b'{"error": {"code": "insufficient_quota"}}'), 1),
    "429, to wait for a day": (status(429, retry_after="86400"), 1),
    "429, to wait for ages": (status(429, retry_after="1e300"), 1),
    "429, to wait until the year 9999": (status(429, retry_after="Fri, 31 Dec 9999 23:59:59 GMT"), 1),
}


def chosen() -> list[tuple[Protocol, str]]:
    """A name with every protocol, or some with one each."""
    if ALL:
        return [(protocol, name) for protocol in WIRES for name in HOPELESS]
    some = Random(SEED).sample(list(HOPELESS), 5)
    return [(list(WIRES)[number % 3], name) for number, name in enumerate(some)]


@pytest.mark.parametrize(("protocol", "name"), chosen())
def test_a_server_that_does_not_recover_ends_the_turn_and_it_goes_on_later(
    protocol: Protocol, name: str, tmp_path: Path
) -> None:
    spoil, count = HOPELESS[name]
    with talk(tmp_path, protocol, {1: [spoil] * count}, settings={"max_attempts": 4}) as held:
        played = held.begin()
        assert (played.code, played.ending, len(held.server.requests)) == (13, "model_unavailable", 1 + count)
        assert played.state.ending is not None
        assert KEY not in played.state.ending.text
        assert "\n" not in played.state.ending.text
        check_honest(played, held.server)
        check_done(held.go_on(), held.server)


def test_a_redirect_takes_the_key_nowhere(tmp_path: Path) -> None:
    with faulty(TURNS, {}) as other:
        for code in (301, 302, 303, 307, 308) if ALL else (302, 307):
            folder = tmp_path / str(code)
            folder.mkdir()
            elsewhere = status(code, location=f"{other.base_url}/chat/completions")
            with talk(folder, "chat", {0: [elsewhere]}) as held:
                assert held.begin().code == 13
                assert len(held.server.requests) == 1
                check_done(held.go_on(), held.server)
        assert other.requests == []


# Twenty turns of everything.


@pytest.mark.parametrize("number", range(30 if ALL else 1))
@pytest.mark.parametrize("protocol", WIRES)
def test_a_long_session_over_a_bad_line_is_as_over_a_good_one(protocol: Protocol, number: int, tmp_path: Path) -> None:
    random = Random(SEED * 1000 + number)
    quick = [spoil for spoil, _ in PASSING.values()]
    steps = [turn(shell(f"echo {at} >> steps.txt"), text=f"Step {at}.", usage=USED) for at in range(17)]
    spoils: dict[int, list[Spoil]] = {}
    for at in range(len(steps) + len(TURNS)):
        whole = [random.choice(list(ODD.values()))] if random.random() < 0.3 else []
        spoils[at] = [*random.choices(quick, k=random.randrange(3)), *whole]
    with talk(tmp_path, protocol, spoils, [*steps, *TURNS]) as held:
        played = held.begin()
        assert (played.code, played.ending) == (0, "done")
        check_honest(played, held.server)
    counted = "".join(f"{at}\n" for at in range(len(steps)))
    assert tree(played.worktree) == {**FINAL, "steps.txt": counted}
