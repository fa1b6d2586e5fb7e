"""The model server, in process and as a program."""

import asyncio
import json
import signal
import stat
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path

import pytest
from models_talk import PROTOCOLS, asked
from models_wire import request

from agent.models.client import ignore_delta
from agent.models.discovery import find_servers
from agent.models.http import HttpModel
from agent.models.script import Script, Turn
from agent.models.server import ModelServer
from agent.models.wires import WIRES
from eventlog.outcomes import ModelFailed, ModelReplied

CHAT = WIRES["chat"]
SCRIPT = Script(turns=(Turn(text="hello"),), model="made-up")
ROOT = Path(__file__).resolve().parents[3]


async def start_program(folder: Path, stdin: int) -> tuple[Process, str]:
    """The program and the base URL that it prints."""
    (folder / "script.json").write_text(SCRIPT.model_dump_json())
    files = ("--script", "script.json", "--port-file", "port", "--requests", "requests.jsonl")
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from agent.models.server import main; sys.exit(main())"
    program = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-c", code, *files, cwd=folder, stdin=stdin, stdout=PIPE
    )
    assert program.stdout is not None
    async with asyncio.timeout(30):
        return program, (await program.stdout.readline()).decode().strip()


async def test_it_keeps_every_request_it_gets(tmp_path: Path) -> None:
    kept = tmp_path / "requests.jsonl"
    async with ModelServer(SCRIPT, kept) as server, HttpModel(CHAT, server.base_url) as client:
        for _ in range(2):
            assert isinstance(await client.complete(request(), ignore_delta), ModelReplied)
        assert server.requests == [request().body] * 2
    assert [json.loads(line) for line in kept.read_text().splitlines()] == [json.loads(request().body)] * 2
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


async def test_it_lists_its_model_and_knows_no_other_page() -> None:
    async with ModelServer(SCRIPT) as server, HttpModel(CHAT, server.base_url + "/nowhere") as client:
        (found,) = await find_servers([("scripted", server.port)], limit_s=5)
        assert (found.base_url, found.models) == (server.base_url, ("made-up",))
        outcome = await client.complete(request(), ignore_delta)
    assert isinstance(outcome, ModelFailed)
    assert outcome.status == 404


async def test_it_ends_with_a_silent_client_connected() -> None:
    async with ModelServer(SCRIPT) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\n")
        await writer.drain()
    writer.close()


async def test_what_is_no_http_only_loses_its_connection() -> None:
    async with ModelServer(SCRIPT) as server, HttpModel(CHAT, server.base_url) as client:
        for nonsense in (b"\x16\x03\x01\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: many\r\n\r\n"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(nonsense)
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
        assert isinstance(await client.complete(request(), ignore_delta), ModelReplied)


@pytest.mark.parametrize("end", ["SIGTERM", "closed standard input"])
async def test_the_program_serves_until_it_is_told_to_stop(tmp_path: Path, end: str) -> None:
    program, base_url = await start_program(tmp_path, PIPE if end != "SIGTERM" else DEVNULL)
    try:
        assert base_url == f"http://127.0.0.1:{int((tmp_path / 'port').read_text())}/v1"
        for protocol in PROTOCOLS:
            async with HttpModel(WIRES[protocol], base_url) as client:
                assert isinstance(await client.complete(asked(protocol), ignore_delta), ModelReplied)
        kept = (tmp_path / "requests.jsonl").read_bytes().splitlines()
        assert kept == [asked(protocol).body for protocol in PROTOCOLS]
        if program.stdin is None:
            program.send_signal(signal.SIGTERM)
        else:
            program.stdin.close()
        async with asyncio.timeout(20):
            assert await program.wait() == 0
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
