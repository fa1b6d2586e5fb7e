"""Rules in the form `shell(git diff:*)`, `read(./secrets/**)`, `edit(/src/**)`: parsed once, then only matched."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal, cast, get_args

from agent.permissions.git import without_global_options
from agent.permissions.paths import PathFacts
from agent.permissions.programs import HARMLESS_WRAPPERS, bare_program, is_harmless_variable
from agent.permissions.shell import parse
from agent.permissions.words import Dynamic, Parsed, Part, Word
from agent.permissions.wrappers import base_name

Action = Literal["allow", "ask", "deny"]
Source = Literal["user", "repository"]
Match = Literal["yes", "no", "perhaps"]


class RuleError(ValueError):
    """A rule that cannot be used; the message names the rule and says what to do."""


@dataclass(frozen=True, slots=True)
class Rule:
    action: Action
    tool: str
    """`shell`, `read`, `edit`, or the name of any other tool."""
    pattern: str | None
    """None where the rule speaks of every call of the tool."""
    text: str
    """As it was written."""
    source: Source = "user"


@dataclass(frozen=True, slots=True)
class Rules:
    """All rules in force; deny > ask > allow, whatever their order."""

    rules: tuple[Rule, ...] = ()

    def of(self, tool: str, action: Action) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if rule.tool == tool and rule.action == action)

    @property
    def guards_reads(self) -> bool:
        """Whether any read is asked for or denied, so that a search through all files is not free either."""
        return any(rule.tool == "read" and rule.action != "allow" for rule in self.rules)


_TOOLS = {
    "bash": "shell",
    "shell": "shell",
    "read": "read",
    "grep": "read",
    "glob": "read",
    "edit": "edit",
    "write": "edit",
    "multiedit": "edit",
    "apply_patch": "edit",
}
_RULE = re.compile(r"([A-Za-z_][\w.:-]*)(?:\((.*)\))?", re.DOTALL)
Written = str | Mapping[str, object]
"""A rule as it stands in a file: its text, or a table of `rule`, `match` and `no_match` (lists of examples)."""


def tool_name(name: str) -> str:
    return _TOOLS.get(name.lower(), name)


def parse_rules(written: Mapping[str, Sequence[Written]], source: Source = "user") -> Rules:
    """Rules by action (`allow`, `ask`, `deny`), each with its examples checked; RuleError names the first bad one."""
    rules: list[Rule] = []
    for action, entries in written.items():
        if action not in get_args(Action):
            raise RuleError(f"{action!r} is no list of rules; use allow, ask or deny.")
        for entry in entries:
            text = entry if isinstance(entry, str) else entry.get("rule")
            if not isinstance(text, str):
                raise RuleError(f'a rule in {action} has no text; write it as rule = "shell(…)".')
            rule = parse_rule(text, cast(Action, action), source)
            if not isinstance(entry, str):
                _check_examples(rule, entry)
            rules.append(rule)
    return Rules(tuple(rules))


def parse_rule(text: str, action: Action, source: Source = "user") -> Rule:
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise RuleError(f"the rule {text!r} could not be read; write tool(pattern), for example shell(git diff:*).")
    tool, pattern = tool_name(match.group(1)), match.group(2)
    pattern = None if pattern is None or pattern.strip() in ("", "*") else pattern.strip()
    if pattern is not None and tool == "shell":
        words, _ = _command_pattern(pattern)
        if not words or any("*" in word for word in words):
            raise RuleError(
                f"the rule {text!r} has a `*` inside; it may only stand at the end, as in shell(git diff:*)."
            )
    if pattern is not None and action == "allow" and pattern.startswith("~"):
        raise RuleError(
            f"the allow rule {text!r} names the home folder by `~`; write it whole, as in read(//home/me/x)."
        )
    return Rule(action, tool, pattern, text, source)


def combine(user: Rules, repository: Rules) -> Rules:
    """The rules in force: a repository can tighten, so its allow rules are left out."""
    return Rules((*user.rules, *(rule for rule in repository.rules if rule.action != "allow")))


@cache
def _command_pattern(pattern: str) -> tuple[tuple[str, ...], bool]:
    """(the words, whether more may follow)."""
    for ending in (":*", " *"):
        if pattern.endswith(ending):
            return tuple(pattern.removesuffix(ending).split()), True
    return tuple(pattern.split()), False


def _match_words(words: tuple[Word, ...], pattern: str) -> Match:
    wanted, more = _command_pattern(pattern)
    certain: Match = "yes"
    for index, want in enumerate(wanted):
        if index >= len(words):
            return "no"
        word = words[index]
        if isinstance(word, Dynamic):
            return "perhaps"
        if word != want:
            return "no"
    if len(words) > len(wanted) and not more:
        loose = any(isinstance(word, Dynamic) and not word.one_word for word in words[len(wanted) :])
        certain = "perhaps" if loose else "no"
    return certain


def command_matches(rule: Rule, part: Part) -> Match:
    """How a shell rule meets one part; an allow rule only where it certainly does, without power around it."""
    if rule.pattern is None:
        return "yes"
    if rule.action == "allow":
        plain = HARMLESS_WRAPPERS.issuperset(part.wrappers) and all(map(is_harmless_variable, dict(part.assignments)))
        if not plain or not part.program:
            return "no"
        return "yes" if _match_words((bare_program(part.program), *part.args), rule.pattern) == "yes" else "no"
    found = {_match_words(words, rule.pattern) for words in _spellings(part)}
    return "yes" if "yes" in found else "perhaps" if "perhaps" in found else "no"


def _spellings(part: Part) -> list[tuple[Word, ...]]:
    """The ways a deny or ask rule could have named the part: with its wrappers, its folder, its global options."""
    program: tuple[Word, ...] = (part.program,) if part.program is not None else ()
    plain: tuple[Word, ...] = (*program, *part.args)
    found: list[tuple[Word, ...]] = [(*part.wrappers[i:], *plain) for i in range(len(part.wrappers) + 1)]
    name = base_name(part.program)
    if name != part.program and name:
        found.append((name, *part.args))
    if name == "git":
        found.append((name, *without_global_options(part.args)))
    return found


def path_matches(rule: Rule, facts: PathFacts) -> bool:
    """Whether a file rule meets a path or a folder above it, by its real or its written place.

    `name` without a slash matches at any depth, `./x` and `/x` from the worktree's root, `//x` and `~/x` from
    the file system's root and the home folder. Deny and ask rules ignore case and also take `/x` as absolute.
    """
    if rule.pattern is None:
        return True
    strict = rule.action != "allow"
    root = facts.root
    places = {facts.real.as_posix()} | ({facts.lexical} if facts.lexical and strict else set())
    for place in places:
        below = place.removeprefix(root).lstrip("/") if root and (place + "/").startswith(root + "/") else None
        if any(_matches(p, t, strict) for p, t in _forms(rule.pattern, place, below, strict)):
            return True
    return False


def _forms(pattern: str, place: str, below: str | None, strict: bool) -> list[tuple[str, str]]:
    """(pattern, text) pairs of which one must match."""
    pattern = pattern.rstrip("/") or "/"
    if pattern.startswith("//"):
        return [(pattern[1:].lstrip("/"), place.lstrip("/"))]
    if pattern.startswith("~/"):
        return [("**/" + pattern[2:], place.lstrip("/"))] if strict else []
    absolute = [(pattern.lstrip("/"), place.lstrip("/"))] if pattern.startswith("/") and strict else []
    if below is None:
        loose = [("**/" + pattern, place.lstrip("/"))] if strict and "/" not in pattern else []
        return [*absolute, *loose]
    plain = pattern.removeprefix("./").lstrip("/")
    return [*absolute, ("**/" + plain if "/" not in pattern else plain, below)]


def _matches(pattern: str, text: str, strict: bool) -> bool:
    return (
        _compiled(pattern.casefold() if strict else pattern).fullmatch(text.casefold() if strict else text) is not None
    )


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """A path pattern: `**` crosses folders, `*` and `?` do not; what lies below a match is matched too."""
    pieces = re.split(r"(\*\*/|\*\*|\*|\?|\[[^\]/]+\])", pattern)
    known = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    text = "".join(known.get(piece) or (piece if piece[:1] == "[" else re.escape(piece)) for piece in pieces)
    return re.compile(f"{text}(?:/.*)?", re.DOTALL)


def _check_examples(rule: Rule, entry: Mapping[str, object]) -> None:
    for key, expected in (("match", True), ("no_match", False)):
        examples = entry.get(key, [])
        if not isinstance(examples, Sequence) or isinstance(examples, str):
            raise RuleError(f"{key} of the rule {rule.text!r} is no list of examples.")
        for example in examples:
            if _example_matches(rule, str(example)) != expected:
                verb = "does not match" if expected else "matches"
                raise RuleError(f"the rule {rule.text!r} {verb} its example {str(example)!r}; correct one of them.")


def _example_matches(rule: Rule, example: str) -> bool:
    if rule.tool == "shell":
        parsed = parse(example)
        if not isinstance(parsed, Parsed):
            return False
        found = [command_matches(rule, part) == "yes" for part in parsed.parts]
        return bool(found) and (all(found) if rule.action == "allow" else any(found))
    if rule.tool in ("read", "edit"):
        return path_matches(rule, PathFacts.imagined(example))
    return rule.pattern is None or rule.pattern == example
