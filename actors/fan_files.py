"""The git side of a fan-out: what its agents made, and the branch onto which that is merged. Blocks.

Each function finds what an earlier attempt had made. Raises GitError where it cannot even look."""

from pathlib import Path

from actors.agents import Assignment
from actors.files import AGENT, Place, SessionFiles
from agent.state import State
from configs.crash import reached, reached_in
from eventlog.effects import AdvanceBranch, CheckMerge, PrepareMerge, RetireAgents, SpawnAgent
from eventlog.ids import AgentId, CallId, Commit
from eventlog.outcomes import AgentsRetired, BranchAdvanced, MergeConflicted, MergePrepared, Refused
from worktrees.merge import Conflict, advance, diff, is_ancestor, merge_commit, with_markers
from worktrees.objects import encode_commit, move_ref, read_ref, write_commit
from worktrees.snapshot import tree_of

PATCH = 8_000
"""Characters of the other side's changes that an agent is shown."""
CHECK = AgentId("check")
"""Whose the worktree is in which merges are checked."""


def work_of(files: SessionFiles, state: State, effect: Assignment, message: str) -> Commit | None:
    """What an agent's round came to, held by a reference of the agent's: its own last commit where that is all of it,
    else a commit of its last snapshot. None where its files are as they were when the round began."""
    git, start = files.repository.git, effect.base
    tree = tree_of(git, state.snapshot) if state.snapshot else None
    if tree is None or tree == tree_of(git, start):
        return None
    own = state.work if state.work != start else None
    if own is not None and tree_of(git, own) == tree and is_ancestor(git, start, own):
        work = own
    else:
        # Its own commits are a part of what it made, whether they came before this round or in it.
        besides = (own,) if own is not None and not is_ancestor(git, own, start) else ()
        author = files.repository.identity or AGENT
        work = Commit(write_commit(git, encode_commit(tree, (start, *besides), message, author, effect.at_s)))
    # One in the background is given other files each time, and what it made last may not be merged.
    ref = files.ref("result" if isinstance(effect, SpawnAgent) else f"changes/{effect.round}")
    reached("result_before_ref")
    move_ref(git, ref, work, (read_ref(git, ref),))
    reached("result_after_ref")
    return work


def prepare_merge(files: SessionFiles, call_id: CallId, effect: PrepareMerge) -> MergePrepared | MergeConflicted:
    repository = files.repository
    left = with_markers(repository, effect.work, effect.conflicted)
    if left:
        return MergeConflicted(commit=effect.work, files=left, text="(Markers of the conflict are left in them.)")
    merged = merge_commit(repository, effect.onto, effect.work, now_s=effect.at_s, call_id=call_id)
    if not isinstance(merged, Conflict):
        return MergePrepared(commit=Commit(merged.commit))
    base = repository.git.run("merge-base", effect.onto, effect.work).decode().strip()
    patch = diff(repository, base, effect.onto, merged.files)
    if len(patch) > PATCH:
        patch = f"{patch[:PATCH]}\n(cut here; it has {len(patch):,} characters)"
    return MergeConflicted(commit=Commit(merged.commit), files=merged.files, text=patch or merged.text)


def advance_branch(files: SessionFiles, effect: AdvanceBranch) -> BranchAdvanced | Refused:
    git, ref = files.repository.git, files.ref(f"fan/{effect.fan}")
    if read_ref(git, ref) is None:
        reached("branch_before_begin")
        move_ref(git, ref, effect.onto, (None,))
    if advance(files.repository, ref, effect.commit, effect.onto, reached_in("branch")):
        return BranchAdvanced(commit=effect.commit)
    return Refused(text=f"{ref} was moved by somebody else, so nothing more is merged onto it.")


def place_check(files: SessionFiles, effect: CheckMerge) -> Place:
    """The worktree for checks, with the files of the merge."""
    own = files.of_agent(CHECK)
    reached("before_check_worktree")
    worktree = own.pool.acquire(own.key, effect.commit, reached=reached_in("pool"))
    place = Place(worktree.path, worktree)
    own.restore(place, effect.commit)
    reached("after_check_worktree")
    return place


def retire(files: SessionFiles, effect: RetireAgents) -> AgentsRetired:
    """What an agent made is in its references; whatever else lies in its worktree is saved, and told."""
    kept: list[str] = []
    for agent in (*effect.agents, CHECK):
        own = files.of_agent(agent)
        worktree = own.pool.adopt(own.key)
        if worktree is None:
            continue
        reached("before_retire_worktree")
        released = own.pool.release(worktree, now_s=effect.at_s)
        reached("after_retire_worktree")
        kept += released.saved
        if released.state == "kept":
            kept.append(f"{worktree.path} ({released.reason})")
    return AgentsRetired(kept=tuple(kept))


def calls_of(session_folder: Path, agent: AgentId) -> Path:
    """Where an agent's commands are: call ids are unique in one agent's part of the log only."""
    return session_folder / "agents" / agent / "calls"
