"""What a driver does for its cluster. Imports ray: for processes that joined with head.connect()."""

import time

import ray


@ray.remote(num_cpus=0, max_retries=0)
def rest(seconds: float) -> None:
    time.sleep(seconds)


def keep_warm(workers: int) -> "list[ray.ObjectRef[None]]":
    """Have this many idle workers again soon. Returns at once; the references are ready when one is idle again.

    For after an actor was made, not just before: it takes the idle ones for a moment. Ray starts workers for tasks
    that wait and keeps as many idle as the head's HeadSize.workers, but never replaces one that became an actor. An
    actor from an idle worker answers after 0.1 s, else after 0.6 s.
    """
    return [rest.remote(0.02) for _ in range(workers)]
