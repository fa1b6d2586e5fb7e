"""Properties of the parser: it never raises, and bash itself never runs what it calls a mere reader."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agent.permissions.facts import Folders, gather
from agent.permissions.judge import judge_command
from agent.permissions.programs import read_only
from agent.permissions.rules import Rules
from agent.permissions.shell import parse
from agent.permissions.verdicts import Allow
from agent.permissions.words import NotUnderstood, Parsed

PIECES = """canary | canary | 'canary' | "canary" | ' | " | \\ | $( | ) | ` | # |;|&|&&| { | } |${x:-|${x|}|$x|$|
echo | echo a|[[ | ]] | [ | ] |case x in | esac |x) |;;|if | then | fi |for i in | do | done |while |(|((|))|$((|+|1|<(
|>(|<<<|2>&1|>/dev/null|=|x=|!|==| =~ |-n |-f |$'|$"|*|?|~|f() 
|time |eval |trap |command |env |bash -c |sh -c |xargs |test
|printf |-v |a[|-eq |coproc |@P}|!x}"""
TOKENS = [
    *PIECES.split("|"),
    "|",
    "||",
    "\n",
    "\\\n",
    " ",
    " ",
    "<<E\n",
    "<<'E'\n",
    "<<-E\n",
    "\nE\n",
    "\u00a0",
    "é",
    "\t",
]
SOUP = st.lists(st.sampled_from(TOKENS), max_size=14).map("".join)
CANARY = "touch canary"


@settings(max_examples=400, deadline=None)
@given(st.one_of(st.text(), SOUP, st.binary().map(lambda raw: raw.decode("utf-8", "surrogateescape"))))
def test_no_text_makes_the_parser_raise(text: str) -> None:
    assert isinstance(parse(text), Parsed | NotUnderstood)


def wrapped_once(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    forms = [
        "echo $({})",
        "echo `{}`",
        'echo "a $({}) b"',
        "echo <({})",
        "cat a | {}",
        "ls; {}",
        "ls && {}",
        "ls\n{}",
        "({})",
    ]
    forms += [
        "{{ {}; }}",
        "if {}; then ls; fi",
        "if ls; then {}; fi",
        "for i in $({}); do ls; done",
        "while {}; do ls; done",
    ]
    forms += [
        "case $({}) in a) ls;; esac",
        "case a in a) {};; esac",
        "f() {{ {}; }}",
        "echo ${{x:-$({})}}",
        "cat <<E\n$({})\nE\n",
    ]
    forms += [
        "[[ -n $({}) ]]",
        "x=$({})",
        "x=(a $({}))",
        "echo $((1 + $({})))",
        "! {}",
        "{} &",
        "{} | cat",
        "echo a > $({})",
    ]
    forms += [
        "time {}",
        "ls || {}",
        "LC_ALL=$({}) ls",
        "echo {{a,$({})}}",
        "cat <<< $({})",
        "export A=$({})",
        "echo 'x' \"$({})\"",
    ]
    return st.tuples(st.sampled_from(forms), inner).map(lambda pair: pair[0].format(pair[1]))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.recursive(st.just(CANARY), wrapped_once, max_leaves=6))
@example("bash -c 'echo $(touch canary)'")
@example("time { touch canary; }")
@example("! if touch canary; then ls; fi")
@example("echo \"${x:-'$(touch canary)'}\"")
def test_a_command_in_any_nesting_is_never_overlooked(text: str) -> None:
    parsed = parse(text)
    if isinstance(parsed, Parsed):
        assert any(part.program == "touch" and read_only(part) is None for part in parsed.parts)


@pytest.fixture(scope="module")
def arena() -> Iterator[Path]:
    """A folder where `canary` is a program that leaves the file `hit`, and little else can be run."""
    root = Path(tempfile.mkdtemp(prefix="canary-"))
    (root / "bin").mkdir()
    (root / "work").mkdir()
    (root / "bin" / "canary").write_text(f"#!/bin/sh\n: > {root}/hit\n")
    (root / "bin" / "canary").chmod(0o755)
    for name in ("bash", "sh", "cat", "env"):
        (root / "bin" / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    yield root
    shutil.rmtree(root)


def is_allowed(text: str, arena: Path) -> bool:
    parsed = parse(text)
    facts = gather(parsed, Folders(arena / "work", arena / "work"), confined=True)
    return isinstance(judge_command(parsed, facts, "ask", "workspace-write", Rules()), Allow)


def run_in(arena: Path, text: str) -> None:
    environment = {"PATH": str(arena / "bin")}
    command = ["/bin/bash", "--norc", "--noprofile", "-c", text]
    quiet = subprocess.DEVNULL
    subprocess.run(
        command, cwd=arena / "work", env=environment, stdin=quiet, stdout=quiet, stderr=quiet, timeout=20, check=False
    )


@settings(
    max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(text=SOUP)
@example(text="echo canary\\ncanary; echo \n\\\ncanary")
@example(text="if [  = &canary ]; then echo canary; fi")
@example(text='cat <<E\n$\\\n(canary) "${x}\nE\necho')
@example(text='echo "$\\\n(canary)"')
@example(text="cat <<E\na\\\nE\necho '$(canary)'\nE\n")
@example(text="cat <<-E\n\t$(canary)\n\tE")
@example(text='"${x:-\'}"; canary; echo "\'}"')
def test_bash_runs_nothing_else_in_what_is_allowed(arena: Path, text: str) -> None:
    if "canary" in text and is_allowed(text, arena):
        run_in(arena, text)
        assert not (arena / "hit").exists()
        assert os.listdir(arena / "work") == []  # noqa: PTH208  (the names alone)


QUOTED = [
    "echo '{}'",
    'echo "{}"',
    "cat <<'E'\n{}\nE",
    "echo a # {}",
    "[ a = '{}' ]",
    'echo ${{x#"{}"}}',
    "bash -c 'echo \"{}\"'",
]


@pytest.mark.parametrize("form", QUOTED)
@pytest.mark.parametrize("inner", ["canary", "; canary", "&& canary", "| canary"])
def test_the_arena_can_see_a_hit_and_quoted_text_gives_none(arena: Path, form: str, inner: str) -> None:
    run_in(arena, "canary")
    assert (arena / "hit").exists()
    (arena / "hit").unlink()
    assert is_allowed(form.format(inner), arena)
    run_in(arena, form.format(inner))
    assert not (arena / "hit").exists()


def test_a_common_command_is_parsed_in_two_milliseconds() -> None:
    import time

    text = 'cd src && git status --short | head -n 20; for f in a b; do cat ./$f.py 2>/dev/null; done && echo "$(pwd)"'
    parse(text)
    times: list[float] = []
    for _ in range(50):
        start = time.perf_counter()
        parse(text)
        times.append(time.perf_counter() - start)
    assert sorted(times)[25] < 0.002
