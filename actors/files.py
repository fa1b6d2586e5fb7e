"""A session's git side: its worktree, its snapshots, its commits. Blocking; called from a thread."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from configs.crash import reached_in
from eventlog.effects import MakeWorktree, MergeWork, RestoreTree, RunTool, TakeSnapshot
from eventlog.ids import AgentId, CallId, Commit, SessionId
from eventlog.outcomes import Merged, Refused, SnapshotTaken, ToolFailed, ToolSucceeded, WorktreeReady
from worktrees.carry import carry_dirty
from worktrees.checkout import MergeOverlap, apply_merge, plan_merge
from worktrees.checkout import Refused as MergeRefused
from worktrees.git import GitError
from worktrees.merge import changed_files, commit_work
from worktrees.objects import Identity, delete_ref, move_ref, read_ref
from worktrees.pool import Pool
from worktrees.project import ProjectEnvironment, project_environment
from worktrees.repository import Repository, Worktree, open_repository
from worktrees.restore import changed_ignored, restore
from worktrees.snapshot import Snapshot, distrust, snapshot, tree_of

AGENT = Identity("Thalia", "thalia@localhost")
AGENT_MARK = "+"
"""Between a session's id, which has none, and an agent's, in the names of what is an agent's own."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the agent works. `worktree` is None with --in-place: nothing there is ever restored."""

    path: Path
    worktree: Worktree | None


class SessionFiles:
    """All git of one session. Raises GitError where it cannot even look; what an effect meets is its outcome."""

    def __init__(
        self,
        session: SessionId,
        repository: Repository,
        state_folder: Path,
        scratch: Path,
        variables: Mapping[str, str],
    ) -> None:
        self.repository = repository
        self.pool = Pool(state_folder, repository)
        self._session, self._scratch, self._variables = session, scratch, variables
        self._project: ProjectEnvironment | None = None

    @property
    def key(self) -> str:
        """Whose worktree in the pool it is."""
        return self._session

    def of_agent(self, agent: AgentId) -> "SessionFiles":
        """The same repository for another agent of the session: a worktree and references of its own."""
        name = SessionId(f"{self._session}{AGENT_MARK}{agent}")
        return SessionFiles(name, self.repository, self.pool.state_dir, self._scratch, self._variables)

    def find_commit(self, name: str) -> Commit | None:
        """Of a branch, a tag or a commit, as git knows it. None where there is none."""
        args = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
        return Commit(self.repository.git.attempt(*args).stdout.decode().strip()) or None

    def ref(self, name: str) -> str:
        return f"{self.refs}/{name}"

    @property
    def refs(self) -> str:
        """The folder of its references."""
        return f"refs/thalia/{self._session}"

    def place(self, ready: WorktreeReady) -> Place:
        """Raises GitError where the worktree is gone."""
        if Path(ready.path) == self.repository.root:
            return Place(self.repository.root, None)
        worktree = self.pool.adopt(self._session)
        if worktree is None or str(worktree.path) != ready.path:
            raise GitError(f"The session's worktree {ready.path} is gone; `thalia fork` makes a new one from its log.")
        return Place(worktree.path, worktree)

    def make_worktree(self, effect: MakeWorktree, torn: bool = False) -> WorktreeReady | Refused:
        """`torn`: the machine was started anew since this was begun, see take_snapshot."""
        head = Commit(effect.head)
        branch = self.repository.branch
        if effect.in_place:
            return WorktreeReady(path=str(self.repository.checkout.path), base=head, branch=branch)
        try:
            worktree = self.pool.acquire(self._session, head, now_s=effect.at_s, reached=reached_in("pool"))
            if torn and self._distrust(worktree, head):
                restore(self.repository, worktree, self.pool.index_path(worktree), head)
            if not effect.carry_dirty:
                return WorktreeReady(path=str(worktree.path), base=effect.base or head, start=head, branch=branch)
            carried = carry_dirty(
                self.repository,
                self._session,
                worktree,
                self.pool.index_path(worktree),
                now_s=effect.at_s,
                reached=reached_in("carry"),
            )
        except (GitError, OSError) as error:
            return Refused(text=_sentence(error, "The worktree could not be made"))
        return WorktreeReady(path=str(worktree.path), base=Commit(carried.base), branch=branch)

    def take_snapshot(self, place: Place, effect: TakeSnapshot, torn: bool = False) -> SnapshotTaken | Refused:
        """`torn`: the machine was started anew, so every file is read, whatever its size and time say."""
        if place.worktree is None:
            return Refused(text="Nothing is snapshotted in the checkout itself.")
        try:
            if torn:
                self._distrust(place.worktree, effect.parent)
            taken = self._snapshot(place.worktree, effect, self.ref("main"))
        except (GitError, OSError) as error:
            return Refused(text=_sentence(error, "The worktree could not be snapshotted"))
        left_out = tuple(skipped.path for skipped in taken.skipped)
        return SnapshotTaken(commit=Commit(taken.commit), changed=taken.changed, left_out=left_out)

    def _snapshot(self, worktree: Worktree, effect: TakeSnapshot, ref: str) -> Snapshot:
        return snapshot(
            self.repository,
            worktree,
            self.pool.index_path(worktree),
            ref,
            effect.parent,
            message=f"Snapshot {effect.reason}",
            now_s=effect.at_s,
            reached=reached_in("snapshot"),
        )

    def follow_log(self, snapshot: Commit | None, kept_as: str) -> None:
        """Where events were lost the ref is ahead of the log; what it held is kept under another name.

        Raises GitError."""
        git, ref = self.repository.git, self.ref("main")
        held = read_ref(git, ref)
        if held is None or held == snapshot:
            return
        move_ref(git, self.ref(kept_as), held, (None,))
        if snapshot is None:
            delete_ref(git, ref, held)
        else:
            move_ref(git, ref, snapshot, (held,))

    def unlogged(self, parent: Commit) -> Commit | None:
        """A snapshot after `parent` that was taken, and of which the log does not know. Raises GitError."""
        held = read_ref(self.repository.git, self.ref("main"))
        if held is None or held == parent:
            return None
        before = self.repository.git.attempt("rev-parse", "--verify", "--quiet", f"{held}^1").stdout.decode().strip()
        return Commit(held) if before == parent else None

    def restore_tree(self, place: Place, effect: RestoreTree, torn: bool = False) -> SnapshotTaken | Refused:
        """The files become those of the commit, and the session's ref points at it. `torn`: see take_snapshot."""
        git = self.repository.git
        assert place.worktree is not None
        try:
            if effect.kept_as:
                outcome = self._bring_back(place, place.worktree, effect)
            else:
                if torn:
                    self._distrust(place.worktree, effect.commit)
                self.restore(place, effect.commit)
                outcome = SnapshotTaken(commit=effect.commit, changed=True)
            move_ref(git, self.ref("main"), effect.commit, (read_ref(git, self.ref("main")),))
        except (GitError, OSError) as error:
            return Refused(text=_sentence(error, "The worktree could not be set back"))
        return outcome

    def _bring_back(self, place: Place, worktree: Worktree, effect: RestoreTree) -> SnapshotTaken:
        """All files are read; what is not as the commit says is kept, and set back unless it is a person's. Raises
        GitError, OSError."""
        ref = self.ref(effect.kept_as)
        # An attempt that was killed after it had kept them may have set back some.
        held = read_ref(self.repository.git, ref)
        names = self._distrust(worktree, effect.commit)
        if held is None and (not names or _changed_since(place.path, names, effect.rested_us)):
            return SnapshotTaken(commit=effect.commit, changed=False)
        if names:
            keep = TakeSnapshot(parent=Commit(held or effect.commit), at_s=effect.at_s, reason="before it was set back")
            self._snapshot(worktree, keep, ref)
        self.restore(place, effect.commit)
        return SnapshotTaken(commit=effect.commit, changed=True, kept_at=ref)

    def _distrust(self, worktree: Worktree, commit: Commit) -> list[str]:
        """The names that differ from the commit, every file read."""
        return distrust(self.repository.at(worktree), self.pool.index_path(worktree), commit)

    def restore(self, place: Place, commit: Commit) -> None:
        """Raises GitError."""
        assert place.worktree is not None
        restore(self.repository, place.worktree, self.pool.index_path(place.worktree), commit, reached_in("restore"))

    def ignored_since(self, place: Place, since_us: int) -> tuple[str, ...]:
        """Ignored files that changed: no snapshot holds them, so a restore cannot bring them back."""
        return changed_ignored(self.repository, place.worktree, since_us).paths if place.worktree else ()

    def commit(self, call_id: CallId, effect: RunTool, message: str, parent: Commit) -> ToolSucceeded | ToolFailed:
        """Commit the snapshot that the intent names on top of `parent`."""
        git = self.repository.git
        try:
            tree = tree_of(git, effect.snapshot)
            if tree is None or tree == tree_of(git, parent):
                return ToolFailed(text="Nothing changed since the last commit.")
            self._follow_log(call_id, parent)
            commit = commit_work(
                self.repository,
                self.ref("work"),
                tree,
                parent,
                message=message,
                author=self.repository.identity or AGENT,
                now_s=effect.at_s,
                call_id=call_id,
                reached=reached_in("commit"),
            )
            files = changed_files(self.repository, parent, commit)
        except (GitError, OSError) as error:
            return ToolFailed(text=_sentence(error, "The commit could not be made"))
        named = "\n".join(f"{file.status} {file.path}" for file in files)
        return ToolSucceeded(text=f"Committed {commit[:12]}.\n{named}", commit=Commit(commit))

    def _follow_log(self, call_id: CallId, parent: Commit) -> None:
        """After a rewind the ref is ahead of the log, which is right; what it held stays under another name."""
        git, ref, kept = self.repository.git, self.ref("work"), self.ref(f"work-before/{call_id}")
        held, saved = read_ref(git, ref), read_ref(git, kept)
        if held is None or held == parent or saved not in (None, held):
            return
        move_ref(git, kept, held, (None,))
        move_ref(git, ref, parent, (held,))

    def merge(self, call_id: CallId, effect: MergeWork) -> Merged | Refused:
        try:
            plan = plan_merge(self.repository, effect.base, effect.result)
            if isinstance(plan, MergeRefused):
                return Refused(text=plan.reason, files=plan.files)
            begun = read_ref(self.repository.git, self.ref(f"pre-merge/{call_id}")) is not None
            done = apply_merge(
                self.repository,
                plan,
                self._session,
                self._scratch,
                call_id=call_id,
                now_s=effect.at_s,
                reached=reached_in("merge"),
            )
        except MergeOverlap as error:
            return Refused(text=str(error), files=error.paths)
        except (GitError, OSError) as error:
            return Refused(text=_sentence(error, "The merge stopped"))
        # What a killed attempt of this very merge had written counts as merged by it.
        files = tuple(sorted({*done.written, *done.already})) if done.written or begun else ()
        return Merged(files=files, saved=Commit(done.saved), left_out=plan.left_out)

    def changed_between(self, before: Commit, after: Commit) -> Sequence[str]:
        """Paths that differ, sorted; empty also where the repository no longer has one of them."""
        try:
            return sorted(file.path for file in changed_files(self.repository, before, after))
        except GitError:
            return ()

    def holds(self, ready: WorktreeReady) -> bool:
        """Whether that worktree is there and this agent's."""
        found = self.pool.adopt(self._session)
        return found is not None and str(found.path) == ready.path and found.path.is_dir()

    def project(self, place: Place) -> ProjectEnvironment:
        if self._project is None:
            self._project = project_environment(self.repository.root, place.path, self._variables)
        return self._project


def open_files(
    session: SessionId, folder: Path, state_folder: Path, scratch: Path, variables: Mapping[str, str]
) -> SessionFiles:
    """Raises GitError: no repository, a bare or an empty one."""
    return SessionFiles(session, open_repository(folder, variables), state_folder, scratch, variables)


def _changed_since(root: Path, names: Sequence[str], since_us: int) -> bool:
    """Whether all these files are there and younger than `since_us`, by both times that a file has. 0: never."""
    try:
        found = [(root / name).lstat() for name in names]
    except OSError:
        return False
    return since_us > 0 and all(min(at.st_mtime_ns, at.st_ctime_ns) // 1000 > since_us for at in found)


def _sentence(error: Exception, what: str) -> str:
    if isinstance(error, OSError):
        return f"{what}: {error.strerror or type(error).__name__}."
    return f"{what}: {error}"
