"""What crosses in a bundle is what was asked for, all of it and no more; references move by compare-and-swap."""

from pathlib import Path

import pytest
from bundles import BASE, WORK, Node, commit, count_objects, everything, filled, make_node, ref, whole
from repositories import NOW, ODD_NAMES, content, make_repository, opened, plain_git, user_state, write

from worktrees.bundle import BundleLacks, BundleRefused, held_commits, make_bundle, take_bundle
from worktrees.carry import snapshot_checkout
from worktrees.git import GitError
from worktrees.merge import commit_work
from worktrees.mirror import mirror_settings, open_mirror
from worktrees.objects import Identity, RefMoved, move_ref
from worktrees.repository import Repository
from worktrees.restore import checkout_tree
from worktrees.snapshot import snapshot, tree_of


def zoo(root: Path) -> Path:
    """Odd names, a link, a program, an empty file, bytes that are no text."""
    make_repository(root, {**dict.fromkeys(ODD_NAMES, "odd\n"), "empty": "", "raw": bytes(range(256))})
    (root / "link").symlink_to("nowhere")
    write(root, {"run": "#!/bin/sh\n"})
    (root / "run").chmod(0o755)
    plain_git(root, "add", "-A")
    plain_git(root, "commit", "-qm", "zoo")
    return root


def test_a_repository_crosses_and_is_worked_on_as_where_it_came_from(tmp_path: Path) -> None:
    root = zoo(tmp_path / "user")
    node, before = make_node(root, tmp_path), everything(root)
    bundle = make_bundle(node.user, {BASE: node.user.head}, ())
    assert everything(root) == before
    mirror = node.mirror()
    take_bundle(mirror, bundle, {BASE: None})
    assert ref(mirror, BASE) == node.user.head
    tree = node.pool().acquire("one", node.user.head)
    assert content(tree.path) == content(root)
    assert plain_git(tree.path, "status", "--porcelain") == ""
    assert plain_git(tree.path, "log", "--format=%s").split() == ["zoo", "start"]
    whole(mirror)


def test_it_is_a_bundle_that_git_itself_verifies_and_reads(tmp_path: Path) -> None:
    node, _ = filled(tmp_path)
    later = commit(node.user.root, {"a.txt": "two\n"})
    (tmp_path / "whole").write_bytes(make_bundle(node.user, {BASE: node.user.head, WORK: later}, ()))
    (tmp_path / "later").write_bytes(make_bundle(node.user, {WORK: later}, [node.user.head]))
    (tmp_path / "nothing").write_bytes(make_bundle(node.user, {WORK: later}, [later]))
    plain_git(tmp_path, "init", "-q", "other")
    for name in ("whole", "later", "nothing"):
        plain_git(tmp_path / "other", "bundle", "verify", str(tmp_path / name))
        plain_git(tmp_path / "other", "fetch", "-q", str(tmp_path / name), f"{WORK}:refs/heads/{name}")
        assert plain_git(tmp_path / "other", "rev-parse", name) == later


def test_commits_that_no_reference_holds_cross_and_no_reference_is_made_for_them(tmp_path: Path) -> None:
    node, mirror = filled(tmp_path)
    loose = plain_git(node.user.root, "commit-tree", "-p", "HEAD", "-m", "m", "HEAD^{tree}")
    before = everything(node.user.root)
    take_bundle(mirror, make_bundle(node.user, {WORK: loose}, [node.user.head]), {WORK: None})
    assert everything(node.user.root) == before
    assert ref(mirror, WORK) == loose


def test_an_increment_holds_only_what_is_new_and_makes_no_pack_of_it(tmp_path: Path) -> None:
    node, mirror = filled(tmp_path, {f"d{i}/f{i}": f"{i}\n" * 9 for i in range(200)})
    packs = sorted((mirror.git_dir / "objects" / "pack").iterdir())
    assert len(packs) in {2, 3}
    later = commit(node.user.root, {"d7/f7": "changed\n"})
    bundle = make_bundle(node.user, {BASE: later}, held_commits(mirror))
    assert count_objects(bundle) == 4 and len(bundle) < 2_000
    take_bundle(mirror, bundle, {BASE: node.user.head})
    assert sorted((mirror.git_dir / "objects" / "pack").iterdir()) == packs
    assert content(node.pool().acquire("one", later).path) == content(node.user.root)
    whole(mirror)


def test_an_increment_says_what_it_builds_on(tmp_path: Path) -> None:
    node, _ = filled(tmp_path)
    later = commit(node.user.root, {"a.txt": "two\n"})
    empty = open_mirror(tmp_path / "mirrors", "empty", mirror_settings(node.user, {}))
    with pytest.raises(BundleLacks) as lacking:
        take_bundle(empty, make_bundle(node.user, {WORK: later}, [node.user.head]), {WORK: None})
    assert lacking.value.missing == (node.user.head,) and held_commits(empty) == ()


def test_an_increment_without_anything_new_moves_a_reference(tmp_path: Path) -> None:
    node, mirror = filled(tmp_path)
    bundle = make_bundle(node.user, {WORK: node.user.head}, held_commits(mirror))
    assert count_objects(bundle) == 0
    take_bundle(mirror, bundle, {WORK: None})
    assert ref(mirror, WORK) == node.user.head


def test_what_the_other_side_has_and_this_one_does_not_know_is_no_obstacle(tmp_path: Path) -> None:
    node, mirror = filled(tmp_path)
    theirs = plain_git(mirror.git_dir, "--git-dir", ".", "commit-tree", "-m", "m", f"{BASE}^{{tree}}")
    later = commit(node.user.root, {"a.txt": "two\n"})
    bundle = make_bundle(node.user, {WORK: later}, [theirs, "f" * 40, "no id", node.user.head])
    assert count_objects(bundle) == 3
    take_bundle(mirror, bundle, {WORK: None})


def test_the_state_of_a_dirty_checkout_crosses_as_its_snapshot(tmp_path: Path) -> None:
    node, mirror = filled(tmp_path)
    root = node.user.root
    write(root, {"a.txt": "dirty\n", "new é": "untracked\n", "x.o": "ignored\n"})
    (root / "src" / "b.py").unlink()
    (root / "link").symlink_to("a.txt")
    before = user_state(root)
    taken = snapshot_checkout(node.user, tmp_path / "scratch.index", WORK, message="m", now_s=NOW)
    take_bundle(mirror, make_bundle(node.user, {WORK: taken.commit}, held_commits(mirror)), {WORK: None})
    assert content(node.pool().acquire("one", taken.commit).path) == content(root, "x.o")
    assert user_state(root) == before


def work_on(node: Node, mirror: Repository) -> str:
    """A snapshot and a commit made in the mirror's worktree."""
    pool = node.pool()
    tree = pool.acquire("one", node.user.head)
    write(tree.path, {"a.txt": "made elsewhere\n", "new.txt": "n\n"})
    taken = snapshot(mirror, tree, pool.index_path(tree), "refs/thalia/s/main", node.user.head, message="m", now_s=NOW)
    return commit_work(
        mirror,
        WORK,
        tree_of(mirror.git, taken.commit) or "",
        node.user.head,
        message="Work",
        author=Identity("Ada", "ada@example.org"),
        now_s=NOW,
        call_id="c1",
    )


def test_a_result_comes_back_under_our_references_and_the_users_side_stays_as_it_is(tmp_path: Path) -> None:
    node, mirror = filled(tmp_path)
    made, before = work_on(node, mirror), user_state(node.user.root)
    take_bundle(node.user, make_bundle(mirror, {WORK: made}, [node.user.head]), {WORK: None})
    assert ref(node.user, WORK) == made and user_state(node.user.root) == before
    checkout_tree(node.user, made, tmp_path / "result")
    assert content(tmp_path / "result")["a.txt"] == ("file", b"made elsewhere\n")
    assert plain_git(node.user.root, "show", "-s", "--format=%an %s", made) == "Ada Work"
    whole(node.user)


def test_many_objects_come_as_one_pack_that_others_can_read(tmp_path: Path) -> None:
    node, mirror = filled(tmp_path)
    later = commit(node.user.root, {f"d{i}/f": f"{i}\n" for i in range(150)})
    take_bundle(mirror, make_bundle(node.user, {WORK: later}, [node.user.head]), {WORK: None})
    packs = list((mirror.git_dir / "objects" / "pack").glob("*.pack"))
    assert len(packs) == 1 and packs[0].with_suffix(".idx").exists()
    assert content(node.pool().acquire("one", later).path) == content(node.user.root)
    whole(mirror)


@pytest.mark.parametrize("files", [1, 150])
def test_a_repository_with_sha256_ids_crosses_and_its_result_comes_back(files: int, tmp_path: Path) -> None:
    plain_git(tmp_path, "init", "-q", "--object-format=sha256", "user")
    root = make_repository(tmp_path / "user", {f"d{i}/f": f"{i}\n" for i in range(files)})
    node = make_node(root, tmp_path)
    mirror = node.mirror()
    take_bundle(mirror, make_bundle(node.user, {BASE: node.user.head}, ()), {BASE: None})
    assert content(node.pool().acquire("other", node.user.head).path) == content(root)
    made = work_on(node, mirror)
    (tmp_path / "bundle").write_bytes(bundle := make_bundle(mirror, {WORK: made}, [node.user.head]))
    plain_git(root, "bundle", "verify", str(tmp_path / "bundle"))
    take_bundle(node.user, bundle, {WORK: None})
    assert len(made) == 64 and ref(node.user, WORK) == made
    whole(node.user)
    whole(mirror)


def test_a_shallow_clone_crosses_with_its_end_and_its_result_comes_back(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin")
    for number in range(3):
        commit(origin, {"a.txt": f"{number}\n"})
    plain_git(tmp_path, "clone", "-q", "--depth=2", f"file://{origin}", "user")
    node = make_node(tmp_path / "user", tmp_path)
    bundle, end = make_bundle(node.user, {BASE: node.user.head}, ()), (node.user.common_dir / "shallow").read_text()
    mirror = node.mirror()
    take_bundle(mirror, bundle, {BASE: None})
    assert (mirror.git_dir / "shallow").read_text() == end and node.mirror().shallow
    tree = node.pool().acquire("other", node.user.head)
    assert len(plain_git(tree.path, "log", "--format=%h").split()) == 2
    take_bundle(node.user, make_bundle(mirror, {WORK: work_on(node, mirror)}, [node.user.head]), {WORK: None})
    assert (node.user.common_dir / "shallow").read_text() == end
    whole(mirror)
    whole(node.user)


def test_submodules_stay_names_and_files_of_a_filter_stay_what_is_stored(tmp_path: Path) -> None:
    inner, root = make_repository(tmp_path / "inner"), make_repository(tmp_path / "user")
    plain_git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "sub mod")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n"
    commit(root, {"large.bin": pointer, ".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n"})
    plain_git(root, "config", "filter.lfs.smudge", "touch CANARY")
    plain_git(root, "config", "filter.lfs.required", "true")
    node = make_node(root, tmp_path)
    mirror = node.mirror()
    take_bundle(mirror, make_bundle(node.user, {BASE: node.user.head}, ()), {BASE: None})
    tree = node.pool().acquire("one", node.user.head)
    assert list((tree.path / "sub mod").iterdir()) == []
    assert (tree.path / "large.bin").read_text() == pointer
    assert plain_git(tree.path, "ls-tree", "HEAD", "sub mod").startswith("160000 commit")
    assert plain_git(tree.path, "status", "--porcelain") == ""


def test_a_reference_that_somebody_moved_is_not_moved_and_nothing_is_taken(tmp_path: Path) -> None:
    node, mirror = filled(tmp_path)
    made, theirs = work_on(node, mirror), commit(node.user.root, {"a.txt": "theirs\n"})
    move_ref(node.user.git, WORK, theirs, (None,))
    before, bundle = everything(node.user.root), make_bundle(mirror, {WORK: made}, [node.user.head])
    with pytest.raises(RefMoved) as refused:
        take_bundle(node.user, bundle, {WORK: None})
    assert (refused.value.ref, refused.value.found) == (WORK, theirs)
    assert everything(node.user.root) == before
    take_bundle(node.user, bundle, {WORK: theirs})
    assert ref(node.user, WORK) == made


def test_one_that_is_moved_while_the_objects_come_stays_where_it_was_moved_to(tmp_path: Path) -> None:
    node, mirror = filled(tmp_path)
    made, theirs = work_on(node, mirror), commit(node.user.root, {"a.txt": "theirs\n"})

    def meanwhile(name: str) -> None:
        if name == "after_index":
            move_ref(node.user.git, WORK, theirs, (None,))

    with pytest.raises(RefMoved):
        take_bundle(node.user, make_bundle(mirror, {WORK: made}, ()), {WORK: None}, reached=meanwhile)
    assert ref(node.user, WORK) == theirs
    whole(node.user)


def test_of_two_references_none_moves_where_one_was_moved_by_somebody(tmp_path: Path) -> None:
    node, mirror = filled(tmp_path)
    later = commit(node.user.root, {"a.txt": "two\n"})
    other = "refs/thalia/s/z"
    move_ref(mirror.git, other, node.user.head, (None,))
    bundle = make_bundle(node.user, {WORK: later, other: later}, ())
    with pytest.raises(RefMoved):
        take_bundle(mirror, bundle, {WORK: None, other: None})
    assert ref(mirror, WORK) == ""
    take_bundle(mirror, bundle, {WORK: None, other: node.user.head})
    assert ref(mirror, WORK) == ref(mirror, other) == later


def test_a_bundle_that_was_taken_is_taken_again_without_a_change(tmp_path: Path) -> None:
    node, mirror = filled(tmp_path)
    later = commit(node.user.root, {f"d{i}/f": f"{i}\n" for i in range(150)})
    bundle = make_bundle(node.user, {WORK: later}, held_commits(mirror))
    take_bundle(mirror, bundle, {WORK: None})
    before = everything(mirror.git_dir)
    take_bundle(mirror, bundle, {WORK: None})
    assert everything(mirror.git_dir) == before


def test_what_cannot_be_in_a_bundle_is_said_where_it_is_made(tmp_path: Path) -> None:
    user = opened(make_repository(tmp_path / "user"))
    blob = plain_git(user.root, "rev-parse", "HEAD:a.txt")
    for odd in (blob, "f" * 40, "HEAD", "--all", user.head[:12]):
        with pytest.raises(GitError, match="no commit"):
            make_bundle(user, {BASE: odd}, ())
    for name in ("refs/heads/main", "HEAD", "refs/thalia/../heads/main", "-x", "refs/thalia/a b"):
        with pytest.raises(BundleRefused, match="refs/thalia/"):
            make_bundle(user, {name: user.head}, ())


@pytest.mark.parametrize("many", [False, True])
def test_a_mirror_takes_the_flaws_of_an_old_history_which_a_users_repository_does_not(
    many: bool, tmp_path: Path
) -> None:
    node, mirror = filled(tmp_path)
    if many:
        commit(node.user.root, {f"d{i}/f": f"{i}\n" for i in range(150)})
    tree = plain_git(node.user.root, "rev-parse", "HEAD^{tree}")
    (tmp_path / "old").write_text(f"tree {tree}\nauthor Ada <ada> 1 +051800\ncommitter Ada 1 +0000\n\nold\n")
    hash_it = ("hash-object", "-t", "commit", "-w", "--literally", str(tmp_path / "old"))
    old = plain_git(node.user.root, *hash_it)
    bundle = make_bundle(node.user, {WORK: old}, ())
    take_bundle(mirror, bundle, {WORK: None})
    assert ref(mirror, WORK) == old
    other = opened(make_repository(tmp_path / "other"))
    with pytest.raises(BundleRefused, match="not whole"):
        take_bundle(other, bundle, {WORK: None})
