"""What our own Ray processes are started with: the command, the environment, the folder. Never imports ray."""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from configs.cluster import PORTS

MARK_VARIABLE = "THALIA_HEAD"
LOCAL = "127.0.0.1"
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
    # Of a cable that was pulled nobody hears anything: Ray would wait 10 s in each of the five checks, and a node for
    # minutes. With less than 10 s for what is on its way a link that was away for 3 s costs an agent an attempt.
    "RAY_health_check_timeout_ms": "1000",
    "RAY_grpc_client_keepalive_timeout_ms": "10000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    # Tries of a driver to join, one a second; a wrong token looks like an absent head.
    "RAY_NUM_REDIS_GET_RETRIES": "2",
    # A node that leaves has nothing to serve to its end.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    # Values cross as JSON; what is pickled is the same for all releases of a Python.
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
    # A process title is otherwise written over the environment, and the mark with it.
    "SPT_NOENV": "1",
    "PYTHONSAFEPATH": "1",
    "PYTHONNOUSERSITE": "1",
}


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
    cpus: int | None = 1024
    """Not cores, but how many actors that ask for a CPU are let in at once; ours ask for none. None: the cores."""
    gpus: int | None = None
    """None: as many as Ray finds."""
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reach:
    """Where Ray's processes are reached, and whom they belong to. Off loopback they listen on all addresses."""

    host: str = LOCAL
    """Empty on a node: the address by which it reaches the head."""
    port: int = 0
    """The first of PORTS that are used. 0: every port is left to the system, so two heads never race for one."""
    head: str = ""
    """HOST:PORT of the head that is joined as a node; empty: it is a head itself."""
    token: str = field(default="", repr=False)
    """Empty: a new one at each start."""


ALONE = Reach()


def head_command(files: HeadFiles, size: HeadSize, reach: Reach = ALONE) -> list[str]:
    first = reach.port
    manager, objects, environments = (first + 1, first + 2, first + 3) if first else (0, 0, 0)
    lowest, highest = (first + 10, first + PORTS - 1) if first else (0, 0)
    return [
        *(sys.executable, "-I", "-c", BOOT, "start", "--block"),
        *([f"--address={reach.head}"] if reach.head else _head_only(reach)),
        *([f"--node-ip-address={reach.host}"] if reach.host else []),
        f"--node-manager-port={manager}",
        f"--object-manager-port={objects}",
        f"--runtime-env-agent-port={environments}",
        *(f"--min-worker-port={lowest}", f"--max-worker-port={highest}"),
        *("--dashboard-agent-listen-port=0", "--dashboard-agent-grpc-port=0", "--metrics-export-port=0"),
        *("--include-log-monitor=false", "--disable-usage-stats"),
        f"--temp-dir={files.ray}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        *_sizes(size),
    ]


def _head_only(reach: Reach) -> list[str]:
    dashboard = ("--include-dashboard=false", f"--dashboard-port={NO_PORT}", "--dashboard-host=127.0.0.1")
    return ["--head", f"--port={reach.port}", *dashboard, "--no-monitor"]


def _sizes(size: HeadSize) -> list[str]:
    named = [] if size.cpus is None else [f"--num-cpus={size.cpus}"]
    if size.gpus is not None:
        named.append(f"--num-gpus={size.gpus}")
    if size.resources:
        named.append(f"--resources={json.dumps(dict(size.resources), sort_keys=True)}")
    if size.labels:
        named.append("--labels=" + ",".join(f"{name}={value}" for name, value in sorted(size.labels.items())))
    return named


def head_environment(
    base: Mapping[str, str], files: HeadFiles, size: HeadSize, mark: str, reach: Reach = ALONE
) -> dict[str, str]:
    """`base` without what would steer Ray or Python: code paths, start hooks, a stray cluster's address."""
    return {
        **{name: value for name, value in base.items() if not _steers(name)},
        **TUNING,
        **(LOOPBACK if reach.host == LOCAL else {}),
        **token_mode(files.token),
        "RAY_num_workers_soft_limit": str(size.workers),
        MARK_VARIABLE: mark,
    }


def _steers(name: str) -> bool:
    return name.upper().startswith(("RAY_", "PYTHON", "SPT_")) or name == MARK_VARIABLE


def token_mode(token: Path) -> dict[str, str]:
    """The token itself is in a file alone: an environment is shown to whoever may debug the process."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
