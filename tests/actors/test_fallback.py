"""A session whose model is out for good goes on with another, across protocols, kills and resumes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from actors.building import CannotStart
from actors.local import Run, run_new, run_resumed
from agent.models.server import ModelServer
from eventlog.effects import CallModel
from eventlog.events import ContextSet, EffectStarted, Event
from eventlog.ids import SessionId
from eventlog.opening import read_log
from frontends.terminal.tables import play_lines
from tests.actors.playing import (
    DONE,
    SESSION,
    Played,
    Recorder,
    Stage,
    call,
    check_conversation,
    check_replay,
    starts,
    turn,
)
from tests.cli.cli_program import Turns, serving

EDIT = call("edit", path="a.txt", old_text="one", new_text="two")
OUT: dict[str, object] = {"faults": [{"fail": "503", "times": 1000, "retry_after": 0}]}
"""A turn that never comes."""
CHOSEN, SPARE = "openai/big", "anthropic/small"
THOUGHT = turn(call("read", path="a.txt"), text="I look.", reasoning="Hm, a file.")
NO_KEY = {"OPENAI_BASE_URL": "http://127.0.0.1:1/v1"}


@contextmanager
def two(first: Turns, second: Turns) -> Iterator[tuple[ModelServer, ModelServer, dict[str, str]]]:
    """The chosen model's server, the fallback's, and how both are found."""
    with serving(*first) as chosen, serving(*second) as spare:
        yield chosen, spare, {"OPENAI_BASE_URL": chosen.base_url, "ANTHROPIC_BASE_URL": spare.base_url}


def stage_of(folder: Path, variables: dict[str, str], **settings: Any) -> Stage:
    return Stage(folder, variables=variables, settings={"max_attempts": 2, **settings})


def begin(stage: Stage, **options: Any) -> Played:
    screen, chosen = Recorder(), stage.options(**{"model": CHOSEN, "fallback": SPARE, **options})
    code = run_new(stage.parts, SESSION, chosen, "Do it.", Run(screen, screen.drive))
    return Played(code, screen, stage.events())


def go_on(stage: Stage, prompt: str | None = None, **options: Any) -> Played:
    screen = Recorder()
    code = run_resumed(stage.parts, SESSION, stage.options(**options), prompt, Run(screen, screen.drive))
    return Played(code, screen, stage.events())


def asked(events: Sequence[Event]) -> list[str]:
    """The model of each attempt, in order."""
    effects = [event.body.effect for event in events if isinstance(event.body, EffectStarted)]
    return [effect.model for effect in effects if isinstance(effect, CallModel)]


@pytest.mark.parametrize("protocol", ["chat", "responses"])
def test_the_conversation_goes_on_with_another_model_in_another_protocol(protocol: str, tmp_path: Path) -> None:
    with two([THOUGHT, OUT], [DONE, turn(EDIT), DONE]) as (chosen, spare, variables):
        stage = stage_of(tmp_path, variables, providers={"openai": {"protocol": protocol}})
        played = begin(stage)
    assert (played.code, played.ending) == (0, "done")
    assert asked(played.events) == [CHOSEN, CHOSEN, CHOSEN, SPARE, SPARE]
    assert len(chosen.requests) == 3 and len(spare.requests) == 2
    first = json.loads(spare.requests[0])
    assert first["model"] == "small" and b"Hm, a file." not in spare.requests[0], "thoughts stay with who had them"
    assert [message["role"] for message in first["messages"]] == ["user", "assistant", "user"]
    check_conversation(played.state)
    assert check_replay(played.events).requests == 5


def test_the_screen_says_who_took_over_and_when_the_chosen_model_is_back(tmp_path: Path) -> None:
    with two([OUT, DONE], [DONE]) as (_, _, variables):
        stage = stage_of(tmp_path, variables)
        begin(stage)
        played = go_on(stage, "More.")
    lines = play_lines(played.events)
    assert f"fallback {SPARE}" in lines
    assert f"! {CHOSEN} gives no reply; {SPARE} answers for the rest of this turn." in lines
    assert lines.count(f"model {CHOSEN}") == 2
    assert asked(played.events) == [CHOSEN, CHOSEN, SPARE, CHOSEN]
    assert check_replay(played.events).requests == 4


def test_taken_up_with_its_first_options_an_unfinished_turn_stays_with_the_fallback(tmp_path: Path) -> None:
    with two([OUT], [turn(call("read", path="a.txt")), DONE]) as (_, _, variables):
        stage = stage_of(tmp_path, variables)
        screen, options = Recorder(until=starts("read")), stage.options(model=CHOSEN, fallback=SPARE)
        run_new(stage.parts, SESSION, options, "Do it.", Run(screen, screen.drive))
        played = go_on(stage, model=CHOSEN, fallback=SPARE)
    assert (played.ending, asked(played.events)) == ("done", [CHOSEN, CHOSEN, SPARE, SPARE])
    kinds = [event.body.kind for event in played.events]
    assert (kinds.count("context_set"), kinds.count("fallback_set")) == (2, 1), "nothing is logged twice"
    assert check_replay(played.events).requests == 4


def test_each_call_costs_what_its_own_model_costs(tmp_path: Path) -> None:
    used = {"input": 1000, "output": 1000}
    prices = {CHOSEN: {"input": 1.0, "output": 1.0}, SPARE: {"input": 10.0, "output": 10.0, "window": 5000}}
    with two([{**THOUGHT, "usage": used}, OUT], [DONE, {**DONE, "usage": used}]) as (_, _, variables):
        played = begin(stage_of(tmp_path, variables, prices=prices))
    assert played.state.spent_usd == pytest.approx(0.002 + 0.02)
    assert played.state.context is not None and played.state.context.window == 5000


def test_the_setting_names_the_fallback_and_the_log_keeps_it(tmp_path: Path) -> None:
    with two([DONE, OUT], [{}, DONE]) as (_, _, variables):
        stage = stage_of(tmp_path, variables, fallback_model=SPARE)
        begin(stage, fallback=None)
        stage.settings = {"max_attempts": 2}
        played = go_on(stage, "More.")
    assert (played.ending, asked(played.events)[-1]) == ("done", SPARE)


def test_a_resumed_session_may_choose_its_fallback(tmp_path: Path) -> None:
    with two([OUT], [DONE]) as (_, _, variables):
        stage = stage_of(tmp_path, variables)
        assert begin(stage, fallback=None).code == 13
        played = go_on(stage, fallback=SPARE)
    assert (played.code, asked(played.events)) == (0, [CHOSEN, CHOSEN, CHOSEN, CHOSEN, SPARE])


def test_where_the_fallback_is_out_too_the_turn_ends_and_resume_begins_with_the_chosen_model(tmp_path: Path) -> None:
    with two([{**DONE, "faults": [{"fail": "503", "times": 2, "retry_after": 0}]}], [OUT]) as (_, _, variables):
        stage = stage_of(tmp_path, variables)
        played = begin(stage)
        assert (played.code, played.ending) == (13, "model_unavailable")
        assert asked(played.events) == [CHOSEN, CHOSEN, SPARE, SPARE]
        played = go_on(stage)
    assert (played.code, asked(played.events)[4:]) == (0, [CHOSEN])


def test_a_fallback_that_cannot_be_called_is_told_before_anything_begins(tmp_path: Path) -> None:
    stage = stage_of(tmp_path, NO_KEY)
    with pytest.raises(CannotStart, match="ANTHROPIC_API_KEY is not set"):
        begin(stage)
    with pytest.raises(CannotStart, match="No price is known for anthropic/small"):
        begin(
            stage_of(tmp_path, {**NO_KEY, "ANTHROPIC_API_KEY": "k"}, prices={CHOSEN: {"input": 1.0, "output": 1.0}}),
            max_budget_usd=1.0,
        )
    assert not stage.session_folder().exists()


def test_a_budget_that_is_set_on_resume_counts_for_the_fallback_too(tmp_path: Path) -> None:
    with two([DONE], []) as (_, _, variables):
        stage = stage_of(tmp_path, variables, prices={CHOSEN: {"input": 1.0, "output": 1.0}})
        begin(stage)
        with pytest.raises(CannotStart, match="No price is known for anthropic/small"):
            go_on(stage, "More.", max_budget_usd=1.0)


def test_a_key_that_is_gone_on_resume_ends_the_turn_with_a_sentence(tmp_path: Path) -> None:
    with two([DONE, OUT], [DONE]) as (_, _, variables):
        stage = stage_of(tmp_path, variables)
        begin(stage)
        stage.variables = {"OPENAI_BASE_URL": variables["OPENAI_BASE_URL"]}
        played = go_on(stage, "More.")
    assert (played.code, played.ending) == (13, "model_unavailable")
    assert played.state.ending is not None and "ANTHROPIC_API_KEY is not set" in played.state.ending.text


def test_the_warning_of_a_model_stands_on_the_screen_before_it_is_called(tmp_path: Path) -> None:
    with serving(DONE) as server:
        stage = stage_of(tmp_path, {"MODEL_API_BASE_URL": server.base_url})
        played = begin(stage, model="meta/muse-spark-1.2-contributor", fallback=None)
    lines = play_lines(played.events)
    warned = next(index for index, line in enumerate(lines) if "improve its products" in line)
    assert lines[warned - 1] == "model meta/muse-spark-1.2-contributor"
    kinds = [event.body.kind for event in played.events]
    assert kinds.index("context_set") < kinds.index("effect_started")
    (context,) = [event.body for event in played.events if isinstance(event.body, ContextSet)]
    assert (context.builder, context.input_usd) == ("responses/1", 0.10)


def test_a_session_goes_on_in_the_protocol_of_its_log_whatever_the_settings_say_today(tmp_path: Path) -> None:
    with serving(DONE, DONE) as server:
        stage = stage_of(tmp_path, {"OPENAI_BASE_URL": server.base_url})
        begin(stage, fallback=None)
        stage.settings = {"providers": {"openai": {"protocol": "messages"}}}
        played = go_on(stage, "More.")
        assert played.ending == "done"
        assert [json.loads(body).keys() >= {"stream_options"} for body in server.requests] == [True, True]
        played = go_on(stage, "And more.", model=CHOSEN)
        assert json.loads(server.requests[-1])["max_tokens"] > 0, "a model that is named anew is asked as set today"
    check_replay(played.events)


@pytest.mark.parametrize(
    "point",
    [
        "after_call_model:3",  # the chosen model has failed for good, and nothing of it is in the log
        "before_call_model:4",  # the log names the fallback, which has not been asked
        "after_call_model:4",  # it has replied, and nothing of that is in the log
        "after_run_tool:2",  # its tool has run
    ],
)
def test_killed_around_the_fallback_it_goes_on_where_it_was(point: str, tmp_path: Path) -> None:
    turns = [DONE, turn(EDIT), DONE]
    with two([THOUGHT, OUT], turns) as (_, _, variables):
        stage = stage_of(tmp_path, variables)
        assert run_apart(stage, f"Session.start('Do it.', {str(stage.repository)!r}, model={CHOSEN!r})", point) == (
            -signal.SIGKILL
        )
        session = SessionId(next(stage.environment.sessions.iterdir()).name)
        before = asked(read_log(stage.session_folder(session)))
        assert run_apart(stage, f"sys.exit(Session.resume({str(session)!r}).exit_code)") == 0
        events = read_log(stage.session_folder(session))
    models = asked(events)
    assert models[: len(before)] == before and models[-1] == SPARE
    assert models == sorted(models, key=[CHOSEN, SPARE].index), "once it fell back it stays there for the turn"
    switches = [event.body for event in events if isinstance(event.body, ContextSet) and event.body.instead_of]
    assert len(switches) == 1
    assert check_replay(events).requests == len(models)


def run_apart(stage: Stage, code: str, crash_at: str = "") -> int:
    """In a process of its own, with the stage's settings and the fallback among them."""
    config = stage.folder / "apart.toml"
    config.write_text(f'max_attempts = 2\nfallback_model = "{SPARE}"\n')
    env = {
        **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
        **stage.environment.variables,
        "THALIA_HOME": str(stage.environment.state_folder),
        "THALIA_CONFIG": str(config),
        **({"THALIA_CRASH_AT": crash_at} if crash_at else {}),
    }
    run = [sys.executable, "-I", "-c", f"import sys\nfrom thalia import Session\n{code}"]
    return subprocess.run(run, env=env, cwd=stage.repository, check=False, timeout=90).returncode
