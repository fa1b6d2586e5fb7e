"""The /etc of confined commands: copies of the few files that programs need, in one folder, since a mount a file costs
0.1 ms a command. Never all of /etc: it holds keys and password hashes."""

import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from configs.boot import boot_id

NAMES = (
    "alternatives",
    "group",
    "hosts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "passwd",
    "protocols",
    "services",
    "ssl/openssl.cnf",
    "timezone",
)
FOR_NETWORK = ("resolv.conf", "ssl/certs", "pki/ca-trust/extracted", "pki/tls/certs")
"""Empty in the copy; with network the host's own are bound over these: they are many, or change."""


def prepare_etc(parent: Path, source: Path = Path("/etc")) -> Path:
    """The folder, inside `parent`; made where there is none for the present state of `source` (some ms)."""
    wanted = parent / f".etc-{stamp(source)}"
    if wanted.is_dir():
        return wanted
    temporary = Path(tempfile.mkdtemp(prefix=".etc-", dir=parent))
    for name in NAMES:
        (temporary / name).parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        copy(source / name, temporary / name)
    for name in FOR_NETWORK:
        place = temporary / name
        if (source / name).is_dir():
            place.mkdir(mode=0o755, parents=True, exist_ok=True)
        elif (source / name).exists():
            place.touch(0o644)
    temporary.chmod(0o755)
    try:
        temporary.rename(wanted)
    except OSError:
        # Another harness was first.
        shutil.rmtree(temporary)
    return wanted


def stamp(source: Path) -> str:
    # Nothing of the copy is synced: after another boot of the machine it is made anew.
    digest = hashlib.sha256(boot_id().encode())
    for name in NAMES:
        with suppress(OSError):
            found = (source / name).stat()
            digest.update(f"{name} {found.st_mtime_ns} {found.st_size}\n".encode())
    return digest.hexdigest()[:12]


def copy(source: Path, target: Path) -> None:
    """Links into /usr stay links; what is unreadable, dangling or no file is left out."""
    real = Path(os.path.realpath(source))
    try:
        if source.is_symlink() and real.is_relative_to("/usr") and real.exists():
            target.symlink_to(real)
        elif real.is_dir():
            target.mkdir(0o755)
            for entry in sorted(real.iterdir()):
                copy(entry, target / entry.name)
        elif real.is_file():
            target.write_bytes(real.read_bytes())
            target.chmod(0o644)
    except PermissionError:
        return
