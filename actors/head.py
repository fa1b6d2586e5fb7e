"""One local Ray head of our own: started, watched and ended from a process that never imports ray.

All of its processes listen on 127.0.0.1 alone, demand the token, and carry one random mark in their environment, by
which they are found again and ended, also by a later supervisor.
"""

import asyncio
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from processes import tree

Found = TypeVar("Found")

NAMESPACE = "thalia"
MARK_VARIABLE = "THALIA_HEAD"
START_S = 30.0
"""How long Ray may take to start; 1.2 s are usual, and many times that on a machine that is busy."""
_LOOK_S = 1.0
"""Between looks at whether what was started still lives."""
FOLDER_BYTES = 41
"""Of 107 that a Unix socket's path may have, Ray's own names below the folder take 66."""
OBJECT_STORE_BYTES = 75 * 1024 * 1024
"""The least that Ray accepts. It is reserved in shared memory, used only as far as objects fill it."""
NO_PORT = 65536
"""Asked for this port, Ray leaves its API server out, with a line in the log. Without a dashboard that process serves
nothing, but takes 62 MB and 0.6 s of the start; no option turns it off."""
BOOT = "from ray.scripts.scripts import main; main()"
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Without it Ray replaces 127.0.0.1 by the machine's outer address and listens on all addresses."""

TUNING: Mapping[str, str] = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # What a worker started may outlive it: commands do, and sweeping is ours.
    "RAY_kill_child_processes_on_worker_exit": "false",
    "RAY_process_group_cleanup_enabled": "false",
    # A full machine is full of something else, and a session that is killed frees little.
    "RAY_memory_monitor_refresh_ms": "0",
    # Commands inherit it: 15 would be the default.
    "RAY_worker_niceness": "0",
    # An actor without a GPU sees none, and is not the one that happens to be first.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "1",
    "RAY_enable_worker_prestart": "1",
    # Task events are for a dashboard; the GCS would grow by 3 KB a call.
    "RAY_task_events_report_interval_ms": "0",
    "RAY_task_events_max_num_task_in_gcs": "100",
    "RAY_maximum_gcs_destroyed_actor_cached_count": "100",
    "RAY_maximum_gcs_dead_worker_cached_count": "100",
    "RAY_enable_metrics_collection": "false",
    "RAY_BACKEND_LOG_LEVEL": "warning",
    "RAY_ROTATION_MAX_BYTES": str(1 << 20),
    "RAY_ROTATION_BACKUP_COUNT": "1",
    # A dead node is given up after 5 s and not 16; a stall of some seconds on a busy machine is no death.
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    # Tries of a driver to join, one a second; a wrong token looks like an absent head.
    "RAY_NUM_REDIS_GET_RETRIES": "2",
    # A process title is otherwise written over the environment, and the mark with it.
    "SPT_NOENV": "1",
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
}


class HeadError(Exception):
    """Ray could not be started or reached; the text is one sentence for a person."""


@dataclass(frozen=True, slots=True)
class HeadFiles:
    folder: Path
    """Absolute, at most FOLDER_BYTES long, ours alone (0700); made where there is none."""

    @property
    def token(self) -> Path:
        return self.folder / "token"

    @property
    def mark(self) -> Path:
        return self.folder / "mark"

    @property
    def output(self) -> Path:
        return self.folder / "head.log"

    @property
    def ray(self) -> Path:
        """Ray makes its own folder readable and writable for all: it must stand inside ours."""
        return self.folder / "r"

    @property
    def nowhere(self) -> Path:
        """Empty and unwritable: where we run, since Ray puts that folder first on every worker's path."""
        return self.folder / "empty"


@dataclass(frozen=True, slots=True)
class HeadSize:
    workers: int = 2
    """Kept warm."""
    cpus: int = 1024
    """Not cores, but how many actors that ask for a CPU are let in at once; ours ask for none."""
    gpus: int | None = None
    """None: as many as Ray finds."""
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


def head_command(files: HeadFiles, size: HeadSize) -> list[str]:
    """Every port is left to the system (0), so two heads never race for one."""
    optional = [] if size.gpus is None else [f"--num-gpus={size.gpus}"]
    if size.resources:
        optional.append(f"--resources={json.dumps(dict(size.resources), sort_keys=True)}")
    if size.labels:
        optional.append("--labels=" + ",".join(f"{name}={value}" for name, value in sorted(size.labels.items())))
    return [
        *(sys.executable, "-I", "-c", BOOT, "start", "--head", "--block"),
        "--node-ip-address=127.0.0.1",
        *("--port=0", "--node-manager-port=0", "--object-manager-port=0", "--runtime-env-agent-port=0"),
        *("--min-worker-port=0", "--max-worker-port=0"),
        *("--dashboard-agent-listen-port=0", "--dashboard-agent-grpc-port=0", "--metrics-export-port=0"),
        *("--include-dashboard=false", f"--dashboard-port={NO_PORT}", "--dashboard-host=127.0.0.1"),
        *("--no-monitor", "--include-log-monitor=false", "--disable-usage-stats"),
        f"--temp-dir={files.ray}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--num-cpus={size.cpus}",
        *optional,
    ]


def head_environment(base: Mapping[str, str], files: HeadFiles, size: HeadSize, mark: str) -> dict[str, str]:
    """`base` without what would steer Ray or Python: code paths, start hooks, a stray cluster's address."""
    return {
        **{name: value for name, value in base.items() if not _steers(name)},
        **TUNING,
        **LOOPBACK,
        **_token_mode(files),
        "RAY_num_workers_soft_limit": str(size.workers),
        MARK_VARIABLE: mark,
    }


def _steers(name: str) -> bool:
    return name.upper().startswith(("RAY_", "PYTHON", "SPT_")) or name == MARK_VARIABLE


def _token_mode(files: HeadFiles) -> dict[str, str]:
    """The token itself is in a file alone: an environment is shown to whoever may debug the process."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(files.token)}


async def start_head(files: HeadFiles, environment: Mapping[str, str], size: HeadSize | None = None) -> "Head":
    """Returns when its address is known (about 0.5 s); drivers can join after wait_ready().

    What an earlier head left in the folder is ended first. Raises HeadError; then nothing is left running.
    """
    await asyncio.to_thread(end_head, files)
    mark = secrets.token_hex(12)
    _prepare(files, mark)
    size = size or HeadSize()
    with files.output.open("wb") as output:
        process = subprocess.Popen(  # noqa: ASYNC220 - returns at once, and is waited for through its pidfd
            head_command(files, size),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=head_environment(environment, files, size, mark),
            cwd=files.nowhere,
        )
    try:
        port = await _appears(files, process, lambda: _port(files))
        return Head(files, mark, f"127.0.0.1:{port}", process)
    except BaseException:
        await asyncio.shield(asyncio.to_thread(end_head, files))
        process.wait()
        raise


class Head:
    """A running one. Belongs to the event loop it was made in."""

    def __init__(self, files: HeadFiles, mark: str, address: str, process: subprocess.Popen[bytes] | None) -> None:
        self.files, self.address = files, address
        self._mark, self._process = mark, process
        self._died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._watched: dict[str, int] = {}
        if process is not None:
            self._watch("start command", process.pid)

    @property
    def pids(self) -> list[int]:
        """All processes of it that live now, workers among them."""
        return marked(self._mark)

    async def wait_ready(self) -> None:
        """Returns when drivers can join. Raises HeadError where Ray ended before, or takes too long."""
        await _appears(self.files, self._process, lambda: _registered(self.files))
        # The oldest of a name: a worker is called raylet too, between its fork and its exec.
        found = {_name(pid): pid for pid in sorted(self.pids, key=tree.start_time, reverse=True)}
        for name in ("start command", "gcs_server", "raylet"):
            if name not in found:
                raise HeadError(f"Ray's {name} ended as soon as it had started; try again.")
            self._watch(name, found[name])

    async def died(self) -> str:
        """Which process of it ended, in a sentence, as soon as one did; the head is of no use then."""
        return await asyncio.shield(self._died)

    async def stop(self) -> None:
        """Ends every process of it with SIGKILL and removes its files: what must be orderly is done before."""
        self._tell("Ray was stopped.")
        for fd in self._watched.values():
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)
        self._watched.clear()
        await asyncio.to_thread(end_head, self.files)
        if self._process is not None:
            await asyncio.to_thread(self._process.wait)

    def _watch(self, name: str, pid: int) -> None:
        if name in self._watched:
            return
        text = f"Ray's {name} (process {pid}) ended."
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            self._tell(text)
            return
        self._watched[name] = fd
        asyncio.get_running_loop().add_reader(fd, self._ended, name, text)

    def _ended(self, name: str, text: str) -> None:
        # A descriptor of an ended process stays readable.
        asyncio.get_running_loop().remove_reader(self._watched[name])
        self._tell(text)

    def _tell(self, text: str) -> None:
        if not self._died.done():
            self._died.set_result(text)


def marked(mark: str) -> list[int]:
    """Living processes, this one left out, that carry the mark."""
    return tree.carriers(MARK_VARIABLE, mark)


def end_head(files: HeadFiles, patience_s: float = 5.0) -> None:
    """Ends what runs of the head that was last started in this folder, and removes its files. Blocks some ms.

    Raises HeadError where a process cannot be ended."""
    mark = _read_mark(files)
    left = tree.end_carriers(MARK_VARIABLE, mark, patience_s) if mark is not None else []
    if left:
        raise HeadError(f"Ray's process {left[0]} does not end; end it by hand, or restart the machine.")
    shutil.rmtree(files.ray, ignore_errors=True)
    for path in (files.output, files.token, files.mark):
        path.unlink(missing_ok=True)
    with suppress(OSError):
        files.nowhere.rmdir()
        files.folder.rmdir()


def _prepare(files: HeadFiles, mark: str) -> None:
    if not files.folder.is_absolute() or len(os.fsencode(files.folder)) > FOLDER_BYTES:
        raise HeadError(f"Ray's folder {files.folder} must be an absolute path of at most {FOLDER_BYTES} bytes.")
    files.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = files.folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise HeadError(f"The folder {files.folder} is open to others; remove it, or make it yours alone (mode 0700).")
    files.nowhere.mkdir(mode=0o500)
    for path, text in ((files.token, secrets.token_hex(32)), (files.mark, mark)):
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)


def _read_mark(files: HeadFiles) -> str | None:
    """None too for one that a power cut left half written."""
    try:
        text = files.mark.read_text()
    except (FileNotFoundError, ValueError):
        return None
    return text if len(text) == 24 else None


def _port(files: HeadFiles) -> int | None:
    """Of the GCS, which writes it into the session's folder once it listens."""
    for path in files.ray.glob("session_latest/gcs_server_port_*"):
        with suppress(ValueError, FileNotFoundError):
            return int(path.read_text())
    return None


def _registered(files: HeadFiles) -> bool | None:
    """The raylet dumps its first state right after it registered; the start command says the same 0.5 s later."""
    logs = files.ray / "session_latest" / "logs"
    return (logs / "debug_state.txt").exists() or (files.ray / "ray_current_cluster").exists() or None


def _name(pid: int) -> str:
    """A process's name; the start command is the one that leads the session."""
    if tree.fields(pid)[3:4] == [str(pid).encode()]:
        return "start command"
    return tree.read(f"/proc/{pid}/comm").decode(errors="replace").strip()


async def _appears(
    files: HeadFiles, process: subprocess.Popen[bytes] | None, look: Callable[[], Found | None]
) -> Found:
    """What `look` sees at last. Raises HeadError where Ray ended, or took START_S."""
    began = time.monotonic()
    give_up, next_look = began + START_S, began + _LOOK_S
    while (found := look()) is None:
        if time.monotonic() > next_look:
            next_look = time.monotonic() + _LOOK_S
            # The start command would wait half a minute for one that died at once.
            if (part := _dead_part(files)) is not None:
                raise HeadError(f"Ray's {part} ended while it started; see whether the machine limits processes.")
        if process is not None and process.poll() is not None:
            raise HeadError(f"Ray ended while it started: {_last_line(files)}")
        if time.monotonic() > give_up:
            raise HeadError(
                f"Ray did not start within {START_S:.0f} s; end what keeps the machine busy, and try again."
            )
        await asyncio.sleep(0.01)
    return found


def _dead_part(files: HeadFiles) -> str | None:
    """A part whose output began more than a look ago, and that runs no more."""
    alive = [_name(pid) for pid in marked(_read_mark(files) or "-")]
    for output in files.ray.glob("session_latest/logs/*.err"):
        said = output.stat()
        old = said.st_size > 0 and time.time() - said.st_mtime > _LOOK_S
        if old and output.stem in {"gcs_server", "raylet"}.difference(alive):
            return output.stem
    return None


def _last_line(files: HeadFiles) -> str:
    lines = [line for line in files.output.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it said nothing"


def connect(address: str, files: HeadFiles, namespace: str = NAMESPACE) -> None:
    """Make this process a driver of the head at `address` (HOST:PORT), with the token of `files`. Blocks: imports ray.

    Leaves the present folder and whatever RAY_* the environment had. Raises HeadError."""
    if "ray" in sys.modules:
        # Ray reads its settings when it is imported.
        raise HeadError("Ray was imported before connect() could settle how; import it later.")
    os.chdir(files.nowhere)
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]
    local = address.startswith("127.0.0.1:")
    os.environ.update({**TUNING, **(LOOPBACK if local else {}), **_token_mode(files)})
    import ray
    from ray.exceptions import RayError

    try:
        ray.init(address=address, namespace=namespace, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, RayError) as error:
        raise HeadError(f"Ray at {address} cannot be joined: {error}") from error
