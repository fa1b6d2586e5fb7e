"""Killed anywhere, and two at once: a mirror stays usable, and who comes again ends as if nothing had happened."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import pytest
from bundles import BASE, WORK, Node, commit, everything, filled, make_node, ref, whole
from repositories import content, kill_at, make_repository, opened, plain_git, write
from test_pool_at_once import is_locked_out, wait_until

from worktrees.bundle import held_commits, make_bundle, take_bundle
from worktrees.durable import sync_objects
from worktrees.mirror import mirror_settings, open_mirror
from worktrees.objects import RefMoved
from worktrees.repository import Repository

PATIENCE_S = 60.0
OTHER = "refs/thalia/s/z"
POINTS = ("before_index", "after_index", "after_objects", "before_ref", "after_ref")


def shipped(tmp_path: Path, files: int) -> tuple[Node, Repository, bytes, str]:
    """A filled mirror, and a bundle for it that moves BASE and makes OTHER."""
    node, mirror = filled(tmp_path)
    later = commit(node.user.root, {f"d{i}/f": f"{i}\n" for i in range(files)})
    return node, mirror, make_bundle(node.user, {BASE: later, OTHER: later}, held_commits(mirror)), later


def usable(node: Node, mirror: Repository, later: str) -> None:
    assert ref(mirror, BASE) == ref(mirror, OTHER) == later
    tree = node.pool().acquire("after", later)
    assert content(tree.path) == content(node.user.root)
    whole(mirror)


@pytest.mark.parametrize("files", [3, 150])
@pytest.mark.parametrize("point", POINTS)
def test_killed_while_a_bundle_is_taken_it_is_taken_again(point: str, files: int, tmp_path: Path) -> None:
    node, mirror, bundle, later = shipped(tmp_path, files)
    moves = {BASE: node.user.head, OTHER: None}
    assert kill_at(point, lambda reached: take_bundle(mirror, bundle, moves, reached=reached))
    assert (ref(mirror, BASE), ref(mirror, OTHER)) == (later if point == "after_ref" else node.user.head, "")
    # What was there is worked on, whether the rest comes or not.
    assert (node.pool().acquire("before", node.user.head).path / "a.txt").read_text() == "one\n"
    take_bundle(mirror, bundle, moves)
    usable(node, mirror, later)


@pytest.mark.parametrize("files", [3, 150])
@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_killed_while_its_git_works_on_it_is_taken_again(number: int, files: int, tmp_path: Path) -> None:
    """A git that has lost its caller goes on where nobody looks any more."""
    node, mirror, bundle, later = shipped(tmp_path, files)
    programs, ended = tmp_path / "programs", tmp_path / "ended"
    script = f"""#!/bin/sh
echo x >> {tmp_path}/count
number=$(wc -l < {tmp_path}/count)
[ $number = {number} ] && kill -9 $PPID
{shutil.which("git")} "$@"
code=$?
[ $number = {number} ] && touch {ended}
exit $code
"""
    write(programs, {"git": script})
    (programs / "git").chmod(0o755)
    child = open_mirror(
        tmp_path / "node" / "mirrors",
        "one",
        mirror_settings(node.user, {"HOME": str(tmp_path)}),
        {"PATH": str(programs), "HOME": str(tmp_path / "node")},
    )
    moves = {BASE: node.user.head, OTHER: None}

    def take(reached: Callable[[str], None]) -> None:
        child.git.settings()
        (tmp_path / "count").unlink()
        ended.unlink(missing_ok=True)
        take_bundle(child, bundle, moves, reached=reached)

    assert kill_at("after_index", take)
    wait_until(ended.exists)
    assert len((tmp_path / "count").read_text().split()) == number
    take_bundle(mirror, bundle, moves)
    usable(node, mirror, later)


@pytest.mark.parametrize("point", ["before_make", "after_make"])
def test_killed_while_one_is_made_the_users_side_is_as_it_was(point: str, tmp_path: Path) -> None:
    user = opened(make_repository(tmp_path / "user"))
    before = everything(user.root)
    assert kill_at(point, lambda reached: make_bundle(user, {BASE: user.head}, (), reached=reached))
    assert everything(user.root) == before


@pytest.mark.parametrize("point", ["before_mirror", "after_mirror"])
def test_killed_while_a_mirror_is_made_it_is_opened_again(point: str, tmp_path: Path) -> None:
    node = make_node(make_repository(tmp_path / "user"), tmp_path)
    assert kill_at(point, node.mirror)
    mirror = node.mirror()
    take_bundle(
        mirror, make_bundle(node.user, {BASE: node.user.head, OTHER: node.user.head}, ()), dict.fromkeys((BASE, OTHER))
    )
    usable(node, mirror, node.user.head)
    assert [file.name for file in mirror.root.parent.glob("*.draft")] == []


@pytest.mark.parametrize("files", [3, 150])
@pytest.mark.parametrize("point", POINTS)
def test_one_is_taken_whole_while_another_is_just_there(point: str, files: int, tmp_path: Path) -> None:
    """The same one, by two: what each has in its own folder is not taken for what somebody dead has left."""
    node, mirror, bundle, later = shipped(tmp_path, files)
    moves, there, go = {BASE: node.user.head, OTHER: None}, Event(), Event()

    def stop(name: str) -> None:
        if name == point and not there.is_set():
            there.set()
            assert go.wait(PATIENCE_S)

    with ThreadPoolExecutor() as threads:
        first = threads.submit(take_bundle, mirror, bundle, moves, reached=stop)
        assert there.wait(PATIENCE_S)
        try:
            take_bundle(node.mirror(), bundle, moves)
            assert ref(mirror, BASE) == ref(mirror, OTHER) == later
        finally:
            go.set()
        first.result()
    usable(node, mirror, later)


def test_of_two_that_want_the_same_reference_at_once_one_gets_it(tmp_path: Path) -> None:
    node, mirror = filled(tmp_path)
    commits = [commit(node.user.root, {"a.txt": f"{number}\n"}) for number in range(2)]
    bundles = [make_bundle(node.user, {WORK: one}, [node.user.head]) for one in commits]
    meeting = Barrier(2)

    def meet(name: str) -> None:
        if name == "before_ref":
            meeting.wait(PATIENCE_S)

    def take(bundle: bytes) -> bool:
        try:
            take_bundle(node.mirror(), bundle, {WORK: None}, reached=meet)
        except RefMoved:
            return False
        return True

    with ThreadPoolExecutor() as threads:
        done = list(threads.map(take, bundles))
    assert sorted(done) == [False, True]
    assert ref(mirror, WORK) == commits[done.index(True)]
    whole(mirror)


def test_of_two_that_open_a_new_mirror_one_makes_it_and_nobody_sees_half_of_it(tmp_path: Path) -> None:
    node = make_node(make_repository(tmp_path / "user"), tmp_path)
    there, go = Event(), Event()

    def stop(name: str) -> None:
        if name == "before_mirror":
            there.set()
            assert go.wait(PATIENCE_S)

    with ThreadPoolExecutor() as threads:
        first = threads.submit(node.mirror, stop)
        assert there.wait(PATIENCE_S)
        try:
            second = threads.submit(node.mirror)
            [lock] = (tmp_path / "node" / "mirrors").glob("*.lock")
            wait_until(lambda: second.done() or is_locked_out(lock))
            assert list(lock.parent.glob("*.git")) == []
        finally:
            go.set()
        assert first.result().root == second.result().root


class Clearing(dict[str, int]):
    """Whoever asks when a folder was synced finds that it has just gone."""

    def get(self, key: str, default: int | None = None) -> int | None:  # type: ignore[override]
        if "scratch" in key:
            Path(key).rmdir()
        return default


def test_what_others_clear_away_meanwhile_is_no_obstacle_to_what_has_to_be_durable(tmp_path: Path) -> None:
    user = opened(make_repository(tmp_path / "user"))
    (user.common_dir / "objects" / "thalia-scratch-bundle-x").mkdir()
    synced = Clearing()
    sync_objects(user.common_dir, synced)
    assert not (user.common_dir / "objects" / "thalia-scratch-bundle-x").exists()


def test_many_at_once_into_a_mirror_that_is_just_being_made(tmp_path: Path) -> None:
    node = make_node(make_repository(tmp_path / "user"), tmp_path)
    names = [f"refs/thalia/s/{number}" for number in range(6)]
    bundles = {name: make_bundle(node.user, {name: node.user.head}, ()) for name in names}

    def take(name: str) -> None:
        take_bundle(node.mirror(), bundles[name], {name: None})

    with ThreadPoolExecutor(6) as threads:
        list(threads.map(take, names))
    mirror = node.mirror()
    assert {ref(mirror, name) for name in names} == {node.user.head}
    whole(mirror)


def test_what_a_dead_process_left_goes_with_the_next_bundle(tmp_path: Path) -> None:
    node, mirror, bundle, later = shipped(tmp_path, 150)
    moves = {BASE: node.user.head, OTHER: None}
    assert kill_at("after_index", lambda reached: take_bundle(mirror, bundle, moves, reached=reached))
    [left] = (mirror.git_dir / "objects").glob("thalia-scratch-bundle-*")
    assert left.stat().st_mode & 0o077 == 0 and list(left.glob("pack/*.pack")) != []
    take_bundle(mirror, bundle, moves)
    usable(node, mirror, later)


def test_a_lock_of_a_dead_process_on_the_end_of_a_history_is_no_obstacle(tmp_path: Path) -> None:
    origin = make_repository(tmp_path / "origin")
    commit(origin, {"a.txt": "two\n"})
    plain_git(tmp_path, "clone", "-q", "--depth=1", f"file://{origin}", "user")
    node = make_node(tmp_path / "user", tmp_path)
    mirror, bundle = node.mirror(), make_bundle(opened(tmp_path / "user"), {BASE: node.user.head}, ())
    assert kill_at("after_objects", lambda reached: take_bundle(mirror, bundle, {BASE: None}, reached=reached))
    (mirror.git_dir / "shallow.lock").write_text("half")
    take_bundle(mirror, bundle, {BASE: None})
    assert (mirror.git_dir / "shallow").read_text() == f"{node.user.head}\n"
    whole(mirror)
