"""Group commit: many tasks, one order, all or nothing, and every waiter hears the end."""

import asyncio
import threading

import pytest
from eventlog_folders import SESSION, append, fill, make, reopen, said

from eventlog.anchor import read_anchor
from eventlog.errors import LogDamaged, LogError, LogWriteFailed
from eventlog.events import Draft, Event, UserSaid
from eventlog.memory import MemoryLog
from eventlog.opening import create_log, open_log
from eventlog.redact import Redactor
from eventlog.seams import FixedClock, Log, Prepared
from eventlog.store import DuckLog


async def test_thirty_two_tasks_keep_their_own_order(tmp_path) -> None:
    with make(tmp_path / "s").log as log:

        async def work(task: int) -> list[int]:
            return [(await append(log, [said(f"{task}", step)]))[0].seq for step in range(20)]

        seqs = await asyncio.gather(*(work(task) for task in range(32)))
        assert all(mine == sorted(mine) for mine in seqs)
        assert sorted(seq for mine in seqs for seq in mine) == list(range(1, 641))
        stored = list(log.read())
        assert [event.seq for event in stored] == list(range(1, 641))
        texts = [event.body for event in stored if isinstance(event.body, UserSaid)]
        for task in range(32):
            assert [body.id for body in texts if body.text == str(task)] == [f"u{step}" for step in range(20)]


async def test_appends_that_wait_together_share_one_transaction(tmp_path) -> None:
    opened = make(tmp_path / "s")
    await asyncio.gather(*(append(opened.log, [said("x", step)]) for step in range(500)))
    anchor_turns = int.from_bytes(
        max((tmp_path / "s" / "head").read_bytes()[o + 8 : o + 16] for o in (0, 512))[:2], "little"
    )
    opened.close()
    assert anchor_turns < 50


async def test_what_append_returns_is_what_is_read_later(tmp_path) -> None:
    opened = make(tmp_path / "s", Redactor(["hunter2-hunter2"]))
    texts = ["plain", "a\ud800b", "say hunter2-hunter2", "x" * 40_000, "tail"]
    events = await append(opened.log, [said(text, step) for step, text in enumerate(texts)])
    assert tuple(opened.log.read()) == events
    assert tuple(opened.log.read(after_seq=3)) == events[3:]
    opened.close()
    again = reopen(tmp_path / "s")
    assert again.events == events
    assert again.log.epoch == 2
    again.close()


async def test_the_anchor_is_at_the_head_once_an_append_is_acknowledged(tmp_path) -> None:
    opened = make(tmp_path / "s")
    await append(opened.log, [said("a"), said("b")])
    reading = read_anchor(tmp_path / "s" / "head")
    assert reading is not None
    assert reading.head == opened.log.head
    assert opened.log.head.seq == 2
    opened.close()


async def test_an_empty_append_stores_nothing(tmp_path) -> None:
    opened = make(tmp_path / "s")
    assert await opened.log.append([]) == ()
    assert opened.log.head.seq == 0
    opened.close()


async def test_memory_and_disk_hold_the_same_bytes_and_hashes(tmp_path) -> None:
    redactor = Redactor(["hunter2-hunter2"])
    disk = create_log(tmp_path / "s", SESSION, FixedClock(), redactor)
    memory = MemoryLog(SESSION, 1, FixedClock(), redactor)
    drafts = [
        Draft(body=said(text), lease=2, causation=1) for text in ("a", "hunter2-hunter2", "x" * 40_000, "a\ud800b")
    ]

    async def store(log: Log) -> tuple[Event, ...]:
        return await log.append([log.prepare(draft) for draft in drafts])

    assert await store(disk.log) == await store(memory)
    assert disk.log.head == memory.head
    disk.close()
    again = open_log(tmp_path / "s", SESSION, FixedClock(), redactor)
    _, rows = again.log._database.query("SELECT ts_us, payload FROM events ORDER BY seq")
    assert [(ts, str(payload).encode()) for ts, payload in rows] == memory.payloads
    assert again.read() == tuple(memory.read())
    again.close()


async def test_a_full_memory_log_refuses() -> None:
    log = MemoryLog(fail_after=1)
    prepared = log.prepare(Draft(body=said("a")))
    await log.append([prepared])
    with pytest.raises(LogError):
        await log.append([prepared])


async def test_what_waits_when_the_log_closes_is_stored_and_acknowledged(tmp_path) -> None:
    opened = make(tmp_path / "s")
    waiting = [asyncio.ensure_future(append(opened.log, [said("x", step)])) for step in range(100)]
    await asyncio.sleep(0)
    opened.close()
    assert [(await one)[0].seq for one in waiting] == list(range(1, 101))
    again = reopen(tmp_path / "s")
    assert len(again.events) == 100
    again.close()


async def test_an_append_to_a_closed_log_is_refused(tmp_path) -> None:
    opened = make(tmp_path / "s")
    opened.close()
    opened.log.close()
    with pytest.raises(LogWriteFailed, match="closed"):
        await append(opened.log, [said("x")])
    opened.log.checkpoint()


async def test_appends_racing_with_close_are_stored_or_refused_and_never_hang(tmp_path) -> None:
    opened = make(tmp_path / "s")
    acknowledged: list[int] = []
    busy = asyncio.Event()

    async def work() -> None:
        while True:
            try:
                acknowledged.append((await append(opened.log, [said("x")]))[0].seq)
            except LogWriteFailed:
                return
            if len(acknowledged) >= 50:
                busy.set()

    tasks = [asyncio.ensure_future(work()) for _ in range(8)]
    await busy.wait()
    closing = threading.Thread(target=opened.close)
    closing.start()
    await asyncio.wait_for(asyncio.gather(*tasks), 20)
    closing.join()
    again = reopen(tmp_path / "s")
    assert [event.seq for event in again.events] == sorted(acknowledged)
    again.close()


async def test_a_cancelled_waiter_does_no_harm(tmp_path) -> None:
    opened = make(tmp_path / "s")
    tasks = [asyncio.ensure_future(append(opened.log, [said("x", step)])) for step in range(20)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(result, asyncio.CancelledError) for result in results) == 10
    assert (await append(opened.log, [said("after")]))[0].seq == 21
    opened.close()
    again = reopen(tmp_path / "s")
    assert len(again.events) == 21
    again.close()


def test_two_event_loops_may_append_to_one_log(tmp_path) -> None:
    opened = make(tmp_path / "s")
    seqs: list[int] = []

    def work() -> None:
        seqs.extend(event.seq for event in fill(opened.log, [[said("x")] for _ in range(30)]))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened.close()
    assert sorted(seqs) == list(range(1, 61))


def test_a_loop_that_ended_while_it_waited_does_no_harm(tmp_path) -> None:
    opened = make(tmp_path / "s")

    async def walk_away() -> None:
        task = asyncio.ensure_future(append(opened.log, [said("x")]))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(walk_away())
    assert fill(opened.log, [[said("y")]])[0].seq == 2
    opened.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
async def test_a_mistake_of_ours_in_the_writer_reaches_every_waiter(tmp_path) -> None:
    opened = make(tmp_path / "s")
    await append(opened.log, [said("good")])
    broken = Prepared(Draft(body=said("x")), b'{"kind":"\xff"}')
    outcomes = await asyncio.wait_for(
        asyncio.gather(*(opened.log.append([broken]) for _ in range(3)), return_exceptions=True), 20
    )
    assert [type(outcome) for outcome in outcomes] == [LogWriteFailed] * 3
    with pytest.raises(LogWriteFailed):
        await append(opened.log, [said("later")])
    opened.close()
    again = reopen(tmp_path / "s")
    assert [event.body for event in again.events] == [said("good")]
    again.close()


async def test_reading_beside_appends_sees_whole_batches(tmp_path) -> None:
    opened = make(tmp_path / "s")

    async def write() -> None:
        for step in range(60):
            await append(opened.log, [said("x", step)] * 5)

    def read() -> list[int]:
        lengths = []
        while not lengths or lengths[-1] < 300:
            lengths.append(sum(1 for _ in opened.log.read()))
        return lengths

    _, lengths = await asyncio.gather(write(), asyncio.to_thread(read))
    assert lengths == sorted(lengths)
    assert all(length % 5 == 0 for length in lengths)
    opened.close()


async def test_a_checkpoint_between_appends_changes_nothing_that_is_read(tmp_path) -> None:
    opened = make(tmp_path / "s")
    for step in range(5):
        await append(opened.log, [said("x" * 500, step)] * 20)
        opened.log.checkpoint()
    assert len(list(opened.log.read())) == 100
    opened.close()
    again = reopen(tmp_path / "s")
    assert len(again.events) == 100
    again.close()


async def test_an_event_with_a_missing_blob_is_damage_that_names_it(tmp_path) -> None:
    opened = make(tmp_path / "s")
    await append(opened.log, [said("a"), said("x" * 40_000, 1), said("b", 2)])
    opened.close()
    (blob,) = (path for path in (tmp_path / "s" / "blobs").rglob("*") if path.is_file())
    blob.unlink()
    with pytest.raises(
        LogDamaged, match=f"event 2 is incomplete .blob {(blob.parent.name + blob.name)[:12]}"
    ) as caught:
        reopen(tmp_path / "s")
    assert caught.value.lost == 2


def test_the_log_on_disk_fits_the_seam(tmp_path) -> None:
    opened = make(tmp_path / "s")
    log: Log = opened.log
    assert isinstance(log, DuckLog)
    opened.close()
