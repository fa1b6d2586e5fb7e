"""A whole session in each protocol with a server that refuses what the strictest provider would: killed and taken up
again, replayed byte for byte, kept within its budget."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from actors.local import Run, run_new, run_resumed
from agent.apply import apply
from agent.folding import fold_events
from agent.models.requests import build_request
from agent.models.server import ModelServer
from agent.models.wires import WIRES
from agent.state import State
from configs.models import Protocol
from eventlog.effects import CallModel
from eventlog.events import EffectFinished, EffectStarted, Event
from eventlog.ids import SessionId
from eventlog.opening import read_log
from eventlog.outcomes import AttemptLost, ModelFailed, ModelReplied
from tests.actors.playing import (
    DONE,
    SESSION,
    Played,
    Recorder,
    Stage,
    call,
    check_conversation,
    check_replay,
    shell,
    tree,
    turn,
)
from tests.cli.cli_program import serving

MODEL = "mine/m"
PRICES = {"input": 1.0, "cached": 0.1, "output": 10.0, "cache_write": 1.25}
USED = {"input": 1000, "cached": 400, "cache_written": 100, "output": 50}
BOUNDS = {"chat": "max_tokens", "responses": "max_output_tokens", "messages": "max_tokens"}
EDIT = call("edit", path="a.txt", old_text="one", new_text="two")
PAUSE: Mapping[str, object] = {"text": "I search.", "reasoning": "Where?", "stop": "pause", "usage": USED}
"""A turn of the provider's own, which is asked again with nothing in between."""


def turns_of(protocol: Protocol) -> list[Mapping[str, object]]:
    return [
        turn(call("read", path="a.txt"), call("grep", pattern="one"), text="I look.", reasoning="Hm.", usage=USED),
        *([PAUSE] if protocol == "messages" else []),
        turn(EDIT, shell("cat a.txt; echo x > x.txt"), reasoning="Secret.", hide_reasoning=True, usage=USED),
        turn(call("commit", message="Both"), usage=USED),
        {**DONE, "usage": USED},
    ]


@dataclass(slots=True)
class Talk:
    """A stage whose model speaks one protocol, and its server."""

    stage: Stage
    server: ModelServer
    protocol: Protocol

    def begin(self, **options: Any) -> Played:
        screen, chosen = Recorder(), self.stage.options(model=MODEL, **options)
        code = run_new(self.stage.parts, SESSION, chosen, "Do it.", Run(screen, screen.drive))
        return Played(code, screen, self.stage.events())

    def go_on(self, session: SessionId = SESSION, **options: Any) -> Played:
        screen, chosen = Recorder(), self.stage.options(**options)
        code = run_resumed(self.stage.parts, session, chosen, None, Run(screen, screen.drive))
        return Played(code, screen, self.stage.events(session))

    def die_at(self, point: str) -> SessionId:
        """Begin in a process of its own, with a budget, and be killed there."""
        config = self.stage.folder / "apart.toml"
        mine = f'[providers.mine]\nbase_url = "{self.server.base_url}"\nprotocol = "{self.protocol}"\n'
        prices = "".join(f"{name} = {price}\n" for name, price in PRICES.items())
        config.write_text(f'max_budget_usd = 5.0\n{mine}[prices."{MODEL}"]\n{prices}')
        env = {
            **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
            **self.stage.environment.variables,
            "THALIA_HOME": str(self.stage.environment.state_folder),
            "THALIA_CONFIG": str(config),
            "THALIA_CRASH_AT": point,
        }
        code = f"from thalia import Session\nSession.start('Do it.', {str(self.stage.repository)!r}, model={MODEL!r})"
        run = [sys.executable, "-I", "-c", code]
        ended = subprocess.run(run, env=env, cwd=self.stage.repository, check=False, timeout=90)
        assert ended.returncode == -signal.SIGKILL
        return SessionId(next(self.stage.environment.sessions.iterdir()).name)

    @property
    def bounds(self) -> list[int | None]:
        """How long each reply might be, as the server was told."""
        return [json.loads(body).get(BOUNDS[self.protocol]) for body in self.server.requests]


@contextmanager
def talk(folder: Path, protocol: Protocol) -> Iterator[Talk]:
    with serving(*turns_of(protocol)) as server:
        provider = {"base_url": server.base_url, "protocol": protocol}
        stage = Stage(folder, settings={"providers": {"mine": provider}, "prices": {MODEL: PRICES}})
        yield Talk(stage, server, protocol)


def rebuilt(events: Sequence[Event]) -> list[bytes]:
    """Every request of a log, made from nothing but the events before it."""
    state, bodies = State(), list[bytes]()
    for event in events:
        match event.body:
            case EffectStarted(effect=CallModel() as asked):
                assert state.context is not None
                bodies.append(build_request(state.context, state.messages, asked.max_output_tokens))
            case _:
                pass
        state = apply(state, event.body)
    return bodies


def check_whole(played: Played, protocol: Protocol, repository: Path) -> None:
    assert (played.code, played.ending) == (0, "done")
    outcomes = [event.body.outcome for event in played.events if isinstance(event.body, EffectFinished)]
    assert not [outcome for outcome in outcomes if isinstance(outcome, ModelFailed)], "no request was refused"
    assert sum(isinstance(outcome, ModelReplied) for outcome in outcomes) == len(turns_of(protocol))
    assert tree(played.worktree) == {"a.txt": "two\n", "b.txt": "b\n", "x.txt": "x\n"}
    assert tree(repository) == {"a.txt": "one\n", "b.txt": "b\n"}
    check_conversation(played.state)
    assert check_replay(played.events).requests == len(rebuilt(played.events))


def cost(protocol: Protocol) -> float:
    """Of one call. The server of Chat Completions says nothing of what it wrote to a cache."""
    written = 0 if protocol == "chat" else 100
    return ((600 - written) * 1.0 + 400 * 0.1 + written * 1.25 + 50 * 10.0) / 1e6


@pytest.mark.parametrize("protocol", WIRES)
def test_a_log_gives_the_very_bytes_that_the_server_got(protocol: Protocol, tmp_path: Path) -> None:
    with talk(tmp_path, protocol) as held:
        played = held.begin()
        check_whole(played, protocol, held.stage.repository)
        assert rebuilt(played.events) == held.server.requests
        context = played.state.context
        assert context is not None
        assert (context.builder, context.cache_write_usd) == (WIRES[protocol].builder, 1.25)
    assert played.state.spent_usd == pytest.approx(cost(protocol) * len(turns_of(protocol)))


@pytest.mark.parametrize(
    "point",
    [
        "before_call_model:2",  # announced and never sent
        "after_call_model:2",  # sent and answered, and nothing of that is in the log
        "after_run_tool:2",  # between two results of one reply
    ],
)
@pytest.mark.parametrize("protocol", WIRES)
def test_a_session_that_was_killed_goes_on_in_its_protocol_within_its_budget(
    protocol: Protocol, point: str, tmp_path: Path
) -> None:
    with talk(tmp_path, protocol) as held:
        session = held.die_at(point)
        before = read_log(held.stage.session_folder(session))
        played = held.go_on(session)
        check_whole(played, protocol, held.stage.repository)
        assert played.events[: len(before)] == before
        made = iter(rebuilt(played.events))
        assert all(body in made for body in held.server.requests), "each as the log has it, in the log's order"
        assert held.bounds == [8192] * len(held.server.requests)
    outcomes = [event.body.outcome for event in played.events if isinstance(event.body, EffectFinished)]
    lost = [outcome.charged_usd for outcome in outcomes if isinstance(outcome, AttemptLost) and outcome.charged_usd]
    assert len(lost) == (0 if point.startswith("after_run_tool") else 1)
    assert all(usd > 8192 * PRICES["output"] / 1e6 for usd in lost), "charged with what it might have cost"
    assert played.state.spent_usd == pytest.approx(cost(protocol) * len(turns_of(protocol)) + sum(lost))


@pytest.mark.parametrize("protocol", WIRES)
def test_a_budget_is_kept_in_every_protocol_and_a_higher_one_goes_on(protocol: Protocol, tmp_path: Path) -> None:
    with talk(tmp_path, protocol) as held:
        played = held.begin(max_budget_usd=0.09)
        while played.ending == "out_of_budget":
            last = fold_events(played.events)
            assert last.spent_usd <= (last.limits.max_budget_usd or 0), "never passed"
            played = held.go_on(max_budget_usd=(last.limits.max_budget_usd or 0) + cost(protocol))
        check_whole(played, protocol, held.stage.repository)
        assert len(held.server.requests) == len(turns_of(protocol))
        assert held.bounds == [8192] * len(turns_of(protocol))


@pytest.mark.parametrize("protocol", WIRES)
def test_a_budget_that_is_set_later_bounds_the_replies_from_then_on(protocol: Protocol, tmp_path: Path) -> None:
    with talk(tmp_path, protocol) as held:
        assert held.begin(max_turns=1).ending == "out_of_turns"
        check_whole(held.go_on(max_turns=9, max_budget_usd=1.0), protocol, held.stage.repository)
        assert held.bounds[0] == (32_000 if protocol == "messages" else None)
        assert set(held.bounds[1:]) == {8192}
