"""One session of benchmarks/background.py: its models, which take time to think, and what it came to."""

import asyncio
import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from actors.building import Parts
from actors.crew import NOBODY
from actors.local import Run, drive_session, run_fast
from actors.sessions import Options, prepare_new
from agent.models.client import BYTES_A_TOKEN, ModelRequest, OnDelta, cost_usd, ignore_delta
from agent.standing import Standing
from benchmarks.background_clock import Clock, RealClock, TurnedClock
from benchmarks.background_minds import (
    AGAIN,
    FANNING,
    Decision,
    Mind,
    Scout,
    decide_checker,
    decide_main,
    decide_part,
    read_talk,
)
from benchmarks.background_repo import BROKEN, Case, Sample, make_sample
from benchmarks.fanout_work import run_git
from benchmarks.step import Quiet, drive
from configs.settings import Environment, Settings
from eventlog.effects import CallModel, WakeAgent
from eventlog.events import AgentReported, EffectFinished, EffectStarted, Event, TurnEnded, UserSaid
from eventlog.ids import MAIN, CallId, SessionId
from eventlog.messages import AssistantMessage, TextPart, ToolCall, Usage
from eventlog.outcomes import ModelReplied, ToolFailed, ToolSucceeded
from eventlog.seams import SystemClock

AGENTS: Mapping[str, tuple[str, ...]] = {
    "alone": (NOBODY,),
    "background": ("scout", "checker"),
    "checker": ("checker",),
    "subagents": (NOBODY,),
}
"""Who is in the background, in each way to do the task."""
MODEL = "openai/gpt-5.1"
"""Whose prices count. Nobody asks it."""
FIRST_S, TOKEN_S = 2.0, 0.02
"""What a model takes at full speed: until it says anything, and for each token."""
THOUGHT = (60, 240)
"""Tokens that it thinks before what it says."""
CACHED_FROM, CACHED_STEP = 1024, 128
"""Tokens of a known beginning that a provider's cache gives at least, and in steps of."""
SESSION = SessionId("s1")


@dataclass(frozen=True, slots=True)
class Asked:
    """A model call, whether it came to its end or not."""

    agent: str
    usage: Usage
    cost_usd: float


@dataclass(slots=True)
class Thinking:
    """One model for all agents: who asks is known by the system prompt. A ModelClient."""

    minds: Mapping[str, Mind]
    seed: int
    clock: Clock
    asked: list[Asked] = field(default_factory=list)
    _cached: list[bytes] = field(default_factory=list)
    """The latest request of each conversation."""

    async def complete(self, request: ModelRequest, on_delta: OnDelta) -> ModelReplied:
        body = json.loads(request.body)
        agent = agent_of(body["messages"][0]["content"])
        talk = read_talk(body["messages"][1:])
        decision = self.minds[agent](talk, [tool["function"]["name"] for tool in body["tools"]])
        said = len(json.dumps(decision)) // BYTES_A_TOKEN
        # The ids of commits are others each time.
        first = re.sub(r"[0-9a-f]{40}", "", talk.told[0])
        thought = Random(f"{self.seed} {agent} {talk.asked} {first}").randint(*THOUGHT)
        input, cached = len(request.body) // BYTES_A_TOKEN, self._from_cache(request.body)
        began_s, whole_s = self.clock.now_s(), FIRST_S + TOKEN_S * (thought + said)
        took_s = 0.0
        try:
            await self.clock.sleep(whole_s)
            took_s = whole_s
        finally:
            # Cut off: what was said until then is paid for, too.
            took_s = took_s or min(self.clock.now_s() - began_s, whole_s)
            usage = Usage(input=input, cached=cached, output=max(round((took_s - FIRST_S) / TOKEN_S), 0))
            usd = cost_usd(usage, request.prices)
            assert usd is not None
            self.asked.append(Asked(agent, usage, usd))
        return _reply(request.call_id, decision, usage, usd)

    def _from_cache(self, body: bytes) -> int:
        """Tokens of the longest beginning that it shares with what was asked before."""
        shared = max((_common(body, known) for known in self._cached), default=0)
        # Its conversation goes on: the request before is its beginning, but for the brackets that closed it.
        self._cached = [known for known in self._cached if _common(body, known) < len(known) - 2]
        self._cached.append(body)
        tokens = shared // BYTES_A_TOKEN // CACHED_STEP * CACHED_STEP
        return tokens if tokens >= CACHED_FROM else 0


def _common(one: bytes, other: bytes) -> int:
    """Length of the beginning that both have."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[:middle] == other[:middle] else (low, middle - 1)
    return low


def agent_of(system: str) -> str:
    for name in ("scout", "checker"):
        if f"You are {name}, an agent" in system:
            return name
    return "part" if "You are one of several agents" in system else MAIN


def _reply(call_id: CallId, decision: Decision, usage: Usage, usd: float) -> ModelReplied:
    text = isinstance(decision, str)
    parts = [TextPart(text=decision)] if isinstance(decision, str) else [
        ToolCall(
            id=CallId(f"{call_id}_{at}"),
            provider_id=f"p-{call_id}-{at}",
            name=one["name"],
            arguments=json.dumps(one["arguments"]),
        )
        for at, one in enumerate(decision, 1)
    ]  # fmt: skip
    return ModelReplied(
        message=AssistantMessage(parts=tuple(parts)),
        stop="stop" if text else "tool_calls",
        usage=usage,
        cost_usd=usd,
        model="thinking",
        first_byte_ms=0,
        total_ms=0,
    )


@dataclass(frozen=True, slots=True)
class Came:
    """What a session came to; times in seconds at full speed."""

    wall_s: float
    main_calls: int
    other_calls: int
    fresh: int
    """Tokens in that no cache gave."""
    cached: int
    output: int
    usd: float
    known_s: float | None
    """When the main agent knew of the broken test; None: nothing was."""
    wakes: int
    reports: int


def run_session(case: Case, arm: str, scale: float | None = None) -> Came:
    """`scale`: how many times faster than at full speed by the machine's own clock; None: by one that is turned.

    Raises AssertionError where the files are not as the task wants them in the end."""
    sample, clock = make_sample(case), TurnedClock() if scale is None else RealClock(scale)
    with tempfile.TemporaryDirectory(prefix="thalia-bench-") as name:
        folder = Path(name)
        make_repository(folder / "repo", sample.files)
        model = Thinking(minds_of(case, sample), case.seed, clock)
        prompt = f"{sample.task} {AGAIN[case.whole_again]}{f' {FANNING}' if arm == 'subagents' else ''}"
        variables = {"PATH": f"/usr/bin:/bin:{os.environ['PATH']}", "HOME": name, "OPENAI_BASE_URL": "http://127.0.0.1"}
        environment = Environment(variables, folder / "home", folder / "none.toml")
        parts = Parts(environment, Settings(), SystemClock(), ignore_delta)
        options = Options(folder=folder / "repo", model=MODEL, mode="auto", agents=AGENTS[arm])
        changed, moments = run_fast(_go(parts, options, prompt, model))
        assert changed == sample.expected, "the files are not as the task wants them"
        return measure(moments, model.asked)


async def _go(
    parts: Parts, options: Options, prompt: str, model: Thinking
) -> tuple[dict[str, str], list[tuple[float, Event]]]:
    """(text of each file that has changed, events with what the clock showed)."""
    ready, screen, clock = prepare_new(parts, SESSION, options, prompt, model), Changes(), model.clock
    moments: list[tuple[float, Event]] = []
    ready.coordinator.listeners += [clock.note, lambda event: moments.append((clock.now_s(), event))]
    turning = asyncio.create_task(clock.run(parts.environment.worktrees, lambda: ready.coordinator.state))
    working = asyncio.create_task(drive_session(parts, ready, options, Run(screen, drive)))
    try:
        await asyncio.wait({turning, working}, return_when=asyncio.FIRST_COMPLETED)
        if turning.done():
            turning.result()
        await working
        worktree = ready.coordinator.state.worktree
        assert worktree is not None
        changed = [line.split()[1] for line in screen.files]
        return {path: (Path(worktree.path) / path).read_text() for path in changed}, moments
    finally:
        for task in (turning, working):
            task.cancel()
        await asyncio.gather(turning, working, return_exceptions=True)
        await ready.coordinator.close()


class Changes(Quiet):
    """A screen that notes what has changed, a line a file: a letter, its path, how much."""

    files: tuple[str, ...] = ()

    def finish(self, standing: Standing, exit_code: int, files: tuple[str, ...]) -> None:
        super().finish(standing, exit_code, files)
        self.files = files


def make_repository(root: Path, files: Mapping[str, str]) -> None:
    """By the git command: one process for thousands of files."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    run_git(root, "init", "--quiet", "--initial-branch=main")
    run_git(root, "add", "--all")
    run_git(root, "commit", "--quiet", "--message=First version")


def minds_of(case: Case, sample: Sample) -> dict[str, Mind]:
    scout = Scout(case.pages, sample.misread)
    return {MAIN: decide_main, "part": decide_part, "checker": decide_checker, "scout": scout}


def measure(moments: Sequence[tuple[float, Event]], asked: Sequence[Asked]) -> Came:
    """`moments`: when the clock showed what, with each event."""
    own = [(at_s, event) for at_s, event in moments if event.actor == MAIN]
    began_s = next(at_s for at_s, event in own if isinstance(event.body, UserSaid))
    ended_s = next(at_s for at_s, event in own if isinstance(event.body, TurnEnded))
    known_s = next((at_s for at_s, event in own if BROKEN in _heard(event)), None)
    intents = [event.body.effect for _, event in moments if isinstance(event.body, EffectStarted)]
    assert len(asked) == sum(isinstance(effect, CallModel) for effect in intents)
    main = [one for one in asked if one.agent == MAIN]
    usage = sum((one.usage for one in asked), Usage())
    return Came(
        wall_s=ended_s - began_s,
        main_calls=len(main),
        other_calls=len(asked) - len(main),
        fresh=usage.input - usage.cached,
        cached=usage.cached,
        output=usage.output,
        usd=sum(one.cost_usd for one in asked),
        known_s=None if known_s is None else known_s - began_s,
        wakes=sum(isinstance(effect, WakeAgent) for effect in intents),
        reports=sum(isinstance(event.body, AgentReported) for _, event in own),
    )


def _heard(event: Event) -> str:
    """What the main agent reads of an event."""
    match event.body:
        case AgentReported(text=text):
            return text
        case EffectFinished(outcome=ToolSucceeded(text=text) | ToolFailed(text=text)):
            return text
        case _:
            return ""
