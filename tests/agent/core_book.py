"""The log of a session with a fan-out, and what its agents are by it."""

from dataclasses import dataclass, field

from agent.roster import AgentLine, list_agents
from eventlog.events import Body, Event
from eventlog.ids import MAIN, AgentId, SessionId
from tests.agent.core_bodies import CONTEXT, MAKE, finished, model_call, ready, said, started
from tests.agent.core_fans import Room

SECOND = 1_000_000


@dataclass(slots=True)
class Book:
    """A session's log, one event a second: what its main agent decides in a room, and what its agents say."""

    room: Room
    events: list[Event] = field(default_factory=list)
    copied: int = 0

    @property
    def log(self) -> list[Event]:
        """All of it until now."""
        self._copy()
        return self.events

    @property
    def lines(self) -> tuple[AgentLine, ...]:
        return list_agents(iter(self.log))

    def agent(self, name: str, *bodies: Body) -> None:
        self._copy()
        self._write(AgentId(name), *bodies)

    def main(self, *bodies: Body) -> None:
        """Past the room: what no decision follows from."""
        self._copy()
        self._write(MAIN, *bodies)

    def _copy(self) -> None:
        self._write(MAIN, *self.room.story[self.copied :])
        self.copied = len(self.room.story)

    def _write(self, actor: AgentId, *bodies: Body) -> None:
        common = {"session": SessionId("s"), "epoch": 1, "lease": 1, "actor_seq": None, "causation": None, "version": 1}
        for body in bodies:
            seq = len(self.events) + 1
            self.events.append(Event(seq=seq, ts_us=seq * SECOND, actor=actor, body=body, **common))


def begun(name: str, path: str = "/w1") -> tuple[Body, ...]:
    """An agent that has its worktree and its task, and asks the model."""
    return (
        CONTEXT,
        started("w1", MAKE),
        finished("w1", ready(path)),
        said("one", f"{name}.1"),
        started("c1", model_call()),
    )
