"""Commits with all that they are made of, as bytes that cross to a repository elsewhere: git's own bundle format.

What comes from elsewhere is not believed: it lies in a folder of its own, where git reads every object, until it is
known to be whole and to be what was asked for. Only references under refs/thalia/ move, each by compare-and-swap.
"""

import contextlib
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.scratch import scratch
from eventlog.blobs import sync_folder
from worktrees.durable import sync_objects, sync_plain
from worktrees.git import Git, GitError, GitFailed
from worktrees.objects import RefMoved, check_ref, move_ref, read_ref, take_lock
from worktrees.repository import Repository
from worktrees.snapshot import Reached, ignore_point

OURS = "refs/thalia/"
SIGNATURES = {b"# v2 git bundle": 2, b"# v3 git bundle": 3}
ID_LENGTHS = {"sha1": 40, "sha256": 64}
MAX_HEADER = 1 << 20
SHALLOW = "thalia-shallow"
"""Our own capability, a commit whose parents are left out. Git has none for it and refuses a bundle that names one."""
LOOSE = 100
"""Fewer objects become files of their own, as with a fetch: a pack for each step of an agent would slow git down."""
LENIENT = (
    "badDate=ignore,badDateOverflow=ignore,badEmail=ignore,badName=ignore,badTimezone=ignore,missingEmail=ignore,"
    "missingNameBeforeEmail=ignore,missingSpaceBeforeDate=ignore,missingSpaceBeforeEmail=ignore,multipleAuthors=ignore,"
    "nulInCommit=ignore,zeroPaddedDate=ignore,zeroPaddedFilemode=ignore"
)
"""Flaws that old histories have and that do no harm: a mirror takes what the user's repository has."""


class BundleRefused(GitError):
    """Nothing of it was taken."""


class BundleLacks(BundleRefused):
    """It builds on `missing`, commits that are not here: ask for one that has less behind it, or for all."""

    def __init__(self, missing: tuple[str, ...]) -> None:
        self.missing = missing
        super().__init__(
            f"The bundle builds on {missing[0]}, which is not here; nothing was taken, ask for a whole one."
        )


@dataclass(frozen=True, slots=True)
class Header:
    """What a bundle says of itself. `builds_on`: commits that the receiver has to have; `at`: where the pack begins."""

    algorithm: str
    shallow: tuple[str, ...]
    builds_on: tuple[str, ...]
    refs: Mapping[str, str]
    at: int


def make_bundle(
    repository: Repository,
    wanted: Mapping[str, str],
    have: Sequence[str],
    *,
    reached: Reached = ignore_point,
) -> bytes:
    """What is reachable from the commits of `wanted` (by the reference that is to hold each) and not from `have`.

    No reference has to hold them here, and none is made. Of `have` only what this repository knows counts. With nothing
    new it is a bundle without objects. Raises GitError.
    """
    git = repository.git
    kinds = kinds_of(git, (*wanted.values(), *have))
    for ref, commit in wanted.items():
        check_own(ref)
        if kinds[commit] != "commit":
            raise GitError(f"{commit} is no commit of this repository, so no bundle can hold it.")
    reached("before_make")
    known = sorted({commit for commit in have if kinds[commit] == "commit"})
    revisions = lines(*sorted(set(wanted.values())), *(f"^{commit}" for commit in known))
    shallow = read_shallow(git.place.common_dir)
    if shallow:
        shallow &= set(git.run("rev-list", "--stdin", input=revisions).decode().split())
    header = Header(algorithm_of(git), tuple(sorted(shallow)), tuple(known), wanted, 0)
    args = ("pack-objects", "--quiet", "--revs", "--thin", "--delta-base-offset", "--stdout")
    bundle = encode_header(header) + git.run(*args, input=revisions)
    reached("after_make")
    return bundle


def take_bundle(
    repository: Repository,
    bundle: bytes,
    moves: Mapping[str, str | None],
    *,
    reached: Reached = ignore_point,
) -> None:
    """Take the objects of a bundle, and let its references hold what it says. All is durable on return.

    `moves`: exactly the references that it has to name, with what each holds now (None: it does not exist). Killed
    anywhere and called again, it ends the same. BundleRefused, RefMoved: nothing was taken; when a reference moves in
    that very moment, RefMoved with objects that nothing holds.
    """
    git, header = repository.git, read_header(bundle)
    check_asked(repository, header, moves)
    check_expected(git, header, moves)
    kinds = kinds_of(git, header.builds_on)
    if missing := tuple(commit for commit in header.builds_on if kinds[commit] != "commit"):
        raise BundleLacks(missing)
    objects = git.place.common_dir / "objects"
    with scratch("bundle", objects) as own:
        reached("before_index")
        unpack(repository, own, header, bundle)
        reached("after_index")
        let_in(own, objects)
    sync_objects(git.place.common_dir, git.synced)
    reached("after_objects")
    add_shallow(git.place.common_dir, header.shallow)
    for ref, commit in header.refs.items():
        reached("before_ref")
        move_ref(git, ref, commit, (moves[ref],))
        reached("after_ref")


def held_commits(repository: Repository) -> tuple[str, ...]:
    """What the references under refs/thalia/ hold, sorted: a bundle for this repository need not have it."""
    return tuple(sorted(set(refs_below(repository, OURS.rstrip("/")).values())))


def refs_below(repository: Repository, prefix: str) -> dict[str, str]:
    """The commits by the full names of the references that hold them, in the folder `prefix` of references."""
    listed = repository.git.run("for-each-ref", "--format=%(objectname) %(objecttype) %(refname)", f"{prefix}/")
    rows = [line.split(" ", 2) for line in listed.decode().splitlines()]
    return {ref: commit for commit, kind, ref in rows if kind == "commit"}


def encode_header(header: Header) -> bytes:
    """The second format where it is enough: every git reads it."""
    plain = header.algorithm == "sha1" and not header.shallow
    rows = ["# v2 git bundle"] if plain else ["# v3 git bundle", f"@object-format={header.algorithm}"]
    rows += [f"@{SHALLOW}={commit}" for commit in header.shallow]
    # The space ends the id, also where no word follows.
    rows += [f"-{commit} " for commit in header.builds_on]
    rows += [f"{commit} {ref}" for ref, commit in sorted(header.refs.items())]
    return os.fsencode("\n".join(rows)) + b"\n\n"


def read_header(bundle: bytes) -> Header:
    """Raises BundleRefused: it is no bundle, or one with what we do not know or do not take."""
    end = bundle.find(b"\n\n", 0, MAX_HEADER)
    first, *rows = os.fsdecode(bundle[: max(end, 0)]).split("\n")
    version = SIGNATURES.get(os.fsencode(first))
    if version is None:
        raise BundleRefused("These bytes are no git bundle; nothing was taken.")
    algorithm, shallow, builds_on, refs = "sha1", [], [], {}
    for row in rows:
        if version == 3 and row.startswith("@object-format="):
            algorithm = row.partition("=")[2]
        elif version == 3 and row.startswith(f"@{SHALLOW}="):
            shallow.append(row.partition("=")[2])
        elif row.startswith("@"):
            raise BundleRefused(f"The bundle asks for {row[:80]!r}, which is not known here; nothing was taken.")
        elif row.startswith("-"):
            builds_on.append(row[1:].partition(" ")[0])
        else:
            commit, _, ref = row.partition(" ")
            if check_own(ref) in refs:
                raise BundleRefused(f"The bundle names {ref} twice; nothing was taken.")
            refs[ref] = commit
    length = ID_LENGTHS.get(algorithm, 0)
    for commit in (*shallow, *builds_on, *refs.values()):
        if re.fullmatch(f"[0-9a-f]{{{length}}}", commit) is None:
            raise BundleRefused(f"The bundle names {commit[:80]!r}, which is no id; nothing was taken.")
    return Header(algorithm, tuple(shallow), tuple(builds_on), refs, end + 2)


def check_own(ref: str) -> str:
    """A full reference name of ours, as it is. BundleRefused otherwise."""
    try:
        if check_ref(ref).startswith(OURS):
            return ref
    except ValueError:
        pass
    raise BundleRefused(f"The bundle names {ref[:200]!r}, which is no reference under {OURS}; nothing was taken.")


def check_asked(repository: Repository, header: Header, moves: Mapping[str, str | None]) -> None:
    """Raises BundleRefused where it is not what was asked for, whatever its objects are."""
    if odd := sorted(header.refs.keys() ^ moves.keys()):
        what = "names" if odd[0] in header.refs else "does not name"
        raise BundleRefused(f"The bundle {what} {odd[0]}, unlike what was asked for; nothing was taken.")
    if header.algorithm != algorithm_of(repository.git):
        raise BundleRefused(f"The bundle has {header.algorithm} ids, this repository has others; nothing was taken.")
    if header.shallow and not repository.bare:
        raise BundleRefused("The bundle would cut the history of this repository short; nothing was taken.")


def check_expected(git: Git, header: Header, moves: Mapping[str, str | None]) -> None:
    """Raises RefMoved while nothing is taken yet; what moves after this its own compare-and-swap tells."""
    for ref, commit in header.refs.items():
        found = read_ref(git, ref)
        if found not in (commit, moves[ref]):
            raise RefMoved(ref, moves[ref], found)


def unpack(repository: Repository, own: Path, header: Header, bundle: bytes) -> None:
    """Objects into `own`, a folder below the repository's objects: read one by one, and whole down to what references
    hold here. Raises BundleRefused."""
    git, env = repository.git, {"GIT_OBJECT_DIRECTORY": str(own)}
    (own / "info").mkdir()
    (own / "info" / "alternates").write_text("..\n")
    if header.shallow:
        env["GIT_SHALLOW_FILE"] = str(own / "shallow")
        (own / "shallow").write_bytes(lines(*sorted(read_shallow(git.place.common_dir) | {*header.shallow})))
    strict = f"--strict={LENIENT}" if repository.bare else "--strict"
    few = int.from_bytes(bundle[header.at + 8 : header.at + 12]) < LOOSE and not header.shallow
    how = ("unpack-objects", "-q", strict) if few else ("index-pack", "--stdin", "--fix-thin", strict)
    commits = sorted(set(header.refs.values()))
    try:
        git.run(*how, env=env, input=bundle[header.at :])
        kinds = kinds_of(git, commits, env)
        git.run("rev-list", "--objects", "--quiet", "--stdin", "--not", "--all", env=env, input=lines(*commits))
    except GitFailed as failure:
        reason = " ".join(failure.stderr.split())[:500]
        text = f"The bundle's objects are not whole or not safe ({reason}); nothing was taken."
        raise BundleRefused(text) from failure
    if odd := [commit for commit in commits if kinds[commit] != "commit"]:
        raise BundleRefused(f"The bundle names {odd[0]}, which is no commit; nothing was taken.")


def let_in(own: Path, objects: Path) -> None:
    """Move what lies in `own` to the repository's objects, each durable but for its name. Others may do the same."""
    (objects / "pack").mkdir(exist_ok=True)
    # Git looks for the index: it comes last. The name is a hash of the pack, so one that is there has the same content.
    for suffix in (".pack", ".rev", ".idx"):
        for file in own.glob(f"pack/pack-*{suffix}"):
            sync_plain(file)
            file.replace(objects / "pack" / file.name)
    for file in loose_files(own):
        target = objects / file.parent.name / file.name
        target.parent.mkdir(exist_ok=True)
        if not target.exists():
            sync_plain(file)
            file.replace(target)


def loose_files(own: Path) -> Iterator[Path]:
    for folder in sorted(own.iterdir()):
        if re.fullmatch("[0-9a-f]{2}", folder.name):
            yield from sorted(file for file in folder.iterdir() if re.fullmatch("[0-9a-f]{38,62}", file.name))


def read_shallow(common_dir: Path) -> set[str]:
    """The commits whose parents a repository lacks and does not look for."""
    with contextlib.suppress(FileNotFoundError):
        return set((common_dir / "shallow").read_text().split())
    return set()


def add_shallow(common_dir: Path, commits: Collection[str]) -> None:
    """Durable on return; two at the same time wait for each other by git's own lock file."""
    if not commits:
        return
    target = common_dir / "shallow"
    lock = target.with_name("shallow.lock")
    handle = take_lock(lock)
    try:
        os.write(handle, lines(*sorted(read_shallow(common_dir) | {*commits})))
        os.fsync(handle)
        lock.rename(target)
        sync_folder(common_dir)
    finally:
        os.close(handle)
        lock.unlink(missing_ok=True)


def kinds_of(git: Git, ids: Collection[str], env: Mapping[str, str] | None = None) -> dict[str, str]:
    """What kind of object each full id stands for, "missing" where there is none. One process, none without ids."""
    length = ID_LENGTHS[algorithm_of(git)]
    found = dict.fromkeys(ids, "missing")
    asked = [one for one in found if re.fullmatch(f"[0-9a-f]{{{length}}}", one)]
    if not asked:
        return found
    for row in git.run("cat-file", "--batch-check", env=env, input=lines(*asked)).decode().splitlines():
        name, kind, *_ = row.split(" ")
        found[name] = kind
    return found


def algorithm_of(git: Git) -> str:
    return git.settings().local.get("extensions.objectformat", "sha1")


def lines(*rows: str) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()
