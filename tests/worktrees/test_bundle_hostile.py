"""A bundle from elsewhere that is broken or made to harm changes nothing, and is refused in one sentence."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from bundles import BASE, WORK, commit, everything, ref
from repositories import make_repository, opened, plain_git

from worktrees.bundle import BundleLacks, BundleRefused, make_bundle, take_bundle
from worktrees.git import GitError
from worktrees.mirror import mirror_settings, open_mirror
from worktrees.repository import Repository

MANY: dict[str, str | bytes] = {f"d{i}/f": f"{i}\n" * 20 for i in range(120)}


@pytest.fixture
def user(tmp_path: Path) -> Repository:
    return opened(make_repository(tmp_path / "user"))


def made_elsewhere(user: Repository, tmp_path: Path, files: dict[str, str | bytes]) -> tuple[bytes, str]:
    """A bundle and its commit, on top of the user's."""
    plain_git(tmp_path, "clone", "-q", "user", "other")
    other = opened(tmp_path / "other")
    made = commit(other.root, files)
    return make_bundle(other, {WORK: made}, [user.head]), made


@pytest.fixture(params=["few", "many"])
def work(request: pytest.FixtureRequest, user: Repository, tmp_path: Path) -> tuple[bytes, str]:
    """Few objects are unpacked, many are indexed."""
    return made_elsewhere(user, tmp_path, MANY if request.param == "many" else {"a.txt": "two\n"})


@pytest.fixture
def small(user: Repository, tmp_path: Path) -> tuple[bytes, str]:
    """For what is refused before an object is looked at."""
    return made_elsewhere(user, tmp_path, {"a.txt": "two\n"})


def refused(
    user: Repository, bundle: bytes, match: str, moves: dict[str, str | None] | None = None, kind: type = BundleRefused
) -> None:
    before = everything(user.root)
    with pytest.raises(kind, match=match) as refusal:
        take_bundle(user, bundle, {WORK: None} if moves is None else moves)
    assert everything(user.root) == before
    assert isinstance(refusal.value, GitError) and "\n" not in str(refusal.value)


def rewrite(bundle: bytes, change: Callable[[list[str]], list[str]]) -> bytes:
    """The same objects under other lines."""
    head, pack = bundle.split(b"\n\n", 1)
    return "\n".join(change(head.decode().split("\n"))).encode("utf-8", "surrogateescape") + b"\n\n" + pack


def test_what_is_refused_here_is_taken_when_it_is_whole(user: Repository, work: tuple[bytes, str]) -> None:
    take_bundle(user, work[0], {WORK: None})
    assert ref(user, WORK) == work[1]


@pytest.mark.parametrize("cut", [0, 5, 20, 60, 130, -1, -20, -21, -60, -200])
def test_a_bundle_that_was_cut(cut: int, user: Repository, work: tuple[bytes, str]) -> None:
    refused(user, work[0][:cut], "no git bundle|not whole")


def test_a_bundle_cut_right_after_its_header(user: Repository, work: tuple[bytes, str]) -> None:
    refused(user, work[0][: work[0].index(b"\n\n") + 2], "not whole")


@pytest.mark.parametrize("part", range(6))
def test_one_bit_is_another(part: int, user: Repository, work: tuple[bytes, str]) -> None:
    """Anywhere in the objects: their signature, their number, their content, their hash."""
    start = work[0].index(b"\n\n") + 2
    damaged = bytearray(work[0])
    damaged[start + part * (len(damaged) - start - 1) // 5] ^= 4
    refused(user, bytes(damaged), "not whole")


@pytest.mark.parametrize("data", [b"", b"\n\n", b"PACK", b"# v2 git bundle\n", b"# v9 git bundle\n\nPACK", b"\xff\n\n"])
def test_what_is_no_bundle(data: bytes, user: Repository) -> None:
    refused(user, data, "no git bundle")


def test_a_header_without_end(user: Repository) -> None:
    refused(user, b"# v2 git bundle\n" + b"-" * (2 << 20) + b"\n\n", "no git bundle")


@pytest.mark.parametrize(
    "name",
    [
        "refs/heads/main",
        "refs/tags/v1",
        "HEAD",
        "refs/thalia",
        "refs/thalia/",
        "refs/thalia/../heads/main",
        "refs/thalia/s/../../../config",
        "../../hooks/post-checkout",
        "/etc/passwd",
        "-flag",
        "--upload-pack=x",
        "refs/thalia/a.lock",
        "refs/thalia/.a",
        "refs/thalia/a//b",
        "refs/thalia/a\x01b",
        "refs/thaliax/a",
        "",
    ],
)
def test_a_name_that_is_not_ours(name: str, user: Repository, small: tuple[bytes, str]) -> None:
    bundle = rewrite(small[0], lambda rows: [*rows[:-1], f"{small[1]} {name}"])
    refused(user, bundle, "no reference under refs/thalia/", {name: None})
    refused(user, rewrite(small[0], lambda rows: [*rows, f"{small[1]} {name}"]), "no reference under refs/thalia/")


def test_names_other_than_those_that_were_asked_for(user: Repository, small: tuple[bytes, str]) -> None:
    refused(user, small[0], "does not name refs/thalia/s/other", {WORK: None, "refs/thalia/s/other": None})
    refused(user, small[0], "names refs/thalia/s/work, unlike", {})
    refused(user, rewrite(small[0], lambda rows: [*rows, rows[-1]]), "twice")
    refused(user, rewrite(small[0], lambda rows: rows[:-1]), "does not name")


def test_it_builds_on_what_is_not_here(user: Repository, small: tuple[bytes, str]) -> None:
    blob = plain_git(user.root, "rev-parse", "HEAD:a.txt")
    for odd in ("f" * 40, blob):
        bundle = rewrite(small[0], lambda rows, odd=odd: [*rows[:-1], f"-{odd} x", rows[-1]])
        with pytest.raises(BundleLacks) as lacking:
            take_bundle(user, bundle, {WORK: None})
        assert lacking.value.missing == (odd,)
        refused(user, bundle, "builds on", kind=BundleLacks)


def test_it_hides_that_it_builds_on_what_is_not_here(user: Repository, work: tuple[bytes, str], tmp_path: Path) -> None:
    stranger = opened(make_repository(tmp_path / "stranger", {"x": "x\n"}))
    refused(stranger, rewrite(work[0], lambda rows: [rows[0], rows[-1]]), "not whole")


@pytest.mark.parametrize("what", ["HEAD:a.txt", "HEAD^{tree}", "tag"])
def test_a_name_for_what_is_no_commit(what: str, user: Repository, work: tuple[bytes, str]) -> None:
    plain_git(user.root, "tag", "-a", "-m", "m", "tag")
    odd = plain_git(user.root, "rev-parse", what)
    refused(user, rewrite(work[0], lambda rows: [*rows[:-1], f"{odd} {WORK}"]), "is no commit|not whole")


@pytest.mark.parametrize("odd", ["f" * 40, "0" * 40])
def test_a_name_for_what_is_not_there(odd: str, user: Repository, work: tuple[bytes, str]) -> None:
    refused(user, rewrite(work[0], lambda rows: [*rows[:-1], f"{odd} {WORK}"]), "not whole|is no commit")


@pytest.mark.parametrize("odd", ["HEAD", "f" * 39, "f" * 64, "F" * 40, "--all", "^" + "f" * 39])
def test_an_id_that_is_none(odd: str, user: Repository, small: tuple[bytes, str]) -> None:
    refused(user, rewrite(small[0], lambda rows: [*rows[:-1], f"{odd} {WORK}"]), "is no id")
    refused(user, rewrite(small[0], lambda rows: [rows[0], f"-{odd}", *rows[1:]]), "is no id")


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ("@filter=blob:none", "not known here"),
        ("@object-format=sha256", "is no id"),
        ("@object-format=md5", "is no id"),
        ("@x", "not known here"),
    ],
)
def test_capabilities_that_are_not_taken(row: str, words: str, user: Repository, small: tuple[bytes, str]) -> None:
    refused(user, rewrite(small[0], lambda rows: ["# v3 git bundle", row, *rows[1:]]), words)
    refused(user, rewrite(small[0], lambda rows: [rows[0], row, *rows[1:]]), "not known here")


def test_ids_of_another_kind(user: Repository, tmp_path: Path) -> None:
    plain_git(tmp_path, "init", "-q", "--object-format=sha256", "other")
    other = opened(make_repository(tmp_path / "other"))
    refused(user, make_bundle(other, {WORK: other.head}, ()), "sha256 ids")


def test_one_that_would_cut_the_users_history_short(user: Repository, small: tuple[bytes, str]) -> None:
    bundle = rewrite(small[0], lambda rows: ["# v3 git bundle", f"@thalia-shallow={user.head}", *rows[1:]])
    refused(user, bundle, "cut the history")


def fed(root: Path, data: bytes, *args: str) -> bytes:
    env = {"PATH": os.defpath, "HOME": str(root), "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    return subprocess.run(["git", *args], cwd=root, env=env, input=data, capture_output=True, check=True).stdout


def literal(root: Path, kind: str, body: bytes) -> str:
    """An object that git would not make."""
    return fed(root, body, "hash-object", "-t", kind, "-w", "--literally", "--stdin").decode().strip()


def entry(name: bytes, one: str, mode: bytes = b"100644") -> bytes:
    return mode + b" " + name + b"\0" + bytes.fromhex(one)


EVIL_MODULE = b'[submodule "x"]\n\tpath = x\n\turl = -u./payload\n'
EVIL_NAME = b'[submodule "../../x"]\n\tpath = x\n\turl = https://localhost/x\n'


def evil_tree(root: Path, kind: str) -> str:
    blob = plain_git(root, "rev-parse", "HEAD:a.txt")
    inner = literal(root, "tree", entry(b"config", blob))
    match kind:
        case ".git" | ".GIT" | "..":
            return literal(root, "tree", entry(kind.encode(), inner, b"40000"))
        case "slash":
            return literal(root, "tree", entry(b"../x", blob))
        case "module":
            return literal(root, "tree", entry(b".gitmodules", literal(root, "blob", EVIL_MODULE)))
        case "module name":
            return literal(root, "tree", entry(b".gitmodules", literal(root, "blob", EVIL_NAME)))
        case "module link":
            return literal(root, "tree", entry(b".gitmodules", blob, b"120000"))
        case "harmless":
            return literal(root, "tree", entry(b"x", blob))
        case "gone":
            return literal(root, "tree", entry(b"x", "f" * 40))
        case _:
            return literal(root, "tree", b"rubbish")


def harmful(tmp_path: Path, kind: str, many: bool) -> bytes:
    root = make_repository(tmp_path / "other", {"a.txt": "one\n", **MANY} if many else None)
    parent = plain_git(root, "rev-parse", "HEAD")
    body = f"tree {evil_tree(root, kind)}\nparent {parent}\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nevil\n"
    return pack_by_hand(root, literal(root, "commit", body.encode()), many)


@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
def test_what_is_made_by_hand_is_taken_where_it_harms_nobody(many: bool, user: Repository, tmp_path: Path) -> None:
    take_bundle(user, harmful(tmp_path, "harmless", many), {WORK: None})
    assert plain_git(user.root, "ls-tree", "--name-only", WORK) == "x"


@pytest.mark.parametrize("many", [False, True], ids=["few", "many"])
@pytest.mark.parametrize(
    "kind", [".git", ".GIT", "..", "slash", "module", "module name", "module link", "gone", "rubbish"]
)
def test_trees_that_would_harm_whoever_checks_them_out(kind: str, many: bool, user: Repository, tmp_path: Path) -> None:
    bundle = harmful(tmp_path, kind, many)
    refused(user, bundle, "not whole")
    mirror = open_mirror(tmp_path / "mirrors", "one", mirror_settings(user, {}))
    before = everything(tmp_path / "mirrors")
    with pytest.raises(BundleRefused, match="not whole"):
        take_bundle(mirror, bundle, {WORK: None})
    assert everything(tmp_path / "mirrors") == before


def pack_by_hand(root: Path, evil: str, many: bool) -> bytes:
    """Of whatever is there: git would not follow what is missing."""
    listed = plain_git(root, "cat-file", "--batch-all-objects", "--batch-check=%(objectname)")
    assert (len(listed.split()) > 100) == many
    packed = fed(root, f"{listed}\n".encode(), "pack-objects", "-q", "--stdout")
    return f"# v2 git bundle\n{evil} {WORK}\n\n".encode() + packed


def test_a_file_that_is_not_what_a_tree_says(user: Repository, tmp_path: Path) -> None:
    """A tree for a file, a file for a folder."""
    root = make_repository(tmp_path / "other", {"a.txt": "one\n", **MANY})
    blob, tree = plain_git(root, "rev-parse", "HEAD:a.txt"), plain_git(root, "rev-parse", "HEAD:d1")
    for row in (entry(b"x", tree), entry(b"x", blob, b"40000")):
        top = literal(root, "tree", row)
        body = f"tree {top}\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nevil\n"
        refused(user, pack_by_hand(root, literal(root, "commit", body.encode()), many=True), "not whole")


def test_what_lies_about_in_a_repository_does_not_make_a_bundle_whole(user: Repository) -> None:
    """The parent is here, but not what that one builds on: somebody else's half."""
    tree = plain_git(user.root, "rev-parse", "HEAD^{tree}")
    body = f"tree {tree}\nparent {'e' * 40}\nauthor a <a@b> 1 +0000\ncommitter a <a@b> 1 +0000\n\nhalf\n"
    half = literal(user.root, "commit", body.encode())
    child = literal(user.root, "commit", body.replace("e" * 40, half).encode())
    packed = fed(user.root, f"{child}\n".encode(), "pack-objects", "-q", "--stdout")
    bundle = f"# v2 git bundle\n-{half} \n{child} {WORK}\n\n".encode() + packed
    refused(user, bundle, "not whole")


def test_a_base_that_moves_is_not_taken_from_the_bundles_word(user: Repository, small: tuple[bytes, str]) -> None:
    """It may name what was asked for, but not say what that held before."""
    plain_git(user.root, "update-ref", BASE, user.head)
    bundle = rewrite(small[0], lambda rows: [*rows[:-1], f"{small[1]} {BASE}"])
    refused(user, bundle, "moved to", {BASE: None}, GitError)
    take_bundle(user, bundle, {BASE: user.head})
    assert ref(user, BASE) == small[1]
