"""Write a session to one file for other programs: JSON lines, Parquet, or a trajectory."""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, assert_never

import orjson

from eventlog.blobs import sync_file, sync_folder
from eventlog.events import CallRejected, EffectFinished, EffectStarted, Event
from eventlog.trajectory import trajectory

ExportFormat = Literal["jsonl", "parquet", "trajectory"]


def export(events: Iterable[Event], target: Path, format: ExportFormat) -> None:
    """Replaces `target`, mode 0600, whole or not at all. Events are written as stored: redacted, long texts in full.

    jsonl: one event a line, as `--output-format stream-json` prints it. parquet: one row an event; seq, ts_us, session,
    epoch, actor, kind, call_id, body (JSON). trajectory: one line, see eventlog.trajectory. Raises OSError."""
    with _replacing(target) as temporary:
        match format:
            case "jsonl":
                with temporary.open("wb") as file:
                    file.writelines(event.model_dump_json().encode() + b"\n" for event in events)
            case "trajectory":
                temporary.write_bytes(orjson.dumps(trajectory(events)) + b"\n")
            case "parquet":
                _write_parquet(events, temporary)
            case _:
                assert_never(format)


@contextmanager
def _replacing(target: Path) -> Iterator[Path]:
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600))
    try:
        yield temporary
        temporary.chmod(0o600)
        sync_file(temporary)
        temporary.rename(target)
        sync_folder(target.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _write_parquet(events: Iterable[Event], target: Path) -> None:
    import duckdb

    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute(
            "CREATE TABLE events (seq BIGINT, ts_us BIGINT, session VARCHAR, epoch BIGINT, "
            "actor VARCHAR, kind VARCHAR, call_id VARCHAR, body JSON)"
        )
        appender = connection.appender("events")
        for event in events:
            appender.append_row(
                event.seq,
                event.ts_us,
                event.session,
                event.epoch,
                event.actor,
                event.body.kind,
                _call_id(event),
                event.body.model_dump_json(),
            )
        appender.flush()
        path = str(target).replace("'", "''")
        # Without its own temporary file, which would have the umask's mode.
        connection.execute(f"COPY events TO '{path}' (FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false)")


def _call_id(event: Event) -> str | None:
    body = event.body
    return body.call_id if isinstance(body, (EffectStarted, EffectFinished, CallRejected)) else None
