"""What can be asked at the coordinator's door. actors/door.py says how each is answered."""

import contextlib
from typing import Annotated, Literal

import orjson
from pydantic import Field, TypeAdapter, ValidationError

from eventlog.events import Body, Command, DamageAccepted, Forked, LeaseGranted, Rewound, SessionOpened
from eventlog.ids import AgentId, Commit
from eventlog.values import Value

Id = Annotated[int, Field(ge=0, lt=2**53)]


class Append(Value):
    op: Literal["append"]
    id: Id
    agent: AgentId = Field(min_length=1, max_length=200)
    lease: int = Field(ge=1)
    actor_seq: int = Field(ge=1)
    """Of the first body; those behind it count on."""
    bodies: tuple[Body, ...] = Field(min_length=1)
    causes: tuple[int | None, ...] | None = None
    """seq of the event that each body follows from."""


class Send(Value):
    op: Literal["command"]
    id: Id
    command: Command = Field(discriminator="kind")


class Attach(Value):
    op: Literal["attach"]
    id: Id
    after: int = Field(ge=0)


class Detach(Value):
    op: Literal["detach"]
    id: Id


class Ping(Value):
    op: Literal["ping"]
    id: Id


class Renew(Value):
    op: Literal["renew"]
    id: Id
    agent: AgentId = Field(min_length=1, max_length=200)
    lease: int = Field(ge=1)


class Move(Value):
    """Of a reference: what it holds, and what it is to hold."""

    old: Commit | None
    new: Commit


class Deliver(Value):
    op: Literal["deliver"]
    id: Id
    agent: AgentId = Field(min_length=1, max_length=200)
    lease: int = Field(ge=1)
    bundle: str = Field(pattern="^[0-9a-f]{64}$")
    """What the file is called that lies in the session's folder of bundles."""
    moves: dict[str, Move] = Field(min_length=1)
    """By the name of the reference below the agent's own."""


Request = Append | Send | Attach | Detach | Ping | Renew | Deliver
_adapter: TypeAdapter[Request] = TypeAdapter(Annotated[Request, Field(discriminator="op")])
OF_THE_WRITER = (SessionOpened, LeaseGranted, Rewound, Forked, DamageAccepted)
"""Bodies that speak of the log itself."""


class BadRequest(Exception):
    """One sentence. Whoever sends such a thing is heard no further."""

    def __init__(self, text: str, id: int | None = None) -> None:
        super().__init__(text)
        self.id = id


def parse(payload: bytes) -> Request:
    """Raises BadRequest, which names the place and never what stood there."""
    try:
        return _adapter.validate_json(payload)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"])) or "all of it"
        raise BadRequest(f"A request cannot be understood ({place}: {first['type']}).", _id_of(payload)) from None


def _id_of(payload: bytes) -> int | None:
    with contextlib.suppress(orjson.JSONDecodeError):
        message = orjson.loads(payload)
        if isinstance(message, dict) and type(message.get("id")) is int:
            return message["id"]
    return None
