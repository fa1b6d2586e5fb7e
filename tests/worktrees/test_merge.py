"""Commits and merges are functions of their arguments; the user's checkout changes only where a plan says so."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from repositories import NOW, ODD_NAMES, content, kill_at, make_repository, opened, plain_git, write

from worktrees.carry import carry_dirty
from worktrees.checkout import Applied, MergeOverlap, MergePlan, Refused, apply_merge, plan_merge
from worktrees.merge import ChangedFile, Conflict, Merged, advance, changed_files, commit_work, diff, merge_commit
from worktrees.objects import Identity, RefMoved, encode_commit, read_ref, write_commit
from worktrees.pool import Pool
from worktrees.repository import Repository
from worktrees.snapshot import Reached, ignore_point, snapshot, tree_of

ADA = Identity("Ada", "ada@example.org")
REF = "refs/thalia/s/main"


def committed(root: Path, branch: str, files: dict[str, str | bytes]) -> str:
    plain_git(root, "checkout", "-q", "-B", branch, "main")
    write(root, files)
    plain_git(root, "add", "-A")
    plain_git(root, "commit", "-qm", branch)
    made = plain_git(root, "rev-parse", "HEAD")
    plain_git(root, "checkout", "-q", "main")
    return made


def test_threads_that_make_the_same_commit_at_the_same_time_all_have_it(tmp_path: Path) -> None:
    repo = opened(make_repository(tmp_path / "user"))
    tree, together = tree_of(repo.git, repo.head) or "", Barrier(4, timeout=20)

    def make(message: str) -> str:
        together.wait()
        return write_commit(repo.git, encode_commit(tree, (repo.head,), message, ADA, NOW))

    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(make, (f"Turn {number // 4}" for number in range(40))))
    assert len(set(made)) == 10
    assert plain_git(repo.root, "fsck", "--strict", "--no-dangling") == ""


def test_a_commit_is_made_once_and_adopted_after(tmp_path: Path) -> None:
    repo = opened(make_repository(tmp_path / "user"))
    tree = tree_of(repo.git, committed(repo.root, "other", {"n.txt": "n"})) or ""

    def commit(call_id: str = "call-1", message: str = "Add n", reached: Reached = ignore_point) -> str:
        head = repo.head
        return commit_work(
            repo, REF, tree, head, message=message, author=ADA, now_s=NOW, call_id=call_id, reached=reached
        )

    for point in ("before_ref", "after_ref"):
        assert kill_at(point, lambda reached: commit(reached=reached))
    first = commit()
    assert commit() == first == read_ref(repo.git, REF)
    shown = plain_git(repo.root, "show", "-s", "--format=%an|%ae|%cn|%B", first)
    assert shown == "Ada|ada@example.org|Thalia|Add n\n\nThalia-Call: call-1"
    follow = commit_work(repo, REF, tree, first, message="more", author=ADA, now_s=NOW, call_id="call-2")
    assert commit() == first
    assert read_ref(repo.git, REF) == follow
    with pytest.raises(RefMoved):
        commit(message="something else")


def test_a_merge_without_conflict_is_the_same_commit_each_time_and_touches_no_checkout(tmp_path: Path) -> None:
    repo = opened(make_repository(tmp_path / "user"))
    one, two = committed(repo.root, "one", {"one.txt": "1"}), committed(repo.root, "two", {"-two é": "2"})
    before = content(repo.root)
    merged = merge_commit(repo, one, two, now_s=NOW, call_id="c")
    assert merged == merge_commit(repo, one, two, now_s=NOW, call_id="c")
    assert isinstance(merged, Merged)
    assert merge_commit(repo, one, two, now_s=NOW, call_id="d") != merged
    assert merge_commit(repo, merged.commit, two, now_s=NOW, call_id="e") == merged
    assert plain_git(repo.root, "show", "-s", "--format=%P", merged.commit) == f"{one} {two}"
    assert content(repo.root) == before
    plain_git(repo.root, "update-ref", REF, one)
    assert advance(repo, REF, merged.commit, one)
    assert advance(repo, REF, merged.commit, one)
    plain_git(repo.root, "update-ref", REF, two)
    assert not advance(repo, REF, merged.commit, one)


def test_a_conflict_names_the_files_and_says_what_it_is(tmp_path: Path) -> None:
    repo = opened(make_repository(tmp_path / "user", {"a b": "1\n", "new\nline": "1\n", "c": "1\n"}))
    one = committed(repo.root, "one", {"a b": "2\n", "new\nline": "2\n", "c": "2\n"})
    two = committed(repo.root, "two", {"a b": "3\n", "new\nline": "3\n"})
    conflict = merge_commit(repo, one, two, now_s=NOW, call_id="c")
    assert isinstance(conflict, Conflict)
    assert conflict.files == ("a b", "new\nline")
    assert "Merge conflict in a b" in conflict.text


def test_changes_are_listed_with_status_and_line_counts(tmp_path: Path) -> None:
    long = "".join(f"line {i}\n" for i in range(30))
    root = make_repository(tmp_path / "user", {"moved from": long, "m": "1\n2\n", "gone": "g\n", "bin": b"\0a"})
    repo = opened(root)
    plain_git(root, "checkout", "-qb", "x")
    (root / "moved from").rename(root / "to é")
    (root / "gone").unlink()
    write(root, {"m": "1\n3\n4\n", "bin": b"\0b", "-new": "n\n"})
    plain_git(root, "add", "-A")
    plain_git(root, "commit", "-qm", "x")
    assert changed_files(repo, repo.head, plain_git(root, "rev-parse", "HEAD")) == (
        ChangedFile("-new", "A", 1, 0),
        ChangedFile("bin", "M", None, None),
        ChangedFile("gone", "D", 0, 1),
        ChangedFile("m", "M", 2, 1),
        ChangedFile("to é", "R", 0, 0, "moved from"),
    )
    patch = diff(repo, repo.head, "HEAD", ("m",))
    assert "-2\n+3\n+4\n" in patch
    assert "gone" not in patch


class Session:
    """A user's checkout that is dirty, an agent that worked, and the merge back."""

    def __init__(self, tmp_path: Path) -> None:
        files = ["edit.txt", "gone.txt", "sub/gone.txt", "mine.txt", "swap", "unswap/x", "prog", *ODD_NAMES]
        self.root = make_repository(tmp_path / "user", dict.fromkeys(files, "old\n"))
        self.repo: Repository = opened(self.root)
        write(self.root, {"mine.txt": "my edit\n", "my new file": "n\n"})
        self.pool = Pool(tmp_path / "state", self.repo)
        self.scratch = tmp_path / "scratch"
        self.scratch.mkdir(mode=0o700)

        self.tree = self.pool.acquire("main", self.repo.head)
        self.base = carry_dirty(self.repo, "s", self.tree, self.pool.index_path(self.tree), now_s=NOW).base

    def work(self) -> None:
        root = self.tree.path
        write(root, {"edit.txt": "new\n", "made/deep/file": "m\n", **dict.fromkeys(ODD_NAMES, "odd\n")})
        for name in ("gone.txt", "sub/gone.txt", "swap", "unswap/x"):
            (root / name).unlink()
        (root / "unswap").rmdir()
        write(root, {"swap/inner": "s\n", "unswap": "u\n"})
        (root / "link").symlink_to("edit.txt")
        (root / "prog").chmod(0o755)

    def result(self) -> str:
        index = self.pool.index_path(self.tree)
        return snapshot(self.repo, self.tree, index, REF, read_ref(self.repo.git, REF), message="m", now_s=NOW).commit

    def plan(self) -> MergePlan:
        plan = plan_merge(self.repo, self.base, self.result())
        assert isinstance(plan, MergePlan)
        return plan

    def apply(self, plan: MergePlan, reached: Reached = ignore_point, call_id: str = "call-1") -> Applied:
        return apply_merge(self.repo, plan, "s", self.scratch, call_id=call_id, now_s=NOW, reached=reached)

    def index_and_head(self) -> tuple[bytes, int, str, str]:
        index = self.root / ".git" / "index"
        head = (self.root / ".git" / "HEAD").read_text()
        return index.read_bytes(), index.stat().st_mtime_ns, head, plain_git(self.root, "for-each-ref", "refs/heads")


@pytest.fixture
def session(tmp_path: Path) -> Session:
    return Session(tmp_path)


def test_the_result_comes_as_uncommitted_changes_and_leaves_index_and_head(session: Session) -> None:
    session.work()
    before, files = session.index_and_head(), content(session.root)
    done = session.apply(session.plan())
    assert content(session.root) == content(session.tree.path)
    assert session.index_and_head() == before
    assert (session.root / "mine.txt").read_text() == "my edit\n"
    assert not (session.root / "sub").exists()
    saved = plain_git(session.root, "ls-tree", "-r", "-z", "--name-only", done.saved).split("\0")
    assert set(saved) - {""} == set(files)
    assert read_ref(session.repo.git, "refs/thalia/s/pre-merge/call-1") == done.saved
    assert list(session.scratch.iterdir()) == []


@pytest.mark.parametrize("point", ["after_save", "before_ref", "before_rename", "after_rename"])
def test_a_merge_killed_half_way_finishes_forward(session: Session, point: str) -> None:
    session.work()
    before = content(session.root)
    plan = session.plan()
    died = kill_at(point, lambda reached: session.apply(plan, reached))
    assert died or point == "before_ref"
    done = session.apply(plan)
    assert content(session.root) == content(session.tree.path)
    saved = plain_git(session.root, "show", f"{done.saved}:edit.txt")
    assert saved + "\n" == before["edit.txt"][1].decode()
    assert session.apply(plan).written == ()


def test_killed_after_each_single_file_it_finishes_forward(session: Session) -> None:
    session.work()
    plan = session.plan()
    for _ in plan.changes:
        kill_at("after_rename", lambda reached: session.apply(plan, reached))
    assert session.apply(plan).written == ()
    assert content(session.root) == content(session.tree.path)


def test_a_file_that_the_user_changed_since_is_refused_by_name_and_nothing_is_written(session: Session) -> None:
    session.work()
    write(session.root, {"edit.txt": "typed meanwhile\n", "made/deep/file": "mine\n"})
    before = content(session.root)
    refused = plan_merge(session.repo, session.base, session.result())
    assert isinstance(refused, Refused)
    assert refused.files == ("edit.txt", "made/deep/file")
    assert content(session.root) == before


def test_a_file_that_the_user_deleted_or_put_in_a_folders_place_is_refused(session: Session) -> None:
    session.work()
    (session.root / "edit.txt").unlink()
    write(session.root, {"made": "a file\n", "unswap/mine": "m\n"})
    refused = plan_merge(session.repo, session.base, session.result())
    assert isinstance(refused, Refused)
    assert refused.files == ("edit.txt", "made/deep/file", "unswap")


def test_a_change_that_the_user_made_too_is_no_overlap(session: Session) -> None:
    session.work()
    write(session.root, {"edit.txt": "new\n"})
    done = session.apply(session.plan())
    assert "edit.txt" in done.already
    assert "edit.txt" not in done.written


def test_a_change_between_plan_and_apply_is_not_overwritten(session: Session) -> None:
    session.work()
    plan = session.plan()
    write(session.root, {"edit.txt": "typed after the plan\n"})
    with pytest.raises(MergeOverlap):
        session.apply(plan)

    def type_late(point: str) -> None:
        if point == "before_rename":
            write(session.root, {"prog": "typed at the last moment\n"})

    write(session.root, {"edit.txt": "old\n"})
    with pytest.raises(MergeOverlap) as overlap:
        session.apply(plan, type_late)
    assert overlap.value.paths == ("prog",)
    assert (session.root / "prog").read_text() == "typed at the last moment\n"
    assert not list(session.root.rglob(".thalia-*"))


def test_nothing_is_written_through_a_symbolic_link(session: Session, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    write(outside, {"deep/other": "outside\n"})
    session.work()
    (session.root / "made").symlink_to(outside)
    refused = plan_merge(session.repo, session.base, session.result())
    assert isinstance(refused, Refused)
    assert refused.files == ("made/deep/file",)
    (session.root / "made").unlink()
    plan = session.plan()

    def plant_link(point: str) -> None:
        if point == "before_rename" and not (session.root / "made").is_symlink():
            (session.root / "made").symlink_to(outside)

    with pytest.raises(MergeOverlap):
        session.apply(plan, plant_link)
    assert content(outside) == {"deep/other": ("file", b"outside\n")}


def test_protected_names_are_left_out_and_named(session: Session) -> None:
    names = [
        ".envrc",
        ".ENVRC",
        ".vscode/tasks.json",
        "sub/.VSCode/Tasks.json",
        ".mcp.json",
        ".thalia/config.toml",
        ".Thalia/x",
    ]
    write(session.tree.path, {**dict.fromkeys(names, "evil\n"), "fine.txt": "f\n", ".vscode/settings.json": "{}\n"})
    plan = session.plan()
    assert plan.left_out == tuple(sorted(names))
    assert [change.path for change in plan.changes] == [".vscode/settings.json", "fine.txt"]
    session.apply(plan)
    assert not any((session.root / name).exists() for name in names)


def test_line_endings_of_the_users_checkout_are_kept(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "user", {".gitattributes": "*.txt text eol=crlf\n", "a.txt": b"1\r\n"})
    repo = opened(root)
    (root / "a.txt").unlink()
    plain_git(root, "checkout", "--", "a.txt")
    result = committed(root, "x", {"a.txt": b"1\r\n2\r\n"})
    plan = plan_merge(repo, repo.head, result)
    assert isinstance(plan, MergePlan)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    apply_merge(repo, plan, "s", scratch, call_id="c", now_s=NOW)
    assert (root / "a.txt").read_bytes() == b"1\r\n2\r\n"
    assert plain_git(root, "diff", "--stat", "x") == ""


def test_permissions_that_the_user_gave_stay(session: Session) -> None:
    (session.root / "edit.txt").chmod(0o600)
    session.work()
    session.apply(session.plan())
    assert oct((session.root / "edit.txt").stat().st_mode & 0o777) == "0o600"
    assert os.access(session.root / "prog", os.X_OK)
