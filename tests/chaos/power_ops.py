"""What programs did to a disk, in the order in which the kernel took it. A file is known by a number of its own, which
no later file gets: names come and go, and the kernel gives the number of a removed file to the next one."""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["file", "folder", "link"]


@dataclass(frozen=True, slots=True)
class Made:
    """A new file, folder or link without a name yet. Data of a link: where it points."""

    node: int
    kind: Kind
    mode: int
    target: bytes = b""


@dataclass(frozen=True, slots=True)
class ModeSet:
    node: int
    mode: int


@dataclass(frozen=True, slots=True)
class Wrote:
    node: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Sized:
    """Cut to `size` bytes, or filled up with zeros."""

    node: int
    size: int


@dataclass(frozen=True, slots=True)
class Named:
    folder: int
    name: bytes
    node: int


@dataclass(frozen=True, slots=True)
class Unnamed:
    folder: int
    name: bytes


@dataclass(frozen=True, slots=True)
class Moved:
    folder: int
    name: bytes
    to_folder: int
    to_name: bytes
    node: int


@dataclass(frozen=True, slots=True)
class Synced:
    """An fsync or fdatasync that came back. `covers`: how many operations stood before it when it began."""

    node: int
    covers: int


@dataclass(frozen=True, slots=True)
class Flushed:
    """A sync_file_range that came back: the data was sent to the disk, which may keep it in a cache of its own."""

    node: int
    covers: int


@dataclass(frozen=True, slots=True)
class Told:
    """Something left the machine: no loss of power takes it back."""

    channel: str
    data: bytes


@dataclass(frozen=True, slots=True)
class NotModelled:
    """A way to write that the model does not know, as a shared mapping."""

    what: str


Data = Wrote | Sized
Naming = Named | Unnamed | Moved
Operation = Made | ModeSet | Data | Naming | Synced | Flushed | Told | NotModelled


@dataclass(frozen=True, slots=True)
class Node:
    kind: Kind
    mode: int
    data: bytes = b""
    names: tuple[tuple[bytes, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Recording:
    """`roots`: the number of each recorded folder, by its path; `before`: all that was in them at the start."""

    roots: dict[str, int]
    before: dict[int, Node]
    operations: tuple[Operation, ...]
