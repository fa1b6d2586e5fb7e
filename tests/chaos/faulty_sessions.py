"""Sessions whose model server is spoilt on its way, and what must hold of them whatever it does."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pydantic import SecretStr

from actors.local import Run, drive_session, run_fast
from actors.sessions import Ready, prepare_new, prepare_resumed
from agent.models.http import HttpModel, Timeouts
from agent.models.wires import WIRES
from configs.models import Protocol
from eventlog.effects import CallModel, RunTool
from eventlog.events import EffectFinished, EffectStarted
from eventlog.ids import SessionId
from eventlog.opening import read_log
from eventlog.outcomes import AttemptLost, ModelFailed, ModelReplied
from tests.actors.playing import SESSION, Played, Recorder, Stage, call, check_replay, shell, tree, turn
from tests.chaos.arena import check_log
from tests.chaos.faulty_server import (
    FaultyServer,
    Spoil,
    faulty,
)
from tests.chaos.invariants import check_approvals, check_one_state, check_order, check_secrets

ALL = "THALIA_TEST_KILLS" in os.environ
SEED = int(os.environ.get("THALIA_TEST_SEED", "1"))
KEY = "planted-key-0123456789"
MODEL = "mine/m"
PRICES = {"input": 1.0, "cached": 0.1, "output": 10.0, "cache_write": 1.25}
USED = {"input": 1000, "cached": 400, "cache_written": 100, "output": 50}
EDIT = call("edit", path="a.txt", old_text="one", new_text="one and two")
"""Made twice, it shows."""
COUNT = "echo counted >> counter.txt"
TURNS: Sequence[Mapping[str, Any]] = (
    turn(call("read", path="a.txt"), call("grep", pattern="one"), text="I look.", reasoning="Where is it?", usage=USED),
    turn(EDIT, shell(COUNT), reasoning="I change it.", hide_reasoning=True, usage=USED),
    {"text": "It is done.", "usage": USED},
)
FINAL = {"a.txt": "one and two\n", "b.txt": "b\n", "counter.txt": "counted\n"}


class AtOnce(Random):
    """No wait before a retry but what the server asks for."""

    def random(self) -> float:
        return 0.0


@dataclass(slots=True)
class Talk:
    """A stage whose model speaks one protocol over a bad line."""

    stage: Stage
    server: FaultyServer
    protocol: Protocol
    timeouts: Timeouts

    def begin(self) -> Played:
        return self._run(lambda parts, options, client: prepare_new(parts, SESSION, options, "Do it.", client))

    def go_on(self) -> Played:
        session = SessionId(self.session_folder.name)
        return self._run(lambda parts, options, client: prepare_resumed(parts, session, options, None, client))

    @property
    def session_folder(self) -> Path:
        [folder] = self.stage.environment.sessions.iterdir()
        return folder

    def start(self, *arguments: str, **variables: str) -> "subprocess.Popen[str]":
        """The program, in a process of its own, with the same settings."""
        config = self.stage.folder / "apart.toml"
        settings = self.stage.settings
        config.write_text(
            f"max_attempts = {settings['max_attempts']}\n"
            f'[providers.mine]\nbase_url = "{self.server.base_url}"\nprotocol = "{self.protocol}"\n'
            f'key_variable = "MINE_API_KEY"\n'
            f'[prices."{MODEL}"]\n' + "".join(f"{name} = {price}\n" for name, price in PRICES.items())
        )
        env = {
            **self.stage.environment.variables,
            "THALIA_HOME": str(self.stage.environment.state_folder),
            "THALIA_CONFIG": str(config),
            "THALIA_DAEMON": "off",
            "MINE_API_KEY": KEY,
            **variables,
        }
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        run = [sys.executable, "-I", "-m", "cli", *arguments]
        return subprocess.Popen(run, env=env, cwd=self.stage.repository, encoding="utf-8", **pipes)

    def _run(self, prepare: Any) -> Played:
        screen, options = Recorder(), self.stage.options(model=MODEL)
        wire = WIRES[self.protocol]

        async def run() -> int:
            key = SecretStr(KEY)
            async with HttpModel(wire, self.server.base_url, key, random=AtOnce(), timeouts=self.timeouts) as client:
                ready: Ready = prepare(self.stage.parts, options, client)
                try:
                    return await drive_session(self.stage.parts, ready, options, Run(screen, screen.drive))
                finally:
                    await ready.coordinator.close()

        code = run_fast(run())
        return Played(code, screen, read_log(self.session_folder))


@contextmanager
def talk(
    folder: Path,
    protocol: Protocol,
    spoils: Mapping[int, Sequence[Spoil]],
    turns: Sequence[Mapping[str, Any]] = TURNS,
    *,
    timeouts: Timeouts | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Iterator[Talk]:
    with faulty(turns, spoils) as server:
        chosen = {
            "providers": {"mine": {"base_url": server.base_url, "protocol": protocol}},
            "prices": {MODEL: PRICES},
            "max_attempts": 100,
            **(settings or {}),
        }
        yield Talk(Stage(folder, settings=chosen), server, protocol, timeouts or Timeouts())
    check_secrets([folder / "state"], [KEY])


def attempts(played: Played) -> list[ModelReplied | ModelFailed | AttemptLost]:
    """How each call of the model ended, in order."""
    outcomes = [event.body.outcome for event in played.events if isinstance(event.body, EffectFinished)]
    return [outcome for outcome in outcomes if isinstance(outcome, ModelReplied | ModelFailed | AttemptLost)]


def check_honest(played: Played, server: FaultyServer, *, killed: bool = False) -> None:
    """Whatever the server did: a log that is whole, requests that it says and that were valid, money that adds up.
    `killed`: one that was announced may not have been sent."""
    check_order(played.events)
    check_log(played.events)
    check_approvals(played.events)
    check_one_state(played.events)
    check_replay(played.events)
    intents = [event.body.effect for event in played.events if isinstance(event.body, EffectStarted)]
    asked = [str(effect.request_hash) for effect in intents if isinstance(effect, CallModel)]
    got = [sha256(body).hexdigest() for body in server.requests]
    rest = iter(asked)
    assert all(one in rest for one in got), "each as the log has it, in the log's order"
    assert len(asked) - len(got) in ((0, 1) if killed else (0,))
    made = attempts(played)
    spent = [one.cost_usd or 0.0 if isinstance(one, ModelReplied) else one.charged_usd for one in made]
    assert played.state.spent_usd == pytest.approx(sum(spent))
    assert set(server.keys) <= {KEY, f"Bearer {KEY}"}


def calls_of(turns: Sequence[Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """What the model asks for, in its order."""
    return [(asked["name"], asked["arguments"]) for one in turns for asked in one.get("tool_calls", ())]


def tool_intents(played: Played) -> list[tuple[str, Mapping[str, Any]]]:
    effects = [event.body.effect for event in played.events if isinstance(event.body, EffectStarted)]
    return [(effect.tool, json.loads(effect.arguments)) for effect in effects if isinstance(effect, RunTool)]


def check_done(
    played: Played, server: FaultyServer, turns: Sequence[Mapping[str, Any]] = TURNS, *, killed: bool = False
) -> None:
    """As if nothing had gone wrong: each tool ran once, with all its arguments."""
    assert (played.code, played.ending) == (0, "done")
    check_honest(played, server, killed=killed)
    assert tool_intents(played) == calls_of(turns)
    assert tree(played.worktree) == FINAL
