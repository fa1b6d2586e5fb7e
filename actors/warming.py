"""What every process of the daemon does in which sessions or agents are to work, before there is any work."""

import gc
import os
from pathlib import Path
from tempfile import TemporaryDirectory

from actors.building import rehearse
from actors.gpu import without_gpu
from configs.places import DaemonPlace
from eventlog.lock import start_time


def become_worker(place: DaemonPlace) -> None:
    """Private files, no GPU, and everything in memory that the first work would wait for. Blocks."""
    os.umask(0o077)
    without_gpu()
    with TemporaryDirectory(dir=place.folder, prefix="warm-") as folder:
        rehearse(Path(folder))
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def describe_process() -> dict[str, int]:
    """By what it is known, and can be ended, whoever has its pid later."""
    return {"pid": os.getpid(), "started": start_time(os.getpid()) or 0}
