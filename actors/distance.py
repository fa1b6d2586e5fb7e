"""The node's side of an agent that works far from its session: what it was given, made into what it needs."""

from dataclasses import dataclass
from pathlib import Path

from actors.agent_lease import AgentLease
from actors.courier import Recipient
from actors.elsewhere import Elsewhere
from actors.files import SessionFiles
from configs.crash import reached_in
from eventlog.ids import SessionId
from worktrees.bundle import refs_below, take_bundle
from worktrees.mirror import MirrorSettings, open_mirror
from worktrees.objects import delete_ref, read_ref
from worktrees.repository import Repository


@dataclass(frozen=True, slots=True)
class Distance:
    session: SessionId
    door: Path
    """Where the session's door is reached on this node."""
    given: Elsewhere
    bundle: bytes
    """Has what `given` wants, as far as this node does not have it."""

    def to(self, lease: AgentLease) -> Recipient:
        return Recipient(
            door=self.door,
            session=self.session,
            agent=lease.agent,
            lease=lease.number,
            held=self.given.refs,
            have=(self.given.base,),
        )

    def take_in(self, files: SessionFiles) -> None:
        """The mirror has the agent's references as the session does, and no other of the agent's: what an earlier
        incarnation made here and nobody was told is not there any more. Blocks. Raises GitError."""
        git = files.repository.git
        held = {ref: read_ref(git, ref) for ref in self.given.wanted}
        take_bundle(files.repository, self.bundle, held, reached=reached_in("bundle"))
        for ref, commit in refs_below(files.repository, files.refs).items():
            if ref not in self.given.refs:
                delete_ref(git, ref, commit)


def find_mirror(state_folder: Path, repository: Path, settings: MirrorSettings) -> Repository:
    """Of a repository of the session's node on this one; empty where nothing came of it yet. Blocks."""
    return open_mirror(state_folder / "mirrors", str(repository), settings)
