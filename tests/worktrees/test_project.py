"""A worktree runs the project's tests with the user's tools and its own code."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from repositories import write

from worktrees.project import Bind, ProjectEnvironment, project_environment


def make_project(tmp_path: Path) -> tuple[Path, Path]:
    """(checkout, worktree), each with its own version of one package in two layouts."""
    for name in ("checkout", "worktree"):
        write(tmp_path / name, {f"{kind}/__init__.py": f"WHERE = {name!r}\n" for kind in ("src/pkg", "flat")})
    venv.create(tmp_path / "checkout" / ".venv", with_pip=False, symlinks=True)
    return tmp_path / "checkout", tmp_path / "worktree"


def site_packages(checkout: Path) -> Path:
    return next((checkout / ".venv").glob("lib/python*/site-packages"))


def environment_of(tmp_path: Path) -> ProjectEnvironment:
    home = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home")}
    return project_environment(tmp_path / "checkout", tmp_path / "worktree", home)


def imported_from(tmp_path: Path, package: str, env: dict[str, str]) -> Path:
    python = tmp_path / "checkout" / ".venv" / "bin" / "python"
    code = f"import {package}; print({package}.__file__)"
    out = subprocess.run([python, "-c", code], cwd=tmp_path, env=env, capture_output=True, check=True, text=True)
    return Path(out.stdout.strip())


@pytest.mark.parametrize("package", ["pkg", "flat"])
@pytest.mark.parametrize("style", ["path file", "finder", "relative"])
def test_an_editable_install_imports_the_code_of_the_worktree(tmp_path: Path, package: str, style: str) -> None:
    checkout, worktree = make_project(tmp_path)
    site = site_packages(checkout)
    folder = {"pkg": checkout / "src", "flat": checkout}[package]
    match style:
        case "path file":
            write(site, {"_editable.pth": f"# a comment\n{folder}\nimport sys\n"})
        case "relative":
            write(site, {"easy-install.pth": os.path.relpath(folder, site) + "\n"})
        case _:
            finder = f"import sys\nMAPPING: dict[str, str] = {{{package!r}: {str(folder / package)!r}}}\n" + FINDER
            write(site, {"__editable___demo_finder.py": finder})
            write(
                site, {"__editable__.demo.pth": "import __editable___demo_finder; __editable___demo_finder.install()\n"}
            )
    assert checkout in imported_from(tmp_path, package, {}).parents
    env = dict(environment_of(tmp_path).env)
    assert worktree in imported_from(tmp_path, package, env).parents


FINDER = """
import importlib.util
class Finder:
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name in MAPPING:
            return importlib.util.spec_from_file_location(name, MAPPING[name] + "/__init__.py")
def install():
    sys.meta_path.append(Finder)
"""


def test_an_editable_install_made_by_the_build_tool_imports_the_worktree(tmp_path: Path) -> None:
    checkout, worktree = make_project(tmp_path)
    site = site_packages(checkout)
    write(checkout, {"setup.cfg": "[metadata]\nname = demo\n[options]\npackage_dir =\n    = src\npackages = pkg\n"})
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    # What pip does for `install -e`, without its isolated environment, which needs the network.
    build = "import sys, setuptools.build_meta as backend; print(backend.build_editable(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", build, str(wheels)], cwd=checkout, capture_output=True, text=True, check=True
    )
    with zipfile.ZipFile(wheels / done.stdout.split()[-1]) as wheel:
        wheel.extractall(site)
    assert checkout in imported_from(tmp_path, "pkg", {}).parents
    assert worktree in imported_from(tmp_path, "pkg", dict(environment_of(tmp_path).env)).parents


def test_binds_variables_and_paths_of_the_default_names(tmp_path: Path) -> None:
    checkout, worktree = make_project(tmp_path)
    write(checkout, {"node_modules/.bin/tool": "#!/bin/sh\n"})
    found = environment_of(tmp_path)
    assert found.binds == tuple(Bind(checkout / name, worktree / name) for name in (".venv", "node_modules"))
    assert found.path_entries == (str(worktree / ".venv/bin"), str(worktree / "node_modules/.bin"))
    assert found.env["VIRTUAL_ENV"] == str(worktree / ".venv")
    assert checkout / ".venv" in found.readable
    assert found.left_out == ()


def test_the_base_interpreter_of_the_venv_is_readable(tmp_path: Path) -> None:
    make_project(tmp_path)
    readable = environment_of(tmp_path).readable
    real = Path(sys.executable).resolve()
    system = Path("/usr") in real.parents
    assert system or any(root in real.parents for root in readable)
    assert system or any(root in Path(os.__file__).resolve().parents for root in readable)


def test_the_repository_cannot_name_secrets_or_what_is_outside(tmp_path: Path) -> None:
    checkout, _ = make_project(tmp_path)
    write(tmp_path, {"home/.ssh/id": "secret", "elsewhere/x": "x"})
    write(checkout, {".env": "KEY=1", "data/x.csv": "1", "data/.env.local": "KEY=1", "server.pem": "k"})
    (checkout / "keys").symlink_to(tmp_path / "home" / ".ssh")
    names = (".env", "/data/*.csv", "data/.env.local", "keys", "../elsewhere", "*.pem", "missing", "# no", "!no")
    write(checkout, {".worktreeinclude": "\n".join(names)})
    found = environment_of(tmp_path)
    assert [bind.source for bind in found.binds] == [checkout / "data" / "x.csv"]
    assert len(found.left_out) == 5


def test_a_planted_venv_opens_no_folder_of_the_user(tmp_path: Path) -> None:
    checkout, _ = make_project(tmp_path)
    write(tmp_path, {"home/.ssh/bin/id": "secret"})
    write(checkout, {".venv/pyvenv.cfg": f"home = {tmp_path}/home/.ssh/bin\n"})
    assert not [path for path in environment_of(tmp_path).readable if tmp_path / "home" in path.parents]


def test_toolchains_on_the_path_are_readable_without_their_credentials(tmp_path: Path) -> None:
    make_project(tmp_path)
    home = tmp_path / "home"
    write(home, {".cargo/bin/cargo": "", ".cargo/credentials.toml": "secret", ".rustup/toolchains/s/bin/rustc": ""})
    write(
        home,
        {".nvm/versions/node/v1/bin/node": "", ".nvm/versions/node/v1/lib/x": "", ".nvm/versions/node/v1/.npmrc": ""},
    )
    write(home, {".local/bin/uv": "", ".local/lib/x": "", ".local/share/keyring": "secret"})
    path = os.pathsep.join(str(home / name) for name in (".cargo/bin", ".nvm/versions/node/v1/bin", ".local/bin"))
    found = project_environment(
        tmp_path / "checkout", tmp_path / "worktree", {"PATH": f"{path}:/usr/bin", "HOME": str(home)}
    )
    below = {str(one.relative_to(home)) for one in found.readable if home in one.parents}
    node = ".nvm/versions/node/v1"
    assert below == {".cargo/bin", ".rustup/toolchains", ".local/bin", f"{node}/bin", f"{node}/lib"}


def test_a_package_under_another_folder_name_is_told(tmp_path: Path) -> None:
    checkout, _ = make_project(tmp_path)
    finder = f"MAPPING = {{'renamed': {str(checkout / 'src' / 'pkg')!r}}}\n"
    write(site_packages(checkout), {"__editable___demo_finder.py": finder})
    assert "renamed" in environment_of(tmp_path).left_out[0]
