"""The walls of the house: who may import whom, how long a module and a function may be."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROWS = (
    ("cli", "thalia"),
    ("actors", "frontends"),
    ("agent", "worktrees", "kernels"),
    ("processes",),
    ("eventlog",),
    ("configs",),
)
RANK = {name: row for row, names in enumerate(ROWS) for name in names}
ONLY = {
    "ray": {"actors"},
    "duckdb": {"eventlog"},
    "git": {"worktrees"},
    "torch": {"kernels"},
    "triton": {"kernels"},
    "httpx": {"agent", "frontends"},
    "typer": {"cli", "frontends"},
    "xllamacpp": {"agent"},
}


def modules() -> list[Path]:
    names = [f"{name}.py" for name in RANK if (ROOT / f"{name}.py").exists()]
    folders = [path for name in RANK for path in sorted((ROOT / name).rglob("*.py"))]
    return [*(ROOT / name for name in names), *folders]


def imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_rooms_below_its_own(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    found = set(imports(ast.parse(path.read_text())))
    upwards = {other for other in found & RANK.keys() if other != room and RANK[other] <= RANK[room]}
    foreign = {other for other in found & ONLY.keys() if room not in ONLY[other]}
    assert not upwards and not foreign


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_and_its_functions_fit_on_few_screens(path: Path) -> None:
    text = path.read_text()
    long = [
        f"{node.name}: {length(node)} lines"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and length(node) > 40
    ]
    assert text.count("\n") <= 400 and not long


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of the body after its docstring; none for one flat match."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if not body or (len(body) == 1 and isinstance(body[0], ast.Match)):
        return 0
    return (function.end_lineno or 0) - body[0].lineno + 1


def test_every_room_of_the_tree_is_a_room_of_the_house() -> None:
    tracked = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    rooms = {line.split("/")[0].removesuffix(".py") for line in tracked.stdout.splitlines()}
    assert rooms <= RANK.keys() | {"tests", "benchmarks", "docs"}
