"""Asks a Ray head what it runs, in a process of its own: which token it shows Ray reads when it is imported.

`python -m actors.greeting HOST:PORT` prints one JSON object: `ray`, `python`, `thalia` (empty where no daemon of
ours has announced itself), or `refused`, the name of the error."""

import json
import sys

KEY, SPACE = b"version", b"thalia"
"""Of the head's own store: there the gateway leaves Thalia's version."""
_ANSWER_S = 5


def greet(address: str) -> dict[str, str]:
    import ray._raylet as compiled
    from ray._common.usage.usage_lib import get_cluster_metadata
    from ray.exceptions import RayError

    try:
        client = getattr(compiled, "GcsClient")(address=address)  # noqa: B009 - it has no types
        found = get_cluster_metadata(client)
        version = client.internal_kv_get(KEY, SPACE, timeout=_ANSWER_S)
    except RayError as error:
        return {"refused": type(error).__name__}
    return {"ray": found["ray_version"], "python": found["python_version"], "thalia": (version or b"").decode()}


if __name__ == "__main__":
    print(json.dumps(greet(sys.argv[1])))
