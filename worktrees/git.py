"""The one wrapper around the git command: nothing that a repository configures is ever run by it.

GitError
├── GitFailed           git ran and said no
├── GitMissing          no git command on this machine
├── WorktreeTampered    the wiring of a worktree is not what we made
├── RefMoved            a compare-and-swap lost (objects.py)
├── RestoreBlocked      ignored files stand where a snapshot has others (snapshot.py)
├── BundleRefused       what came from elsewhere is not taken (bundle.py)
├── MergeOverlap        a file changed between plan and apply (checkout.py)
└── RepositoryRefused   what was named cannot be worked on (repository.py)
"""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class GitError(Exception):
    """One sentence for people: what happened and what to do."""


class GitFailed(GitError):
    """git ended with `code`; `stderr` is its text with credentials taken out of addresses."""

    def __init__(self, args: tuple[str, ...], code: int, stderr: str) -> None:
        self.command, self.code, self.stderr = tuple(map(hide_credentials, args)), code, hide_credentials(stderr)
        super().__init__(f"git {' '.join(self.command[:2])} failed with code {code}: {self.stderr.strip()[:2000]}")


class GitMissing(GitError):
    pass


class WorktreeTampered(GitError):
    pass


class Completed(NamedTuple):
    code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class PointerRecord:
    """The three small files that tie a linked worktree to its repository, as bytes, as we made them."""

    git_file: bytes
    commondir: bytes
    gitdir: bytes


@dataclass(frozen=True, slots=True)
class Place:
    """Where git looks. Nothing of it is discovered by git, so a planted `.git` changes nothing."""

    git_dir: Path
    common_dir: Path
    work_tree: Path | None
    record: PointerRecord | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What the configuration files say: `overrides` for every later call, `user` from outside the repository,
    `local` from inside it (last value wins), `safe` directories of the user."""

    overrides: tuple[tuple[str, str], ...]
    user: Mapping[str, str]
    local: Mapping[str, str]
    safe: tuple[str, ...]
    signature: tuple[tuple[str, int, int, int], ...]
    sources: tuple[str, ...]


ALWAYS = (
    ("core.hooksPath", "/dev/null"),
    ("core.fsmonitor", "false"),
    ("core.pager", "cat"),
    ("core.editor", "false"),
    ("core.askPass", "false"),
    ("core.sshCommand", "false"),
    ("core.gitProxy", ""),
    ("core.alternateRefsCommand", "false"),
    ("core.untrackedCache", "false"),
    ("core.splitIndex", "false"),
    ("core.sparseCheckout", "false"),
    ("core.quotePath", "false"),
    # Git's own default leaves loose objects and references to the kernel; the log names both.
    ("core.fsync", "committed,reference"),
    ("core.fsyncMethod", "fsync"),
    ("index.skipHash", "false"),
    ("index.recordEndOfIndexEntries", "false"),
    ("sequence.editor", "false"),
    ("credential.helper", ""),
    ("diff.external", ""),
    ("diff.ignoreSubmodules", "dirty"),
    ("diff.orderFile", "/dev/null"),
    ("interactive.diffFilter", "cat"),
    ("gpg.program", "false"),
    ("commit.gpgSign", "false"),
    ("tag.gpgSign", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("protocol.allow", "never"),
    ("submodule.recurse", "false"),
    ("merge.renormalize", "false"),
    ("merge.renames", "true"),
    ("merge.directoryRenames", "conflict"),
    ("merge.conflictStyle", "merge"),
    ("advice.detachedHead", "false"),
)
# An empty merge driver would take "ours" silently and a missing one is fatal: this is git's own text merge.
TEXT_MERGE = "git merge-file -q --marker-size=%L %A %O %B"
NEUTRAL = {
    ("filter", "clean"): "",
    ("filter", "smudge"): "",
    ("filter", "process"): "",
    ("filter", "required"): "false",
    ("diff", "command"): "",
    ("diff", "textconv"): "cat",
    ("merge", "driver"): TEXT_MERGE,
    ("merge", "recursive"): "text",
    ("gpg", "program"): "false",
    ("credential", "helper"): "",
    ("remote", "promisor"): "false",
}
KEPT_FROM_USER = ("core.excludesfile", "core.autocrlf", "core.eol", "user.name", "user.email")


def hide_credentials(text: str) -> str:
    return re.sub(r"(\w+://)[^/@\s]+@", r"\1***@", text)


def neutralise(keys: list[str]) -> list[tuple[str, str]]:
    """Overrides that turn every program named by `keys` off. A driver without one part gets the other parts too."""
    overrides: dict[str, str] = {}
    for key in keys:
        section, _, rest = key.partition(".")
        name, _, variable = rest.rpartition(".")
        if not name or (section, variable) not in NEUTRAL:
            if section == "pager":
                overrides[key] = "false"
            continue
        overrides[key] = NEUTRAL[section, variable]
        if section == "filter":
            overrides[f"filter.{name}.required"] = "false"
    return list(overrides.items())


def parse_listing(listing: bytes) -> list[tuple[str, str, str, str]]:
    """`git config --list -z --show-scope --show-origin` as (scope, origin, key, value)."""
    fields = listing.decode("utf-8", "surrogateescape").split("\0")
    rows = []
    for scope, origin, entry in zip(fields[0::3], fields[1::3], fields[2::3], strict=False):
        key, _, value = entry.partition("\n")
        rows.append((scope, origin, key, value))
    return rows


def sign(paths: tuple[str, ...]) -> tuple[tuple[str, int, int, int], ...]:
    """A value that changes whenever one of the files does."""
    rows = []
    for path in paths:
        try:
            at = Path(path).stat()
            rows.append((path, at.st_mtime_ns, at.st_size, at.st_ino))
        except OSError:
            rows.append((path, 0, 0, 0))
    return tuple(rows)


class Git:
    """Runs git at one place. Blocking; may be shared by threads (the worst is that settings are read twice)."""

    def __init__(
        self,
        place: Place,
        environment: Mapping[str, str],
        cache: dict[Path, Settings] | None = None,
        executable: str | None = None,
        synced: dict[str, int] | None = None,
    ) -> None:
        """`environment`: the user's PATH, HOME and XDG_CONFIG_HOME are looked at, nothing else of it reaches git."""
        path = environment.get("PATH", os.defpath)
        found = executable or shutil.which("git", path=path)
        if found is None:
            raise GitMissing("The git command was not found; install git 2.39 or newer.")
        self.place = place
        self._executable = found
        self._environment = environment
        self._cache: dict[Path, Settings] = {} if cache is None else cache
        self.synced: dict[str, int] = {} if synced is None else synced
        """Folders of objects whose names are durable, see durable.py."""
        self._base = {
            "PATH": f"{Path(found).parent}:/usr/bin:/bin",
            "HOME": environment.get("HOME", "/nonexistent"),
            "LC_ALL": "C",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_ALLOW_PROTOCOL": "none",
            "GIT_OPTIONAL_LOCKS": "0",
        } | ({"XDG_CONFIG_HOME": environment["XDG_CONFIG_HOME"]} if environment.get("XDG_CONFIG_HOME") else {})

    def at(self, place: Place) -> "Git":
        """The same git at another place; what was read of the configuration is shared."""
        return Git(place, self._environment, self._cache, self._executable, self.synced)

    def run(
        self,
        *args: str,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        input: bytes | None = None,
        check: bool = True,
    ) -> bytes:
        """Standard output of `git ARGS`. GitFailed on a code other than 0 unless `check` is False."""
        done = self.attempt(*args, cwd=cwd, env=env, input=input)
        if check and done.code != 0:
            raise GitFailed(args, done.code, done.stderr.decode("utf-8", "replace"))
        return done.stdout

    def attempt(
        self, *args: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, input: bytes | None = None
    ) -> Completed:
        """As `run`, for commands whose exit code is an answer."""
        self.verify()
        overrides = (*ALWAYS, *self.settings().overrides)
        clean = self._base | self._location() | {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
        clean["GIT_CONFIG_COUNT"] = str(len(overrides))
        for i, (key, value) in enumerate(overrides):
            clean[f"GIT_CONFIG_KEY_{i}"], clean[f"GIT_CONFIG_VALUE_{i}"] = key, value
        return self._start(args, cwd or self.place.work_tree or self.place.git_dir, clean | dict(env or {}), input)

    def verify(self) -> None:
        """WorktreeTampered unless the wiring of this worktree is byte for byte what was recorded."""
        place = self.place
        if place.record is None or place.work_tree is None:
            return
        if read_pointers(place.work_tree, place.git_dir) != place.record:
            raise WorktreeTampered(
                f"The .git file of {place.work_tree} or its counterpart in the repository was changed; nothing was run "
                "there, put it back or release this worktree."
            )

    def settings(self) -> Settings:
        """The configuration as last read; read again when one of its files or the checked out branch changed."""
        known = self._cache.get(self.place.git_dir)
        if known is None or sign(known.sources) != known.signature:
            known = self._cache[self.place.git_dir] = self._read_settings()
        return known

    def _read_settings(self) -> Settings:
        place = self.place
        files = [place.common_dir / "config", place.git_dir / "config.worktree", place.git_dir / "HEAD"]
        args = ("config", "--list", "-z", "--show-scope", "--show-origin")
        before = sign(tuple(map(str, files)))
        done = self._start(args, place.git_dir, self._base | self._location(), None)
        if done.code != 0:
            raise GitFailed(args, done.code, done.stderr.decode("utf-8", "replace"))
        rows = parse_listing(done.stdout)
        inside = {"local", "worktree"}
        local = {key: value for scope, _, key, value in rows if scope in inside}
        user = {key: value for scope, _, key, value in rows if scope not in inside}
        kept = [(key, user[key]) for key in KEPT_FROM_USER if key in user and key not in local]
        origins = {origin.removeprefix("file:") for scope, origin, _, _ in rows if scope in inside}
        included = sorted(str(place.git_dir / name) for name in origins)
        return Settings(
            overrides=(*kept, *neutralise([key for scope, _, key, _ in rows if scope in inside])),
            user=user,
            local=local,
            safe=tuple(value for scope, _, key, value in rows if key == "safe.directory" and scope not in inside),
            signature=(*before, *sign(tuple(included))),
            sources=(*map(str, files), *included),
        )

    def _location(self) -> dict[str, str]:
        place = self.place
        location = {"GIT_DIR": str(place.git_dir)}
        if place.common_dir != place.git_dir:
            location["GIT_COMMON_DIR"] = str(place.common_dir)
        if place.work_tree is not None:
            location["GIT_WORK_TREE"] = str(place.work_tree)
        return location

    def _start(self, args: tuple[str, ...], cwd: Path, env: dict[str, str], input: bytes | None) -> Completed:
        done = subprocess.run(
            [self._executable, "--no-pager", *args],
            cwd=cwd,
            env=env,
            input=b"" if input is None else input,
            capture_output=True,
            check=False,
        )
        return Completed(done.returncode, done.stdout, done.stderr)


def read_pointers(work_tree: Path, git_dir: Path) -> PointerRecord | None:
    """The wiring as it is on disk now; None where a part is missing or is not a plain file."""
    try:
        return PointerRecord(
            git_file=read_plain(work_tree / ".git"),
            commondir=read_plain(git_dir / "commondir"),
            gitdir=read_plain(git_dir / "gitdir"),
        )
    except OSError:
        return None


def read_plain(path: Path) -> bytes:
    """A small regular file, never through a link. OSError otherwise."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(handle, 65536)
    finally:
        os.close(handle)


def split_names(output: bytes) -> list[str]:
    """NUL-ended names, in the order given; undecodable bytes survive as surrogates (os.fsencode gives them back)."""
    return [os.fsdecode(name) for name in output.split(b"\0") if name]


def join_names(names: list[str]) -> bytes:
    return b"".join(os.fsencode(name) + b"\0" for name in names)
