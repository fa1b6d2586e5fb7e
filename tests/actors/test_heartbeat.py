"""Silence is what somebody who moves himself waits through."""

import asyncio
import time

from actors.heartbeat import wait_silent


async def never() -> None:
    await asyncio.Event().wait()


async def is_over(waiting: "asyncio.Task[None]", within_s: float) -> bool:
    done, _ = await asyncio.wait([waiting], timeout=within_s)
    waiting.cancel()
    return bool(done)


async def test_who_says_nothing_is_found_out_after_the_limit() -> None:
    begin = time.monotonic()
    await asyncio.wait_for(wait_silent(never, 0.5), 20)
    assert time.monotonic() - begin > 0.4


async def test_the_first_word_may_take_longer() -> None:
    begin = time.monotonic()
    await asyncio.wait_for(wait_silent(never, 0.1, first_s=0.5), 20)
    assert time.monotonic() - begin > 0.4


async def test_who_answers_late_but_always_is_not_silent() -> None:
    answers = 0

    async def slowly() -> None:
        nonlocal answers
        await asyncio.sleep(0.25)
        answers += 1

    assert not await is_over(asyncio.create_task(wait_silent(slowly, 0.5)), 1.5)
    assert answers >= 2


async def test_who_answered_and_then_stops_is_found_out() -> None:
    answers = 0

    async def thrice() -> None:
        nonlocal answers
        answers += 1
        if answers > 3:
            await never()

    await asyncio.wait_for(wait_silent(thrice, 0.3, first_s=60), 20)
    assert answers == 4


async def test_time_in_which_the_waiting_process_itself_did_not_run_does_not_count() -> None:
    """As after SIGCONT, or when a machine wakes up: much time has passed, and nobody waited."""
    answer = asyncio.Event()
    waiting = asyncio.create_task(wait_silent(answer.wait, 0.5))
    for _ in range(12):
        await asyncio.sleep(0.02)
        hold_up(0.15)
    assert not waiting.done()
    answer.set()
    assert not await is_over(waiting, 0.5)


def hold_up(seconds: float) -> None:
    """Nothing else happens in this process meanwhile."""
    begin = time.monotonic()
    while time.monotonic() - begin < seconds:
        pass
