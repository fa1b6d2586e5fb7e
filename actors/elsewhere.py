"""What an agent has to be given that works on a node which has neither the repository nor the session's folder."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from configs.settings import Settings
from eventlog.ids import Commit
from worktrees.mirror import MirrorSettings


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Its JSON holds no secret: the variables cross beside it."""

    node: str
    """Ray's id of where it works."""
    mirror: MirrorSettings
    settings: Settings
    """The user's: their file is not there."""
    base: Commit
    """What its round begins with; the session's node has it."""
    refs: Mapping[str, Commit] = field(default_factory=dict)
    """The agent's own references as the session's node has them, by their full names."""

    @property
    def base_ref(self) -> str:
        return f"refs/thalia/bases/{self.base}"

    @property
    def wanted(self) -> dict[str, str]:
        """What the bundle for it has to hold, by reference."""
        return {**self.refs, self.base_ref: self.base}


_MIRROR = TypeAdapter(MirrorSettings)


def encode_mirror(settings: MirrorSettings) -> bytes:
    return _MIRROR.dump_json(settings)


def read_mirror(data: bytes) -> MirrorSettings:
    """Raises pydantic.ValidationError."""
    return _MIRROR.validate_json(data)
