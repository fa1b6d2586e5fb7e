"""What a session asks of the process of an agent, as a value that crosses."""

from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

from actors.agent_work import Round
from actors.building import Rights
from actors.elsewhere import Elsewhere
from eventlog.events import ModeChosen
from eventlog.ids import AgentId, SessionId


@dataclass(frozen=True, slots=True)
class Order:
    """A round of an agent, as its session asks for it. Its JSON holds no secret."""

    session: SessionId
    repository: Path
    config_file: Path
    lease: int
    attempt: int
    mode: ModeChosen
    rights: Rights
    round: Round
    elsewhere: Elsewhere | None = None
    """None: it works on the session's own node."""

    @property
    def agent(self) -> AgentId:
        return self.round.effect.agent

    @property
    def owner(self) -> str:
        return owner_of(self.session, self.agent, self.round.effect.round, self.attempt)

    @property
    def mine(self) -> str:
        """What the owners of all rounds of this agent begin with."""
        return f"{self.session} {self.agent} "


def is_of(owner: str | None, mine: str) -> bool:
    return owner is not None and owner.startswith(mine)


_ORDER = TypeAdapter(Order)


def owner_of(session: SessionId, agent: AgentId, round: int, attempt: int) -> str:
    """Of one attempt at one round: what is told of another is not what this one came to."""
    return f"{session} {agent} {round}.{attempt}"


def encode_order(order: Order) -> bytes:
    return _ORDER.dump_json(order)


def decode_order(data: bytes) -> Order:
    """Raises pydantic.ValidationError."""
    return _ORDER.validate_json(data)
