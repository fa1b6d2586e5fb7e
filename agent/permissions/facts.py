"""The edge that gathers what a verdict on a command rests on: where its words lead in the file system."""

import glob
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from agent.permissions.paths import PathFacts, locate
from agent.permissions.words import Dynamic, NotUnderstood, Parsed, Part, Word, path_candidates
from agent.permissions.wrappers import SHELLS, base_name

MAX_FOLDERS = 8
MAX_MATCHES = 500


@dataclass(frozen=True, slots=True)
class PartFacts:
    """Facts about one part, in the order of `Parsed.parts`."""

    paths: Mapping[str, tuple[PathFacts, ...]] = field(default_factory=dict)
    """By word as written (a glob by its pattern): what it can name, one for each folder the part may run in."""
    cwd_known: bool = True
    """False behind a `cd` that cannot be followed."""
    at_root: bool = True
    """Whether it runs in the worktree's root and nowhere else."""


@dataclass(frozen=True, slots=True)
class CommandFacts:
    parts: tuple[PartFacts, ...]
    """One for each part of the command; empty for a command that is not understood."""
    confined: bool
    """Whether the command will run inside the sandbox."""
    network: bool = False
    """Whether the call asks for the network."""
    own_worktree: bool = True
    """False in the user's own checkout, where nothing can be restored."""
    git_runs_programs: bool = False
    """Whether the repository's git configuration names programs (fsmonitor, drivers, pagers)."""


@dataclass(frozen=True, slots=True)
class Folders:
    """The session's folders that words are measured against."""

    worktree: Path
    cwd: Path
    main_checkout: Path | None = None
    home: Path | None = None

    def locate(self, word: str, cwd: Path) -> PathFacts:
        return locate(self.worktree, word, cwd=cwd, main_checkout=self.main_checkout, home=self.home)


def gather(
    parsed: Parsed | NotUnderstood,
    folders: Folders,
    *,
    confined: bool,
    network: bool = False,
    own_worktree: bool = True,
    git_runs_programs: bool = False,
) -> CommandFacts:
    """Looks at the file system and changes nothing; follows each literal `cd` for the parts behind it."""
    found: list[PartFacts] = []
    cwds: tuple[Path, ...] = (folders.cwd,)
    root = Path(os.path.realpath(folders.worktree))
    for part in parsed.parts if isinstance(parsed, Parsed) else ():
        at_root = {Path(os.path.realpath(cwd)) for cwd in cwds} == {root}
        found.append(PartFacts(_paths_of(part, folders, cwds), bool(cwds), at_root))
        if part.program in ("cd", "pushd", "popd"):
            cwds = _after_cd(part, folders, cwds)
    return CommandFacts(tuple(found), confined, network, own_worktree, git_runs_programs)


def _after_cd(part: Part, folders: Folders, cwds: tuple[Path, ...]) -> tuple[Path, ...]:
    """The folders that later parts may run in; none where it cannot be known."""
    words = [word for word in part.args if word not in ("-P", "-L", "--")]
    target = words[0] if len(words) == 1 and part.program != "popd" else None
    if not isinstance(target, str) or target in ("-", "") or not cwds:
        return ()
    moved = tuple(folders.locate(target, cwd) for cwd in cwds)
    certain = not part.places and not part.background and all(facts.is_dir for facts in moved)
    after = dict.fromkeys([facts.real for facts in moved] + ([] if certain else list(cwds)))
    return tuple(after) if len(after) <= MAX_FOLDERS else ()


def _paths_of(part: Part, folders: Folders, cwds: tuple[Path, ...]) -> dict[str, tuple[PathFacts, ...]]:
    targets = [redirect.target for redirect in part.redirects if redirect.target is not None]
    program = [part.program] if part.program and "/" in part.program else []
    bases = cwds or (folders.cwd,)
    return {key: facts for word in (*program, *part.args, *targets) for key, facts in _located(word, folders, bases)}


def _located(word: Word, folders: Folders, cwds: tuple[Path, ...]) -> Iterator[tuple[str, tuple[PathFacts, ...]]]:
    if isinstance(word, str):
        for piece in path_candidates(word):
            yield piece, tuple(folders.locate(piece, cwd) for cwd in cwds)
    elif word.glob is not None:
        yield word.glob, tuple(facts for cwd in cwds for facts in _expanded(word, folders, cwd))


def _expanded(word: Dynamic, folders: Folders, cwd: Path) -> Iterator[PathFacts]:
    """What a pattern names now; more than `MAX_MATCHES` are not looked at, and count as the file system's root."""
    pattern = word.glob or ""
    every = glob.iglob(pattern, root_dir=cwd)  # noqa: PTH207  (Path.glob also takes hidden files, a shell does not)
    matches = list(islice(every, MAX_MATCHES + 1))
    if len(matches) > MAX_MATCHES:
        yield folders.locate("/", cwd)
    for match in matches or [pattern]:
        yield folders.locate(match, cwd)


_INTERPRETERS = frozenset({"python", "python3", "node", "ruby", "perl", "php", "deno", "bun", "source", "."}) | SHELLS


def script_files(parsed: Parsed | NotUnderstood, cwd: Path) -> tuple[Path, ...]:
    """Script files that a command names and would run: `./x.sh`, `bash x.sh`, `python x.py`; absolute, in order.

    Their hashes are bound to an approval, so that an approved command does not run other bytes later.
    """
    found: dict[Path, None] = {}
    cwds: tuple[Path, ...] = (cwd,)
    for part in parsed.parts if isinstance(parsed, Parsed) else ():
        for folder in cwds:
            found.update((folder / word, None) for word in _script_words(part) if _is_file(folder / word))
        if part.program in ("cd", "pushd", "popd"):
            cwds = _after_cd(part, Folders(cwd, cwd), cwds)
    return tuple(found)


def _script_words(part: Part) -> Iterator[str]:
    """The literal words of a part that could be a script it runs."""
    name = base_name(part.program)
    interprets = name in _INTERPRETERS or name.startswith("python3.")
    if part.program and "/" in part.program:
        yield part.program
    if interprets:
        inputs = [redirect.target for redirect in part.redirects if redirect.operator == "<"]
        yield from (word for word in (*part.args, *inputs) if isinstance(word, str))


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
