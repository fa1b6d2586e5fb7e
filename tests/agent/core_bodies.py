"""Bodies of events in few words, and a planner that allows what it is not told to refuse."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from agent.apply import apply
from agent.decide import Ask, Plan, Reject, Start, decide
from agent.state import PendingCall, State
from agent.tools.schemas import SAYING, TOOLS, tools_json
from eventlog.effects import AskUser, CallModel, Effect, EffectClass, MakeWorktree, RunTool
from eventlog.events import (
    Body,
    CallRejected,
    ContextSet,
    EffectFinished,
    EffectStarted,
    Event,
    Interrupted,
    LimitsSet,
    ModeChosen,
    UserSaid,
)
from eventlog.ids import MAIN, CallId, CommandId, Commit, Digest, SessionId
from eventlog.messages import AssistantMessage, TextPart, ToolCall, Usage
from eventlog.outcomes import ModelReplied, Outcome, SnapshotTaken, ToolSucceeded, WorktreeReady

CONTEXT = ContextSet(
    builder="chat/1", model="p/m", wire_model="m", system="Be good.", tools="[]", parameters="{}", window=1000
)
FULL_CONTEXT = CONTEXT.model_copy(
    update={"tools": tools_json(tool.name for tool in TOOLS if tool.name not in (*SAYING, "ask_agent"))}
)
"""With the tools of a main agent that has no others in the background."""
BASE = Commit("b" * 40)
CLASSES: Mapping[str, EffectClass] = {"read": "read", "edit": "edit", "shell": "command", "commit": "commit"}


@dataclass(slots=True)
class PlainPlanner:
    """`asks` and `rejects` name tools; everything else may start. `reserved_usd` is what each model call may cost."""

    asks: frozenset[str] = frozenset()
    rejects: frozenset[str] = frozenset()
    reserved_usd: float = 0.0
    planned: list[CallId] = field(default_factory=list)
    differences: Mapping[tuple[Commit, Commit], tuple[str, ...]] = field(default_factory=dict)
    """Paths that differ between two commits."""

    def plan_tool(self, state: State, call: PendingCall) -> Plan:
        self.planned.append(call.call.id)
        if call.call.name in self.rejects:
            return Reject(CallRejected(call_id=call.call.id, why="withheld", text="Not permitted."))
        if call.call.name in self.asks and call.status != "approved":
            return Ask(question(call.call.id, call.call.name))
        return Start(tool(call.call.name, snapshot=state.snapshot))

    def plan_model(self, state: State, call_id: CallId) -> CallModel:
        return model_call(messages=len(state.messages), reserved_usd=self.reserved_usd)

    def plan_setup(self, state: State) -> RunTool:
        return tool("shell", arguments='{"command":"make setup"}', snapshot=state.snapshot)

    def writes(self, tool: str) -> bool:
        return tool in ("edit", "shell", "commit")

    def confines(self, state: State) -> bool:
        return True

    def changed_between(self, before: Commit, after: Commit) -> tuple[str, ...]:
        return self.differences.get((before, after), ())

    def now_s(self) -> int:
        return 1_800_000_000


def model_call(messages: int = 1, reserved_usd: float = 0.0) -> CallModel:
    return CallModel(
        model="p/m", builder="chat/1", request_hash=Digest("d" * 64), request_bytes=10, messages=messages,
        reserved_usd=reserved_usd,
    )  # fmt: skip


def tool(name: str, **values: object) -> RunTool:
    given = {"tool": name, "arguments": "{}", "effect_class": CLASSES[name], "allowed_by": "a test", **values}
    return RunTool.model_validate(given)


def question(about: str, name: str = "shell", binding: str = "e" * 64) -> AskUser:
    return AskUser(about=CallId(about), tool=name, arguments="{}", reason="It leaves.", binding=Digest(binding))


def started(call: str, effect: Effect, attempt: int = 1) -> Body:
    return EffectStarted(call_id=CallId(call), attempt=attempt, effect=effect)


def finished(call: str, outcome: Outcome, attempt: int = 1) -> Body:
    return EffectFinished(call_id=CallId(call), attempt=attempt, outcome=outcome)


def replied(*tools: str, call: str = "c1", text: str = "", cost: float | None = None) -> ModelReplied:
    """A reply with one call of each named tool: `c1_1`, `c1_2` …"""
    calls = [
        ToolCall(id=CallId(f"{call}_{at}"), provider_id=f"p{at}", name=name, arguments="{}")
        for at, name in enumerate(tools, 1)
    ]
    parts = (*((TextPart(text=text),) if text else ()), *calls)
    return ModelReplied(
        message=AssistantMessage(parts=parts),
        stop="tool_calls" if tools else "stop",
        usage=Usage(input=10, output=5),
        cost_usd=cost,
        model="m",
        first_byte_ms=1,
        total_ms=2,
    )


def said(text: str, id: str = "u1") -> Body:
    return UserSaid(id=CommandId(id), text=text)


def interrupted(id: str = "i1") -> Body:
    return Interrupted(id=CommandId(id))


def limits(**values: object) -> Body:
    return LimitsSet.model_validate({"id": "l1", **values})


def mode(name: str = "auto", attended: bool = False, sandbox: str = "workspace-write", id: str = "m1") -> Body:
    return ModeChosen.model_validate({"id": id, "mode": name, "sandbox": sandbox, "attended": attended})


def ready(path: str = "/w") -> WorktreeReady:
    return WorktreeReady(path=path, base=BASE)


def taken(commit: str) -> SnapshotTaken:
    return SnapshotTaken(commit=Commit(commit * 40), changed=True)


def done(text: str = "ok", *, wrote: bool = False) -> ToolSucceeded:
    return ToolSucceeded(text=text, wrote=wrote)


MAKE = MakeWorktree(repository="/r", head=BASE, carry_dirty=True, at_s=0)
OPENING: tuple[Body, ...] = (CONTEXT, mode(), started("w1", MAKE), finished("w1", ready()), said("Do it."))


def fold_bodies(bodies: Sequence[Body], state: State | None = None) -> State:
    for body in bodies:
        state = apply(state or State(), body)
    return state or State()


def stored(bodies: Sequence[Body]) -> list[Event]:
    """As a log of the main agent alone holds them, from seq 1."""
    common = {"session": SessionId("s"), "epoch": 1, "actor": MAIN, "lease": 1, "version": 1}
    return [
        Event(seq=seq, ts_us=seq, actor_seq=None, causation=None, body=body, **common)
        for seq, body in enumerate(bodies, 1)
    ]


def asked_for(*tools: str, opening: Sequence[Body] = OPENING) -> State:
    """The state right after a reply with these calls."""
    return fold_bodies([*opening, started("c1", model_call()), finished("c1", replied(*tools))])


def go_on(state: State, planner: PlainPlanner) -> tuple[State, list[Body]]:
    """Apply what is decided until nothing more is; the state then, and what was decided."""
    decided: list[Body] = []
    while more := decide(state, planner):
        decided += more
        state = fold_bodies(more, state)
    return state, decided
