"""Glob and grep give the same by ripgrep and without it, and never leave the worktree."""

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.tools import searching
from agent.tools.plain_search import glob_regex, ignore_rules, is_ignored
from agent.tools.reading import any_path, run_reading
from agent.tools.schemas import GlobArguments, GrepArguments
from agent.tools.searching import find_files, find_ripgrep, search_files
from eventlog.outcomes import ToolFailed, ToolSucceeded

PLAIN = None


@pytest.fixture(params=["ripgrep", "plain"])
def program(request: pytest.FixtureRequest) -> str | None:
    if request.param == "plain":
        return PLAIN
    found = find_ripgrep()
    if found is None:
        pytest.skip("ripgrep is not installed")
    return found


@pytest.fixture
def worktree(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    files = {
        "a.py": "import os\ndef total():\n    return 1\n",
        "src/b.py": "total = 2\r\n",
        "src/deep/c.ts": "let total = 3;\n",
        ".hidden/d.py": "total\n",
        "build/out.py": "total\n",
        "src/x.log": "total\n",
        "src/keep.log": "total\n",
        ".gitignore": "build/\n*.log\n!keep.log\n",
        "src/.gitignore": "/local.py\n",
        "src/local.py": "total\n",
        "src/deep/local.py": "total\n",
        "-dash.py": "total\n",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content.encode())
    (folder / "binary.py").write_bytes(b"total\0\n")
    outside = tmp_path / "out"
    outside.mkdir()
    (outside / "secret.py").write_text("total\n")
    (folder / "link").symlink_to(outside)
    (folder / "s.py").symlink_to(outside / "secret.py")
    return folder


def listed(worktree: Path, program: str | None, pattern: str, path: str | None = None) -> list[str]:
    outcome = find_files(worktree, GlobArguments(pattern=pattern, path=path), None, any_path, program)
    assert isinstance(outcome, ToolSucceeded), outcome
    return outcome.text.split("\n")


def matches(worktree: Path, program: str | None, pattern: str, **more: Any) -> list[str]:
    outcome = search_files(worktree, GrepArguments(pattern=pattern, **more), None, any_path, program)
    assert isinstance(outcome, ToolSucceeded), outcome
    return outcome.text.split("\n")


def test_glob_lists_files_that_are_not_ignored(worktree: Path, program: str | None):
    assert listed(worktree, program, "*.py") == [
        "-dash.py",
        ".hidden/d.py",
        "a.py",
        "binary.py",
        "src/b.py",
        "src/deep/local.py",
    ]
    assert listed(worktree, program, "src/**/*.{ts,log}") == ["src/deep/c.ts", "src/keep.log"]
    assert listed(worktree, program, "**/c.ts", path="src") == ["src/deep/c.ts"]
    assert listed(worktree, program, f"{worktree}/a.*") == ["a.py"]
    assert listed(worktree, program, "*.zig") == ["No file matches."]
    assert not any(".git/" in path for path in listed(worktree, program, "**"))


def test_grep_gives_path_line_and_text(worktree: Path, program: str | None):
    assert matches(worktree, program, "total") == [
        "-dash.py:1:total",
        ".hidden/d.py:1:total",
        "a.py:2:def total():",
        "src/b.py:1:total = 2",
        "src/deep/c.ts:1:let total = 3;",
        "src/deep/local.py:1:total",
        "src/keep.log:1:total",
    ]
    assert matches(worktree, program, r"total\(\)") == ["a.py:2:def total():"]
    assert matches(worktree, program, "total", path="src", glob="*.ts") == ["src/deep/c.ts:1:let total = 3;"]
    assert matches(worktree, program, "total", path="src/b.py") == ["src/b.py:1:total = 2"]
    assert matches(worktree, program, "total", glob="src/*.py") == ["src/b.py:1:total = 2"]
    assert matches(worktree, program, "nowhere") == ["No line matches."]


def test_an_ignored_file_stays_ignored_though_the_glob_names_it(worktree: Path, program: str | None):
    assert matches(worktree, program, "total", glob="*.log") == ["src/keep.log:1:total"]


def test_a_pattern_that_looks_like_an_option_is_a_pattern(worktree: Path, program: str | None):
    (worktree / "options.txt").write_text("run with --pre=/bin/sh or --files\n")
    for pattern in ("--pre=/bin/sh", "--files"):
        assert matches(worktree, program, pattern) == ["options.txt:1:run with --pre=/bin/sh or --files"]
    assert matches(worktree, program, "total", path="-dash.py") == ["-dash.py:1:total"]


def test_a_wrong_pattern_is_told(worktree: Path, program: str | None):
    outcome = search_files(worktree, GrepArguments(pattern="("), None, any_path, program)
    assert isinstance(outcome, ToolFailed)
    assert "regex parse error" in outcome.text


def test_searches_do_not_leave_the_worktree(worktree: Path, program: str | None):
    for path in ("link", "..", "/etc", "s.py"):
        outcome = search_files(worktree, GrepArguments(pattern="total", path=path), None, any_path, program)
        assert isinstance(outcome, ToolFailed), path
        assert "outside the worktree" in outcome.text
        outcome = find_files(worktree, GlobArguments(pattern="*", path=path), None, any_path, program)
        assert isinstance(outcome, ToolFailed), path


def test_files_that_may_not_be_read_are_not_shown(worktree: Path, program: str | None):
    def readable(path: str) -> bool:
        return not path.startswith("src/")

    outcome = search_files(worktree, GrepArguments(pattern="total"), None, readable, program)
    assert "src/" not in outcome.text
    assert "a.py" in outcome.text
    assert "src/" not in find_files(worktree, GlobArguments(pattern="**"), None, readable, program).text


def test_many_matches_and_long_lines_are_cut(worktree: Path, program: str | None):
    (worktree / "many.txt").write_text("needle\n" * 1000)
    found = matches(worktree, program, "needle")
    assert found[:2] == ["many.txt:1:needle", "many.txt:2:needle"]
    assert len(found) == searching.MAX_MATCHES + 1
    assert found[-1] == "[there are more matches; narrow the pattern, path or glob]"
    (worktree / "many.txt").write_text("needle" + "x" * 100_000 + "\n")
    (line,) = matches(worktree, program, "needle")
    assert line.endswith(" [… line cut]")
    assert len(line) < 600


def test_invisible_text_in_matches_is_shown(worktree: Path, program: str | None):
    (worktree / "bidi.txt").write_text("needle \u202e evil\n")
    assert matches(worktree, program, "needle") == ["bidi.txt:1:needle <U+202E> evil"]


def test_names_with_strange_letters_are_shown(worktree: Path, program: str | None):
    (worktree / "a\nb:1.odd").write_text("needle\n")
    (worktree / b"bad\xff.odd".decode("utf-8", "surrogateescape")).write_text("needle\n")
    assert listed(worktree, program, "*.odd") == ["a", "b:1.odd", "bad\ufffd.odd"]
    assert matches(worktree, program, "needle", glob="bad*") == ["bad\ufffd.odd:1:needle"]


def test_a_search_that_takes_too_long_is_ended(worktree: Path):
    (worktree / "slow.txt").write_text("a" * 40 + "!\n")
    began = time.monotonic()
    outcome = search_files(worktree, GrepArguments(pattern="(a+)+$"), None, any_path, PLAIN, limit_s=1.0)
    assert time.monotonic() - began < 8
    assert isinstance(outcome, ToolFailed)
    assert "time limit" in outcome.text


def test_the_configuration_of_ripgrep_is_not_read(worktree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    config = tmp_path / "ripgreprc"
    config.write_text("--invert-match\n")
    monkeypatch.setenv("RIPGREP_CONFIG_PATH", str(config))
    assert run_reading(worktree, GrepArguments(pattern="import os")).outcome.text == "a.py:1:import os"


def test_ripgrep_is_found_beside_the_interpreter():
    found = find_ripgrep()
    assert found is None or Path(found).is_absolute()
    if (Path(sys.executable).parent / "rg").exists():
        assert found == str(Path(sys.executable).parent / "rg")


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("*.py", ["a.py", "x/y/a.py"], ["a.pyc", "a.py/b"]),
        ("src/*.py", ["src/a.py"], ["src/x/a.py", "y/src/a.py"]),
        ("src/**/a", ["src/a", "src/x/y/a"], ["src/xa"]),
        ("**/a", ["a", "x/a"], ["xa"]),
        ("src/**", ["src/a", "src/x/a"], ["srcx"]),
        ("a?[0-9]", ["ab1"], ["a/1", "ab/", "abc"]),
        ("[!a]b", ["xb"], ["ab", "/b"]),
        ("*.{a,b}", ["x.a", "x.b"], ["x.c", "x.{a,b}"]),
        ("[", ["["], ["a"]),
        ("./a", ["a"], ["b"]),
    ],
)
def test_glob_patterns(pattern: str, yes: list[str], no: list[str]):
    regex = glob_regex(pattern)
    assert [path for path in yes if not regex.fullmatch(path)] == []
    assert [path for path in no if regex.fullmatch(path)] == []


@given(st.text(alphabet="*?[]{}!^,\\/ab-", max_size=20))
def test_no_glob_pattern_makes_an_exception(pattern: str):
    glob_regex(pattern).fullmatch("a/b")
    is_ignored("a/b", False, [("", ignore_rules(pattern))])
