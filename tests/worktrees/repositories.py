"""Real repositories for tests: made by plain git, killed and repeated by fork."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from worktrees.pool import Pool
from worktrees.repository import Repository, open_repository

NOW = 1_800_000_000
ODD_NAMES = ("-rf", "a b.txt", 'q"uote.txt', "é.txt", "new\nline.txt", "t\ttab", "deep/é/-x", "$(touch CANARY)")


def plain_git(folder: Path, *args: str, check: bool = True) -> str:
    """git as a person runs it, with identity but without the machine's settings."""
    env = {"PATH": os.defpath, "HOME": str(folder), "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *who, *args], cwd=folder, env=env, capture_output=True, check=check)
    return done.stdout.decode("utf-8", "surrogateescape").strip()


def write(root: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def make_repository(root: Path, files: dict[str, str | bytes] | None = None) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    plain_git(root, "init", "-q")
    write(root, files if files is not None else {"a.txt": "one\n", "src/b.py": "b = 1\n", ".gitignore": "*.o\n/out/\n"})
    plain_git(root, "add", "-A")
    plain_git(root, "commit", "-qm", "start")
    return root


def opened(root: Path, home: Path | None = None) -> Repository:
    return open_repository(root, {"PATH": os.environ["PATH"], "HOME": str(home or root.parent)})


def make_pool(tmp_path: Path, files: dict[str, str | bytes] | None = None) -> Pool:
    return Pool(tmp_path / "state", opened(make_repository(tmp_path / "user", files)))


def content(root: Path, *without: str) -> dict[str, tuple[str, bytes]]:
    """Every file and link below `root` with its kind and bytes, except .git and the names given."""
    found: dict[str, tuple[str, bytes]] = {}
    for at, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != ".git"]
        for name in (*files, *(folder for folder in folders if (Path(at) / folder).is_symlink())):
            path = Path(at) / name
            relative = str(path.relative_to(root))
            if relative == ".git" or relative in without:
                continue
            if path.is_symlink():
                found[relative] = ("link", os.fsencode(path.readlink()))
            else:
                found[relative] = ("program" if path.stat().st_mode & 0o100 else "file", path.read_bytes())
    return found


def user_state(root: Path) -> tuple[object, ...]:
    """What must never change in the user's checkout: files, index, HEAD and branches."""
    index = root / ".git" / "index"
    refs = plain_git(root, "for-each-ref", "refs/heads", "refs/tags", "refs/remotes", "refs/stash")
    return content(root), index.read_bytes(), index.stat().st_mtime_ns, (root / ".git" / "HEAD").read_text(), refs


def kill_at(point: str, call: Callable[[Callable[[str], None]], object]) -> bool:
    """Run `call(reached)` in a child that dies by SIGKILL when it comes to `point`; whether it came there."""

    def reached(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            call(reached)
        os._exit(0)
    return os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
