"""A mirror is worked in as in the user's repository, and nothing of the user's crosses that runs or is secret."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from bundles import BASE, WORK, Node, commit, everything, filled, make_node, ref, whole
from pydantic import TypeAdapter
from repositories import NOW, content, make_repository, plain_git, write

from worktrees.bundle import held_commits, make_bundle, take_bundle
from worktrees.carry import carry_dirty, snapshot_checkout
from worktrees.checkout import plan_merge
from worktrees.mirror import MirrorSettings, mirror_settings, open_mirror
from worktrees.objects import Identity
from worktrees.repository import BareRepository, Repository
from worktrees.restore import checkout_tree, restore
from worktrees.snapshot import snapshot

SECRET = "hunter2-7f3a"


def worked(node: Node, mirror: Repository, files: dict[str, str | bytes]) -> tuple[str, Path]:
    """A snapshot of a worktree with these files in it, and where that is."""
    pool = node.pool()
    tree = pool.acquire("one", node.user.head)
    write(tree.path, files)
    taken = snapshot(mirror, tree, pool.index_path(tree), "refs/thalia/s/main", node.user.head, message="m", now_s=NOW)
    return taken.commit, tree.path


def crossed(root: Path, tmp_path: Path) -> tuple[Node, Repository]:
    node = make_node(root, tmp_path)
    mirror = node.mirror()
    take_bundle(mirror, make_bundle(node.user, {BASE: node.user.head}, ()), {BASE: None})
    return node, mirror


def names_in(mirror: Repository, one: str) -> list[str]:
    return plain_git(mirror.git_dir, "--git-dir", ".", "ls-tree", "-r", "--name-only", one).split("\n")


def test_worktrees_of_a_mirror_are_made_used_again_set_back_and_given_back(tmp_path: Path) -> None:
    node, mirror = filled(tmp_path)
    later = commit(node.user.root, {"a.txt": "two\n"})
    take_bundle(mirror, make_bundle(node.user, {WORK: later}, held_commits(mirror)), {WORK: None})
    pool = node.pool()
    first = pool.acquire("one", node.user.head)
    assert pool.acquire("one", node.user.head) == first == pool.adopt("one")
    write(first.path, {"a.txt": "changed\n", "new.txt": "n\n"})
    restored = restore(mirror, first, pool.index_path(first), later)
    assert (restored.written, restored.removed) == (("a.txt",), ("new.txt",))
    assert content(first.path) == content(node.user.root)
    write(first.path, {"lost.txt": "nowhere else\n"})
    [saved] = pool.release(first, now_s=NOW).saved
    assert "lost.txt" in names_in(mirror, saved)
    second = pool.acquire("two", later)
    assert second.path == first.path and content(second.path) == content(node.user.root)
    assert pool.gc(set(), now_s=NOW).reclaimed == ("two",)
    checkout_tree(mirror, later, tmp_path / "plain")
    assert content(tmp_path / "plain") == content(node.user.root)
    whole(mirror)


@pytest.mark.parametrize("setting", ["true", "input", "false"])
def test_line_endings_are_made_as_the_user_has_them_whatever_the_machines_user_has(
    setting: str, tmp_path: Path
) -> None:
    root = make_repository(
        tmp_path / "user", {"a.txt": "one\ntwo\n", "b.bat": "x\n", ".gitattributes": "*.bat eol=crlf\n"}
    )
    plain_git(root, "config", "core.autocrlf", setting)
    plain_git(root, "config", "core.eol", "lf")
    node = make_node(root, tmp_path)
    write(node.folder, {".gitconfig": f"[core]\n\tautocrlf = {'false' if setting == 'true' else 'true'}\n"})
    mirror = node.mirror()
    take_bundle(mirror, make_bundle(node.user, {BASE: node.user.head}, ()), {BASE: None})
    taken, folder = worked(node, mirror, {"c.txt": "new\r\n"})
    assert (folder / "a.txt").read_bytes() == (b"one\r\ntwo\r\n" if setting == "true" else b"one\ntwo\n")
    assert (folder / "b.bat").read_bytes() == b"x\r\n"
    assert mirror.git.run("cat-file", "blob", f"{taken}:c.txt") == (b"new\r\n" if setting == "false" else b"new\n")


def test_what_the_user_ignores_is_ignored_and_what_the_machines_user_ignores_is_not(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "user")
    write(tmp_path, {".config/git/ignore": "*.general\n", ".config/git/attributes": "*.crlf eol=crlf\n"})
    write(root, {".git/info/exclude": "*.here\n", ".git/info/attributes": "*.raw -text\n"})
    plain_git(root, "config", "core.autocrlf", "input")
    node = make_node(root, tmp_path)
    write(node.folder, {".config/git/ignore": "*.machine\n", ".config/git/attributes": "*.machine eol=crlf\n"})
    mirror = node.mirror()
    take_bundle(mirror, make_bundle(node.user, {BASE: node.user.head}, ()), {BASE: None})
    files: dict[str, str | bytes] = {
        f"x.{kind}": "x\r\n" for kind in ("general", "here", "machine", "raw", "crlf", "o")
    }
    taken, _ = worked(node, mirror, files)
    assert {name for name in names_in(mirror, taken) if name.startswith("x.")} == {"x.machine", "x.raw", "x.crlf"}
    assert mirror.git.run("cat-file", "blob", f"{taken}:x.raw") == b"x\r\n"
    assert mirror.git.run("cat-file", "blob", f"{taken}:x.machine") == b"x\n"
    checkout_tree(mirror, taken, tmp_path / "out")
    assert (tmp_path / "out" / "x.crlf").read_bytes() == b"x\r\n"
    assert (tmp_path / "out" / "x.machine").read_bytes() == b"x\n"


def test_files_that_the_users_configuration_names_cross(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "user")
    write(
        tmp_path, {".gitconfig": "[core]\n\texcludesFile = ~/mine\n", "mine": "*.mine\n", "attributes": "*.a -text\n"}
    )
    plain_git(root, "config", "core.attributesFile", str(tmp_path / "attributes"))
    settings = mirror_settings(make_node(root, tmp_path).user, {"HOME": str(tmp_path)})
    assert (settings.excludes, settings.attributes) == ("*.mine\n", "*.a -text\n")


def test_commits_bear_the_users_name_and_never_that_of_the_machines_user(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "user")
    node = make_node(root, tmp_path)
    write(node.folder, {".gitconfig": "[user]\n\tname = Machine\n\temail = m@localhost\n"})
    assert node.mirror().identity is None
    name = 'Ada "Ä" Ä\\'
    plain_git(root, "config", "user.name", name)
    plain_git(root, "config", "user.email", "ada@example.org")
    mirror = node.mirror()
    assert mirror.identity == Identity(name, "ada@example.org")
    assert plain_git(mirror.git_dir, "config", "--file", "config", "user.name") == name


def test_nothing_of_the_users_that_runs_or_is_secret_crosses(tmp_path: Path) -> None:
    root, canary = (
        make_repository(tmp_path / "user", {"a.txt": "one\n", ".gitattributes": "* filter=f merge=m diff=d\n"}),
        tmp_path / "canary",
    )
    for key, value in {
        "filter.f.smudge": f"touch {canary}; cat # {SECRET}",
        "filter.f.clean": f"touch {canary}; cat # {SECRET}",
        "merge.m.driver": f"touch {canary} # {SECRET}",
        "core.fsmonitor": f"touch {canary} # {SECRET}",
        "core.hooksPath": f"/{SECRET}",
        "remote.origin.url": f"https://ada:{SECRET}@localhost/x",
        "credential.helper": f"!echo {SECRET}",
        "http.extraHeader": f"Authorization: {SECRET}",
        "include.path": f"/{SECRET}",
        "core.sshCommand": SECRET,
    }.items():
        plain_git(root, "config", key, value)
    write(root, {".git/hooks/post-checkout": f"#!/bin/sh\ntouch {canary} # {SECRET}\n", ".git/description": SECRET})
    (root / ".git/hooks/post-checkout").chmod(0o755)
    node, mirror = crossed(root, tmp_path)
    worked(node, mirror, {"b.txt": "b\n"})
    plain_git(node.pool().acquire("one", node.user.head).path, "status")
    assert not canary.exists()
    assert not mirror.runs_programs
    assert [name for name, data in everything(node.folder).items() if SECRET.encode() in data] == []
    assert SECRET not in repr(mirror_settings(node.user, {"HOME": str(tmp_path)}))


def test_a_mirror_is_its_owners_alone(tmp_path: Path) -> None:
    _, mirror = filled(tmp_path)
    assert mirror.root.stat().st_mode & 0o777 == mirror.root.parent.stat().st_mode & 0o777 == 0o700
    for name in ("config", "excludes", "attributes", "info/exclude", "info/attributes"):
        assert (mirror.root / name).stat().st_mode & 0o777 == 0o600
    assert sorted(file.name for file in mirror.root.parent.iterdir()) == [
        f"{mirror.root.stem}.git",
        f"{mirror.root.stem}.lock",
    ]


def test_settings_that_changed_hold_from_the_next_opening_on(tmp_path: Path) -> None:
    node, mirror = filled(tmp_path)
    assert mirror.git.settings().local["core.autocrlf"] == "false"
    plain_git(node.user.root, "config", "core.autocrlf", "true")
    write(node.user.root, {".git/info/exclude": "*.late\n"})
    again = node.mirror()
    assert again.root == mirror.root and ref(again, BASE) == node.user.head
    assert mirror.git.settings().local["core.autocrlf"] == "true"
    assert (mirror.root / "info" / "exclude").read_text() == "*.late\n"


def test_settings_cross_as_json_whatever_their_bytes_are(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "user")
    write(root, {".git/info/exclude": b"\xff\xfe\n"})
    with (root / ".git" / "config").open("ab") as config:
        config.write(b'[user]\n\tname = "A\xe9 \\" \\\\ \\n\xc3\xa9;#"\n\temail = "a b"\n')
    settings = mirror_settings(make_node(root, tmp_path).user, {"HOME": str(tmp_path)})
    adapter = TypeAdapter(MirrorSettings)
    assert adapter.validate_json(adapter.dump_json(settings)) == settings
    mirror = open_mirror(tmp_path / "mirrors", "one", settings)
    assert (mirror.root / "info" / "exclude").read_bytes() == b"\xff\xfe\n"
    assert mirror.git.settings().local["user.name"] == os.fsdecode(b'A\xe9 " \\ \n\xc3\xa9;#')
    assert mirror.identity == Identity(os.fsdecode(b'A\xe9 " \\ \n\xc3\xa9;#'), "a b")


def test_settings_from_elsewhere_name_no_program(tmp_path: Path) -> None:
    """Whoever sends them may be another version, or not ours at all."""
    settings = mirror_settings(make_node(make_repository(tmp_path / "user"), tmp_path).user, {"HOME": str(tmp_path)})
    odd = replace(settings, config=(*settings.config, ("core.fsmonitor", "evil"), ("filter.x.clean", "evil")))
    mirror = open_mirror(tmp_path / "mirrors", "one", odd)
    assert not mirror.runs_programs and b"evil" not in (mirror.root / "config").read_bytes()


def test_repositories_have_mirrors_of_their_own_and_each_kind_of_ids_has_one(tmp_path: Path) -> None:
    settings = mirror_settings(make_node(make_repository(tmp_path / "user"), tmp_path).user, {"HOME": str(tmp_path)})
    other = replace(settings, algorithm="sha256")
    opened = [
        open_mirror(tmp_path / "m", *args) for args in (("a", settings), ("b", settings), ("a", other), ("a", settings))
    ]
    assert len({one.root for one in opened}) == 3 and opened[0].root == opened[3].root


def test_what_needs_the_users_checkout_says_that_there_is_none(tmp_path: Path) -> None:
    node, mirror = filled(tmp_path)
    pool = node.pool()
    tree = pool.acquire("one", node.user.head)
    for call in (
        lambda: mirror.checkout,
        lambda: snapshot_checkout(mirror, tmp_path / "i", WORK, message="m", now_s=NOW),
        lambda: carry_dirty(mirror, "other", tree, pool.index_path(tree), now_s=NOW),
        lambda: plan_merge(mirror, node.user.head, node.user.head),
    ):
        with pytest.raises(BareRepository, match="do this where your checkout is"):
            call()


def test_a_dirty_state_that_crossed_is_carried_from_its_reference(tmp_path: Path) -> None:
    """A file of the project may be called as one of git's own, and say the same but for the ends of its lines."""
    node, mirror = filled(tmp_path, {"HEAD": "one\n", "a.txt": "one\n"})
    write(node.user.root, {"HEAD": (mirror.root / "HEAD").read_text().replace("\n", "\r\n")})
    taken = snapshot_checkout(node.user, tmp_path / "scratch.index", WORK, message="m", now_s=NOW)
    take_bundle(mirror, make_bundle(node.user, {BASE: taken.commit}, held_commits(mirror)), {BASE: node.user.head})
    pool = node.pool()
    tree = pool.acquire("one", node.user.head)
    carried = carry_dirty(mirror, "s", tree, pool.index_path(tree), now_s=NOW)
    assert carried.base == taken.commit and content(tree.path) == content(node.user.root)
