"""Two nodes on one machine, and ways from agents on one of them to doors on the other."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from playing import wait_until

from actors.head import Head
from actors.ray_command import HeadSize, Reach
from configs.places import DaemonPlace, daemon_place
from processes import tree
from tests.actors.ray_arena import drive, free_ports, module_head

WAYS = 40
SILENT_S = 3


@dataclass(slots=True)
class FarWays:
    """Agents that use a way connect on the one node, and doors are on the other."""

    head: Head
    node: Head
    near: DaemonPlace
    far: DaemonPlace
    numbers: Iterator[int] = field(default_factory=count)

    def to(self, door: Path) -> Path:
        """Where an agent reaches a door that is there, or will be."""
        name = f"s{next(self.numbers)}"
        self.far.door(name).symlink_to(door)
        return self.near.door(name)

    @property
    def near_pid(self) -> int:
        return _named(self.node, b"ray::NearDoor")

    @property
    def far_pid(self) -> int:
        return _named(self.head, b"ray::FarDoor")


def _named(head: Head, title: bytes) -> int:
    """While it is being started anew it may have no name yet."""
    wait_until(lambda: bool(found := _titled(head, title)) and len(found) == 1)
    (pid,) = _titled(head, title)
    return pid


def _titled(head: Head, title: bytes) -> list[int]:
    return [pid for pid in head.pids if tree.read(f"/proc/{pid}/cmdline").startswith(title)]


@contextmanager
def far_ways(ways: int = WAYS) -> Iterator[FarWays]:
    state = Path(tempfile.mkdtemp(prefix="th"))
    places = [daemon_place(state / side) for side in ("near", "far")]
    try:
        for place in places:
            place.make()
        with module_head(HeadSize(workers=1), Reach("127.0.0.2", free_ports())) as head:
            joined = Reach("127.0.0.3", 0, head.address, head.files.token.read_text())
            patience = {**os.environ, "THALIA_HUNG_S": str(SILENT_S)}
            with module_head(HeadSize(workers=1, labels={"far": "yes"}), joined, patience) as node:
                drive(head, "open_ways", *(str(place.state_folder) for place in places), str(ways))
                yield FarWays(head, node, near=places[0], far=places[1])
    finally:
        for folder in (state, *(place.folder for place in places)):
            shutil.rmtree(folder, ignore_errors=True)
