"""The small table of programs that only read, by program and known options; everything else is not in it.

It holds for programs found on a PATH whose folders the repository cannot write, started with a clean
environment. An option that is not listed takes a command out of the table.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

from agent.permissions.words import Dynamic, Part, Word

HARMLESS_WRAPPERS = frozenset(
    {"env", "timeout", "nice", "command", "builtin", "time", "stdbuf", "xargs", "sh", "bash", "dash"}
)
_HARMLESS_VARIABLE = re.compile(
    r"LANG|LANGUAGE|LC_[A-Z]+|TZ|NO_COLOR|CLICOLOR|FORCE_COLOR|COLUMNS|LINES|GIT_PAGER_IN_USE|[a-z][a-z0-9_]*"
)
_PROXY = re.compile(r"[a-z]+_proxy")


@dataclass(frozen=True, slots=True)
class Reading:
    """What a command of the table reads."""

    paths: tuple[Word, ...] = ()
    """Words that may name files."""
    contents: bool = False
    """Whether it can show what files hold that its words do not name: a recursive search, a git object."""
    needs_root: bool = False
    """Whether it is to be trusted only in the worktree's own root, as git is, which obeys what it finds there."""


@dataclass(frozen=True, slots=True)
class Options:
    """The known options of a program."""

    flags: str = ""
    valued: str = ""
    long: str = ""
    """Long options, separated by spaces: `--name`, `--name=` with a value, `--name=?` with or without one."""
    number: bool = False
    """Whether `-12` is an option."""
    plus: bool = False
    """Whether `+12` is an option."""


def parse_options(args: tuple[Word, ...], known: Options) -> tuple[dict[str, str], tuple[Word, ...]] | None:
    """(options with their values, operands); None where an option is not known or not literal."""
    found: dict[str, str] = {}
    operands: list[Word] = []
    index = 0
    while index < len(args):
        word = args[index]
        index += 1
        follower = args[index] if index < len(args) else None
        if isinstance(word, Dynamic):
            if word.glob is None or word.glob[0] in "-*?[":
                return None
            operands.append(word)
            continue
        if word == "--":
            return found, (*operands, *args[index:])
        if known.plus and re.fullmatch(r"\+\d+", word):
            found[word] = ""
        elif not word.startswith("-") or word == "-":
            operands.append(word)
        elif known.number and re.fullmatch(r"-\d+", word):
            found[word] = ""
        else:
            option = _long_option if word.startswith("--") else _short_options
            step = option(word, follower, known, found)
            if step is None:
                return None
            index += step
    return found, tuple(operands)


def _long_option(word: str, follower: Word | None, known: Options, found: dict[str, str]) -> int | None:
    """How many words after this one belong to it; None where it is not known."""
    name, equals, value = word.partition("=")
    found[name] = value
    if f"{name}=?" in words(known.long) or (name in words(known.long) and not equals):
        return 0
    if f"{name}=" not in words(known.long):
        return None
    if equals:
        return 0
    if not isinstance(follower, str) or follower.startswith("-"):
        return None
    found[name] = follower
    return 1


def _short_options(word: str, follower: Word | None, known: Options, found: dict[str, str]) -> int | None:
    """How many words after this cluster belong to it; None where a letter is not known."""
    for position, letter in enumerate(word[1:], start=1):
        if letter in known.valued:
            glued = word[position + 1 :]
            if glued:
                found["-" + letter] = glued
                return 0
            if not isinstance(follower, str):
                return None
            found["-" + letter] = follower
            return 1
        if letter not in known.flags:
            return None
        found["-" + letter] = ""
    return 0


@cache
def words(text: str) -> frozenset[str]:
    """The words of a list written as one text."""
    return frozenset(text.split())


Check = Callable[[dict[str, str], tuple[Word, ...]], "Reading | None"]


def _paths(found: dict[str, str], operands: tuple[Word, ...]) -> Reading:
    return Reading(operands)


def _nothing(found: dict[str, str], operands: tuple[Word, ...]) -> Reading:
    return Reading()


def _no_operands(found: dict[str, str], operands: tuple[Word, ...]) -> Reading | None:
    return None if operands else Reading()


def _one_path(found: dict[str, str], operands: tuple[Word, ...]) -> Reading | None:
    return Reading(operands) if len(operands) <= 1 and all(isinstance(o, str) for o in operands) else None


def _grep(found: dict[str, str], operands: tuple[Word, ...]) -> Reading | None:
    """The first operand is the pattern, unless `-e` gave one."""
    paths = operands if "-e" in found else operands[1:]
    return Reading(paths, contents="-r" in found or "--recursive" in found)


def _rg(found: dict[str, str], operands: tuple[Word, ...]) -> Reading | None:
    return Reading(operands if "-e" in found or "--files" in found else operands[1:], contents=True)


_PRINT = re.compile(r"(?:(?:\d+|\$|/[^/\\\n]*/)(?:,(?:\+?\d+|\$|/[^/\\\n]*/))?)?[p=]")


def _sed(found: dict[str, str], operands: tuple[Word, ...]) -> Reading | None:
    """`sed -n` with a script that prints lines and does nothing else."""
    script, paths = (found["-e"], operands) if "-e" in found else (operands[:1], operands[1:])
    text = script if isinstance(script, str) else (script[0] if script else "")
    if "-n" not in found or not isinstance(text, str):
        return None
    return Reading(paths) if all(_PRINT.fullmatch(piece.strip()) for piece in text.split(";")) else None


def _date(found: dict[str, str], operands: tuple[Word, ...]) -> Reading | None:
    return Reading() if all(isinstance(o, str) and o.startswith("+") for o in operands) else None


def _jq(found: dict[str, str], operands: tuple[Word, ...]) -> Reading | None:
    return Reading(operands[1:])


def _cd(found: dict[str, str], operands: tuple[Word, ...]) -> Reading | None:
    return Reading(operands) if len(operands) == 1 and isinstance(operands[0], str) and operands[0] != "-" else None


_SEARCH_LONG = "--color=? --count --files-with-matches --fixed-strings --ignore-case --line-number --no-heading \
    --only-matching --quiet --word-regexp --context= --after-context= --before-context= --max-count="
_TABLE: Mapping[str, tuple[Options, Check]] = {
    "ls": (Options("laAhtrRSF1dignopsukGC", "I", "--color=? --all --almost-all --directory --full-time"), _paths),
    "cat": (Options("nbsAeEtTuv", "", "--number --show-all"), _paths),
    "tac": (Options(), _paths),
    "head": (Options("qv", "nc", "--lines= --bytes= --quiet", number=True), _paths),
    "tail": (Options("qv", "nc", "--lines= --bytes= --quiet", number=True, plus=True), _paths),
    "wc": (Options("lwcmL", "", "--lines --words --bytes --chars"), _paths),
    "nl": (Options("p", "bvwsin"), _paths),
    "grep": (
        Options(
            "ivnHhlLcoqsEFGPwxrIaZz",
            "eABCm",
            "--include= --exclude= --exclude-dir= --recursive " + _SEARCH_LONG,
            number=True,
        ),
        _grep,
    ),
    "rg": (
        Options(
            "inHlcoqsSFwxvNIUP",
            "eABCmgtTdM",
            "--files --hidden --json --stats --glob= --type= --sort= --no-ignore " + _SEARCH_LONG,
        ),
        _rg,
    ),
    "sed": (Options("nErs", "e", "--quiet --regexp-extended"), _sed),
    "sort": (Options("bdfgiMhnRrVcCmsuz", "tk", "--reverse --unique --numeric-sort --key="), _paths),
    "uniq": (Options("cdDiuz", "fsw"), _one_path),
    "cut": (Options("sz", "bcdf", "--complement --delimiter= --fields= --output-delimiter="), _paths),
    "tr": (Options("cCdst"), _nothing),
    "comm": (Options("123z"), _paths),
    "paste": (Options("sz", "d"), _paths),
    "diff": (Options("uqsyaibwBEZtN", "UC", "--brief --unified=? --color=? --side-by-side --no-dereference"), _paths),
    "cmp": (Options("bls", "n"), _paths),
    "stat": (Options("ftL", "c", "--format= --printf="), _paths),
    "file": (Options("bikhL", "", "--brief --mime --mime-type"), _paths),
    "du": (Options("ahsckmbx", "d", "--max-depth= --apparent-size --summarize"), _paths),
    "df": (Options("hTk"), _paths),
    "tree": (Options("adfipshugDFrtCn", "LIP", "--noreport --dirsfirst --gitignore"), _paths),
    "readlink": (Options("fenz"), _paths),
    "realpath": (Options("emsz"), _paths),
    "md5sum": (Options("bt"), _paths),
    "sha256sum": (Options("bt"), _paths),
    "od": (Options("cbdox", "AtNj"), _paths),
    "jq": (Options("rcsenSMjaCR", "", "--raw-output --compact-output --slurp --exit-status --sort-keys --tab"), _jq),
    "which": (Options("a"), _nothing),
    "type": (Options("atpP"), _nothing),
    "command": (Options("vV"), _nothing),
    "date": (Options("uRI", "d", "--utc --iso-8601=? --rfc-3339= --date="), _date),
    "uname": (Options("asnrvmpio"), _no_operands),
    "nproc": (Options(), _no_operands),
    "whoami": (Options(), _no_operands),
    "id": (Options("ugnG"), _no_operands),
    "pwd": (Options("LP"), _no_operands),
    "seq": (Options("w", "sf", number=True), _nothing),
    "cd": (Options("PL"), _cd),
}
_INERT = frozenset({"echo", "true", "false", ":", "basename", "dirname", "exit", "break", "continue"})
"""Programs that only print or do nothing, whatever their words are."""

_FIND_TESTS = words(
    "-name -iname -path -ipath -wholename -regex -iregex -type -size -mtime -mmin -ctime -cmin -atime -amin -newer "
    "-maxdepth -mindepth -perm -user -group -links -inum -regextype -printf"
)
_FIND_WORDS = words(
    "-print -print0 -ls -prune -empty -not -a -o -and -or -depth -xdev -mount -true -false -quit "
    "! ( ) , -executable -readable -writable"
)


def _find(args: tuple[Word, ...]) -> Reading | None:
    """find with tests and printing alone; starting points come first."""
    starts: list[Word] = []
    index = 0
    while index < len(args):
        word = args[index]
        index += 1
        if not isinstance(word, str):
            return None
        if word in _FIND_TESTS:
            index += 1
        elif word in _FIND_WORDS or (word == "-P" and index == 1):
            continue
        elif word.startswith("-") or (index > 1 and not starts):
            return None
        else:
            starts.append(word)
    return Reading(tuple(starts))


_UNARY = words("-f -d -e -n -z -s -r -w -x -L -h -p -S -b -c")
_EQUALS = words("= == != -nt -ot -ef")
_LOGIC = words("&& || ! ( ) -a -o")


def _test(program: str, args: tuple[Word, ...]) -> Reading | None:
    """`test`, `[` and `[[` without what evaluates a word: `-v`, `-R`, and comparisons of numbers in `[[`."""
    closing = {"[": "]", "[[": "]]"}.get(program)
    inner = args[:-1] if closing is not None and args[-1:] == (closing,) else args
    operators = _UNARY | _EQUALS | _LOGIC | (words("=~ < >") if program == "[[" else words("-eq -ne -lt -le -gt -ge"))
    for index, word in enumerate(inner):
        if isinstance(word, str):
            if word.startswith("-") and word not in operators:
                return None
        elif program != "[[" and not (word.one_word and _surrounded(inner, index)):
            return None
    files = [w for w, before in zip(inner[1:], inner, strict=False) if before in _UNARY - {"-n", "-z"}]
    if program != "[[" and any(isinstance(word, Dynamic) for word in files):
        return None
    return Reading(tuple(word for word in files if isinstance(word, str)))


def _surrounded(inner: tuple[Word, ...], index: int) -> bool:
    """Whether a value that is not known stands where it can only be an operand."""
    match inner:
        case (str(operator), _):
            return index == 1 and operator in ("-n", "-z")
        case (_, str(operator), _):
            return operator in _EQUALS
        case _:
            return False


def _printf(args: tuple[Word, ...]) -> Reading | None:
    words = args[1:] if args[:1] == ("--",) else args
    return Reading() if words and isinstance(words[0], str) and not words[0].startswith("-") else None


def is_harmless_variable(name: str) -> bool:
    """Whether setting a variable cannot change what another program does beyond language, zone and colour."""
    return _HARMLESS_VARIABLE.fullmatch(name) is not None and not _PROXY.fullmatch(name)


def bare_program(program: str) -> str:
    """The name that the table knows a program by; a path counts only in the system's own folders."""
    for folder in ("/usr/bin/", "/bin/"):
        if program.startswith(folder):
            return program.removeprefix(folder)
    return program


def read_only(part: Part) -> Reading | None:
    """What a command of the table reads; None where it is not in the table. Redirects are not looked at."""
    if part.program is None or not HARMLESS_WRAPPERS.issuperset(part.wrappers):
        return None
    if not all(is_harmless_variable(name) for name, _ in part.assignments):
        return None
    name = bare_program(part.program)
    if name == "" or name in _INERT:
        return Reading()
    match name:
        case "git":
            from agent.permissions.git import read_only_git

            return read_only_git(part.args)
        case "find":
            return _find(part.args)
        case "test" | "[" | "[[":
            return _test(name, part.args)
        case "printf":
            return _printf(part.args)
        case _ if name in _TABLE:
            options, check = _TABLE[name]
            parsed = parse_options(part.args, options)
            return check(*parsed) if parsed is not None else None
        case _:
            return None
