"""What the tests' drivers do, each in a process of its own: join by connect(), run one of these, print its result."""

import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from actors.head import HeadError, HeadFiles, connect, marked
from processes import tree


def main(arguments: Sequence[str]) -> None:
    """ADDRESS FOLDER DRIVER ARGUMENTS…"""
    address, folder, driver, *rest = arguments
    try:
        connect(address, HeadFiles(Path(folder)))
    except HeadError as error:
        sys.exit(str(error))
    print(json.dumps(DRIVERS[driver](*rest)))


def actor(of: type, **options: Any) -> Any:
    import ray

    remote: Any = ray.remote(of)
    return remote.options(num_cpus=0, **options).remote()


def look_at_worker() -> dict[str, Any]:
    """Where all that a worker has imported comes from, and where it would look for more."""
    import ray

    class Mirror:
        def look(self) -> dict[str, Any]:
            import httpx

            import cli
            import kernels

            files = {name: getattr(module, "__file__", None) for name, module in list(sys.modules.items())}
            return {
                "modules": {name: file for name, file in files.items() if file},
                "path": sys.path,
                "cwd": str(Path.cwd()),
                "named": [module.__file__ for module in (cli, httpx, kernels, ray)],
                "environment": dict(os.environ),
                "nice": os.nice(0),
            }

    return ray.get(actor(Mirror).look.remote(), timeout=30)


def leave_an_actor(name: str) -> int:
    """A detached one that outlives this driver: its process."""
    import ray

    class Sleeper:
        def pid(self) -> int:
            return os.getpid()

    return ray.get(actor(Sleeper, lifetime="detached", name=name).pid.remote(), timeout=30)


def find_the_actor(name: str) -> int:
    import ray

    found: Any = ray.get_actor(name)
    return ray.get(found.pid.remote(), timeout=30)


def which_cluster() -> list[str]:
    import ray

    return [ray.get_runtime_context().gcs_address, ray.get_runtime_context().namespace, str(Path.cwd())]


def idle_workers() -> list[int]:
    processes = marked((Path.cwd().parent / "mark").read_text())
    return [pid for pid in processes if tree.read(f"/proc/{pid}/cmdline").startswith(b"ray::IDLE")]


def seat(*kinds: str) -> dict[str, Any]:
    """Takes every seat there is, then asks for one more, frees one, and asks again."""
    from actors.gpu import NoSeat, end, seat_gpu_worker

    async def take() -> dict[str, Any]:
        seats, told, waited = [], [], 0.0
        while not told:
            began = time.monotonic()
            try:
                seats.append(await seat_gpu_worker(kinds))  # pyright: ignore[reportArgumentType]
            except NoSeat as error:
                told = [type(error).__name__, str(error)]
                waited = time.monotonic() - began
        if seats:
            end(seats[0].worker)
            seats.append(await seat_gpu_worker(kinds, patience_s=10))  # pyright: ignore[reportArgumentType]
        return {
            "seats": [[each.seat.node, each.seat.visible, dict(each.seat.labels)] for each in seats],
            "told": told,
            "waited": waited,
        }

    return asyncio.run(take())


def sits_within_a_second(kind: str) -> bool:
    """A worker that is asked for without looking first whether there is such a GPU."""
    import ray

    from actors.gpu import ask

    worker = ask([kind])  # pyright: ignore[reportArgumentType]
    ready, _ = ray.wait([worker.describe.remote()], timeout=1)
    return bool(ready)


def what_is_visible() -> str | None:
    """To an actor that asked for no GPU."""
    import ray

    class Eyes:
        def visible(self) -> str | None:
            return os.environ.get("CUDA_VISIBLE_DEVICES")

    return ray.get(actor(Eyes).visible.remote(), timeout=30)


DRIVERS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (
        look_at_worker,
        leave_an_actor,
        find_the_actor,
        which_cluster,
        seat,
        sits_within_a_second,
        what_is_visible,
    )
}
