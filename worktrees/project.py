"""What a worktree needs to run the project's tests: folders to bind, toolchains to read, variables to set.

Reads files alone: no git, no process. Everything of the checkout is bound read-only.
"""

import ast
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

DEFAULT_INCLUDE = (".venv", "node_modules")
SYSTEM = tuple(map(Path, ("/usr", "/bin", "/sbin", "/lib", "/lib64")))
PREFIX_PARTS = ("bin", "lib", "lib64", "libexec", "include", "share")
PRIVATE_NAMES = frozenset(
    {".env", ".envrc", ".git", ".thalia", ".netrc", ".npmrc", ".pypirc", ".ssh", ".aws", ".gnupg"}
)
PRIVATE_ENDINGS = (".pem", ".key", ".p12", ".pfx")


@dataclass(frozen=True, slots=True)
class Bind:
    """`source` in the user's checkout, to be seen read-only at `target` in the worktree."""

    source: Path
    target: Path


@dataclass(frozen=True, slots=True)
class ProjectEnvironment:
    """`readable`: absolute paths outside the system that commands need to read, at their own place. `path_entries` go
    before PATH, `env` is set as it is. `left_out`: what could not be given, one sentence each."""

    binds: tuple[Bind, ...]
    readable: tuple[Path, ...]
    path_entries: tuple[str, ...]
    env: Mapping[str, str]
    left_out: tuple[str, ...]


def project_environment(checkout: Path, worktree: Path, environment: Mapping[str, str]) -> ProjectEnvironment:
    """Everything from the files of the user's checkout; `environment`: PATH and HOME of the user are looked at.

    Imports of an editable install reach the worktree's code: PYTHONPATH comes before what its finders say.
    """
    checkout, home = checkout.resolve(), Path(environment.get("HOME", "/nonexistent"))
    binds, left_out = find_binds(checkout, worktree)
    venvs = [bind for bind in binds if (bind.source / "pyvenv.cfg").is_file()]
    env: dict[str, str] = {}
    entries: list[str] = []
    imports: list[Path] = []
    readable: list[Path] = []
    for bind in venvs:
        found, unmapped = editable_paths(bind.source, checkout)
        imports += [worktree / path.relative_to(checkout) for path in found]
        left_out += unmapped
        entries.append(str(bind.target / "bin"))
        # Scripts of a venv name its interpreter by its first path.
        readable += [bind.source, *interpreter_roots(bind.source, home)]
    if venvs:
        env["VIRTUAL_ENV"] = str(venvs[0].target)
    if imports:
        env["PYTHONPATH"] = os.pathsep.join(map(str, dict.fromkeys(imports)))
    entries += [str(bind.target / ".bin") for bind in binds if bind.source.name == "node_modules"]
    readable += toolchain_roots(environment.get("PATH", ""), home)
    return ProjectEnvironment(tuple(binds), outermost(readable), tuple(entries), env, tuple(left_out))


def find_binds(checkout: Path, worktree: Path) -> tuple[list[Bind], list[str]]:
    """What `.worktreeinclude` names (one path a line, `*` allowed), or the default names, where it exists."""
    binds: dict[Path, Bind] = {}
    left_out: list[str] = []
    for name in read_include(checkout):
        parts = Path(name.strip("/")).parts
        if not parts or ".." in parts:
            left_out.append(f"{name} in .worktreeinclude is no path below the checkout.")
            continue
        for source in sorted(checkout.glob("/".join(parts))):
            relative = source.relative_to(checkout)
            if reason := reason_to_leave_out(source, checkout):
                left_out.append(f"{relative} {reason}.")
            else:
                binds[relative] = Bind(source.resolve(), worktree / relative)
    return [binds[key] for key in sorted(binds)], left_out


def read_include(checkout: Path) -> tuple[str, ...]:
    file = checkout / ".worktreeinclude"
    if file.is_symlink() or not file.is_file():
        return DEFAULT_INCLUDE
    lines = [line.strip() for line in file.read_text("utf-8", "replace").splitlines()]
    return tuple(line for line in lines if line and not line.startswith("#") and not line.startswith("!"))


def reason_to_leave_out(source: Path, checkout: Path) -> str | None:
    """A repository names these files, so it gets none that hold secrets and none outside of the checkout."""
    real = source.resolve()
    for path in (source, real):
        parts = [part.casefold() for part in path.parts[len(checkout.parts) :]] if checkout in path.parents else []
        if any(part in PRIVATE_NAMES or part.startswith(".env.") or part.endswith(PRIVATE_ENDINGS) for part in parts):
            return "may hold secrets and is not given to agents"
    if checkout not in real.parents:
        return f"leads out of the checkout to {real}; give it with --add-dir if that is wanted"
    return None


def editable_paths(venv: Path, checkout: Path) -> tuple[list[Path], list[str]]:
    """(folders of the checkout that editable installs put on the import path, in order; what no path can express)."""
    found: list[Path] = []
    unmapped: list[str] = []
    for site in sorted(venv.glob("lib*/python*/site-packages")):
        for file in sorted(site.glob("*.pth")):
            for line in file.read_text("utf-8", "replace").splitlines():
                if line.strip() and not line.startswith(("#", "import ", "import\t")):
                    found.append((site / line.strip()).resolve())
        for file in sorted(site.glob("__editable__*finder.py")):
            for package, path in read_mapping(file).items():
                real = Path(path).resolve()
                *outer, last = package.split(".")
                package_root = real.parents[len(outer)]
                if real.with_suffix("") != package_root.joinpath(*outer, last):
                    unmapped.append(
                        f"{package} is installed from {real}, a folder of another name; its code is not the worktree's."
                    )
                    continue
                found.append(package_root)
    inside = [path for path in found if path == checkout or checkout in path.parents]
    return [path for path in dict.fromkeys(inside) if venv not in path.parents], unmapped


def read_mapping(finder: Path) -> dict[str, str]:
    """The literal `MAPPING` of a setuptools finder module; it is read, never run."""
    try:
        tree = ast.parse(finder.read_text("utf-8", "replace"))
    except (SyntaxError, ValueError):
        return {}
    for node in tree.body:
        target = node.target if isinstance(node, ast.AnnAssign) else None
        target = node.targets[0] if isinstance(node, ast.Assign) else target
        if isinstance(target, ast.Name) and target.id == "MAPPING" and isinstance(node, ast.Assign | ast.AnnAssign):
            value = ast.literal_eval(node.value) if isinstance(node.value, ast.Dict) else {}
            return {str(key): str(path) for key, path in value.items()}
    return {}


def interpreter_roots(venv: Path, home: Path) -> list[Path]:
    """Where the venv's base interpreter lives, as far as that is outside of the system folders.

    A repository may have written the venv, so only a folder `bin` that holds a Python is believed.
    """
    folders = []
    for line in (venv / "pyvenv.cfg").read_text("utf-8", "replace").splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "home":
            folders.append(Path(value.strip()))
    python = venv / "bin" / "python"
    folders += [python.resolve().parent] if python.exists() else []
    real = dict.fromkeys(one for folder in folders for one in (folder, folder.resolve()) if holds_python(one))
    return [part for folder in real for part in prefix_parts(folder, home)]


def holds_python(folder: Path) -> bool:
    return folder.is_absolute() and folder.name == "bin" and (folder / "python3").is_file()


def toolchain_roots(path: str, home: Path) -> list[Path]:
    """Programs on PATH outside of the system folders, with the libraries of their prefix where it is a toolchain's."""
    found: list[Path] = []
    for entry in path.split(os.pathsep):
        if entry.startswith("/") and Path(entry).is_dir():
            found += prefix_parts(Path(entry), home)
    if home / ".cargo" / "bin" in found and (home / ".rustup" / "toolchains").is_dir():
        found += [home / ".rustup" / "toolchains", home / ".rustup" / "settings.toml"]
    if home / ".pyenv" / "shims" in found:
        # Programs and nothing else: one mount instead of six, each of which a command would wait for.
        found.append(home / ".pyenv")
    return [one for one in found if one.exists()]


def prefix_parts(folder: Path, home: Path) -> list[Path]:
    """`folder`, and where it is PREFIX/bin of a toolchain, the other program folders of PREFIX; never all of PREFIX,
    which may hold credentials (~/.cargo) or the user's data (~/.local/share)."""
    prefix = folder.parent
    if any(folder == root or root in folder.parents for root in SYSTEM):
        return []
    personal = {Path("/"), home, home / ".local", home / ".cargo"}
    if folder.name != "bin" or prefix in personal or not (prefix / "lib").is_dir():
        return [folder]
    return [prefix / name for name in PREFIX_PARTS if is_folder(prefix / name)]


def is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError:
        return False


def outermost(paths: list[Path]) -> tuple[Path, ...]:
    """Without duplicates, paths below another one, and the system's own; sorted."""
    given = {path for path in paths if not any(path == root or root in path.parents for root in SYSTEM)}
    return tuple(sorted(path for path in given if not given & set(path.parents)))
