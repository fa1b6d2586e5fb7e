"""Where a path really leads: facts about it, and opening it without being led out of the worktree.

File tools call `locate`, have the facts judged, and then use `facts.relative` alone with `read_bytes`,
`open_inside` or `open_parent`: these follow no symbolic link, so nothing can be exchanged in between.
An atomic write opens the parent, writes a temporary file with `dir_fd`, syncs it, and renames it there.
"""

import os
import pwd
import stat
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath


class PathError(Exception):
    """A path that a file tool may not use; the message is a sentence for the model."""


class OutsideWorktree(PathError):
    pass


class ThroughSymlink(PathError):
    pass


class ProtectedName(PathError):
    pass


class NotRegularFile(PathError):
    pass


@dataclass(frozen=True, slots=True)
class PathFacts:
    given: str
    real: Path
    """Absolute, every symbolic link followed."""
    inside: bool
    """Whether `real` is the worktree or in it."""
    relative: str | None
    """`real` from the worktree's root, with `/`; None where it is outside."""
    protected: str | None
    """The protected name that the path goes through, as the policy spells it."""
    symlink: bool
    """Whether a component below the worktree's root is a symbolic link."""
    in_main_checkout: str | None
    """For a path in the user's own checkout: the same file in this worktree."""
    lexical: str = ""
    """Absolute, `.` and `..` resolved by name only; what rules also match."""
    exists: bool = False
    is_dir: bool = False
    sensitive: str | None = None
    """The name in it that often stands for secrets."""
    root: str = ""
    """The worktree's real root."""
    parent_exists: bool = False
    """Whether it could be created: its folder is there and is not the file system's root."""

    @property
    def escapes(self) -> bool:
        """Whether it looks inside and leads outside."""
        return self.symlink and not self.inside

    @classmethod
    def imagined(cls, path: str, root: str = "/worktree") -> "PathFacts":
        """Facts about a path by its name alone, as if no file system were there; for examples of rules."""
        lexical = os.path.normpath(f"{root}/{path}" if not path.startswith("/") else path)
        inside = PurePosixPath(lexical).is_relative_to(root)
        relative = PurePosixPath(lexical).relative_to(root).as_posix() if inside else None
        return cls(path, Path(lexical), inside, relative, None, False, None, lexical, root=root)


_PROTECTED_DIRS = (".git", ".thalia")
_PROTECTED_PATHS = (
    (".envrc",),
    (".mcp.json",),
    (".vscode", "tasks.json"),
    (".vscode", "settings.json"),
    (".vscode", "launch.json"),
    (".claude", "settings.json"),
    (".claude", "settings.local.json"),
    (".claude", "hooks"),
    (".codex",),
    (".gemini", "settings.json"),
    (".cursor", "mcp.json"),
    (".idea",),
    (".husky",),
    (".devcontainer",),
)
_SENSITIVE = (".env", ".env.*", ".netrc", ".pypirc", ".npmrc", ".git-credentials", "id_rsa", "id_ed25519", "id_ecdsa")
_SENSITIVE_SUFFIXES = (".pem", ".p12", ".pfx")
_SENSITIVE_DIRS = (".ssh", ".aws", ".gnupg")
_TEMPLATES = {".env.example", ".env.sample", ".env.template", ".env.dist"}
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def protected_name(relative: str) -> str | None:
    """The protected name in a path below a root, in any case and with invisible letters left out."""
    parts = tuple(_folded(part) for part in PurePosixPath(relative).parts)
    for name in _PROTECTED_DIRS:
        if name in parts:
            return name
    for wanted in _PROTECTED_PATHS:
        if any(parts[i : i + len(wanted)] == wanted for i in range(len(parts))):
            return "/".join(wanted)
    return None


def _folded(name: str) -> str:
    plain = "".join(letter for letter in unicodedata.normalize("NFKC", name) if unicodedata.category(letter) != "Cf")
    return plain.casefold().rstrip(". ") or plain


def _sensitive(path: PurePosixPath) -> str | None:
    name = _folded(path.name)
    if name in _TEMPLATES:
        return None
    if name in _SENSITIVE or name.startswith(".env."):
        return path.name
    if name.endswith(_SENSITIVE_SUFFIXES):
        return path.name
    return next((part for part in path.parts if part in _SENSITIVE_DIRS), None)


def locate(
    worktree: Path,
    user_path: str,
    *,
    cwd: Path | None = None,
    main_checkout: Path | None = None,
    home: Path | None = None,
) -> PathFacts:
    """Facts about a path as a person or a shell would write it: relative to `cwd` (else the worktree), absolute or `~`.

    Looks at the file system and changes nothing. `%2e` and the like are plain letters. Never raises: a path that
    cannot be resolved (a NUL byte, a loop of links) is outside.
    """
    root = Path(os.path.realpath(worktree))
    written = _without_tilde(user_path, home)
    lexical = Path(os.path.normpath(Path(cwd or root) / written))
    if lexical.is_relative_to(worktree):
        lexical = root / lexical.relative_to(worktree)
    real = _resolved(Path(cwd or root) / written)
    found = _status(real)
    inside = real.is_relative_to(root)
    relative = real.relative_to(root).as_posix() if inside else None
    main = Path(os.path.realpath(main_checkout)) if main_checkout is not None else None
    twin = main is not None and not inside and real.is_relative_to(main)
    names = [
        p.relative_to(base).as_posix()
        for base in (root, main)
        if base
        for p in (real, lexical)
        if p.is_relative_to(base)
    ]
    return PathFacts(
        given=user_path,
        real=real,
        inside=inside,
        relative=relative,
        protected=next((name for name in map(protected_name, names) if name), None),
        symlink=lexical.is_relative_to(root) and real != lexical,
        in_main_checkout=str(root / real.relative_to(main)) if twin and main else None,
        lexical=str(lexical),
        exists=found is not None,
        is_dir=found is not None and stat.S_ISDIR(found.st_mode),
        sensitive=_sensitive(PurePosixPath(real)) or _sensitive(PurePosixPath(lexical)),
        root=str(root),
        parent_exists=real.parent != Path("/") and _status(real.parent) is not None,
    )


def _resolved(path: Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError):
        return Path("/proc/self/nowhere")


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (OSError, ValueError):
        return None


def _without_tilde(text: str, home: Path | None) -> str:
    if not text.startswith("~"):
        return text
    name, _, rest = text[1:].partition("/")
    try:
        folder = str(home) if home and not name else (pwd.getpwnam(name) if name else pwd.getpwuid(os.getuid())).pw_dir
    except KeyError:
        folder = f"/home/{name}"
    return f"{folder}/{rest}"


def open_inside(worktree: Path, relative: str, flags: int, mode: int = 0o666) -> int:
    """A descriptor of a regular file in the worktree, to be closed by the caller.

    Raises OutsideWorktree for `..` and absolute paths, ThroughSymlink where any component is a link,
    ProtectedName for a write to a protected name, NotRegularFile, and the usual OSError.
    """
    if flags & _WRITES and (name := protected_name(relative)):
        raise ProtectedName(f"{relative} is protected ({name}) and is not written by tools.")
    with open_parent(worktree, relative) as (folder, name):
        descriptor = _step(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, folder, relative, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotRegularFile(f"{relative} is not a regular file.")
    return descriptor


def read_bytes(worktree: Path, relative: str) -> bytes:
    """The whole content of a regular file in the worktree; errors as in `open_inside`."""
    with os.fdopen(open_inside(worktree, relative, os.O_RDONLY), "rb") as file:
        return file.read()


@contextmanager
def open_parent(worktree: Path, relative: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
    """(descriptor of the folder that holds the path, the last name), for use with `dir_fd`.

    With `create`, missing folders are made; that counts as a write, so protected names are refused.
    Errors as in `open_inside`.
    """
    *folders, name = _components(relative)
    if create and (found := protected_name(relative)):
        raise ProtectedName(f"{relative} is protected ({found}) and is not written by tools.")
    descriptor = os.open(os.path.realpath(worktree), _FOLDER)
    try:
        for folder in folders:
            if create:
                _make_folder(folder, descriptor)
            inner = _step(folder, _FOLDER, descriptor, relative)
            os.close(descriptor)
            descriptor = inner
        yield descriptor, name
    finally:
        os.close(descriptor)


def _make_folder(name: str, parent: int) -> None:
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        return


def _components(relative: str) -> list[str]:
    path = PurePosixPath(relative)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\0" in relative:
        raise OutsideWorktree(f"{relative!r} is not a path inside the worktree.")
    return list(path.parts)


def _step(name: str, flags: int, parent: int, whole: str, mode: int = 0o666) -> int:
    try:
        return os.open(name, flags, mode, dir_fd=parent)
    except OSError as error:
        if _is_link(name, parent):
            raise ThroughSymlink(f"{whole} goes through the symbolic link {name}; use the path it leads to.") from error
        raise


def _is_link(name: str, parent: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except OSError:
        return False
