"""Output of any size and of any bytes is kept head and tail, and costs no memory (G35, G36)."""

import asyncio
from pathlib import Path

import pytest

from processes.commands import Limits, Running
from processes.runner import Output, Runner, inspect, read_output
from tests.processes.running import command, finished

KIB = 1024


async def test_a_gigabyte_is_capped_counted_and_costs_no_memory(runner: Runner, work: Path, call_dir: Path):
    limits = Limits(timeout_s=60, output_bytes=KIB * KIB)
    run = asyncio.create_task(runner.run(call_dir, command("yes | head -c 1G; echo end", work, limits=limits)))
    peak = 0
    while not run.done():
        state = inspect(call_dir)
        if isinstance(state, Running):
            peak = max(peak, resident(state.pid))
        await asyncio.wait({run}, timeout=0.02)
    result = finished(await run)
    total = (1 << 30) + 4
    assert result.output_total == total
    assert result.output_omitted == total - KIB * KIB - 64 * KIB
    output = read_output(call_dir, 10, 10)
    assert output == Output(b"y\n" * 5, b"y\ny\ny\nend\n", total - 20, total, call_dir / "output")
    assert output.path.stat().st_size == KIB * KIB
    assert 0 < peak < 32 * KIB * KIB


def resident(pid: int) -> int:
    """Bytes; a fresh wrapper has about 11 MB."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except (FileNotFoundError, ProcessLookupError):
        return 0


async def test_endless_output_does_not_put_off_the_timeout(runner: Runner, work: Path, call_dir: Path):
    limits = Limits(timeout_s=0.5, output_bytes=100)
    result = finished(await runner.run(call_dir, command("while :; do echo x; done", work, limits=limits)))
    assert result.timed_out
    assert result.finished_us - result.started_us < 2_000_000


async def test_an_endless_background_writer_does_not_put_off_the_result(runner: Runner, work: Path, call_dir: Path):
    result = finished(await runner.run(call_dir, command("yes & echo done", work)))
    assert result.exit_code == 0
    assert result.finished_us - result.started_us < 2_000_000


async def test_one_line_of_fifty_megabytes(runner: Runner, work: Path, call_dir: Path):
    result = finished(await runner.run(call_dir, command("head -c 50M /dev/zero | tr '\\0' a", work)))
    assert result.output_total == 50 << 20
    output = read_output(call_dir, 3, 3)
    assert (output.head, output.tail, output.omitted) == (b"aaa", b"aaa", (50 << 20) - 6)


@pytest.mark.parametrize(
    "text",
    [
        "head -c 4096 /dev/urandom",
        "printf '\\xe9t\\xe9'",
        "printf '\\xff\\xfea\\0b\\0'",
        "printf '\\xf0\\x9f'; printf '\\x8e\\x89'",
    ],
)
async def test_bytes_stay_as_they_are(runner: Runner, work: Path, call_dir: Path, text: str):
    result = finished(await runner.run(call_dir, command(f"{text} | tee copy", work)))
    whole = (call_dir / "output").read_bytes()
    output = read_output(call_dir, 5, 100_000)
    assert output.head + output.tail == whole
    assert (output.omitted, output.total) == (0, result.output_total)


async def test_head_and_tail_are_right_for_every_cap(runner: Runner, work: Path, call_dir: Path):
    whole = b"0123456789"
    for cap in (0, 1, 9, 10, 11, 1000):
        name = call_dir.with_name(f"cap{cap}")
        await runner.run(name, command("printf 0123456789", work, limits=Limits(output_bytes=cap)))
        for head, tail in ((0, 0), (3, 4), (10, 0), (0, 10), (6, 6), (50, 50)):
            first = whole[: min(head, cap)]
            rest = whole[len(first) :]
            last = rest[-tail:] if tail else b""
            expected = Output(first, last, 10 - len(first) - len(last), 10, name / "output")
            assert read_output(name, head, tail) == expected


async def test_a_running_command_can_be_read(runner: Runner, work: Path, call_dir: Path):
    (work / "gate").touch()
    run = asyncio.create_task(runner.run(call_dir, command("echo begun; while test -e gate; do :; done", work)))
    while not read_output(call_dir, 10, 10).head:
        await asyncio.wait({run}, timeout=0.01)
    assert read_output(call_dir, 3, 10) == Output(b"beg", b"un\n", 0, 6, call_dir / "output")
    (work / "gate").unlink()
    await run
