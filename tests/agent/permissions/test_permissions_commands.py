"""Cases G01 to G08: what a command line may do, as one table a case."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from agent.permissions.facts import Folders, gather
from agent.permissions.judge import judge_command
from agent.permissions.rules import Rules, combine, parse_rules
from agent.permissions.shell import parse
from agent.permissions.verdicts import Allow, Ask, Deny, Mode, Sandbox, Verdict
from agent.permissions.words import NotUnderstood

NO_RULES = Rules()


@dataclass(frozen=True)
class Place:
    """A worktree with a.py in it, the checkout it came from, and a folder outside with the canary's path."""

    worktree: Path
    main: Path
    outside: Path

    @property
    def canary(self) -> str:
        return str(self.outside / "canary")

    def judge(
        self,
        command: str,
        mode: Mode = "ask",
        rules: Rules = NO_RULES,
        *,
        sandbox: Sandbox = "workspace-write",
        confined: bool = True,
        network: bool = False,
        own: bool = True,
        hostile_git: bool = False,
    ) -> Verdict:
        parsed = parse(command.replace("$C", self.canary))
        folders = Folders(self.worktree, self.worktree, self.main, self.outside / "home")
        facts = gather(
            parsed, folders, confined=confined, network=network, own_worktree=own, git_runs_programs=hostile_git
        )
        return judge_command(parsed, facts, mode, sandbox, rules)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    for name in ("worktree/src", "main/src", "outside/home"):
        (tmp_path / name).mkdir(parents=True)
    for root in ("worktree", "main"):
        (tmp_path / root / "a.py").write_text("a = 1\n")
        (tmp_path / root / "x.sh").write_text("touch x\n")
    (tmp_path / "worktree" / ".env").write_text("KEY=1\n")
    (tmp_path / "outside" / "secret").write_text("s\n")
    (tmp_path / "worktree" / "l").symlink_to(tmp_path / "outside")
    (tmp_path / "worktree" / "s").symlink_to(tmp_path / "outside" / "secret")
    return Place(tmp_path / "worktree", tmp_path / "main", tmp_path / "outside")


def kind(verdict: Verdict) -> str:
    return type(verdict).__name__


def allowing(*rules: str) -> Rules:
    return parse_rules({"allow": list(rules)})


G01 = ["echo a; touch $C", "echo a && touch $C", "false || touch $C", "echo a | tee $C", "echo a & touch $C"]
G01 += ["echo a\ntouch $C", "if true; then touch $C; fi", "for i in 1; do touch $C; done", "{ echo a; touch $C; }"]
G01 += [
    "(touch $C)",
    "! touch $C",
    "f() { touch $C; }",
    "while touch $C; do break; done",
    "case a in a) touch $C;; esac",
]


@pytest.mark.parametrize("command", G01)
def test_g01_every_command_of_a_chain_is_asked_for(place: Place, command: str) -> None:
    rules = allowing("shell(echo:*)")
    assert kind(place.judge(command, rules=rules)) == "Ask"
    wider = allowing("shell(echo:*)", "shell(touch:*)", "shell(tee:*)")
    assert kind(place.judge(command, rules=wider)) == "Allow"


G02 = [
    "echo $(touch $C)",
    "echo `touch $C`",
    "echo <(touch $C)",
    "echo ${X:-$(touch $C)}",
    'echo "$(echo $(touch $C))"',
]
G02 += ["cat <<E\n$(touch $C)\nE", "cat <<E\na\n`touch $C` b\nE", "cat <<-E\n\t$(touch $C)\n\tE", "cat <<< $(touch $C)"]
G02 += ["echo >(touch $C)", "echo $((1 + $(touch $C)))", "[[ -n $(touch $C) ]]", "x=$(touch $C)", "x=(a $(touch $C))"]
G02 += ["echo \"${x:-'$(touch $C)'}\"", 'echo "a${x:+`touch $C`}"', "echo ${x/$(touch $C)/b}", "cat < <(touch $C)"]
G02 += ["x='a[$(touch $C)]'; echo $((x))", "x='$(touch $C)'; echo ${x@P}", "[[ 'a[$(touch $C)]' -eq 0 ]]"]
G02 += [
    "test -v 'a[$(touch $C)]'",
    "printf -v 'a[$(touch $C)]' x",
    "x='a[$(touch $C)]'; echo ${!x}",
    "((a[$(touch $C)]))",
]
G02 += [
    "cat <<E a b\n$(touch $C)\nE",
    "echo `echo \\`touch $C\\``",
    "[ -f a > $C ]",
    "eval 'touch $C'",
    "trap 'touch $C' EXIT",
]
G02 += ["x='-v a[$(touch${IFS}$C)]'; [ $x ]", "to\\\nuch $C", 'e""val "touch $C"', "$'\\x74ouch' $C"]


@pytest.mark.parametrize("command", G02)
def test_g02_what_a_substitution_runs_is_asked_for(place: Place, command: str) -> None:
    assert kind(place.judge(command)) in ("Ask", "Deny")


INERT = [
    "echo '$(touch x)'",
    "echo \\$(touch)",
    "cat <<'E'\n$(touch x)\nE",
    "echo a # $(touch x)",
    "echo '`touch x`' \"\\`x\\`\"",
]


@pytest.mark.parametrize("command", [INERT[0], *INERT[2:]])
def test_g02_quoted_text_is_only_text(place: Place, command: str) -> None:
    assert kind(place.judge(command)) == "Allow"


G03 = ["GIT_EXTERNAL_DIFF=./x.sh git diff", "env sh -c 'touch $C'", "timeout 5 sh -c 'touch $C'", "nice touch $C"]
G03 += ["command touch $C", "echo a | xargs -I{} touch $C", "LD_PRELOAD=./x.so ls", "BASH_ENV=./x.sh bash -c :"]
G03 += [
    "env GIT_PAGER=./x.sh git log",
    "nohup touch $C",
    "sudo ls",
    "exec touch $C",
    "time touch $C",
    "env -S 'touch $C'",
]
G03 += ["stdbuf -oL touch $C", "setsid touch $C", "PATH=.; ls", "export PATH=.; ls", "bash -c 'bash -c \"touch $C\"'"]
G03 += [
    "xargs cat",
    "bash x.sh",
    "./ls",
    "timeout 5 bash",
    "cat x.sh | sh",
    "bash -ec 'touch $C'",
    "find a -exec env touch $C ;",
]
G03 += ["PYTHONSTARTUP=x ls", "for PATH in .; do ls; done", "https_proxy=x ls", "bash <<E\ntouch $C\nE", "$X", '"$X" a']


@pytest.mark.parametrize("command", G03)
def test_g03_wrappers_and_environment_give_no_power(place: Place, command: str) -> None:
    assert kind(place.judge(command)) in ("Ask", "Deny")


@pytest.mark.parametrize(
    "command",
    [
        "timeout 5 ls",
        "env LC_ALL=C sort a.py",
        "command -v ls",
        "bash -lc 'ls && cat a.py'",
        "nice -n 5 ls",
        "TZ=UTC date",
    ],
)
def test_g03_a_wrapped_reader_is_still_a_reader(place: Place, command: str) -> None:
    assert kind(place.judge(command)) == "Allow"


G04 = [
    "find . -exec touch $C \\;",
    "find . -delete",
    "find . -fprintf $C x",
    "rg --pre ./x.sh a",
    "rg -z a",
    "sort a.py -o $C",
]
G04 += ["sed -n 'w $C' a.py", "sed '1e touch $C' a.py", "awk 'BEGIN{system(\"touch $C\")}'", "git log --output=$C"]
G04 += [
    "tar cf /dev/null --checkpoint=1 --checkpoint-action=exec='touch $C' a.py",
    "git diff --ext-diff",
    "git log --out=$C",
]
G04 += [
    "git -c core.fsmonitor='touch $C;false' status",
    "git -c alias.z='!touch $C' z",
    "git -c core.pager='touch $C' -p log",
]
G04 += [
    "sort -uo $C a.py",
    "sort --compress-program=./x.sh a.py",
    "uniq a.py b.py",
    "tree -o b",
    "date -s 1",
    "hostname x",
]
G04 += [
    "sed -i s/a/b/ a.py",
    "sed -n '1p;w b' a.py",
    "sed -n 1,3p -i a.py",
    "find -L . -ok touch ;",
    "find . -fls b",
    "file -C -m x",
]
G04 += [
    "git grep -Oless a",
    "git log '--format=%G?'",
    "git log --format --output=$C",
    "git branch x",
    "git --exec-path=. log",
]
G04 += [
    "git diff --no-index /etc/passwd a.py",
    "rg --hostname-bin ./x a",
    "cat *",
    "grep x *",
    "ls $X",
    "jq -f x a",
    "xxd a b",
]


@pytest.mark.parametrize("command", G04)
def test_g04_readers_with_an_option_that_writes_or_runs_are_asked_for(place: Place, command: str) -> None:
    (place.worktree / "--pre=x").touch()
    assert kind(place.judge(command)) in ("Ask", "Deny")


READERS = [
    "find . -name a.py",
    "sed -n 1,3p a.py",
    "git log -1",
    "ls -la src",
    "cat a.py",
    "head -n 5 a.py",
    "tail -20 a.py",
]
READERS += [
    "grep -rn 'a b' src",
    "rg -n --glob '*.py' a",
    "wc -l a.py",
    "git status --short",
    "git diff HEAD -- a.py",
    "pwd",
]
READERS += [
    "git show HEAD:a.py",
    "git rev-parse --abbrev-ref HEAD",
    "git ls-files",
    "git blame -L 1,3 a.py",
    "git stash list",
]
READERS += [
    "sort a.py | uniq -c",
    "echo $HOME",
    "test -f a.py && cat a.py",
    "[ -d src ] || echo no",
    "[[ -n $x ]] && ls",
    "true",
]
READERS += [
    "cat ./*.py",
    "ls src 2>/dev/null",
    "ls 2>&1 | head",
    "git --no-pager log --oneline -n 3",
    "which git",
    "uname -a",
]
READERS += [
    "diff -u a.py a.py",
    "cut -d: -f1 a.py",
    "tr a b < a.py",
    "jq -r .a a.py",
    "cd src && ls",
    "du -sh .",
    "git branch -a",
]
READERS += [
    "cat <<< hi",
    "printf '%s\\n' \"$x\"",
    "x=1; echo ${x:-2} ${#x}",
    'grep "a|b" a.py',
    "stat a.py",
    "",
    "# nothing",
]


@pytest.mark.parametrize("command", READERS)
def test_g04_plain_readers_pass_in_every_mode(place: Place, command: str) -> None:
    modes: tuple[Mode, ...] = ("plan", "ask", "auto", "bypass")
    assert [kind(place.judge(command, mode)) for mode in modes] == ["Allow"] * 4
    assert kind(place.judge(command, "auto", sandbox="off", confined=False)) == "Allow"


@pytest.mark.parametrize("operator", [">", ">>", ">|", "2>", "&>", "&>>"])
@pytest.mark.parametrize("mode", ["plan", "ask", "auto"])
def test_g05_a_redirect_out_of_the_worktree_is_denied(place: Place, operator: str, mode: Mode) -> None:
    assert kind(place.judge(f"cat a.py {operator} $C", mode)) == "Deny"
    assert kind(place.judge(f"cat a.py {operator} ~/.bashrc", mode)) == "Deny"
    assert kind(place.judge(f"cat a.py {operator} l/n", mode)) == "Deny"
    assert kind(place.judge(f"cat a.py {operator} .envrc", mode)) == "Deny"


@pytest.mark.parametrize(
    ("command", "asked", "auto"),
    [
        ("cat a.py > b.py", "Ask", "Allow"),
        ("> b.py", "Ask", "Allow"),
        ("(cat a.py) > b.py", "Ask", "Allow"),
        ("cat a.py 2>/dev/null", "Allow", "Allow"),
        ("cat a.py > $X", "Ask", "Allow"),
        ("cat a.py | tee b.py", "Ask", "Allow"),
        ("cat a.py > /dev/tcp/127.0.0.1/80", "Ask", "Ask"),
        ("cat < ../outside/secret", "Ask", "Ask"),
        ("cat < s", "Deny", "Deny"),
    ],
)
def test_g05_a_redirect_inside_is_like_an_edit(place: Place, command: str, asked: str, auto: str) -> None:
    assert (kind(place.judge(command)), kind(place.judge(command, "auto"))) == (asked, auto)


def test_g05_an_edit_rule_covers_a_redirect(place: Place) -> None:
    rules = allowing("edit(/src/**)")
    assert kind(place.judge("cat a.py > src/b.py", rules=rules)) == "Allow"
    assert kind(place.judge("cat a.py > b.py", rules=rules)) == "Ask"
    denying = parse_rules({"deny": ["edit(/src/**)"]})
    assert kind(place.judge("cat a.py > src/b.py", "auto", denying)) == "Deny"
    assert kind(place.judge("touch src/b.py", "auto", denying)) == "Deny"


def test_g06_poisoning_the_shell_is_asked_for(place: Place) -> None:
    for command in ("export PAGER='sh -c \"touch $C\"'", "alias ls='touch $C'", "git(){ touch $C; }"):
        assert kind(place.judge(command)) == "Ask"


@pytest.mark.parametrize("command", ["git difftool -y -x 'touch $C'", "git diffx", "gitdiff", "git", "echo; git diffx"])
def test_g07_a_rule_ends_at_a_word(place: Place, command: str) -> None:
    assert kind(place.judge(command, rules=allowing("shell(git diff:*)"))) == "Ask"


G08_TREE = ["git reset --hard", "git clean -fdx", "git checkout -- .", "git restore .", "git commit -m x", "git add ."]
G08_SHARED = ["git stash", "git branch -D main", "git push --force", "git worktree remove --force X", "git tag v1"]
G08_SHARED += ["git update-ref refs/heads/a HEAD", "git config a.b c", "git -C . push", "git fetch", "git $X"]


@pytest.mark.parametrize("command", G08_TREE)
def test_g08_an_agent_is_told_which_tool_changes_the_index(place: Place, command: str) -> None:
    for mode in ("ask", "auto"):
        verdict = place.judge(command, mode, allowing("shell"))
        assert isinstance(verdict, Deny) and "`commit`" in verdict.reason


@pytest.mark.parametrize("command", G08_SHARED)
def test_g08_shared_refs_are_asked_for(place: Place, command: str) -> None:
    for mode in ("ask", "auto"):
        verdict = place.judge(command, mode)
        assert isinstance(verdict, Ask) and verdict.why_sandbox_is_not_enough


@pytest.mark.parametrize("command", G08_TREE + G08_SHARED)
def test_g08_in_the_users_checkout_all_of_it_is_asked_for(place: Place, command: str) -> None:
    for mode in ("ask", "auto"):
        assert kind(place.judge(command, mode, own=False)) == "Ask"


def test_git_is_no_reader_where_it_would_obey_someone_elses_configuration(place: Place) -> None:
    assert kind(place.judge("cd src && git status")) == "Ask"
    assert kind(place.judge("git -C src status")) == "Ask"
    assert kind(place.judge("git status", hostile_git=True)) == "Ask"


@pytest.mark.parametrize(
    "command", ["cat l/secret", "cat s", "head -1 ./s", "touch l/n", "cd l && ls", "cat < s", "cat ./l/*"]
)
def test_g10_a_link_out_of_the_worktree_is_denied(place: Place, command: str) -> None:
    for mode in ("ask", "auto"):
        assert kind(place.judge(command, mode, allowing("shell"))) == "Deny"


def test_g10_a_deny_read_rule_holds_through_a_link(place: Place) -> None:
    (place.worktree / "data").mkdir()
    (place.worktree / "data" / "k").write_text("k")
    (place.worktree / "alias").symlink_to("data/k")
    rules = parse_rules({"deny": ["read(/data/**)"]})
    for command in ("cat alias", "cat DATA/k", "cat data/k", "cat ./dat*/k", "cd data && cat k", "python x.py alias"):
        assert kind(place.judge(command, "auto", rules)) == "Deny", command
    assert kind(place.judge("grep -r x .", "auto", rules)) == "Ask"
    assert kind(place.judge("cat a.py", "auto", rules)) == "Allow"


G11 = [".git/hooks/pre-commit", ".git/config", ".GIT/Hooks/post-checkout", ".thalia/settings", ".Thalia/Settings"]
G11 += [".envrc", ".vscode/tasks.json", ".mcp.json", ".claude/settings.local.json", "sub/.git/config"]


@pytest.mark.parametrize("name", G11)
@pytest.mark.parametrize(
    "command", ["touch {}", "echo x > {}", "cp a.py {}", "tee {} < a.py", "dd if=a.py of={}", "rm ./{}"]
)
def test_g11_protected_names_are_not_written(place: Place, name: str, command: str) -> None:
    for mode in ("ask", "auto"):
        assert kind(place.judge(command.format(name), mode, allowing("shell"))) == "Deny"


def test_g12_the_users_checkout_is_refused_with_the_path_in_the_worktree(place: Place) -> None:
    for command in (f"cd {place.main} && echo x >> a.py", f"cat {place.main}/a.py", f"touch {place.main}/a.py"):
        verdict = place.judge(command, "auto")
        assert isinstance(verdict, Deny) and str(place.worktree) in verdict.reason
    assert str(place.worktree / "a.py") in place.judge(f"touch {place.main}/a.py").reason


@pytest.mark.parametrize(
    ("command", "auto"),
    [
        ("pytest -q", "Allow"),
        ("python -c 'print(1)' && rm -rf build", "Allow"),
        ("curl /api/v1/users", "Allow"),
        ("sudo ls", "Ask"),
        ("python ~/x.py", "Ask"),
        ("cp a.py ../b.py", "Ask"),
        ("cat .env", "Ask"),
        ("cat /usr/include/x.h", "Allow"),
        ("echo 'a", "Deny"),
        ("for", "Deny"),
    ],
)
def test_auto_allows_what_stays_in_the_sandbox(place: Place, command: str, auto: str) -> None:
    assert kind(place.judge(command, "auto")) == auto


def test_auto_without_a_sandbox_allows_only_readers(place: Place) -> None:
    assert kind(place.judge("pytest", "auto", sandbox="off")) == "Ask"
    assert kind(place.judge("pytest", "auto", confined=False)) == "Ask"
    assert kind(place.judge("pytest", "auto", allowing("shell(pytest:*)"), confined=False)) == "Ask"
    assert kind(place.judge("echo a > b", "auto", sandbox="read-only")) == "Ask"


def test_the_network_is_asked_for(place: Place) -> None:
    verdict = place.judge("ls", "auto", network=True)
    assert isinstance(verdict, Ask) and verdict.why_sandbox_is_not_enough
    assert kind(place.judge("ls", "plan", network=True)) == "Deny"


def test_plan_only_reads(place: Place) -> None:
    for command in ("touch a", "echo a > b", "python x.py", "echo $(touch a)", "f("):
        assert kind(place.judge(command, "plan", allowing("shell"))) == "Deny"


def test_bypass_asks_nothing_but_keeps_deny_rules(place: Place) -> None:
    rules = parse_rules({"deny": ["shell(rm:*)"], "ask": ["shell(touch:*)"]})
    assert kind(place.judge("touch $C; sudo ls > $C", "bypass", rules)) == "Allow"
    for command in (
        "ls; rm x",
        "sudo rm x",
        "/bin/rm x",
        "find . -exec rm {} +",
        "sh -c 'rm x'",
        "echo $(rm x)",
        "x='",
    ):
        assert kind(place.judge(command, "bypass", rules)) == "Deny", command
    assert kind(place.judge("x='", "bypass")) == "Allow"


def test_deny_beats_ask_beats_allow(place: Place) -> None:
    rules = parse_rules({"allow": ["shell"], "ask": ["shell(git push:*)"], "deny": ["shell(git push --force:*)"]})
    assert kind(place.judge("make", rules=rules)) == "Allow"
    assert kind(place.judge("git push", rules=rules)) == "Ask"
    assert kind(place.judge("git push --force", rules=rules)) == "Deny"
    assert kind(place.judge("git --no-pager push --force", rules=rules)) == "Deny"
    assert kind(place.judge("git $X", rules=rules)) == "Ask"
    assert isinstance(place.judge("make", rules=combine(Rules(), rules)), Ask)


@pytest.mark.parametrize(
    "command", ["x" * 70_000, "ls;" * 201, "ls \x1b[2J", "ls\r", "a" + "(" * 50, "$(" * 500 + ")" * 500]
)
def test_what_is_too_much_to_read_is_not_understood(place: Place, command: str) -> None:
    assert (kind(place.judge(command)), kind(place.judge(command, "auto"))) == ("Ask", "Deny")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("\\ foo", "could not be read"),
        ("to\\\nuch x", "could not be read"),
        ("echo \n\\\ntouch x", "could not be read"),
        ("cat <<E\n$\\\n(touch x) ${y}\nE", "could not be read"),
        ('echo "$\\\n(touch x)"', "could not be read"),
        ('echo "$\\\n(touch x) $y"', "could not be read"),
        ("cat <<E\na\\\nE\necho '$(touch x)'\nE", "quote its delimiter"),
        ("echo $\\\n{x@P}", "could not be read"),
        ('echo $"a"', "touch each other"),
        ("echo `a \\$b`", "backslash inside backticks"),
        ("cat <<E\n`a`\nE", "quote its delimiter"),
        ("coproc touch x", "is not followed"),
        ("sh -c $X", "not literal"),
        ("'if' a", "own grammar"),
    ],
)
def test_where_grammar_and_shell_part_ways_nothing_is_understood(command: str, reason: str) -> None:
    parsed = parse(command)
    assert isinstance(parsed, NotUnderstood) and reason in parsed.reason


@pytest.mark.parametrize(
    "command",
    [
        "python - <<'EOF'\nprint('$(a)')\nEOF",
        "git show \"$(cat <<'EOF'\nit's\nEOF\n)\"",
        "cat > f <<EOF\n  $HOME line\n\tx $(pwd)\nEOF\ncat f",
        "cat <<EOF > f\n$HOME ${X} $(pwd)\nEOF",
        '[[ "$x" =~ ^[0-9]+$ ]] && echo y',
        "for ((i=0; i<5; i++)); do echo $i; done",
        'arr=(a b); for x in "${arr[@]}"; do echo $x; done',
        'case "$1" in\n  -h|--help) echo h ;;\n  *) echo x ;;\nesac',
        "echo a \\\n  b && diff <(sort a) <(sort b)",
    ],
)
def test_what_agents_often_write_is_understood(place: Place, command: str) -> None:
    assert kind(place.judge(command, "auto")) == "Allow"


def test_reasons_are_sentences(place: Place) -> None:
    assert place.judge("touch b") == Ask("`touch b` is not known to only read.")
    assert place.judge("touch b", "auto") == Allow("it runs confined to the worktree")
