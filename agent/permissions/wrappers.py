"""Programs that run another program named in their arguments, taken off so that the inner one is judged."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent.permissions.words import Dynamic, NotUnderstood, Part, Word

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
MAX_LAYERS = 12

Unwrapped = tuple[tuple[Part, ...], tuple[tuple[str, Part], ...]]
"""Parts to judge as they are, and literal scripts with the part that runs them."""


@dataclass(frozen=True, slots=True)
class _Wrapper:
    flags: str = ""
    valued: str = ""
    long_flags: frozenset[str] = frozenset()
    long_valued: frozenset[str] = frozenset()
    operands: int = 0
    """How many words of its own stand before the inner command."""


_WRAPPERS: dict[str, _Wrapper] = {
    "env": _Wrapper("i0v", "u", frozenset({"--ignore-environment"}), frozenset({"--unset"})),
    "timeout": _Wrapper(
        "vfp",
        "ks",
        frozenset({"--preserve-status", "--foreground", "--verbose"}),
        frozenset({"--signal", "--kill-after"}),
        1,
    ),
    "nice": _Wrapper("0123456789", "n", long_valued=frozenset({"--adjustment"})),
    "ionice": _Wrapper("t", "cn"),
    "nohup": _Wrapper(),
    "setsid": _Wrapper("cfw", long_flags=frozenset({"--wait", "--fork", "--ctty"})),
    "stdbuf": _Wrapper("", "ioe", long_valued=frozenset({"--input", "--output", "--error"})),
    "time": _Wrapper("p"),
    "command": _Wrapper("p"),
    "builtin": _Wrapper(),
    "exec": _Wrapper("cl", "a"),
    "busybox": _Wrapper(),
    "toybox": _Wrapper(),
    "sudo": _Wrapper(
        "nEHbkPSA", "ugCDhpRrTt", frozenset({"--preserve-env", "--non-interactive"}), frozenset({"--user"})
    ),
    "doas": _Wrapper("nL", "uC"),
    "xargs": _Wrapper(
        "0rtpx",
        "nIPLdEs",
        frozenset({"--null", "--no-run-if-empty", "--verbose"}),
        frozenset({"--max-args", "--max-procs", "--delimiter"}),
    ),
}
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_RUNS_TEXT = {"eval", "trap"}
_FIND_RUNS = {"-exec", "-execdir", "-ok", "-okdir"}
_NOT_FOLLOWED = {"coproc", "enable", "hash"}
_GRAMMAR_WORDS = (
    "{",
    "}",
    "!",
    "if",
    "then",
    "else",
    "elif",
    "fi",
    "for",
    "while",
    "until",
    "do",
    "done",
    "case",
    "esac",
)
_RESERVED = frozenset({*_GRAMMAR_WORDS, "in", "function", "select", "[[", "]]"})
_SHELL_OPTION = re.compile(r"[-+][aeuxlifhvBEnco]+|--(?:norc|noprofile|login|posix)")


def unwrap(part: Part) -> Unwrapped | NotUnderstood:
    """The commands that a part runs in the end; a wrapper's own options that are not known are not understood."""
    current, layers = part, 0
    while (name := base_name(current.program)) in _WRAPPERS:
        if name == "command" and current.args[:1] in (("-v",), ("-V",)):
            break
        layers += 1
        inner = _take_off(current, name, _WRAPPERS[name])
        if inner is None or layers > MAX_LAYERS:
            return NotUnderstood(f"what `{name}` runs here could not be read; name the command plainly")
        if inner == current:
            break
        current = inner
    first = current.args[0] if current.program is None and current.args else current.program
    if (first.text if isinstance(first, Dynamic) else first) in _RESERVED and part.program != "[[":
        return NotUnderstood("a word of the shell's own grammar stands where a program should")
    if name in _NOT_FOLLOWED:
        return NotUnderstood(f"`{name}` changes what the next words mean and is not followed")
    if name in SHELLS:
        return _shell(current, name)
    if name in _RUNS_TEXT and current.args:
        return _text(current, name)
    if name == "find":
        return _find(current)
    return (current,), ()


def base_name(program: str | None) -> str:
    """The program's name without its folder; empty where it is dynamic."""
    return (program or "").rpartition("/")[2]


def _take_off(part: Part, name: str, wrapper: _Wrapper) -> Part | None:
    rest = _after_options(part.args, wrapper)
    if rest is None:
        return None
    placeholder = _placeholder(part.args[: len(part.args) - len(rest)]) if name == "xargs" else None
    assignments = list(part.assignments)
    while rest and name in ("env", "sudo", "doas"):
        match = _ASSIGNMENT.fullmatch(rest[0]) if isinstance(rest[0], str) else None
        if match is None:
            break
        assignments.append((match.group(1), match.group(2)))
        rest = rest[1:]
    rest = rest[wrapper.operands :]
    if not rest:
        return part
    if placeholder is not None:
        rest = tuple(Dynamic(w) if isinstance(w, str) and placeholder in w else w for w in rest)
    elif name == "xargs":
        rest = (*rest, Dynamic("…", one_word=False))
    if not isinstance(rest[0], str):
        return replace(part, program=None, args=rest, wrappers=(*part.wrappers, name), assignments=tuple(assignments))
    wrappers = (*part.wrappers, name)
    return replace(part, program=rest[0], args=rest[1:], assignments=tuple(assignments), wrappers=wrappers)


def _after_options(args: tuple[Word, ...], wrapper: _Wrapper) -> tuple[Word, ...] | None:
    """The words behind the wrapper's own options; None where an option is not known or not literal."""
    index = 0
    while index < len(args):
        word = args[index]
        if not isinstance(word, str):
            return args[index:] if wrapper.operands == 0 and word.one_word else None
        if word == "--":
            return args[index + 1 :]
        if not word.startswith("-") or word == "-":
            return args[index:] if word != "-" else None
        step = _option_length(word, wrapper)
        if step is None or index + step > len(args):
            return None
        index += step
    return ()


def _option_length(word: str, wrapper: _Wrapper) -> int | None:
    """How many words an option takes; None where it is not known."""
    if word.startswith("--"):
        name, equals, _ = word.partition("=")
        if name in wrapper.long_valued:
            return 1 if equals else 2
        return 1 if word in wrapper.long_flags else None
    for position, letter in enumerate(word[1:], start=1):
        if letter in wrapper.valued:
            return 1 if position < len(word) - 1 else 2
        if letter not in wrapper.flags:
            return None
    return 1


def _placeholder(options: Sequence[Word]) -> str | None:
    """The text that `xargs -I` replaces; None without `-I`."""
    for index, word in enumerate(options):
        if isinstance(word, str) and not word.startswith("--") and "I" in word:
            glued = word.partition("I")[2]
            follower = options[index + 1] if index + 1 < len(options) else ""
            return glued or (follower if isinstance(follower, str) else "") or None
    return None


def _shell(part: Part, name: str) -> Unwrapped | NotUnderstood:
    """`sh -c script`: the script, and a part without program that keeps the variables and redirects around it."""
    index, has_script = 0, False
    while index < len(part.args):
        word = part.args[index]
        if not isinstance(word, str):
            return NotUnderstood(f"an option of `{name}` is not literal")
        if not _SHELL_OPTION.fullmatch(word):
            break
        letters = "" if word.startswith("--") else word
        has_script = has_script or "c" in letters
        index += 1 + letters.count("o")
    if not has_script:
        return (part,), ()
    script = part.args[index] if index < len(part.args) else None
    if not isinstance(script, str):
        return NotUnderstood(f"the script of `{name} -c` is not literal; write the command plainly")
    wrappers = (*part.wrappers, name)
    outer = replace(part, program="", args=(), wrappers=wrappers)
    return (outer,), ((script, replace(outer, redirects=())),)


def _text(part: Part, name: str) -> Unwrapped | NotUnderstood:
    """`eval words` and `trap words signal`: the words joined are a script."""
    words = part.args[:1] if name == "trap" else part.args
    literal = [word for word in words if isinstance(word, str)]
    if len(literal) != len(words) or literal[0].startswith("-"):
        return NotUnderstood(f"what `{name}` runs is not literal; write the command plainly")
    return (part,), (
        (" ".join(literal), replace(part, program="", args=(), redirects=(), wrappers=(*part.wrappers, name))),
    )


def _find(part: Part) -> Unwrapped | NotUnderstood:
    """`find -exec`: the command it runs is a part beside find itself."""
    inner: list[Part] = []
    for index, word in enumerate(part.args):
        if word in _FIND_RUNS and isinstance(word, str) and index + 1 < len(part.args):
            words = part.args[index + 1 :]
            ends = next((i for i, w in enumerate(words) if w in (";", "+")), len(words))
            found = [Dynamic(w) if isinstance(w, str) and "{}" in w else w for w in words[:ends]]
            program = found[0] if found and isinstance(found[0], str) else None
            args = tuple(found[1:] if program is not None else found)
            wrapped = unwrap(replace(part, program=program, args=args, redirects=(), wrappers=(*part.wrappers, "find")))
            if isinstance(wrapped, NotUnderstood) or wrapped[1]:
                return NotUnderstood("what `find -exec` runs could not be read; name the command plainly")
            inner.extend(wrapped[0])
    return (part, *inner), ()


def inside(part: Part, outer: Part) -> Part:
    """A part of a script that `outer` runs: its variables, its place and its wrappers are around it."""
    return Part(
        part.program,
        part.args,
        (*outer.assignments, *part.assignments),
        part.redirects,
        (*outer.places, "script", *part.places),
        part.background or outer.background,
        (*outer.wrappers, *part.wrappers),
    )
