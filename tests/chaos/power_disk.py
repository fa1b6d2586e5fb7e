"""What may be on a disk when the power goes, from a recording of what was done to it.

A file's data is there up to its last sync; of what was written later each piece may be there, or not, or only its
length (zeros), or its first sectors. A name is there once its folder was synced. Two disks:

strict    names that were not synced are there in any choice: all that POSIX promises, and about what btrfs does.
ordered   names come and go in the order in which they were made, over all folders, and a sync of a file or folder
          takes along every name up to the last change of its own: the one journal of ext4 (and, nearly, of XFS).

A rename is atomic on both. After Pillai et al., All File Systems Are Not Created Equal, OSDI 2014; fsync(2)."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from random import Random
from typing import Literal

from tests.chaos.power_ops import (
    Data,
    Kind,
    Made,
    ModeSet,
    Moved,
    Named,
    Naming,
    NotModelled,
    Operation,
    Recording,
    Sized,
    Synced,
    Told,
    Unnamed,
    Wrote,
)

SECTOR = 512
"""Bytes that a disk writes whole or not at all."""
Rule = Literal["strict", "ordered"]
Part = int | Literal["whole", "length"]
"""How much of a write is there: its first bytes, all of it, or only the file's new length."""
Kept = Mapping[int, Part]
"""What of the unsynced operations is there, by their place in the recording. What is not in it is lost."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The power goes right before operation `at`, and of what was not durable then, `kept` is there."""

    at: int
    kept: Kept
    name: str


@dataclass(slots=True)
class _File:
    kind: Kind
    mode: int
    data: bytearray = field(default_factory=bytearray)
    names: dict[bytes, int] = field(default_factory=dict)
    target: bytes = b""


@dataclass(frozen=True, eq=False)
class Disk:
    recording: Recording

    @property
    def operations(self) -> Sequence[Operation]:
        return self.recording.operations

    @cached_property
    def not_modelled(self) -> tuple[str, ...]:
        return tuple(item.what for item in self.operations if isinstance(item, NotModelled))

    @cached_property
    def moments(self) -> tuple[int, ...]:
        """Right before each sync, and the end: what may be on the disk at any other moment, may be there at one of
        these too, and more had been told by then."""
        syncs = [at for at, item in enumerate(self.operations) if isinstance(item, Synced)]
        return (*syncs, len(self.operations))

    def told(self, at: int, channel: str) -> bytes:
        """All that had left the machine by then."""
        heard = [item for item in self.operations[:at] if isinstance(item, Told)]
        return b"".join(item.data for item in heard if item.channel == channel)

    def unsynced(self, at: int, rule: Rule) -> tuple[int, ...]:
        """Places of the operations that may be lost."""
        durable = self._durable(at, rule)
        changes = (place for place in range(at) if isinstance(self.operations[place], Data | Naming))
        return tuple(place for place in changes if place not in durable)

    @lru_cache(maxsize=4)  # noqa: B019 - a disk lives as long as its test
    def _durable(self, at: int, rule: Rule) -> set[int]:
        data: dict[int, list[int]] = {}
        names: dict[int, list[int]] = {}
        touched: dict[int, int] = {}
        synced: set[tuple[int, int]] = set()
        sizes: dict[int, int] = {}
        order: list[int] = []
        for place, item in enumerate(self.operations[:at]):
            match item:
                case Wrote(node=node) | Sized(node=node):
                    data.setdefault(node, []).append(place)
                    if _grows(item, sizes):
                        touched[node] = place
                case Named() | Unnamed() | Moved():
                    order.append(place)
                    for folder in _folders(item):
                        names.setdefault(folder, []).append(place)
                    touched |= dict.fromkeys(_nodes(item), place)
                case Synced(node=node, covers=covers):
                    synced |= {(place, node) for place in data.get(node, ()) if place < covers}
                    synced |= {(place, node) for place in names.get(node, ()) if place < covers}
                    if rule == "ordered" and node in touched:
                        # Never later than its own last change: the journal may have been written before.
                        upto = min(touched[node], covers - 1)
                        synced |= {(place, f) for place in order if place <= upto for f in _folders_at(self, place)}
                case _:
                    pass
        found: set[int] = set()
        for place in {place for place, _ in synced}:
            item = self.operations[place]
            needed = set(_folders(item)) if isinstance(item, Naming) else {_node(item)}
            if all((place, one) in synced for one in needed):
                found.add(place)
        return found

    def losses(self, at: int, rule: Rule, random: Random, draws: int) -> Iterator[Loss]:
        """The extremes and some at random: nothing of it, all of it, the file that is just being synced there by its
        length or in part, all but one, only one, `draws` mixtures."""
        loose = self.unsynced(at, rule)
        whole: dict[int, Part] = dict.fromkeys(loose, "whole")
        yield Loss(at, {}, "nothing")
        if not loose:
            return
        yield Loss(at, whole, "all")
        for place in self._being_synced(at, loose):
            yield Loss(at, {**whole, place: "length"}, f"length of {place}")
            torn: Kept = {**whole, place: self._torn(place, random)}
            yield Loss(at, torn, f"torn at {place}")
        for place in random.sample(loose, min(draws, len(loose))):
            yield self._lawful(Loss(at, {p: part for p, part in whole.items() if p != place}, f"all but {place}"), rule)
            yield self._lawful(Loss(at, {place: "whole"}, f"only {place}"), rule)
        for number in range(draws):
            chosen = [place for place in loose if random.random() < 0.5]
            kept: dict[int, Part] = {place: self._part(place, random) for place in chosen}
            yield self._lawful(Loss(at, kept, f"mixture {number}"), rule)

    def _lawful(self, loss: Loss, rule: Rule) -> Loss:
        """With one journal, a name that is there has all names before it there too."""
        if rule == "strict":
            return loss
        last = max((place for place in loss.kept if isinstance(self.operations[place], Naming)), default=-1)
        before = [p for p in self.unsynced(loss.at, rule) if p < last and isinstance(self.operations[p], Naming)]
        return Loss(loss.at, {**loss.kept, **dict.fromkeys(before, "whole")}, loss.name)

    def _being_synced(self, at: int, loose: Sequence[int]) -> Iterator[int]:
        sync = self.operations[at] if at < len(self.operations) else None
        for place in loose:
            item = self.operations[place]
            if isinstance(item, Wrote) and isinstance(sync, Synced) and item.node == sync.node:
                yield place

    def _part(self, place: int, random: Random) -> Part:
        if not isinstance(self.operations[place], Wrote):
            return "whole"
        return random.choice(("whole", "length", self._torn(place, random)))

    def _torn(self, place: int, random: Random) -> int:
        """Bytes up to the end of one of its sectors."""
        item = self.operations[place]
        assert isinstance(item, Wrote)
        sectors = (item.offset % SECTOR + len(item.data)) // SECTOR
        return max(random.randint(0, sectors) * SECTOR - item.offset % SECTOR, 0)

    def build(self, loss: Loss, rule: Rule, at: Mapping[str, Path]) -> None:
        """The folders as they are found when the machine is on again. `at`: where, by the recorded path; nothing must
        be there."""
        files = self._found(loss, rule)
        for root, node in self.recording.roots.items():
            _write(files, node, at[root])

    def _found(self, loss: Loss, rule: Rule) -> dict[int, _File]:
        durable = self._durable(loss.at, rule)
        files = {
            node: _File(item.kind, item.mode, bytearray(item.data), dict(item.names), bytes(item.data))
            for node, item in self.recording.before.items()
        }
        for place, item in enumerate(self.operations[: loss.at]):
            part = "whole" if place in durable else loss.kept.get(place)
            match item:
                case Made(node, kind, mode, target):
                    files[node] = _File(kind, mode, target=target)
                case ModeSet(node, mode):
                    files[node].mode = mode
                case Wrote() | Sized() if part is not None:
                    _apply_data(files[item.node].data, item, part)
                case Named() | Unnamed() | Moved() if part is not None:
                    _apply_naming(files, item)
                case _:
                    pass
        return files


def _apply_data(data: bytearray, item: Data, part: Part) -> None:
    if isinstance(item, Sized):
        del data[item.size :]
        data.extend(bytes(item.size - len(data)))
        return
    kept = item.data if part == "whole" else b"" if part == "length" else item.data[:part]
    end = item.offset + (len(item.data) if part in ("whole", "length") else len(kept))
    data.extend(bytes(max(end - len(data), 0)))
    data[item.offset : item.offset + len(kept)] = kept


def _apply_naming(files: Mapping[int, _File], item: Naming) -> None:
    match item:
        case Named(folder, name, node):
            files[folder].names[name] = node
        case Unnamed(folder, name):
            files[folder].names.pop(name, None)
        case Moved(folder, name, to_folder, to_name, node):
            if files[folder].names.get(name) == node:
                del files[folder].names[name]
            files[to_folder].names[to_name] = node


def _write(files: Mapping[int, _File], node: int, path: Path) -> None:
    file = files[node]
    match file.kind:
        case "folder":
            path.mkdir(mode=0o700)
            for name, inner in file.names.items():
                _write(files, inner, path / os.fsdecode(name))
            path.chmod(file.mode)
        case "file":
            path.write_bytes(file.data)
            path.chmod(file.mode)
        case "link":
            path.symlink_to(os.fsdecode(file.target))


def _grows(item: Data, sizes: dict[int, int]) -> bool:
    before = sizes.get(item.node, 0)
    after = item.size if isinstance(item, Sized) else max(before, item.offset + len(item.data))
    sizes[item.node] = after
    return after != before


def _folders(item: Naming) -> tuple[int, ...]:
    return (item.folder, item.to_folder) if isinstance(item, Moved) else (item.folder,)


def _folders_at(disk: Disk, place: int) -> tuple[int, ...]:
    item = disk.operations[place]
    return _folders(item) if isinstance(item, Naming) else ()


def _nodes(item: Naming) -> tuple[int, ...]:
    """All whose own record changes with it."""
    match item:
        case Unnamed(folder=folder):
            return (folder,)
        case Named(folder=folder, node=node):
            return folder, node
        case Moved(folder=folder, to_folder=to_folder, node=node):
            return folder, to_folder, node


def _node(item: Operation) -> int:
    assert isinstance(item, Wrote | Sized)
    return item.node
