"""Sessions with agents in the background, and models that decide by what stands in their conversation."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from actors.local import Run, drive_session, run_fast
from actors.sessions import prepare_new
from agent.models.client import ModelRequest, OnDelta
from eventlog.effects import CallModel, WakeAgent
from eventlog.events import AgentReported, EffectFinished, EffectStarted, Event
from eventlog.ids import MAIN, AgentId, CallId
from eventlog.messages import AssistantMessage, TextPart, ToolCall, Usage
from eventlog.outcomes import AgentEnded, ModelReplied, Report, Silence
from tests.actors.playing import SESSION, Played, Recorder, Stage

Message = Mapping[str, Any]
Decision = Mapping[str, Any] | str
"""A tool call as `playing.call` makes it, or last words."""
Mind = Callable[[Sequence[Message]], Decision]
"""From a conversation without its system prompt, in the shape of Chat Completions."""


@dataclass(slots=True)
class Minds:
    """One model for all: who asks is known by the system prompt."""

    by_name: Mapping[str, Mind]
    after: Mapping[int, int] = field(default_factory=dict)
    """Before its reply of this number, from 1, the main agent waits until so many wake-ups have ended."""
    tokens: int = 100
    """Of input, as each reply tells."""
    asked: dict[str, int] = field(default_factory=dict)
    rests: int = 0
    _rested: asyncio.Event = field(default_factory=asyncio.Event)

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> ModelReplied:
        messages = json.loads(request.body)["messages"]
        name = next((name for name in self.by_name if f"You are {name}, an agent" in messages[0]["content"]), MAIN)
        self.asked[name] = self.asked.get(name, 0) + 1
        while name == MAIN and self.rests < self.after.get(self.asked[name], 0):
            await self._rested.wait()
            self._rested.clear()
        return reply(request.call_id, self.by_name[name](messages[1:]), self.tokens)

    def note(self, event: Event) -> None:
        if isinstance(event.body, EffectFinished) and isinstance(event.body.outcome, AgentEnded):
            self.rests += 1
            self._rested.set()


def reply(call_id: CallId, decision: Decision, tokens: int) -> ModelReplied:
    if isinstance(decision, str):
        parts: tuple[TextPart | ToolCall, ...] = (TextPart(text=decision),)
    else:
        name, arguments = decision["name"], json.dumps(decision["arguments"])
        parts = (ToolCall(id=CallId(f"{call_id}_1"), provider_id=f"p-{call_id}", name=name, arguments=arguments),)
    return ModelReplied(
        message=AssistantMessage(parts=parts),
        stop="stop" if isinstance(decision, str) else "tool_calls",
        usage=Usage(input=tokens, output=10),
        cost_usd=None,
        model="minds",
        first_byte_ms=1,
        total_ms=2,
    )


def in_order(*decisions: Decision) -> Mind:
    """One after the other, whatever is said to it; then it is done."""
    return lambda messages: (
        decisions[done] if (done := sum(m["role"] == "assistant" for m in messages)) < len(decisions) else "Done."
    )


def play_minds(stage: Stage, minds: Minds, screen: Recorder | None = None, **options: Any) -> Played:
    screen = screen or Recorder()
    # Named only: what answers is `minds`.
    chosen = stage.options(**{"model": stage.script(), **options})
    run = Run(screen, screen.drive, False)

    async def go() -> int:
        ready = prepare_new(stage.parts, SESSION, chosen, "Do it.", minds)
        ready.coordinator.listeners += [minds.note, screen.on_event]
        try:
            return await drive_session(stage.parts, ready, chosen, run)
        finally:
            await ready.coordinator.close()

    return Played(run_fast(go()), screen, stage.events())


def wakes(events: Sequence[Event], agent: str) -> list[WakeAgent]:
    effects = [event.body.effect for event in events if isinstance(event.body, EffectStarted)]
    return [one for one in effects if isinstance(one, WakeAgent) and one.agent == agent]


def reasons(events: Sequence[Event], agent: str) -> list[tuple[str, ...]]:
    return [wake.reasons for wake in wakes(events, agent)]


def words(events: Sequence[Event], agent: str) -> list[Report | Silence | None]:
    """What it came to in each wake-up that ended by itself."""
    begun = {
        event.body.call_id
        for event in events
        if isinstance(event.body, EffectStarted)
        and isinstance(event.body.effect, WakeAgent)
        and event.body.effect.agent == agent
    }
    ended = [event.body for event in events if event.actor == MAIN and isinstance(event.body, EffectFinished)]
    return [body.outcome.said for body in ended if body.call_id in begun and isinstance(body.outcome, AgentEnded)]


def delivered(events: Sequence[Event]) -> list[str]:
    return [event.body.text for event in events if isinstance(event.body, AgentReported)]


def calls_of(events: Sequence[Event], agent: str) -> int:
    """Model calls."""
    own = [event.body for event in events if event.actor == AgentId(agent)]
    return sum(isinstance(body, EffectStarted) and isinstance(body.effect, CallModel) for body in own)


def define(stage: Stage, name: str, body: str = "You look.", *, home: bool = True, **fields: str) -> None:
    """A definition in the user's home folder, or in the repository."""
    folder = (stage.folder / "user" if home else stage.repository) / ".agents" / "agents"
    folder.mkdir(parents=True, exist_ok=True)
    matter = {"description": f"The {name}.", **fields}
    lines = "\n".join(f"{key}: {value}" for key, value in matter.items())
    (folder / f"{name}.md").write_text(f"---\nname: {name}\n{lines}\n---\n{body}\n")
