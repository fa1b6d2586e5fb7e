"""Proves on this machine that the sandbox holds: one confined child tries to get out, and must fail."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from processes.commands import Confinement, SandboxMissing
from processes.sandbox import Host, candidates, find_host, sandbox_argv

# Runs inside. argv: worktree, .git folder, outside folder, abstract socket, port. Prints what it
# managed to do that it must not, and what it could not do that it must.
PROBE = """
import ctypes, json, os, sys, _socket
work, git, outside, abstract, port = sys.argv[1:]
failures = []
def must(sentence, attempt):
    try: attempt()
    except OSError as fault: failures.append(f"{sentence}: {fault.strerror}")
def must_not(sentence, attempt):
    try: attempt()
    except OSError: return
    failures.append(sentence)
def write(path):
    with open(path, "w") as file: file.write("x")
def connect(family, address):
    _socket.socket(family, _socket.SOCK_STREAM).connect(address)
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments): raise OSError(ctypes.get_errno(), name)
must("the worktree cannot be written", lambda: write(work + "/inside"))
must("/tmp cannot be written", lambda: write("/tmp/inside"))
must_not("a file outside was written", lambda: write(outside + "/canary"))
must_not("a file outside was read", lambda: open(outside + "/secret").close())
must_not("a file of the system was written", lambda: write("/usr/canary-of-thalia"))
must_not("the folder .git was written", lambda: write(git + "/canary"))
must_not("the file .git was written", lambda: write(work + "/.git"))
must_not("the folder .git was remounted", lambda: (call("mount", None, git.encode(), None, 0x1020, None)))
must_not("the root was remounted", lambda: (call("mount", None, b"/", None, 0x1020, None)))
must_not("a new user namespace was made", lambda: call("unshare", 0x10000000))
must_not("a loopback port was reached", lambda: connect(_socket.AF_INET, ("127.0.0.1", int(port))))
must_not("a Unix socket outside was reached", lambda: (os.chdir(outside), connect(_socket.AF_UNIX, "s")))
must_not("an abstract Unix socket was reached", lambda: connect(_socket.AF_UNIX, "\\0" + abstract))
print(json.dumps(failures))
"""


@dataclass(frozen=True, slots=True)
class SandboxReport:
    ok: bool
    failures: tuple[str, ...]
    """Sentences' ends: what the sandbox let through, or why there is none."""
    bwrap: Path | None
    """The first candidate that passed, else the last that was tried."""


def self_test(folder: Path) -> SandboxReport:
    """In a temporary folder inside `folder`, which must be writable and lie where worktrees do. Removed afterwards."""
    if not sys.platform.startswith("linux"):
        return SandboxReport(False, ("seatbelt is not supported yet: confined commands need Linux",), None)
    report = SandboxReport(False, ("bubblewrap was not found",), None)
    for bwrap in candidates():
        try:
            report = _try(folder, find_host(bwrap))
        except SandboxMissing as fault:
            return SandboxReport(False, (str(fault),), None)
        if report.ok:
            break
    return report


def _try(folder: Path, host: Host) -> SandboxReport:
    base = Path(tempfile.mkdtemp(prefix="sandbox-", dir=folder)).absolute()
    try:
        failures = probe(host, base, standard(base))
        if (base / "outside" / "canary").exists():
            failures.append("a file outside appeared")
    finally:
        shutil.rmtree(base)
    return SandboxReport(not failures, tuple(failures), host.bwrap)


def standard(base: Path) -> Confinement:
    python = (Path(os.path.realpath(sys.executable)), Path(sys.base_prefix))
    return Confinement((base / "work",), python, base / "git", base / "work" / ".git")


def probe(host: Host, base: Path, confinement: Confinement) -> list[str]:
    """What a command under `confinement` can do that it must not, with a worktree and its outside made in `base`."""
    work, git, outside = base / "work", base / "git", base / "outside"
    for path in (work, git, outside):
        path.mkdir()
    (work / ".git").write_text("gitdir: elsewhere\n")
    (outside / "secret").touch()
    abstract_name = f"\0thalia-{base.name}"
    with (
        socket.create_server(("127.0.0.1", 0)) as port,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        listen_in(unix, outside)
        abstract.bind(abstract_name)
        abstract.listen()
        names = [str(work), str(git), str(outside), abstract_name[1:], str(port.getsockname()[1])]
        command = [os.path.realpath(sys.executable), "-I", "-S", "-c", PROBE, *names]
        return _run(sandbox_argv(host, None, confinement, {"PATH": os.defpath}, work, command))


def listen_in(unix: socket.socket, folder: Path) -> None:
    """The path of a Unix socket has at most 107 bytes; through a descriptor any folder will do."""
    fd = os.open(folder, os.O_PATH)
    try:
        unix.bind(f"/proc/self/fd/{fd}/s")
    finally:
        os.close(fd)
    unix.listen()


def _run(argv: list[str]) -> list[str]:
    done = subprocess.run(argv, capture_output=True, stdin=subprocess.DEVNULL, check=False, timeout=30, env={})
    try:
        return json.loads(done.stdout)
    except ValueError:
        return [f"the sandbox could not be made: {done.stderr.decode(errors='replace').strip()[-300:]}"]
