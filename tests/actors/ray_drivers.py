"""What the tests' drivers do, each in a process of its own: join by connect(), run one of these, print its result."""

import asyncio
import json
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from actors.greeting import KEY, SPACE
from actors.head import HeadError, HeadFiles, connect, marked
from processes import tree


def main(arguments: Sequence[str]) -> None:
    """ADDRESS FOLDER DRIVER ARGUMENTS…"""
    address, folder, driver, *rest = arguments
    try:
        connect(address, HeadFiles(Path(folder)))
    except HeadError as error:
        sys.exit(str(error))
    result = DRIVERS[driver](*rest)
    import ray

    # Until then Ray may print what became of a node.
    ray.shutdown()
    print(json.dumps(result))


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


def open_ways(near: str, far: str, number: str) -> None:
    """From the node that is labelled, to sessions s0, s1, … on the head's."""
    from actors.ways import open_way

    async def open_all() -> None:
        for each in range(int(number)):
            await open_way(f"s{each}", _far_node(), Path(near), Path(far))

    asyncio.run(open_all())


def close_way(session: str) -> None:
    from actors import ways

    asyncio.run(ways.close_way(session, _far_node()))


def _ask_twice(side: Any, link: Any) -> Iterator[Any]:
    yield side.send.remote(link, 1, b"")
    yield side.send.remote(link, 1, b"")
    yield side.ping.remote(link)


def ask_ways(near: str, far: str) -> dict[str, Any]:
    """What is said against opening ways, and what the far side answers to what nobody should ask."""
    import ray

    from actors.ways import NoWay, open_way

    async def reopen(session: str) -> str | None:
        try:
            await open_way(session, _far_node(), Path(near), Path(far))
        except NoWay as error:
            return str(error)
        return None

    async def reopen_both() -> dict[str, Any]:
        return {"taken": await reopen("taken"), "open": await reopen("s0")}

    side: Any = ray.get_actor("far-door")
    sent, asked, replaced = (ray.get(side.open.remote(name)) for name in ("one", "two", "three"))
    new = ray.get(side.open.remote("three"))
    waiting = side.receive.remote(asked, 1)
    calls = {
        # One after the other: calls of an async actor that are under way together may begin in any order.
        "sent": [ray.put(ray.get(one)) for one in _ask_twice(side, sent)],
        "received": [side.receive.remote(asked, 1), waiting],
        "replaced": [side.ping.remote(replaced), side.ping.remote(new)],
    }
    answers: dict[str, Any] = {name: ray.get(each, timeout=30) for name, each in calls.items()}
    answers["received"] = [answer.decode() for answer in answers["received"]]
    ray.get(side.send.remote(new, 1, struct.pack(">IBI", 1, 0, 10) + b"../outside"))
    first: Any = ray.get(side.receive.remote(new, 1), timeout=30)
    ray.get(side.close.remote(new))
    return {**answers, **asyncio.run(reopen_both()), "outside": first.hex()}


def _far_node() -> str:
    import ray

    (node,) = [each["NodeID"] for each in ray.nodes() if each["Labels"].get("far")]
    return node


def refusals(*versions: str) -> list[str | None]:
    """Why this machine would not become a node of a head that tells each of these (THALIA or THALIA/RAY)."""
    from ray.experimental.internal_kv import internal_kv_get_gcs_client

    from actors.joining import check_head

    store: Any = internal_kv_get_gcs_client()
    known = store.internal_kv_get(b"CLUSTER_METADATA", b"cluster")
    address, token = store.address, Path(os.environ["RAY_AUTH_TOKEN_PATH"]).read_text()

    def tell(thalia: str, ray_version: str) -> str | None:
        told = json.dumps({**json.loads(known), **({"ray_version": ray_version} if ray_version else {})})
        store.internal_kv_put(b"CLUSTER_METADATA", told.encode(), True, b"cluster")
        store.internal_kv_put(KEY, thalia.encode(), True, SPACE)
        try:
            asyncio.run(check_head(address, token, thalia=True, announce_s=0.1))
        except HeadError as error:
            return str(error)
        return None

    try:
        return [tell(*version.partition("/")[::2]) for version in versions]
    finally:
        store.internal_kv_put(b"CLUSTER_METADATA", known, True, b"cluster")


class Reporter:
    """Takes what our detached actors take, and says on which node it is."""

    def __init__(self, state_folder: str) -> None:
        self.state_folder = state_folder

    def where(self) -> list[str]:
        import ray

        return [ray.get_runtime_context().get_node_id(), os.environ["THALIA_HEAD"]]


def list_nodes() -> list[dict[str, Any]]:
    from actors.membership import as_rows, list_members

    return as_rows(list_members(time.time_ns() // 1000))


def place_each(*wishes: str) -> list[Any]:
    """For each wish (labels, JSON) the node that is chosen, and what an actor that is created there says itself."""
    import ray

    from actors import detached
    from actors.membership import list_members
    from actors.placing import place

    nodes = [member.as_node() for member in list_members(time.time_ns() // 1000)]
    actor_class: Any = ray.remote(Reporter)
    own = ray.get_runtime_context().get_node_id()
    chosen = [place(nodes, own, json.loads(labels)) for labels in wishes]
    made = [
        detached.create(actor_class, detached.new_name("agent-"), Path("/state"), max_restarts=0, node=node)
        for node in chosen
    ]
    said = ray.get([actor.where.remote() for actor in made], timeout=30)
    return [[node, *where] for node, where in zip(chosen, said, strict=True)]


def wait_lost(node: str) -> list[Any]:
    """The node as it is listed once it is lost, and what becomes of an actor that is to be there all the same."""
    import ray

    from actors import detached

    give_up = time.monotonic() + 30
    while (row := next(row for row in list_nodes() if row["id"] == node))["state"] == "alive":
        assert time.monotonic() < give_up, row
        time.sleep(0.05)

    async def ask() -> str:
        actor_class: Any = ray.remote(Reporter)
        made = detached.create(actor_class, detached.new_name("agent-"), Path("/state"), max_restarts=-1, node=node)
        try:
            return (await detached.ask(made.where.remote(), 30))[0]
        except detached.WorkerLost as error:
            return type(error).__name__

    return [row, asyncio.run(ask())]


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
        refusals,
        list_nodes,
        place_each,
        wait_lost,
        open_ways,
        close_way,
        ask_ways,
    )
}
