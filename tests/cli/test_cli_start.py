"""The program starts light: help needs none of the heavy libraries, and a session none of the heaviest."""

import subprocess
import sys

import pytest
from cli_program import WORK, Place, serving

HEAVY = {"ray", "duckdb", "httpx", "torch", "triton", "git", "jsonschema", "orjson", "actors"}
COMMANDS = (
    "exec",
    "resume",
    "fork",
    "rewind",
    "sessions",
    "log",
    "sql",
    "replay",
    "diff",
    "merge",
    "doctor",
    "gc",
    "demo",
)
IMPORTS = """import atexit, sys
from cli import main
atexit.register(lambda: print(*sorted({name.split('.')[0] for name in sys.modules}), file=sys.stderr))
main()"""


def imported(place: Place, *arguments: str) -> set[str]:
    """The libraries that a run of the program has loaded at its end."""
    command = [sys.executable, "-I", "-c", IMPORTS, *arguments]
    done = subprocess.run(
        command, cwd=place.repository, env=place.env, capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stderr.split())


@pytest.mark.parametrize("command", ["", *COMMANDS], ids=lambda name: name or "thalia")
def test_help_is_there_and_light(place: Place, command: str) -> None:
    arguments = [*command.split(), "--help"]
    result = place.run(*arguments)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"Usage: thalia {command}".rstrip())
    loaded = imported(place, *arguments)
    # Typer itself loads pydantic for the options of a command.
    assert not loaded & (HEAVY if command else HEAVY | {"pydantic"})


def test_help_names_every_command(place: Place) -> None:
    shown = place.run("--help").out
    assert [name for name in COMMANDS if f"\n  {name} " not in shown] == []


@pytest.mark.alone("with one, the process that asks loads neither")
def test_a_session_needs_no_ray_and_no_torch(place: Place) -> None:
    with serving(*WORK) as server:
        place.use(server)
        loaded = imported(place, "exec", "Do it.", "-m", "openai/test")
    assert "duckdb" in loaded
    assert not loaded & {"ray", "torch", "triton", "jsonschema"}


def test_the_version_is_shown(place: Place) -> None:
    result = place.run("--version")
    assert (result.code, result.out, result.err) == (0, "thalia 0.1.0\n", "")


@pytest.mark.parametrize(
    "arguments",
    [("exek", "x"), ("exec",), ("exec", "x", "--max-turns", "0"), ("exec", "x", "--max-turns", "many"),
     ("exec", "x", "--permission-mode", "yolo"), ("exec", "x", "--output-format", "yaml"), ("exec", "x", "--nonsense"),
     ("exec", "x", "--max-budget-usd", "-1"), ("-p",)],
    ids=" ".join,
)  # fmt: skip
def test_a_wrong_option_is_one_line_and_exit_code_two(place: Place, arguments: tuple[str, ...]) -> None:
    result = place.run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.splitlines()[-1].startswith("Error: ")
    assert place.sessions() == []


def test_doctor_says_what_is_there_and_what_to_do(place: Place) -> None:
    result = place.run("doctor")
    assert (result.code, result.err) == (0, "")
    assert "ok  git: " in result.out
    assert "ok  sandbox: " in result.out
    place.config.write_text("nonsense = 1\n")
    result = place.run("doctor")
    assert (result.code, result.err) == (10, "")
    assert "NO  settings: " in result.out
