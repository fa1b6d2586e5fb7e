"""The installed command finds its Python however it is called, and starts it so that nothing else is imported."""

import os
import subprocess
from pathlib import Path

import pytest
from installing import LAUNCHER, install

SHELLS = ("/bin/sh", "/bin/bash", "/bin/dash")
ODD = ("plain", "with space", "quo'te\"", "-n", "é", "new\nline", "$(touch x)")


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(tmp_path_factory.mktemp("installation") / "an environment")


def version(*words: str | Path, cwd: Path, path: str = "/usr/bin:/bin") -> str:
    env = {"PATH": path, "PYTHONPATH": str(cwd), "HOME": str(cwd)}
    (cwd / "sitecustomize.py").write_text("print('a trap')")
    done = subprocess.run([*words, "--version"], cwd=cwd, env=env, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("folder", ODD, ids=repr)
def test_links_lead_to_it_from_any_folder(command: Path, tmp_path: Path, folder: str) -> None:
    """Absolute ones, as pipx and uv make them, and relative ones in a chain."""
    place = tmp_path / folder
    place.mkdir()
    (place / "thalia").symlink_to(command)
    (tmp_path / "again").symlink_to(Path(folder, "thalia"))
    (place / "last").symlink_to("../again")
    for link in (place / "thalia", tmp_path / "again", place / "last"):
        assert version(link, cwd=tmp_path) == "thalia 0.1.0\n"


@pytest.mark.parametrize("entry", ["{whole}", "{relative}", ".", ""], ids=repr)
def test_it_is_found_by_its_name(command: Path, tmp_path: Path, entry: str) -> None:
    (tmp_path / "thalia").symlink_to(command)
    relative = os.path.relpath(command.parent, tmp_path)
    path = entry.format(whole=command.parent, relative=relative) + ":/usr/bin:/bin"
    assert version("/usr/bin/env", "thalia", cwd=tmp_path, path=path) == "thalia 0.1.0\n"


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if Path(shell).exists()])
def test_any_shell_runs_it(command: Path, tmp_path: Path, shell: str) -> None:
    (tmp_path / "thalia").symlink_to(os.path.relpath(command, tmp_path))
    assert version(shell, "thalia", cwd=tmp_path) == "thalia 0.1.0\n"
    assert version(shell, "-eu", "thalia", cwd=tmp_path) == "thalia 0.1.0\n"


def test_a_readlink_of_the_path_is_not_run(command: Path, tmp_path: Path) -> None:
    (tmp_path / "readlink").write_text("#!/bin/sh\necho /trap\n")
    (tmp_path / "readlink").chmod(0o755)
    (tmp_path / "thalia").symlink_to(command)
    assert version(tmp_path / "thalia", cwd=tmp_path, path=f"{tmp_path}:/usr/bin:/bin") == "thalia 0.1.0\n"


def test_arguments_and_exit_codes_go_through_it_and_it_is_called_thalia(command: Path, tmp_path: Path) -> None:
    (tmp_path / "other").symlink_to(command)
    odd = "two  words\n$(touch x) *"
    for words, said in ((("log", odd), odd.split("\n")[1]), (("exec",), "Usage: thalia exec [OPTIONS] {prompt}\n")):
        program = [tmp_path / "other", *words]
        done = subprocess.run(program, cwd=tmp_path, env={"HOME": "/"}, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert said in done.stderr


def test_it_becomes_python_and_leaves_no_shell_behind(command: Path, tmp_path: Path) -> None:
    with subprocess.Popen([command, "exec", "-"], cwd=tmp_path, env={"HOME": str(tmp_path)}, stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE) as run:  # fmt: skip
        assert run.stdout is not None
        run.stdout.readline()
        line = Path(f"/proc/{run.pid}/cmdline").read_bytes().split(b"\0")
        run.kill()
    assert line[:3] == [os.fsencode(command.parent / "python"), b"-I", b"-c"]


def test_without_a_python_beside_it_it_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "thalia").symlink_to(LAUNCHER)
    done = subprocess.run([tmp_path / "thalia"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (10, "")
    assert done.stderr.startswith(f"There is no Python beside {LAUNCHER}; install")
