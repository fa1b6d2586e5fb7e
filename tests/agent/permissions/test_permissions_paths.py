"""Cases G09 to G12 for file tools: where a path leads, what is refused, and opening without being led away."""

import os
import threading
from pathlib import Path

import pytest

from agent.permissions.judge import Access, judge_file, judge_tool
from agent.permissions.paths import (
    NotRegularFile,
    OutsideWorktree,
    PathFacts,
    ProtectedName,
    ThroughSymlink,
    locate,
    open_inside,
    open_parent,
    protected_name,
    read_bytes,
)
from agent.permissions.rules import Rules, parse_rules
from agent.permissions.verdicts import Allow, Ask, Deny, Mode

NO_RULES = Rules()


@pytest.fixture
def worktree(tmp_path: Path) -> Path:
    for name in ("ws/sub", "ws/a", "ws-evil", "out", "home", "main/sub"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "ws" / "sub" / "a.py").write_bytes(b"a = 1\n")
    (tmp_path / "main" / "sub" / "a.py").write_bytes(b"a = 1\n")
    (tmp_path / "out" / "secret").write_bytes(b"secret")
    (tmp_path / "ws" / "l").symlink_to(tmp_path / "out")
    (tmp_path / "ws" / "s").symlink_to(tmp_path / "out" / "secret")
    (tmp_path / "ws" / "inner").symlink_to("sub")
    return tmp_path / "ws"


def facts_of(worktree: Path, path: str) -> PathFacts:
    return locate(worktree, path, main_checkout=worktree.parent / "main", home=worktree.parent / "home")


def verdict(worktree: Path, path: str, access: Access = "write", mode: Mode = "auto", rules: Rules = NO_RULES) -> str:
    return type(judge_file(facts_of(worktree, path), access, mode, rules)).__name__


OUTSIDE = [
    "../o",
    "/etc/x",
    "~/x",
    "~root/x",
    "{ws}-evil/x",
    "a/../../o",
    "..",
    "/",
    "l/n",
    "s",
    "l/../x",
    "a\0b",
    "~/../out",
]


@pytest.mark.parametrize("path", OUTSIDE)
@pytest.mark.parametrize("mode", ["plan", "ask", "auto"])
def test_g09_a_path_out_of_the_worktree_is_not_written(worktree: Path, path: str, mode: Mode) -> None:
    assert verdict(worktree, path.format(ws=worktree), "write", mode) == "Deny"
    assert verdict(worktree, path.format(ws=worktree), "read", mode) in ("Deny", "Ask")


def test_g09_percent_signs_are_letters(worktree: Path) -> None:
    facts = facts_of(worktree, "./a/%2e%2e/o")
    assert (facts.inside, facts.relative) == (True, "a/%2e%2e/o")
    assert verdict(worktree, "./a/%2e%2e/o") == "Allow"


@pytest.mark.parametrize(
    ("path", "relative"),
    [
        ("sub/a.py", "sub/a.py"),
        ("./sub/../sub/a.py", "sub/a.py"),
        ("{ws}/new", "new"),
        ("inner/a.py", "sub/a.py"),
        (".", "."),
    ],
)
def test_a_path_inside_has_its_real_place(worktree: Path, path: str, relative: str) -> None:
    facts = facts_of(worktree, path.format(ws=worktree))
    assert (facts.inside, facts.relative, facts.in_main_checkout) == (True, relative, None)
    assert facts.symlink == ("inner" in path)


def test_a_worktree_reached_through_a_link_is_the_same_worktree(worktree: Path) -> None:
    (worktree.parent / "alias").symlink_to(worktree)
    facts = locate(worktree.parent / "alias", f"{worktree.parent}/alias/sub/a.py")
    assert (facts.relative, facts.symlink) == ("sub/a.py", False)
    assert locate(worktree.parent / "alias", f"{worktree}/sub/a.py").relative == "sub/a.py"


def test_a_loop_of_links_is_no_error(worktree: Path) -> None:
    (worktree / "loop").symlink_to("loop")
    facts_of(worktree, "loop/x")
    with pytest.raises(ThroughSymlink):
        read_bytes(worktree, "loop")


def test_g10_a_link_out_is_denied_on_its_real_path(worktree: Path) -> None:
    for path in ("l/secret", "s", "l/n"):
        for access in ("read", "write"):
            assert verdict(worktree, path, access) == "Deny"
    reason = judge_file(facts_of(worktree, "s"), "read", "ask", NO_RULES).reason
    assert str(worktree.parent / "out" / "secret") in reason


@pytest.mark.parametrize("pattern", ["/{out}/secret", "{out}/**", "secret"])
def test_g10_a_deny_rule_holds_through_a_link(worktree: Path, pattern: str) -> None:
    rules = parse_rules({"deny": [f"read({pattern.format(out=worktree.parent / 'out')})"]})
    for path in ("s", "l/secret", str(worktree.parent / "out" / "secret"), "../out/secret"):
        for mode in ("ask", "bypass"):
            assert verdict(worktree, path, "read", mode, rules) == "Deny"
    assert verdict(worktree, "sub/a.py", "read", "ask", rules) == "Allow"


PROTECTED = [
    ".git/hooks/pre-commit",
    ".git/config",
    ".git",
    ".GIT/Hooks/post-checkout",
    ".thalia/settings",
    ".Thalia/Settings",
]
PROTECTED += [
    ".envrc",
    "sub/.ENVRC",
    ".vscode/tasks.json",
    ".mcp.json",
    ".claude/settings.json",
    ".g\u200bit/config",
    "sub/.git/x",
]
PROTECTED += [".git./config", "inner/.mcp.json", "sub/../.git/config", "\uff0egit/config"]


@pytest.mark.parametrize("path", PROTECTED)
@pytest.mark.parametrize("exists", [True, False])
def test_g11_protected_names_are_not_written(worktree: Path, path: str, exists: bool) -> None:
    if exists and not (worktree / path).is_dir():
        (worktree / path).parent.mkdir(parents=True, exist_ok=True)
        (worktree / path).write_text("x")
    rules = parse_rules({"allow": ["edit", "read"]})
    for mode in ("plan", "ask", "auto"):
        assert verdict(worktree, path, "write", mode, rules) == "Deny"
    with pytest.raises(ProtectedName):
        open_inside(worktree, path, os.O_WRONLY | os.O_CREAT)
    with pytest.raises((ProtectedName, OutsideWorktree)), open_parent(worktree, path, create=True):
        pass


def test_g11_a_link_does_not_hide_a_protected_name(worktree: Path) -> None:
    (worktree / ".git").mkdir()
    (worktree / "g").symlink_to(".git")
    assert verdict(worktree, "g/config") == "Deny"


@pytest.mark.parametrize(
    "path", [".gitignore", ".github/x.yml", "git", ".vscode/x", "environment", "thalia/x", ".claude/x.md"]
)
def test_other_names_are_not_protected(path: str) -> None:
    assert protected_name(path) is None


def test_g12_the_users_checkout_is_refused_with_the_path_in_the_worktree(worktree: Path) -> None:
    path = str(worktree.parent / "main" / "sub" / "a.py")
    for access in ("read", "write"):
        result = judge_file(facts_of(worktree, path), access, "auto", NO_RULES)
        assert isinstance(result, Deny) and str(worktree / "sub" / "a.py") in result.reason
    assert verdict(worktree, "../main/sub/a.py") == "Deny"


@pytest.mark.parametrize(
    ("access", "mode", "expected"),
    [
        ("read", "plan", Allow),
        ("read", "ask", Allow),
        ("write", "plan", Deny),
        ("write", "ask", Ask),
        ("write", "auto", Allow),
    ],
)
def test_modes_of_a_file_inside(worktree: Path, access: Access, mode: Mode, expected: type) -> None:
    assert isinstance(judge_file(facts_of(worktree, "sub/a.py"), access, mode, NO_RULES), expected)


def test_rules_of_a_file(worktree: Path) -> None:
    rules = parse_rules(
        {"allow": ["edit(/sub/**)", "read(.env)"], "ask": ["edit(*.lock)"], "deny": ["edit(./sub/x/**)"]}
    )
    table = {"sub/a.py": "Allow", "sub/x/y": "Deny", "SUB/x": "Ask", "sub/a.lock": "Ask", "b.py": "Ask"}
    assert {path: verdict(worktree, path, "write", "ask", rules) for path in table} == table
    assert verdict(worktree, "sub/x/y", "write", "bypass", rules) == "Deny"
    assert verdict(worktree, ".env", "read", "ask", rules) == "Allow"


@pytest.mark.parametrize("path", [".env", "sub/.env.local", "id_rsa", "x.pem", ".NETRC"])
def test_secrets_are_asked_for(worktree: Path, path: str) -> None:
    assert verdict(worktree, path, "read", "auto") == "Ask"
    assert verdict(worktree, ".env.example", "read", "auto") == "Allow"


def test_reading_goes_through_no_link(worktree: Path) -> None:
    assert read_bytes(worktree, "sub/a.py") == b"a = 1\n"
    for path in ("s", "l/secret", "inner/a.py"):
        with pytest.raises(ThroughSymlink):
            read_bytes(worktree, path)
    for path in ("../out/secret", "/etc/passwd", "", "sub/../../out/secret"):
        with pytest.raises(OutsideWorktree):
            read_bytes(worktree, path)


def test_only_regular_files_are_opened_and_none_is_waited_for(worktree: Path) -> None:
    os.mkfifo(worktree / "pipe")
    with pytest.raises(NotRegularFile):
        read_bytes(worktree, "pipe")
    with pytest.raises(NotRegularFile):
        read_bytes(worktree, "sub")
    with pytest.raises(FileNotFoundError):
        read_bytes(worktree, "sub/none")


def test_a_file_is_replaced_in_its_own_folder(worktree: Path) -> None:
    with open_parent(worktree, "new/deep/b.py", create=True) as (folder, name):
        descriptor = os.open(name + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644, dir_fd=folder)
        os.write(descriptor, b"b")
        os.close(descriptor)
        os.rename(name + ".tmp", name, src_dir_fd=folder, dst_dir_fd=folder)
    assert read_bytes(worktree, "new/deep/b.py") == b"b"
    with pytest.raises(ThroughSymlink), open_parent(worktree, "l/x/y", create=True):
        pass
    assert not (worktree.parent / "out" / "x").exists()


def test_a_folder_exchanged_for_a_link_never_leads_out(worktree: Path) -> None:
    (worktree / "d").mkdir()
    (worktree / "d" / "secret").write_bytes(b"inside")
    (worktree / "e").symlink_to(worktree.parent / "out")
    stop = threading.Event()

    def exchange() -> None:
        while not stop.is_set():
            for source, target in (("d", "t"), ("e", "d"), ("d", "e"), ("t", "d")):
                (worktree / source).rename(worktree / target)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        seen = {_read_or_error(worktree) for _ in range(3000)}
    finally:
        stop.set()
        thread.join()
    assert b"inside" in seen and ThroughSymlink in seen and b"secret" not in seen


def _read_or_error(worktree: Path) -> bytes | type[Exception]:
    try:
        return read_bytes(worktree, "d/secret")
    except (ThroughSymlink, OSError) as error:
        return type(error)


@pytest.mark.parametrize(
    ("mode", "external", "expected"),
    [
        ("ask", True, "Ask"),
        ("auto", True, "Ask"),
        ("plan", True, "Deny"),
        ("bypass", True, "Allow"),
        ("ask", False, "Allow"),
    ],
)
def test_other_tools_ask_when_they_reach_outside(mode: Mode, external: bool, expected: str) -> None:
    assert type(judge_tool("mcp__a__b", mode, NO_RULES, external=external)).__name__ == expected
    rules = parse_rules({"deny": ["mcp__a__b"], "allow": ["mcp__a__c"]})
    assert isinstance(judge_tool("mcp__a__b", mode, rules, external=external), Deny)
    wanted = Deny if mode == "plan" and external else Allow
    assert isinstance(judge_tool("mcp__a__c", mode, rules, external=external), wanted)
