"""Glob and grep: names and contents of the worktree's files, by ripgrep where there is one, else by plain_search."""

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from agent.tools import plain_search
from agent.tools.access import NoAccess, find
from agent.tools.invisible import reveal
from agent.tools.plain_search import glob_regex
from agent.tools.schemas import GlobArguments, GrepArguments
from eventlog.outcomes import ToolFailed, ToolSucceeded

LIMIT_S = 10.0
MAX_FILES = 1000
MAX_MATCHES = 250
MAX_TEXT_CHARACTERS = 30_000
MAX_LINE_CHARACTERS = 500
_MAX_RECORD = 64 * 1024

Readable = Callable[[str], bool]


@dataclass(slots=True)
class _Ending:
    code: int | None = None
    error: str = ""
    timed_out: bool = False


@dataclass(slots=True)
class _Report:
    """What is shown, up to the caps."""

    lines: list[str] = field(default_factory=list)
    size: int = 0
    full: bool = False

    def add(self, line: str, most: int) -> bool:
        """False when there is no room for it."""
        if len(self.lines) >= most or self.size + len(line) > MAX_TEXT_CHARACTERS:
            self.full = True
            return False
        self.lines.append(line)
        self.size += len(line) + 1
        return True


def find_ripgrep() -> str | None:
    """Beside the interpreter first, then on PATH; relative entries of PATH are not trusted."""
    beside = Path(sys.executable).parent / "rg"
    if os.access(beside, os.X_OK):
        return str(beside)
    found = shutil.which("rg")
    return found if found is not None and Path(found).is_absolute() else None


def find_files(
    worktree: Path,
    arguments: GlobArguments,
    main_checkout: Path | None,
    readable: Readable,
    ripgrep: str | None,
    limit_s: float = LIMIT_S,
) -> ToolSucceeded | ToolFailed:
    """Paths relative to the worktree, sorted; the pattern is taken from the folder `path`. None: Python searches."""
    facts = find(worktree, arguments.path or ".", main_checkout)
    if isinstance(facts, NoAccess):
        return ToolFailed(text=facts.text)
    if not facts.is_dir or facts.relative is None:
        return ToolFailed(text=f"{arguments.path} is not a folder.")
    prefix = "" if facts.relative == "." else f"{facts.relative}/"
    wanted = glob_regex(arguments.pattern.removeprefix(f"{facts.real}/"))
    command = _listing_command(ripgrep, facts.relative)
    found: list[str] = []
    with _records(command, worktree, b"\0", limit_s) as (records, ending):
        for record in records:
            path = _text(record).removeprefix("./")
            if wanted.fullmatch(path.removeprefix(prefix)) and readable(path):
                found.append(path)
    report = _Report()
    for path in sorted(found):
        if not report.add(reveal(path).text, MAX_FILES):
            break
    return _told(report, ending, "No file matches.", f"{len(found):,} files match; narrow the pattern")


def search_files(
    worktree: Path,
    arguments: GrepArguments,
    main_checkout: Path | None,
    readable: Readable,
    ripgrep: str | None,
    limit_s: float = LIMIT_S,
) -> ToolSucceeded | ToolFailed:
    """`path:line:text`, sorted by path, then line. Regular expressions are those of the program that searches."""
    facts = find(worktree, arguments.path or ".", main_checkout)
    if isinstance(facts, NoAccess):
        return ToolFailed(text=facts.text)
    if not facts.exists or facts.relative is None:
        return ToolFailed(text=f"{arguments.path} does not exist; look with glob.")
    prefix = "" if facts.relative == "." or not facts.is_dir else f"{facts.relative}/"
    wanted = glob_regex(arguments.glob) if arguments.glob else None
    command = _search_command(ripgrep, arguments.pattern, facts.relative)
    report = _Report()
    with _records(command, worktree, b"\n", limit_s) as (records, ending):
        for record in records:
            name, _, rest = record.partition(b"\0")
            path = _text(name).removeprefix("./")
            if not rest or (wanted and not wanted.fullmatch(path.removeprefix(prefix))) or not readable(path):
                continue
            number, _, line = rest.partition(b":")
            if not report.add(f"{reveal(path).text}:{_text(number)}:{_line(line)}", MAX_MATCHES):
                break
    return _told(report, ending, "No line matches.", "there are more matches; narrow the pattern, path or glob")


def _listing_command(ripgrep: str | None, relative: str) -> list[str]:
    if ripgrep is None:
        return [*_plain(), "files", relative]
    return [ripgrep, *_OPTIONS, "--files", "--null", "--", relative]


def _search_command(ripgrep: str | None, pattern: str, relative: str) -> list[str]:
    if ripgrep is None:
        return [*_plain(), "grep", relative, pattern]
    shown = ["--null", "--with-filename", "--line-number", "--no-heading", "--max-columns=4096"]
    return [ripgrep, *_OPTIONS, *shown, "--max-columns-preview", "--sort=path", "-e", pattern, "--", relative]


# Its own configuration could name a preprocessor, which is a program that would run on each file.
_OPTIONS = ("--no-config", "--color=never", "--no-messages", "--hidden", "--no-follow", "--glob=!.git")


def _plain() -> list[str]:
    return [sys.executable, "-I", str(Path(plain_search.__file__).resolve())]


@contextmanager
def _records(
    command: list[str], worktree: Path, separator: bytes, limit_s: float
) -> Iterator[tuple[Iterator[bytes], _Ending]]:
    """The output of a program piece by piece; it is gone at the end of the block, at the latest after `limit_s`."""
    ending = _Ending()
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            cwd=os.path.realpath(worktree),
            env={"LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
        )

        def stop() -> None:
            ending.timed_out = True
            process.kill()

        timer = threading.Timer(limit_s, stop)
        timer.start()
        try:
            yield _pieces(process, separator), ending
        finally:
            timer.cancel()
            with suppress(ProcessLookupError):
                process.kill()
            ending.code = process.wait()
            if process.stdout is not None:
                process.stdout.close()
        errors.seek(0)
        ending.error = _text(errors.read(2000))


def _pieces(process: subprocess.Popen[bytes], separator: bytes) -> Iterator[bytes]:
    """Without the separator; the rest of a piece that is too long is dropped."""
    if process.stdout is None:
        return
    rest = b""
    while chunk := os.read(process.stdout.fileno(), _MAX_RECORD):
        *whole, rest = (rest + chunk).split(separator)
        yield from whole
        rest = rest[:_MAX_RECORD]
    if rest:
        yield rest
    process.wait()


def _told(report: _Report, ending: _Ending, nothing: str, more: str) -> ToolSucceeded | ToolFailed:
    if ending.timed_out:
        report.lines.append("[stopped at the time limit; there may be more: narrow the pattern or the path]")
        return ToolSucceeded(text="\n".join(report.lines)) if report.size else ToolFailed(text=report.lines[0])
    reason = " ".join(ending.error.split())[:500]
    # Ripgrep also ends with 2, silently, where it met a file that it may not read.
    if not report.lines and ending.code not in {0, 1} and (reason or ending.code != 2):
        reason = reason or f"the program ended with {ending.code}."
        return ToolFailed(text=f"The search failed: {reveal(reason).text}")
    notes = [f"[{more}]"] if report.full else []
    return ToolSucceeded(text="\n".join([*report.lines, *notes]) or nothing)


def _line(raw: bytes) -> str:
    text = _text(raw).removesuffix("\r")
    cut = text[:MAX_LINE_CHARACTERS] + " [… line cut]" if len(text) > MAX_LINE_CHARACTERS else text
    return reveal(cut).text


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
