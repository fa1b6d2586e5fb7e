"""Sessions that are recorded to the last sync, and taken up again on each disk that a loss of power could leave."""

import pickle
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from eventlog.errors import LogError
from eventlog.opening import read_log
from tests.chaos.arena import PROGRAM, Arena
from tests.chaos.power_checks import put_back
from tests.chaos.power_disk import Disk, Loss, Rule

LEDGER = "ledger"
"""A file outside the disk that loses its power, where commands leave what they did to the world."""


@dataclass(slots=True)
class PowerArena:
    arena: Arena
    disk: Disk

    @property
    def ledger(self) -> Path:
        return self.arena.folder / LEDGER

    def lose(self, loss: Loss, rule: Rule) -> None:
        """The machine is on again, with this on its disk."""
        put_back(self.disk, loss, rule)
        self.ledger.write_bytes(self.disk.told(loss.at, LEDGER))

    def resume(self) -> int:
        """To the end and the merge, after another boot. The exit code."""
        for folder in self.arena.home.glob("sessions/*"):
            try:
                read_log(folder)
            except LogError:
                # Of its first transaction a part is on the disk: what nobody was told of is begun anew.
                shutil.rmtree(folder)
        self.arena.program = _boot("after", *PROGRAM)
        return self.arena.go_on(last=True).wait(120)


@contextmanager
def recorded(turns: Sequence[object] | None = None, options: tuple[str, ...] = ()) -> Iterator[PowerArena]:
    """One session from its first event to the merge, on a machine where it is the first."""
    with TemporaryDirectory(prefix="thalia-power-") as folder:
        arena = Arena(Path(folder), options=options)
        arena.turns = arena.turns if turns is None else turns
        with arena:
            arena.home.mkdir(mode=0o700)
            ledger, recording = arena.folder / LEDGER, arena.folder / "recording"
            ledger.touch()
            # The sandbox's copy of /etc is made anew after each boot.
            what = ("--disk", str(arena.home), str(arena.repository), "--outside", str(ledger), "--unwatched", ".etc-")
            recorder = (sys.executable, "-m", "tests.chaos.power_record", str(recording), *what, "--")
            arena.program = _boot("before", *recorder, *PROGRAM)
            assert arena.go_on(last=True).wait(120) == 0, arena.errors()
            for shown in arena.folder.glob("out-*.jsonl"):
                shown.unlink()
            yield PowerArena(arena, Disk(pickle.loads(recording.read_bytes())))


def _boot(name: str, *program: str) -> tuple[str, ...]:
    return ("/usr/bin/env", f"THALIA_CRASH_BOOT={name}", *program)
