"""A session as the conversation it was, for training and evaluation: messages, tool calls, how each ended."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, assert_never

import orjson

from eventlog.effects import RunTool
from eventlog.events import CallRejected, ContextSet, EffectFinished, EffectStarted, Event, Rewound, TurnEnded, UserSaid
from eventlog.ids import MAIN, AgentId
from eventlog.messages import AssistantMessage, ReasoningPart
from eventlog.outcomes import (
    AgentEnded,
    AgentsRetired,
    AttemptLost,
    BranchAdvanced,
    Cancelled,
    Conflicted,
    MergeConflicted,
    Merged,
    MergePrepared,
    ModelFailed,
    ModelReplied,
    Outcome,
    OutcomeUnknown,
    Refused,
    SnapshotTaken,
    ToolFailed,
    ToolSucceeded,
    WorktreeReady,
)


def trajectory(events: Iterable[Event], actor: AgentId = MAIN) -> dict[str, Any]:
    """`{session, model, tools, messages, usage, cost_usd, ending}`. Messages: `{role: system|user|assistant|tool,
    content}`, with `reasoning` and `tool_calls: [{id, name, arguments}]` on the assistant's and `tool_call_id`,
    `outcome` (a kind) and `exit_code` on the tool's. A rewound part is left out of the messages, not of the money."""
    mine = [event for event in events if event.actor == actor]
    kept = _without_rewound(mine)
    told = _Told()
    for event in kept:
        told.take(event)
    told.flush()
    replies = [
        event.body.outcome
        for event in mine
        if isinstance(event.body, EffectFinished) and isinstance(event.body.outcome, ModelReplied)
    ]
    costs = [reply.cost_usd for reply in replies]
    return {
        "session": mine[0].session if mine else None,
        "model": told.model,
        "tools": told.tools,
        "messages": told.messages,
        "usage": {
            "input": sum(reply.usage.input for reply in replies),
            "cached": sum(reply.usage.cached for reply in replies),
            "output": sum(reply.usage.output for reply in replies),
        },
        "cost_usd": None if None in costs else sum(cost for cost in costs if cost is not None),
        "ending": told.ending,
    }


def _without_rewound(events: list[Event]) -> list[Event]:
    kept: list[Event] = []
    for event in events:
        if isinstance(event.body, Rewound):
            to_seq = event.body.to_seq
            kept = [earlier for earlier in kept if earlier.seq <= to_seq]
        kept.append(event)
    return kept


@dataclass(slots=True)
class _Told:
    messages: list[dict[str, Any]] = field(default_factory=list)
    model: str | None = None
    tools: Any = None
    ending: str | None = None
    waiting: set[str] = field(default_factory=set)
    """Calls of the last reply without an outcome: what the user says meanwhile is read by the model after them."""
    queued: list[dict[str, Any]] = field(default_factory=list)

    def take(self, event: Event) -> None:
        match event.body:
            case UserSaid(text=text):
                self.queued.append({"role": "user", "content": text})
            case ContextSet() as context:
                if self.model is None:
                    self.messages.append({"role": "system", "content": context.system})
                self.model, self.tools = context.model, orjson.loads(context.tools)
            case EffectStarted(call_id=call, effect=RunTool()):
                self.waiting.add(call)
            case EffectFinished(call_id=call, outcome=ModelReplied(message=message)):
                self.waiting = {part.id for part in message.tool_calls}
                self.messages.append(_assistant(message))
            case EffectFinished(call_id=call, outcome=outcome) if call in self.waiting:
                if not isinstance(outcome, AttemptLost):
                    self._settle(call, outcome.kind, _text(outcome), getattr(outcome, "exit_code", None))
            case CallRejected(call_id=call, why=why, text=text):
                self._settle(call, why, text, None)
            case TurnEnded(ending=ending):
                self.ending = ending
            case _:
                pass
        if not self.waiting:
            self.flush()

    def flush(self) -> None:
        self.messages.extend(self.queued)
        self.queued.clear()

    def _settle(self, call: str, outcome: str, text: str, exit_code: int | None) -> None:
        self.waiting.discard(call)
        self.messages.append(
            {"role": "tool", "tool_call_id": call, "content": text, "outcome": outcome, "exit_code": exit_code}
        )


def _assistant(message: AssistantMessage) -> dict[str, Any]:
    reasoning = "".join(part.text for part in message.parts if isinstance(part, ReasoningPart))
    calls = [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return {"role": "assistant", "content": message.text, "reasoning": reasoning, "tool_calls": calls}


def _text(outcome: Outcome) -> str:
    match outcome:
        case ToolSucceeded() | ToolFailed() | Conflicted() | Cancelled() | Refused() | ModelFailed():
            return outcome.text
        case OutcomeUnknown() | AttemptLost():
            return outcome.evidence
        case ModelReplied():
            return outcome.message.text
        case WorktreeReady():
            return outcome.path
        case SnapshotTaken():
            return outcome.commit
        case Merged():
            return "\n".join(outcome.files)
        case AgentEnded() | MergeConflicted():
            return outcome.text
        case MergePrepared() | BranchAdvanced():
            return outcome.commit
        case AgentsRetired():
            return "\n".join(outcome.kept)
        case _:
            assert_never(outcome)
