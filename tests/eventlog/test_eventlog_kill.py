"""SIGKILL at any time: nothing acknowledged is lost, no batch is torn, the chain is whole."""

import asyncio
import os
import random
import signal
from pathlib import Path
from typing import NoReturn

import pytest
from eventlog_folders import append, make, reopen, said

from eventlog.events import Event, UserSaid
from eventlog.opening import Opened

TRIALS_A_SESSION = 10


def write_until_killed(opened: Opened, seed: int, pipe: int) -> NoReturn:
    """Eight tasks append batches of one to five and write each acknowledged seq to the pipe."""
    choose = random.Random(seed)

    async def work(task: int) -> None:
        batch = 0
        while True:
            size = choose.randint(1, 5)
            batch += 1
            text = f"{seed}/{task}/{batch} of {size}" + " filler" * choose.choice((0, 100, 4000))
            events = await append(opened.log, [said(text, index) for index in range(size)])
            os.write(pipe, b"".join(b"%d\n" % event.seq for event in events))
            if choose.random() < 0.01:
                opened.log.checkpoint()

    async def run() -> None:
        await asyncio.gather(*(work(task) for task in range(8)))

    asyncio.run(run())
    os._exit(1)


def kill_one(folder: Path, seed: int) -> list[int]:
    """One life of a writer, from its opening to SIGKILL. Returns what it acknowledged."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(read_end)
            write_until_killed(reopen(folder) if folder.exists() else make(folder), seed, write_end)
        finally:
            os._exit(1)
    os.close(write_end)
    wanted = random.Random(seed).randint(1, 150)
    data = b""
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        while data.count(b"\n") < wanted:
            data += pipe.read(64) or pytest.fail("the writer ended by itself")
        os.kill(child, signal.SIGKILL)
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        while rest := pipe.read(65536):
            data += rest
    return [int(line) for line in data.split(b"\n")[:-1]]


def assert_batches_are_whole(events: tuple[Event, ...]) -> None:
    batches: dict[str, list[UserSaid]] = {}
    for event in events:
        assert isinstance(event.body, UserSaid)
        batches.setdefault(event.body.text.split(" filler")[0], []).append(event.body)
    for name, bodies in batches.items():
        size = int(name.rsplit(" ", 1)[1])
        assert [body.id for body in bodies] == [f"u{index}" for index in range(size)], name


@pytest.mark.parametrize("session", range(6))
def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path, session: int) -> None:
    acknowledged: set[int] = set()
    for trial in range(TRIALS_A_SESSION):
        acknowledged.update(kill_one(tmp_path / "s", session * 100 + trial))
        opened = reopen(tmp_path / "s")
        opened.lock.release()
        events = opened.events
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert acknowledged <= {event.seq for event in events}
        assert_batches_are_whole(events)
        opened.log.close()


def test_a_torn_batch_would_be_noticed() -> None:
    event = Event.model_construct(seq=1, body=said("1/1/1 of 2", 0))
    with pytest.raises(AssertionError):
        assert_batches_are_whole((event,))


@pytest.mark.parametrize("stage", ["folder", "anchor", "database"])
def test_a_session_whose_making_was_interrupted_is_not_there_or_is_empty(tmp_path, stage: str) -> None:
    from eventlog.errors import LogNotFound

    opened = make(tmp_path / "s")
    opened.close()
    (tmp_path / "s" / "log.duckdb").unlink()
    if stage == "folder":
        (tmp_path / "s" / "head").unlink()
    if stage == "database":
        import duckdb

        duckdb.connect(str(tmp_path / "s" / "log.duckdb")).close()
        again = reopen(tmp_path / "s")
        assert again.events == ()
        again.close()
    else:
        with pytest.raises(LogNotFound):
            reopen(tmp_path / "s")
