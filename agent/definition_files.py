"""Where definitions of background agents lie: with Thalia, with the user, in the repository; which one a name means.

`find_definitions` is pure over its shelves; the shelves of the disk stand below it."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path, PurePosixPath

from agent.definitions import AgentDefinition, Invalid, Source, parse_definition, refuse, show_path
from agent.permissions.paths import PathError, locate, open_parent
from agent.tools.instructions import MAX_BYTES, Read, reader

FOLDERS = (".agents/agents", ".claude/agents")
"""Of a repository and of a user's home; the first wins."""
MAX_FILES = 100
"""Of a folder."""

ListNames = Callable[[str], Sequence[str]]
"""Of a folder the names of its definitions, sorted, one more than MAX_FILES if there are; empty where there is none."""


@dataclass(frozen=True, slots=True)
class Shelf:
    folders: tuple[str, ...]
    """The first wins."""
    list_names: ListNames
    read: Read
    shown_before: str = ""
    """What people see before each path."""


@dataclass(frozen=True, slots=True)
class Found:
    definitions: tuple[AgentDefinition, ...]
    """What the user means who names one: the repository's before the user's own before the bundled. One of a name, by
    name."""
    unasked: tuple[AgentDefinition, ...]
    """What may be begun without being named: the user's own before the bundled, by name. A repository's of the same
    name takes nothing away."""
    problems: tuple[str, ...]
    """What is not used and why; one sentence each."""


def find_definitions(bundled: Shelf | None, user: Shelf | None, repository: Shelf | None) -> Found:
    problems: list[str] = []
    ours = _by_name(bundled, "bundled", problems) | _by_name(user, "user", problems)
    every = ours | _by_name(repository, "repository", problems)
    return Found(_in_order(every), _in_order(ours), tuple(problems))


def look_for_definitions(home: Path, root: Path) -> Found:
    """All for a session in the repository at `root`. What lies in the home folder is the user's, also where that is the
    repository."""
    same = os.path.realpath(home) == os.path.realpath(root)
    return find_definitions(bundled_shelf(), user_shelf(home), None if same else repository_shelf(root))


def repository_shelf(root: Path) -> Shelf:
    """A link is followed if it leads to a place inside."""
    return Shelf(FOLDERS, lister(root), reader(root))


def user_shelf(home: Path) -> Shelf:
    """Links are followed anywhere."""
    return Shelf(FOLDERS, _list_below(home), _read_below(home), "~/")


def bundled_shelf() -> Shelf:
    """Links are followed anywhere: some installers make them."""
    ours = Path(__file__).resolve().parent.parent
    return Shelf(("configs/agents",), _list_below(ours), _read_below(ours))


def lister(root: Path) -> ListNames:
    """Names of what may be definitions in a folder below `root`: all that ends in `.md` and is not hidden."""

    def list_names(folder: str) -> list[str]:
        relative = locate(root, folder).relative
        if relative is None:
            return []
        try:
            with open_parent(root, f"{relative}/any") as (descriptor, _), os.scandir(descriptor) as entries:
                names = (entry.name for entry in entries)
                return nsmallest(MAX_FILES + 1, (n for n in names if n.endswith(".md") and not n.startswith(".")))
        except (PathError, OSError):
            return []

    return list_names


def _list_below(base: Path) -> ListNames:
    return lambda folder: lister(base / folder)(".")


def _read_below(base: Path) -> Read:
    def read(path: str) -> bytes | None:
        real = Path(os.path.realpath(base / path))
        # The whole path: a name that begins with ~ would be taken for a home.
        return reader(real.parent)(str(real))

    return read


def _in_order(definitions: dict[str, AgentDefinition]) -> tuple[AgentDefinition, ...]:
    return tuple(definitions[name] for name in sorted(definitions))


def _by_name(shelf: Shelf | None, source: Source, problems: list[str]) -> dict[str, AgentDefinition]:
    found: dict[str, AgentDefinition] = {}
    for item in _read_all(shelf, source) if shelf is not None else ():
        if isinstance(item, Invalid):
            problems.append(item.text)
        elif item.name in found:
            first = show_path(found[item.name].path)
            problems.append(f"{show_path(item.path)} is left out: {first} defines {item.name} too.")
        else:
            found[item.name] = item
    return found


def _read_all(shelf: Shelf, source: Source) -> Iterator[AgentDefinition | Invalid]:
    for folder in shelf.folders:
        names = shelf.list_names(folder)
        for name in names[:MAX_FILES]:
            yield _read_one(shelf, source, f"{folder}/{name}")
        if len(names) > MAX_FILES:
            shown = show_path(shelf.shown_before + folder)
            yield Invalid(f"{shown} holds more than {MAX_FILES} files: the rest is left out.")


def _read_one(shelf: Shelf, source: Source, path: str) -> AgentDefinition | Invalid:
    # A name on a disk need not be text.
    shown = shelf.shown_before + path.encode("utf-8", "replace").decode()
    content = shelf.read(path)
    if content is None:
        where = " inside the repository" if source == "repository" else ""
        return refuse(shown, f"it is no file{where} that can be read")
    if len(content) > MAX_BYTES:
        return refuse(shown, f"it is longer than {MAX_BYTES:,} bytes")
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return refuse(shown, "it is no UTF-8; save it as such")
    return parse_definition(PurePosixPath(path).stem, text, source=source, path=shown)
