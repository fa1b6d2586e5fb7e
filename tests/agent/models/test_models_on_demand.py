"""A model server that runs only while it is needed: a real process, started by a call and gone after the client."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest
from models_wire import request

from agent.models.client import ModelRequest, ignore_delta
from agent.models.http import HttpModel, Timeouts
from agent.models.local import LocalServer, NoLocalModel
from agent.models.on_demand import OnDemand
from agent.models.resolve import NoModel, Target, choose, open_client
from agent.models.wires import WIRES
from eventlog.outcomes import ModelFailed, ModelReplied

ROOT = Path(__file__).resolve().parents[3]


class Starter:
    """Starts the scripted server in a process of its own, and counts."""

    def __init__(self, folder: Path, *turns: dict[str, object]) -> None:
        self.started: list[LocalServer] = []
        self._script = folder / "script.json"
        self._script.write_text(json.dumps({"turns": turns, "loop": True}))
        self._port_file = folder / "port"

    def __call__(self) -> LocalServer:
        command = [sys.executable, "-m", "agent.models.server", "--script", str(self._script)]
        process = subprocess.Popen(
            [*command, "--port-file", str(self._port_file)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        self.started.append(LocalServer(process.stdout.readline().decode().strip(), process))
        return self.started[-1]

    @property
    def running(self) -> list[bool]:
        return [server.process.poll() is None for server in self.started]


def connect(base_url: str) -> HttpModel:
    return HttpModel(WIRES["chat"], base_url, random=Random(1), timeouts=Timeouts(silence_s=30))


async def ask(client: OnDemand, sent: ModelRequest | None = None) -> ModelReplied | ModelFailed:
    return await client.complete(sent or request(), ignore_delta)


async def test_the_server_is_started_by_the_first_call_serves_all_and_goes_with_the_client(tmp_path: Path) -> None:
    start = Starter(tmp_path, {"text": "Here."})
    client = OnDemand(start, connect)
    assert start.running == []
    replies = [*await asyncio.gather(ask(client), ask(client)), await ask(client)]
    assert [reply.kind for reply in replies] == ["model_replied"] * 3
    assert start.running == [True]
    await client.close()
    assert start.running == [False]
    await client.close()


async def test_a_server_that_was_killed_is_started_again_by_the_next_call(tmp_path: Path) -> None:
    start = Starter(tmp_path, {"text": "Here."})
    client = OnDemand(start, connect)
    await ask(client)
    os.kill(start.started[0].process.pid, signal.SIGKILL)
    start.started[0].process.wait()
    assert isinstance(await ask(client), ModelReplied)
    assert start.running == [False, True]
    await client.close()


async def test_a_server_that_cannot_start_is_a_failed_call_and_is_tried_again() -> None:
    tries: list[int] = []

    def start() -> LocalServer:
        tries.append(1)
        raise NoLocalModel("There are no weights.")

    client = OnDemand(start, connect)
    for _ in range(2):
        outcome = await ask(client)
        assert isinstance(outcome, ModelFailed)
        assert (outcome.fault, outcome.text, outcome.retry) == ("refused", "There are no weights.", False)
    assert len(tries) == 2
    await client.close()


async def test_a_call_that_is_cancelled_while_the_server_starts_leaves_no_process_behind(tmp_path: Path) -> None:
    start = Starter(tmp_path, {"text": "Here."})
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow() -> LocalServer:
        loop.call_soon_threadsafe(begun.set)
        return start()

    client = OnDemand(slow, connect)
    call = asyncio.create_task(ask(client))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await client.close()
    assert start.running == [False]


def test_a_local_model_is_a_file_of_weights(tmp_path: Path) -> None:
    missing = choose("local/smollm2", {}, models_folder=tmp_path)
    assert isinstance(missing, NoModel) and missing.sentence.endswith("fetch it with: thalia models get smollm2")
    (tmp_path / "smollm2.gguf").write_bytes(b"GGUF")
    target = choose("local/smollm2", {}, models_folder=tmp_path)
    assert isinstance(target, Target)
    assert (target.weights, target.protocol, target.wire_model) == (tmp_path / "smollm2.gguf", "chat", "smollm2")
    assert (target.prices.input_usd, target.profile.window) == (0.0, 8192)
    assert isinstance(open_client(target, None, Random(1)), OnDemand)


@pytest.mark.parametrize("name", ["../smollm2", "a/b", ".hidden", "nothing"])
def test_only_names_of_files_in_the_folder_are_local_models(name: str, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "smollm2.gguf").write_bytes(b"GGUF")
    assert isinstance(choose(f"local/{name}", {}, models_folder=tmp_path / "models"), NoModel)
