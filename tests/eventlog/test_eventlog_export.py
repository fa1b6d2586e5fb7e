"""What programs get: typed SQL, JSON lines, Parquet, trajectories."""

import datetime
import json
import os
import stat
from pathlib import Path
from typing import get_args

import pytest
from eventlog_folders import fill, make, said
from eventlog_session import session

from eventlog.events import Event, Rewound
from eventlog.export import ExportFormat, export
from eventlog.opening import Opened
from eventlog.redact import Redactor
from eventlog.trajectory import trajectory


@pytest.fixture
def opened(tmp_path):
    made = make(tmp_path / "s", Redactor(["hunter2-hunter2"]))
    yield made
    made.close()


def rows(opened: Opened, sql: str) -> list[tuple[object, ...]]:
    return opened.log._database.query(sql)[1]


def test_model_calls_pair_each_attempt_with_its_outcome(opened: Opened) -> None:
    fill(opened.log, [session()])
    columns = "call_id, attempt, model, outcome, input_tokens, cached_tokens, output_tokens, cost_usd, charged_usd"
    assert rows(opened, f"SELECT {columns} FROM model_calls ORDER BY seq") == [
        ("c1", 1, "m/one", "attempt_lost", None, None, None, None, 0.5),
        ("c1", 2, "m/one", "model_replied", 100, 40, 7, 0.25, None),
        ("c2", 1, "m/one", "model_replied", 100, 40, 7, 0.25, None),
    ]
    assert rows(opened, "SELECT finished > started FROM model_calls") == [(True,)] * 3


def test_tool_runs_and_approvals_give_what_went_in(opened: Opened) -> None:
    fill(opened.log, [session()])
    assert rows(
        opened, "SELECT call_id, tool, arguments, effect_class, allowed_by, outcome, exit_code FROM tool_runs"
    ) == [("c1_1", "shell", '{"command":"ls"}', "command", "mode auto", "tool_succeeded", 0)]
    assert rows(opened, "SELECT kind, ask, binding FROM approvals") == [("approved", "c1_2_ask", "a" * 64)]


def test_the_log_view_is_typed(opened: Opened) -> None:
    events = fill(opened.log, [session()])
    first = rows(opened, "SELECT session, seq, ts, kind, call_id, epoch, actor, body FROM log ORDER BY seq")[3]
    at = datetime.datetime(1970, 1, 1) + datetime.timedelta(microseconds=events[3].ts_us)
    assert first[:7] == ("s1", 4, at, "effect_started", "c1", 1, "main")
    assert json.loads(str(first[7])) == json.loads(events[3].body.model_dump_json())


def test_a_number_that_no_column_holds_does_not_spoil_the_view(opened: Opened) -> None:
    from eventlog_session import replied, started_model

    from eventlog.messages import AssistantMessage, Usage

    reply = replied(1, AssistantMessage(parts=()))
    huge = reply.model_copy(update={"outcome": reply.outcome.model_copy(update={"usage": Usage(input=10**30)})})
    fill(opened.log, [[started_model(1), huge]])
    assert rows(opened, "SELECT input_tokens, output_tokens FROM model_calls") == [(None, 0)]


@pytest.mark.parametrize("format", get_args(ExportFormat))
def test_an_export_is_private_redacted_and_replaces_what_was_there(
    opened: Opened, tmp_path, format: ExportFormat
) -> None:
    fill(opened.log, [session(), [said("hunter2-hunter2")]])
    target = tmp_path / "it's an export"
    target.write_text("old")
    before = os.umask(0)
    try:
        export(opened.log.read(), target, format)
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    assert b"hunter2" not in target.read_bytes() and not target.read_bytes().startswith(b"old")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it's an export", "s"]


def test_json_lines_hold_the_events_themselves(opened: Opened, tmp_path) -> None:
    events = fill(opened.log, [session(), [said("x" * 40_000)]])
    export(opened.log.read(), tmp_path / "x.jsonl", "jsonl")
    lines = (tmp_path / "x.jsonl").read_text().splitlines()
    assert tuple(Event.model_validate_json(line) for line in lines) == events


def test_parquet_holds_one_row_an_event(opened: Opened, tmp_path) -> None:
    import duckdb

    events = fill(opened.log, [session()])
    export(events, tmp_path / "x.parquet", "parquet")
    found = duckdb.connect().execute(
        "SELECT seq, ts_us, kind, body FROM read_parquet(?)", [str(tmp_path / "x.parquet")]
    )
    assert [(seq, ts, kind) for seq, ts, kind, _ in found.fetchall()] == [(e.seq, e.ts_us, e.body.kind) for e in events]


def test_a_failed_export_leaves_what_was_there(tmp_path) -> None:
    target = tmp_path / "x.jsonl"
    target.write_text("old")

    def broken():
        raise OSError("the disk went away")
        yield

    with pytest.raises(OSError, match="went away"):
        export(broken(), target, "jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["x.jsonl"]
    assert target.read_text() == "old"


def test_a_trajectory_is_the_conversation(opened: Opened) -> None:
    told = trajectory(fill(opened.log, [session()]))
    calls = [
        {"id": "c1_1", "name": "shell", "arguments": '{"command":"ls"}'},
        {"id": "c1_2", "name": "shell", "arguments": '{"command":"rm -r /"}'},
    ]
    denied = {"content": "the user said no", "outcome": "denied", "exit_code": None}
    assert told["messages"] == [
        {"role": "system", "content": "be good"},
        {"role": "user", "content": "list the files\nplease"},
        {"role": "assistant", "content": "ok", "reasoning": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1_2", **denied},
        {"role": "tool", "tool_call_id": "c1_1", "content": "a b", "outcome": "tool_succeeded", "exit_code": 0},
        {"role": "user", "content": "meanwhile"},
        {"role": "assistant", "content": "a and b", "reasoning": "", "tool_calls": []},
    ]
    assert (told["session"], told["model"], told["tools"]) == ("s1", "m/one", [{"name": "shell"}])
    assert (told["cost_usd"], told["ending"], told["usage"]["output"]) == (0.5, "done", 14)


def test_what_was_rewound_is_not_in_a_trajectory_but_its_cost_is(opened: Opened) -> None:
    events = fill(opened.log, [session(), [Rewound(to_seq=3, saved=None, restored=None), said("again")]])
    told = trajectory(events)
    assert [message["role"] for message in told["messages"]] == ["system", "user", "user"]
    assert told["cost_usd"] == 0.5


def test_an_empty_session_has_an_empty_trajectory() -> None:
    assert trajectory(())["messages"] == []


def test_exporting_into_a_missing_folder_is_an_os_error(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        export((), Path(tmp_path / "missing" / "x"), "jsonl")
