"""List or search files without ripgrep; run as a program of its own, so that a slow pattern can be killed.

    python -I plain_search.py files PATH
    python -I plain_search.py grep PATH PATTERN

Prints what ripgrep prints for the same question: `path NUL`, or `path NUL line : text LF`, paths as reached from PATH.
Hidden files are seen, symbolic links are not followed, `.git` and what `.gitignore` files name are left out.
Uses the standard library alone. Ends with 1 where nothing was found and 2 where the pattern is wrong.
"""

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_FILE_BYTES = 20 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    pattern: re.Pattern[str]
    keeps: bool
    folders_only: bool


def glob_regex(pattern: str, *, anchored: bool = False) -> re.Pattern[str]:
    """For the whole of a relative path. `*` and `?` stay in one name, `**` spans folders, `{a,b}` and `[x-z]` choose.

    A pattern without `/` holds at any depth unless `anchored`. Never raises: what is not closed is literal.
    """
    pattern = pattern.removeprefix("./")
    free = not anchored and "/" not in pattern.rstrip("/")
    text = pattern.strip("/") if "/" in pattern else pattern
    try:
        return re.compile(("(?:.*/)?" if free else "") + _translate(text), re.DOTALL)
    except re.error:
        return re.compile(("(?:.*/)?" if free else "") + re.escape(text))


def _translate(text: str) -> str:
    parts: list[str] = []
    depth = at = 0
    while at < len(text):
        if text.startswith("**/", at) and (at == 0 or text[at - 1] == "/"):
            parts.append("(?:.*/)?")
            at += 3
            continue
        if text.startswith("**", at):
            parts.append(".*")
            at += 2
            continue
        letter = text[at]
        at += 1
        if letter == "[" and (close := text.find("]", at + 1 + text.startswith(("!", "^"), at))) > 0:
            inner = text[at:close].replace("\\", "\\\\").replace("[", "\\[")
            negated = inner[0] in "!^"
            parts.append(f"(?!/)[{'^' if negated else ''}{inner[1:] if negated else inner}]")
            at = close + 1
        elif letter == "\\" and at < len(text):
            parts.append(re.escape(text[at]))
            at += 1
        elif letter == "{" and "}" in text[at:]:
            depth += 1
            parts.append("(?:")
        elif letter == "}" and depth:
            depth -= 1
            parts.append(")")
        elif letter == "," and depth:
            parts.append("|")
        else:
            parts.append({"*": "[^/]*", "?": "[^/]"}.get(letter, re.escape(letter)))
    return "".join(parts)


def ignore_rules(text: str) -> list[IgnoreRule]:
    """The rules of one `.gitignore`, in order; paths are relative to its folder."""
    rules: list[IgnoreRule] = []
    for raw in text.split("\n"):
        line = raw.removesuffix("\r")
        line = line.rstrip(" ") if not line.endswith("\\ ") else line
        if not line or line.startswith("#"):
            continue
        keeps = line.startswith("!")
        line = line[1:] if keeps else line
        body = line.rstrip("/").replace("{", "\\{").replace("}", "\\}")
        if body:
            pattern = glob_regex(body, anchored="/" in body)
            rules.append(IgnoreRule(pattern, keeps, line.endswith("/")))
    return rules


def is_ignored(relative: str, is_folder: bool, rules: list[tuple[str, list[IgnoreRule]]]) -> bool:
    """By the last rule that matches, the innermost file last. `rules`: folder of the file, with `/` or empty."""
    verdict = False
    for folder, own in rules:
        if relative.startswith(folder):
            inner = relative[len(folder) :]
            for rule in own:
                if (is_folder or not rule.folders_only) and rule.pattern.fullmatch(inner):
                    verdict = not rule.keeps
    return verdict


def walk(start: str) -> Iterator[str]:
    """Paths of files under `start`, a path relative to the current folder, sorted name by name."""
    if Path(start).is_file():
        yield start
        return
    prefix = "" if start == "." else f"{start}/"
    outer = [f"{'/'.join(prefix.split('/')[:depth])}/" if depth else "" for depth in range(prefix.count("/"))]
    yield from _walk(prefix, [(folder, _read_rules(folder)) for folder in outer])


def _walk(prefix: str, rules: list[tuple[str, list[IgnoreRule]]]) -> Iterator[str]:
    rules = [*rules, (prefix, _read_rules(prefix))]
    try:
        with os.scandir(prefix or ".") as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        path = prefix + entry.name
        if entry.name == ".git":
            continue
        is_folder = entry.is_dir(follow_symlinks=False)
        if is_ignored(path, is_folder, rules):
            continue
        if is_folder:
            yield from _walk(f"{path}/", rules)
        elif entry.is_file(follow_symlinks=False):
            yield path


def _read_rules(prefix: str) -> list[IgnoreRule]:
    path = Path(f"{prefix}.gitignore")
    if path.is_symlink() or not path.is_file():
        return []
    try:
        with path.open(encoding="utf-8", errors="surrogateescape") as file:
            return ignore_rules(file.read(1_000_000))
    except OSError:
        return []


def search(path: str, pattern: re.Pattern[bytes]) -> Iterator[tuple[int, bytes]]:
    """(line number, line without its end); nothing for a binary, huge or unreadable file."""
    try:
        if Path(path).stat().st_size > MAX_FILE_BYTES:
            return
        content = Path(path).read_bytes()
    except OSError:
        return
    if b"\0" in content:
        return
    for number, line in enumerate(content.split(b"\n"), 1):
        text = line.removesuffix(b"\r")
        if pattern.search(text):
            yield number, text


def main(arguments: list[str]) -> int:
    out = sys.stdout.buffer
    found = False
    try:
        match arguments:
            case ["files", start]:
                for path in walk(start):
                    found = True
                    out.write(os.fsencode(path) + b"\0")
            case ["grep", start, text]:
                pattern = re.compile(os.fsencode(text))
                for path in walk(start):
                    for number, line in search(path, pattern):
                        found = True
                        out.write(os.fsencode(path) + b"\0%d:" % number + line[:2000] + b"\n")
            case _:
                return 2
        out.flush()
    except re.error as error:
        sys.stderr.write(f"regex parse error: {error}\n")
        return 2
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
