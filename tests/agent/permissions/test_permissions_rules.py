"""Rules: their written form, their examples, word borders, and that a repository only tightens."""

import pytest

from agent.permissions.approvals import digest_of, rule_to_remember
from agent.permissions.facts import script_files
from agent.permissions.paths import PathFacts
from agent.permissions.rules import (
    Rule,
    RuleError,
    Rules,
    combine,
    command_matches,
    parse_rule,
    parse_rules,
    path_matches,
)
from agent.permissions.shell import parse
from agent.permissions.verdicts import Allow, Ask, Deny, strictest
from agent.permissions.words import Parsed, Part


def part_of(command: str) -> Part:
    parsed = parse(command)
    assert isinstance(parsed, Parsed)
    return parsed.parts[-1]


@pytest.mark.parametrize(
    ("text", "tool", "pattern"),
    [
        ("shell(git diff:*)", "shell", "git diff:*"),
        ("Bash(npm run test:*)", "shell", "npm run test:*"),
        ("Bash", "shell", None),
        ("shell(*)", "shell", None),
        ("read(./secrets/**)", "read", "./secrets/**"),
        ("Edit(/src/**)", "edit", "/src/**"),
        ("Write(a (copy).py)", "edit", "a (copy).py"),
        ("mcp__files__read", "mcp__files__read", None),
    ],
)
def test_the_known_forms_are_read(text: str, tool: str, pattern: str | None) -> None:
    assert parse_rule(text, "allow") == Rule("allow", tool, pattern, text)


@pytest.mark.parametrize("text", ["", "shell(", "(x)", "shell(git * x)", "shell(:*)", "shell(a*)", "read(~/x)", "a b"])
def test_a_bad_rule_is_named_in_its_error(text: str) -> None:
    with pytest.raises(RuleError) as error:
        parse_rules({"allow": [text]})
    assert repr(text) in str(error.value)


def test_a_list_that_is_none_is_refused() -> None:
    with pytest.raises(RuleError, match="permit"):
        parse_rules({"permit": ["shell"]})


@pytest.mark.parametrize(
    ("rule", "command", "expected"),
    [
        ("shell(git diff:*)", "git diff", "yes"),
        ("shell(git diff *)", "git diff HEAD a", "yes"),
        ("shell(git diff:*)", "git 'di'ff x", "yes"),
        ("shell(git diff:*)", "git difftool", "no"),
        ("shell(git diff:*)", "git diff-index x", "no"),
        ("shell(git diff)", "git diff x", "no"),
        ("shell(git diff)", "git diff", "yes"),
        ("shell(npm run test:*)", "npm run test:all", "no"),
        ("shell(git diff:*)", "timeout 3 git diff", "yes"),
        ("shell(git diff:*)", "GIT_PAGER=x git diff", "no"),
        ("shell(git diff:*)", "sudo git diff", "no"),
        ("shell(git diff:*)", "git $X", "no"),
        ("shell(git:*)", "./git x", "no"),
        ("shell(git:*)", "/usr/bin/git x", "yes"),
    ],
)
def test_an_allow_rule_matches_whole_words(rule: str, command: str, expected: str) -> None:
    assert command_matches(parse_rule(rule, "allow"), part_of(command)) == expected


@pytest.mark.parametrize(
    ("rule", "command", "expected"),
    [
        ("shell(rm:*)", "sudo -u a rm x", "yes"),
        ("shell(sudo:*)", "sudo rm x", "yes"),
        ("shell(rm:*)", "./bin/rm x", "yes"),
        ("shell(git push:*)", "git -C x --no-pager push", "yes"),
        ("shell(git push:*)", "git $X", "perhaps"),
        ("shell(git push:*)", "$X push", "perhaps"),
        ("shell(git push:*)", "git pull", "no"),
        ("shell(git push)", "git push $X", "perhaps"),
        ("shell(git push)", 'git push "$X"', "no"),
    ],
)
def test_a_deny_rule_sees_through_spellings(rule: str, command: str, expected: str) -> None:
    assert command_matches(parse_rule(rule, "deny"), part_of(command)) == expected


@pytest.mark.parametrize(
    ("rule", "path", "allowed", "denied"),
    [
        ("read(./secrets/**)", "secrets/a/b", True, True),
        ("read(./secrets)", "secrets/a", True, True),
        ("read(./secrets/**)", "secretsX/a", False, False),
        ("read(secrets/**)", "sub/secrets/a", False, False),
        ("read(.env)", "sub/.env", True, True),
        ("read(*.pem)", "sub/A.PEM", False, True),
        ("read(**/x)", "a/b/x", True, True),
        ("read(/src/*.py)", "src/a/b.py", False, False),
        ("read(/etc/**)", "/etc/passwd", False, True),
        ("read(//etc/**)", "/etc/passwd", True, True),
        ("read(src/[ab].py)", "src/b.py", True, True),
    ],
)
def test_file_patterns(rule: str, path: str, allowed: bool, denied: bool) -> None:
    facts = PathFacts.imagined(path)
    assert path_matches(parse_rule(rule, "allow"), facts) == allowed
    assert path_matches(parse_rule(rule, "deny"), facts) == denied


def test_examples_are_checked_when_rules_are_loaded() -> None:
    good = {"rule": "shell(git diff:*)", "match": ["git diff x"], "no_match": ["git difftool", "git diff; ls", "'"]}
    assert (
        len(parse_rules({"allow": [good, {"rule": "read(.env)", "match": ["a/.env"], "no_match": ["b"]}]}).rules) == 2
    )
    for bad in ({"match": ["git difftool"]}, {"no_match": ["git diff x"]}, {"match": "git diff"}):
        with pytest.raises(RuleError, match="git diff"):
            parse_rules({"allow": [{"rule": "shell(git diff:*)", **bad}]})
    with pytest.raises(RuleError):
        parse_rules({"allow": [{"match": []}]})


def test_a_repository_only_tightens() -> None:
    user = parse_rules({"allow": ["shell(ls:*)"]})
    repository = parse_rules({"allow": ["shell"], "ask": ["edit"], "deny": ["read(/x)"]}, "repository")
    assert [rule.text for rule in combine(user, repository).rules] == ["shell(ls:*)", "edit", "read(/x)"]
    assert combine(Rules(), parse_rules({"allow": ["shell"]}, "repository")) == Rules()


def test_the_strictest_verdict_wins() -> None:
    assert strictest() == Allow("there is nothing to run")
    assert strictest(Allow("a"), Ask("b"), Ask("c", "d"), Allow("e")) == Ask("c", "d")
    assert strictest(Ask("c", "d"), Deny("x"), Deny("y")) == Deny("x")


def test_an_approval_binds_to_every_part_of_the_call() -> None:
    base = ("shell", {"command": "bash x.sh", "timeout_s": 5}, "/w", "main", {"x.sh": "aa"})
    same = digest_of("shell", {"timeout_s": 5, "command": "bash x.sh"}, "/w", "main", {"x.sh": "aa"})
    others = [
        digest_of("edit", *base[1:]),
        digest_of("shell", {"command": "bash x.sh "}, *base[2:]),
        digest_of(*base[:2], "/v", *base[3:]),
        digest_of(*base[:3], "other", base[4]),
        digest_of(*base[:4], {"x.sh": "ab"}),
    ]
    assert digest_of(*base) == same and len(same) == 64
    assert len({same, *others}) == 6


@pytest.mark.parametrize(
    ("command", "rule"),
    [
        ("npm run test", "shell(npm run test)"),
        ("a; b", None),
        ("bash x.sh", None),
        ("env ls", None),
        ("make > x", None),
        ("a $X", None),
    ],
)
def test_only_one_plain_command_can_be_remembered(command: str, rule: str | None) -> None:
    assert rule_to_remember(parse(command)) == rule


def test_the_scripts_that_a_command_names_are_found(tmp_path) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("x.sh", "y.py", "sub/z.sh"):
        (tmp_path / name).touch()
    command = "bash x.sh; python -u y.py a; ./x.sh; cat y.py; timeout 5 sh none.sh; cd sub && ./z.sh; sh < z.sh"
    assert script_files(parse(command), tmp_path) == (tmp_path / "x.sh", tmp_path / "y.py", tmp_path / "sub" / "z.sh")
    assert script_files(parse("cat y.py"), tmp_path) == ()
    assert script_files(parse("'"), tmp_path) == ()
