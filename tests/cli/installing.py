"""The command as an installation has it: the launcher beside the Python of an environment of its own."""

import shutil
import venv
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
LAUNCHER = ROOT / "bin" / "thalia"


def make_environment(folder: Path) -> Path:
    """An empty one; its bin folder."""
    venv.EnvBuilder(symlinks=True, with_pip=False).create(folder)
    return folder / "bin"


def give_dependencies(folder: Path, *more: Path) -> None:
    """Those that the tests run with, and what else is in `more`. An installer must not see them: it would update what
    they hold, in the environment that they belong to."""
    spec = find_spec("typer")
    assert spec is not None and spec.origin is not None
    [packages] = folder.glob("lib/python3*/site-packages")
    lines = [str(path) for path in (*more, Path(spec.origin).parent.parent)]
    (packages / "dependencies.pth").write_text("\n".join(lines))


def install(folder: Path) -> Path:
    """The command of an environment that runs the code of this tree."""
    programs = make_environment(folder)
    give_dependencies(folder, ROOT)
    return Path(shutil.copy(LAUNCHER, programs / "thalia"))
