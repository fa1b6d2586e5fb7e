"""A bare repository of our own that holds what came in bundles: what a user's repository is on a machine without it.

Of the user's configuration crosses what decides how files become objects, and whose name commits bear: no hook, no
filter, no remote, no credential. What the machine's own user has configured does not count in it.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from configs.places import from_letters, to_letters
from eventlog.blobs import sync_folder
from worktrees.bundle import algorithm_of
from worktrees.durable import make_folders, sync_below
from worktrees.git import Git, Place
from worktrees.objects import Identity
from worktrees.repository import Repository, is_git_dir
from worktrees.snapshot import Reached, ignore_point

CROSSES = {"core.autocrlf": "false", "core.eol": "native", "user.name": "", "user.email": ""}
"""With git's own default: it has to be said, or the machine's user would say something else."""


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """What a mirror has to know besides commits. Each text is bytes as letters of Latin-1, so that JSON can carry it.

    `config`: values by the keys of CROSSES. The others are files: what the user ignores and which attributes files
    have, in general (`excludes`, `attributes`) and in this repository (`info_…`)."""

    algorithm: str
    config: tuple[tuple[str, str], ...]
    excludes: str
    attributes: str
    info_exclude: str
    info_attributes: str


def mirror_settings(repository: Repository, variables: Mapping[str, str]) -> MirrorSettings:
    """Of the user's repository. `variables`: HOME and XDG_CONFIG_HOME of the user are looked at."""
    settings, info = repository.git.settings(), repository.common_dir / "info"
    values = {**settings.user, **settings.local}
    return MirrorSettings(
        algorithm=algorithm_of(repository.git),
        config=tuple((key, to_letters(values.get(key, default))) for key, default in CROSSES.items()),
        excludes=read_letters(named_file(repository, "core.excludesFile", "ignore", variables)),
        attributes=read_letters(named_file(repository, "core.attributesFile", "attributes", variables)),
        info_exclude=read_letters(info / "exclude"),
        info_attributes=read_letters(info / "attributes"),
    )


def open_mirror(
    folder: Path,
    key: str,
    settings: MirrorSettings,
    environment: Mapping[str, str] | None = None,
    *,
    reached: Reached = ignore_point,
) -> Repository:
    """The mirror of `key` in `folder` (made with mode 0700 where it is missing), with these settings from now on. A new
    one is empty. Two at the same time and a kill at any moment leave it whole.

    It has no checkout and no HEAD: `head` is empty, commits are named by who works. `environment`: as for
    open_repository.
    """
    name = hashlib.sha256(os.fsencode(f"{settings.algorithm} {key}")).hexdigest()[:12]
    path = folder.resolve() / f"{name}.git"
    make_folders(path.parent, 0o700)
    with locked(path.with_suffix(".lock")):
        if not is_git_dir(path):
            make_mirror(path, reached)
        write_settings(path, settings)
    home = {"PATH": f"{os.defpath}:/usr/local/bin", "HOME": str(Path.home())}
    config = {key: from_letters(value) for key, value in settings.config}
    named = bool(config["user.name"] and config["user.email"])
    return Repository(
        root=path,
        git_dir=path,
        common_dir=path,
        head="",
        branch=None,
        shallow=(path / "shallow").exists(),
        submodules=(),
        identity=Identity(config["user.name"], config["user.email"]) if named else None,
        git=Git(Place(path, path, None), home if environment is None else environment),
        bare=True,
    )


def make_mirror(path: Path, reached: Reached) -> None:
    """In a folder beside it first: a kill leaves none or a whole one. What others made so far in it is removed."""
    draft = path.with_suffix(".draft")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(mode=0o700)
    for name in ("objects/info", "objects/pack", "refs", "info"):
        (draft / name).mkdir(parents=True)
    # Git wants the name of a branch, and no branch is ever made.
    (draft / "HEAD").write_text("ref: refs/heads/none\n")
    sync_below(draft)
    reached("before_mirror")
    draft.rename(path)
    sync_folder(path.parent)
    reached("after_mirror")


def write_settings(path: Path, settings: MirrorSettings) -> None:
    for name, text in (
        ("excludes", settings.excludes),
        ("attributes", settings.attributes),
        ("info/exclude", settings.info_exclude),
        ("info/attributes", settings.info_attributes),
    ):
        write_file(path / name, text.encode("latin-1"))
    write_file(path / "config", encode_config(path, settings))


def encode_config(path: Path, settings: MirrorSettings) -> bytes:
    core = {
        "repositoryFormatVersion": "0" if settings.algorithm == "sha1" else "1",
        "bare": "true",
        "fileMode": "true",
        "ignoreCase": "true" if (path / "hEaD").exists() else "false",
        "excludesFile": str(path / "excludes"),
        "attributesFile": str(path / "attributes"),
    }
    rows = [(f"core.{name}", os.fsencode(value)) for name, value in core.items()]
    rows += [(key, value.encode("latin-1")) for key, value in settings.config if key in CROSSES and value]
    if settings.algorithm != "sha1":
        rows.append(("extensions.objectFormat", settings.algorithm.encode()))
    return b"".join(encode_setting(key, value) for key, value in rows)


def encode_setting(key: str, value: bytes) -> bytes:
    section, _, name = key.partition(".")
    for plain, escaped in ((b"\\", b"\\\\"), (b'"', b'\\"'), (b"\n", b"\\n")):
        value = value.replace(plain, escaped)
    return b'[%b]\n\t%b = "%b"\n' % (section.encode(), name.encode(), value)


def write_file(path: Path, data: bytes) -> None:
    """Durable on return, 0600; one writes at a time."""
    if path.is_file() and path.read_bytes() == data:
        return
    draft = path.with_name(f"{path.name}.draft")
    handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with open(handle, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    draft.rename(path)
    sync_folder(path.parent)


def named_file(repository: Repository, key: str, name: str, variables: Mapping[str, str]) -> Path:
    """Where git would look for a file of the user's: where the setting says, else among its own."""
    named = repository.git.run("config", "-z", "--type=path", "--get", key, check=False).partition(b"\0")[0]
    own = variables.get("XDG_CONFIG_HOME") or str(Path(variables.get("HOME", "/nonexistent"), ".config"))
    return repository.root / os.fsdecode(named) if named else Path(own, "git", name)


def read_letters(path: Path) -> str:
    """Nothing where there is no such file or it cannot be read: git goes on without it too."""
    with contextlib.suppress(OSError):
        if path.is_file():
            return path.read_bytes().decode("latin-1")
    return ""


@contextlib.contextmanager
def locked(file: Path) -> Iterator[None]:
    handle = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
