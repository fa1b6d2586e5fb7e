"""Agents append, frontends command and watch through one socket, whatever happens to their connections."""

import asyncio
import os
import signal
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from door_visits import SCOUT, House, Visitor, append, as_json, open_house, said

from actors.door import Door
from actors.frames import HEAD, LIMIT, FrameError, encode, split
from actors.sockets import CannotListen
from agent.folding import fold_events
from agent.models.client import ReasoningDelta, TextDelta, ToolCallStarted
from eventlog.effects import CallModel
from eventlog.events import Draft, EffectStarted, LeaseGranted, UserSaid
from eventlog.ids import MAIN, AgentId, CallId, CommandId, Digest

SECRET = "hunter2-hunter2"
MODEL = CallModel(model="m", builder="chat/1", request_hash=Digest("a" * 64), request_bytes=1, messages=1)
STARTS = EffectStarted(call_id=CallId("c1"), attempt=1, effect=MODEL)


@pytest.fixture
async def house(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> AsyncIterator[House]:
    async with open_house(tmp_path, variables={"MY_API_KEY": SECRET}) as opened:
        yield opened
    assert not [*caplog.get_records("call"), *caplog.records], "something at the door ended with a traceback"


# The socket


async def test_the_socket_is_for_its_owner_alone(house: House) -> None:
    assert stat.S_IMODE(house.door.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(house.door.path.parent.stat().st_mode) == 0o700


async def test_a_door_takes_the_place_of_one_that_was_left_behind_and_of_no_other(house: House, tmp_path: Path) -> None:
    second = Door(house.coordinator, house.door.path)
    with pytest.raises(CannotListen, match="Another process serves"):
        await second.open()
    copy = tmp_path / "d" / "left"
    os.link(house.door.path, copy)
    await house.door.close()
    assert not house.door.path.exists()
    async with Door(house.coordinator, copy):
        visitor = await Visitor.come(copy)
        assert (await visitor.ask(op="ping"))["ok"]
        await visitor.leave()


async def test_a_place_where_no_socket_can_be_is_named_in_a_sentence(house: House, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "d" / "file").write_text("mine")
    for path, why in (
        (tmp_path / ("long" * 30), "too long"),
        (tmp_path / "open" / "s", "chmod 700"),
        (tmp_path / "d" / "file", "in the way"),
        (tmp_path / "d" / "file" / "x" / "s", "cannot be made"),
    ):
        with pytest.raises(CannotListen, match=why):
            await Door(house.coordinator, path).open()
    assert (tmp_path / "d" / "file").read_text() == "mine"


# Appends


async def test_an_append_is_acknowledged_with_the_events_as_they_are_stored(house: House) -> None:
    await house.grant()
    visitor = await house.visit()
    answer = await visitor.ask(**append(1, said(1, f"key {SECRET}"), said(2, "y" * 40_000)), causes=[1, None])
    assert answer["events"] == house.stored(after=1)
    assert "[redacted:" in answer["events"][0]["body"]["text"]
    assert [(e["actor"], e["lease"], e["actor_seq"], e["causation"]) for e in answer["events"]] == [
        ("scout", 1, 1, 1),
        ("scout", 1, 2, None),
    ]


async def test_an_append_that_comes_again_is_stored_once_and_acknowledged_again(house: House) -> None:
    await house.grant()
    first = await (await house.visit()).ask(**append(1, said(1), said(2)))
    visitor = await house.visit()
    both = [visitor.say(**append(1, said(1), said(2))), visitor.say(**append(2, said(2), said(3)))]
    again, partly = [await visitor.answer(id) for id in both]
    assert again["events"] == first["events"]
    assert partly["events"] == house.stored(after=2)
    assert [event["actor_seq"] for event in house.stored(after=1)] == [1, 2, 3]


async def test_the_log_is_compacted_while_only_other_agents_call_models(house: House) -> None:
    log = house.coordinator.opened.log
    log.checkpoint_bytes = 100_000
    await house.grant()
    visitor = await house.visit()
    await visitor.ask(**append(1, *(said(number, "y" * 4000) for number in range(1, 51))))
    assert log.wal_bytes() > 100_000
    called = CallModel(model="m", builder="chat/1", request_hash=Digest("0" * 64), request_bytes=1, messages=1)
    await visitor.ask(**append(51, EffectStarted(call_id=CallId("c1"), attempt=1, effect=called)))
    # Behind the checkpoint in the queue.
    await visitor.ask(**append(52, said(52)))
    assert log.wal_bytes() < 100_000
    assert [event["actor_seq"] for event in house.stored()][-52:] == list(range(1, 53))


async def test_a_superseded_lease_is_refused_and_the_connection_goes_on(house: House) -> None:
    await house.grant()
    assert await house.grant() == 2
    visitor = await house.visit()
    answer = await visitor.ask(**append(1, lease=1))
    assert answer["error"] == "LeaseSuperseded" and "Lease 1 of agent scout" in answer["text"]
    assert (await visitor.ask(**append(1, lease=2)))["events"] == house.stored(after=2)


async def test_appends_of_one_agent_keep_their_order_and_are_published_in_the_order_of_the_log(house: House) -> None:
    seqs: list[int] = []
    house.coordinator.listeners.append(lambda event: seqs.append(event.seq))
    agents = [AgentId(f"a{number}") for number in range(8)]
    for agent in agents:
        await house.grant(agent)
    visitors = [await house.visit() for _ in agents]
    sent = [[v.say(**append(n, agent=a)) for n in range(1, 101)] for v, a in zip(visitors, agents, strict=True)]
    for visitor, ids in zip(visitors, sent, strict=True):
        numbers = [(await visitor.answer(id))["events"][0]["actor_seq"] for id in ids]
        assert numbers == list(range(1, 101))
    assert seqs == list(range(1, 8 + 800 + 1))
    assert house.coordinator.opened.log.leases[agents[3]].last == 100


async def test_what_an_agent_does_is_no_part_of_the_main_agents_state(house: House) -> None:
    await house.ready.go()
    before = house.coordinator.state
    await house.grant()
    await (await house.visit()).ask(**append(1, said(1), STARTS))
    events = tuple(house.coordinator.opened.log.read())
    assert events[-1].body == STARTS
    assert house.coordinator.state == fold_events(events) == before
    assert fold_events(events, actor=SCOUT).open.keys() == {"c1"}


@pytest.mark.parametrize(
    "request_",
    [
        append(1, agent=MAIN, lease=1),
        append(1, lease=0),
        append(0),
        append(1, LeaseGranted(agent=SCOUT, lease=9)),
        {**append(1), "causes": [1, 2]},
        {**append(1), "bodies": []},
        {**append(1), "bodies": [{"kind": "user_said", "id": "u1"}]},
        {**append(1), "more": True},
    ],
    ids=["main", "no-lease", "number-0", "writers-own", "causes", "no-body", "half-a-body", "more"],
)
async def test_what_is_not_an_agents_to_append_is_refused(house: House, request_: dict[str, object]) -> None:
    await house.grant()
    visitor = await house.visit()
    answer = await visitor.ask(**request_)
    assert answer["error"] == "BadRequest" and await visitor.hear() is None
    assert house.head == 1


# Commands


async def test_a_command_wakes_a_resting_session_and_is_acknowledged_once_it_is_in_the_log(house: House) -> None:
    await house.ready.go()
    visitor = await house.visit()
    command = as_json(UserSaid(id=CommandId("again"), text="Once more."))
    id = visitor.say(op="command", command=command)
    async with asyncio.timeout(20):
        await house.door.spoken_to()
    assert not any(event["body"] == command for event in house.stored())
    working = asyncio.ensure_future(house.coordinator.loop.wait())
    assert (await visitor.answer(id)) == {"id": id, "ok": True}
    assert any(event["body"] == command for event in house.stored())
    await working


async def test_a_command_that_comes_again_happens_once_and_is_acknowledged_each_time(house: House) -> None:
    await house.ready.go()
    one, two, gone = [await house.visit() for _ in range(3)]
    command = as_json(UserSaid(id=CommandId("once"), text="Once more."))
    gone.say(op="command", command=command)
    async with asyncio.timeout(20):
        await house.door.spoken_to()
    gone.cut()
    ids = [visitor.say(op="command", command=command) for visitor in (one, two)]
    for visitor in (one, two):
        await visitor.ask(op="ping")
    await house.coordinator.loop.wait()
    assert [await v.answer(id) for v, id in zip((one, two), ids, strict=True)] == [{"id": 1, "ok": True}] * 2
    assert (await one.ask(op="command", command=command))["ok"]
    assert sum(event["body"] == command for event in house.stored()) == 1


async def test_a_command_whose_id_would_not_be_stored_is_refused(house: House) -> None:
    visitor = await house.visit()
    answer = await visitor.ask(op="command", command=as_json(UserSaid(id=CommandId(SECRET), text="x")))
    assert answer["error"] == "BadRequest" and SECRET not in answer["text"]
    assert house.coordinator.loop.inbox.empty()


# Attached


async def test_an_attachment_after_any_event_is_the_log_from_there(house: House) -> None:
    await house.ready.go()
    await house.grant()
    writing = await house.visit()
    await writing.ask(**append(1, said(1, "y" * 40_000)))
    stored = house.stored()
    visitor = await house.visit()
    ids = [visitor.say(op="attach", after=after) for after in range(len(stored))]
    await visitor.ask(op="ping")
    await writing.ask(**append(2))
    stored = house.stored()
    for after, id in enumerate(ids):
        assert await visitor.events(id, len(stored)) == stored[after:]


async def test_who_attaches_while_agents_append_gets_each_event_once(house: House) -> None:
    await house.grant()
    writer = await house.visit()
    sent = [writer.say(**append(number)) for number in range(1, 401)]
    readers: list[tuple[Visitor, int, int]] = []
    for number in range(0, 400, 40):
        await writer.answer(sent[number])
        reader = await house.visit()
        readers.append((reader, number // 2, reader.say(op="attach", after=number // 2)))
    await writer.answer(sent[-1])
    for reader, after, id in readers:
        assert [event["seq"] for event in await reader.events(id, 401)] == list(range(after + 1, 402))


async def test_a_reader_that_is_stuck_holds_up_nobody_and_misses_nothing(house: House) -> None:
    await house.grant()
    stuck, *others = [await house.visit() for _ in range(3)]
    for reader in (stuck, *others):
        reader.say(op="attach", after=0)
    # What nobody reads piles up in the sockets, then in the log alone: 24 MB are more than all of them hold.
    writer = await house.visit()
    for number in range(1, 1601):
        sent = writer.say(**append(number, said(number, "y" * 15_000)))
        if number % 50 == 0:
            await writer.answer(sent)
            for reader in others:
                assert len(await reader.events(1, number + 1)) == (51 if number == 50 else 50)
            house.door.publish({"state": number})
    assert house.door.feed.size < 5 << 20
    assert [event["seq"] for event in await stuck.events(1, 1601)] == list(range(1, 1602))
    assert (await stuck.answer(1)) == {"id": 1, "state": 1600}


async def test_what_is_published_is_told_at_once_and_the_last_of_it_to_those_who_come_later(house: House) -> None:
    await house.grant()
    house.door.publish({"opened": False})
    house.door.publish({"opened": True})
    early = await house.visit()
    early.say(op="attach", after=0)
    assert (await early.answer(1))["event"]["seq"] == 1
    assert await early.answer(1) == {"id": 1, "opened": True}
    house.door.publish({"state": 1})
    house.door.publish({"said": "one"})
    house.door.publish({"state": 2})
    late = await house.visit()
    late.say(op="attach", after=0)
    assert [await early.answer(1) for _ in range(3)] == [
        {"id": 1, "state": 1},
        {"id": 1, "said": "one"},
        {"id": 1, "state": 2},
    ]
    assert (await late.answer(1))["event"]["seq"] == 1
    assert [await late.answer(1) for _ in range(3)] == [
        {"id": 1, "opened": True},
        {"id": 1, "said": "one"},
        {"id": 1, "state": 2},
    ]


async def test_token_deltas_come_together_behind_the_event_that_starts_their_call(house: House) -> None:
    await house.grant()
    reader, writer = await house.visit(), await house.visit()
    house.door.on_delta(TextDelta("to nobody"))
    reader.say(op="attach", after=0)
    await reader.answer(1)

    def stream(event: object) -> None:
        for delta in (
            TextDelta("a"),
            TextDelta("b\ud83d"),
            TextDelta("\ude00"),
            ReasoningDelta("r"),
            TextDelta("\ud800"),
        ):
            house.door.on_delta(delta)
        house.door.on_delta(ToolCallStarted(1, "shell"))

    house.coordinator.listeners.append(stream)
    await writer.ask(**append(1, STARTS))
    house.coordinator.listeners.remove(stream)
    await writer.ask(**append(2))
    first, deltas, second = [await reader.answer(1) for _ in range(3)]
    assert (first["event"]["seq"], second["event"]["seq"]) == (2, 3)
    assert deltas["deltas"] == [
        {"kind": "text", "text": "ab😀"},
        {"kind": "reasoning", "text": "r"},
        {"kind": "text", "text": "\ufffd"},
        {"kind": "tool_call", "index": 1, "name": "shell"},
    ]
    house.door.on_delta(TextDelta("by itself"))
    assert (await reader.answer(1))["deltas"] == [{"kind": "text", "text": "by itself"}]


async def test_events_that_nobody_published_are_found_in_the_log(house: House) -> None:
    await house.grant()
    reader = await house.visit()
    reader.say(op="attach", after=0)
    await reader.answer(1)
    log = house.coordinator.opened.log
    await log.append([log.prepare(Draft(body=said(9)))])
    await (await house.visit()).ask(**append(1))
    assert await reader.events(1, 3) == house.stored(after=1)


async def test_an_event_that_the_log_told_before_it_was_published_comes_once(house: House) -> None:
    await house.grant()
    other, reader = await house.visit(), await house.visit()
    other.say(op="attach", after=0)
    await other.answer(1)
    log = house.coordinator.opened.log
    house.door.on_delta(TextDelta("of the call before"))
    (event,) = await log.append([log.prepare(Draft(body=said(9)))])
    reader.say(op="attach", after=0)
    assert (await reader.events(1, 2)) == house.stored()
    house.door._on_event(event)
    house.door.publish({"state": 1})
    assert await reader.answer(1) == {"id": 1, "state": 1}
    assert [list(await other.answer(1))[1] for _ in range(3)] == ["deltas", "event", "state"]


async def test_a_detached_reader_hears_no_more_and_the_connection_goes_on(house: House) -> None:
    await house.grant()
    visitor = await house.visit()
    visitor.say(op="attach", after=0)
    visitor.say(op="attach", after=0)
    await visitor.events(1, 1)
    visitor.writer.write(encode({"op": "detach", "id": 1}))
    assert await visitor.answer(1) == {"id": 1, "detached": True}
    await (await house.visit()).ask(**append(1))
    assert (await visitor.events(2, 2))[-1]["seq"] == 2
    assert not [message for message in visitor.early if message["id"] == 1]


async def test_an_attachment_behind_the_end_of_the_log_is_refused(house: House) -> None:
    answer = await (await house.visit()).ask(op="attach", after=1)
    assert answer["error"] == "BadRequest" and "ends at event 0" in answer["text"]


async def test_who_is_attached_gets_all_that_was_published_before_the_door_closes(house: House) -> None:
    await house.grant()
    writer, visitor = await house.visit(), await house.visit()
    await writer.ask(**append(1, *(said(number, "y" * 15_000) for number in range(100))))
    visitor.say(op="attach", after=0)
    await visitor.answer(1)
    house.door.publish({"closed": True})
    closing = asyncio.ensure_future(house.door.close())
    assert [event["seq"] for event in await visitor.events(1, 101)] == list(range(2, 102))
    assert await visitor.hear() == {"id": 1, "closed": True}
    assert await visitor.hear() is None
    await closing


async def test_a_stuck_reader_holds_up_the_closing_for_seconds_only(house: House) -> None:
    await house.grant()
    stuck, writer = await house.visit(), await house.visit()
    stuck.say(op="attach", after=0)
    for number in range(1, 201):
        await writer.ask(**append(number, said(number, "y" * 15_000)))
    async with asyncio.timeout(10):
        await house.door.close()
    assert not house.door.path.exists()


async def test_an_attachment_to_a_closed_log_ends_with_a_sentence(house: House) -> None:
    await house.grant()
    visitor = await house.visit()
    await asyncio.to_thread(house.coordinator.opened.log.close)
    answer = await visitor.ask(op="attach", after=0)
    assert answer["error"] == "LogError" and "cannot be read" in answer["text"]
    assert (await visitor.ask(**append(1)))["error"] == "LogWriteFailed"


async def test_an_attachment_to_a_damaged_log_ends_with_a_sentence(house: House) -> None:
    await house.grant()
    visitor = await house.visit()
    await visitor.ask(**append(1, said(1, "y" * 40_000)))
    for blob in (house.coordinator.opened.log.folder / "blobs" / "sha256").glob("*/*"):
        blob.unlink()
    id = visitor.say(op="attach", after=1)
    answer = await visitor.answer(id)
    assert answer["error"] == "BlobMissing" and "is missing" in answer["text"]
    assert (await visitor.ask(op="ping"))["ok"]


# Broken connections


GARBAGE = {
    "no-json": encode({})[:HEAD] + b"!!",
    "no-object": (2).to_bytes(4, "big") + b"[]",
    "no-utf8": (4).to_bytes(4, "big") + b'"\xff\xff"',
    "empty": (0).to_bytes(4, "big"),
    "too-long": (LIMIT + 1).to_bytes(4, "big"),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "no-op": encode({"id": 1}),
    "unknown-op": encode({"op": "destroy", "id": 1}),
    "odd-id": encode({"op": "ping", "id": "x"}),
    "unknown-command": encode({"op": "command", "id": 1, "command": {"kind": "session_opened", "epoch": 9}}),
    "not-attached": encode({"op": "detach", "id": 1}),
}


@pytest.mark.parametrize("sent", GARBAGE.values(), ids=GARBAGE.keys())
async def test_what_cannot_be_understood_is_answered_with_a_sentence_and_the_end(house: House, sent: bytes) -> None:
    await house.grant()
    visitor, other = await house.visit(), await house.visit()
    visitor.writer.write(sent)
    answer = await visitor.hear()
    assert answer is not None and answer["error"] == "BadRequest" and answer["text"].endswith(".")
    assert await visitor.hear() is None
    assert (await other.ask(op="ping"))["head"] == house.head == 1
    assert house.coordinator.loop.inbox.empty()


async def test_a_connection_may_be_cut_at_any_byte(house: House) -> None:
    await house.grant()
    request = encode({"id": 1, **append(1)})
    for length in range(len(request)):
        visitor = await house.visit()
        visitor.writer.write(request[:length])
        await visitor.writer.drain()
        visitor.cut()
    assert (await (await house.visit()).ask(op="ping"))["head"] == 1
    visitor = await house.visit()
    visitor.writer.write(request)
    await visitor.leave()
    assert (await (await house.visit()).ask(**append(2)))["events"][0]["seq"] == 3
    assert [event["actor_seq"] for event in house.stored(after=1)] == [1, 2]


AGENT = """
import asyncio, itertools, sys
from pathlib import Path
from actors.remote_log import RemoteLog
from eventlog.events import Draft, UserSaid
from eventlog.redact import Redactor
log, numbers = RemoteLog(Path(sys.argv[1]), "scout", 1, Redactor()), itertools.count(1)
async def work():
    while True:
        await log.append([log.prepare(Draft(body=UserSaid(id=f"u{next(numbers)}", text="x" * 9000)))])
async def main():
    await asyncio.gather(*(work() for _ in range(16)))
asyncio.run(main())
"""


async def test_an_agent_killed_while_it_appends_leaves_whole_events_and_no_gap(house: House) -> None:
    await house.grant()
    reader = await house.visit()
    reader.say(op="attach", after=0)
    agent = await asyncio.create_subprocess_exec(
        sys.executable, "-c", AGENT, str(house.door.path), cwd=Path(__file__).resolve().parents[2]
    )
    await reader.events(1, 200)
    agent.send_signal(signal.SIGKILL)
    await agent.wait()
    # Whatever it had sent whole is stored; then it is the next incarnation's turn.
    await house.grant()
    answer = await (await house.visit()).ask(**append(1, lease=2))
    last = answer["events"][0]["seq"]
    assert [event["actor_seq"] for event in house.stored(after=1)[:-2]] == list(range(1, last - 2))
    assert [event["seq"] for event in await reader.events(1, last)] == list(range(201, last + 1))


# Frames


def test_frames_come_out_whole_wherever_the_stream_was_cut() -> None:
    messages = [{"text": "x" * size} for size in (0, 1, 300)]
    stream = b"".join(map(encode, messages))
    for cut in range(len(stream) + 1):
        buffer = bytearray(stream[:cut])
        found = split(buffer)
        buffer += stream[cut:]
        assert [orjson.loads(payload) for payload in [*found, *split(buffer)]] == messages
        assert not buffer


def test_a_message_over_the_limit_is_refused_on_both_sides() -> None:
    with pytest.raises(FrameError, match="over the limit of 64 MiB"):
        encode({"text": "x" * LIMIT})
    with pytest.raises(FrameError, match="over the limit of 64 MiB"):
        split(bytearray((LIMIT + 1).to_bytes(HEAD, "big")))
