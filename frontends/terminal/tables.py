"""Lists for a person or, as JSON lines, for a program."""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol

from eventlog.catalogue import Listed
from eventlog.events import CallRejected, EffectFinished, EffectStarted, Event
from eventlog.ids import MAIN
from eventlog.outcomes import Merged, Refused
from frontends.terminal.escape import safe_line, shorten
from frontends.terminal.lines import Seen, lines_of


class Finding(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def ok(self) -> bool: ...
    @property
    def needed(self) -> bool: ...
    @property
    def text(self) -> str: ...


class Difference(Protocol):
    @property
    def seq(self) -> int: ...
    @property
    def call_id(self) -> str: ...
    @property
    def logged(self) -> str: ...
    @property
    def rebuilt(self) -> str: ...
    @property
    def logged_bytes(self) -> int: ...
    @property
    def rebuilt_bytes(self) -> int: ...
    @property
    def suspects(self) -> tuple[str, ...]: ...


def session_rows(listed: Iterable[Listed], output: str) -> list[str]:
    return [_session_line(one) if output == "text" else _session_json(one) for one in listed]


def _session_line(one: Listed) -> str:
    if one.summary is None:
        return f"{one.folder.name}  ! {safe_line(one.trouble or 'cannot be read')}"
    summary = one.summary
    state = "running" if one.live else summary.ending or "unfinished"
    when = datetime.fromtimestamp(summary.changed_us / 1e6, UTC).strftime("%Y-%m-%d %H:%M")
    cost = "cost unknown" if summary.cost_usd is None else f"${summary.cost_usd:.4f}"
    return f"{one.folder.name}  {when}  {state:<12} {cost:>12}  {shorten(safe_line(summary.title), 60)}"


def _session_json(one: Listed) -> str:
    summary = one.summary.model_dump(exclude={"stamp"}) if one.summary else {}
    return json.dumps({"session": one.folder.name, "live": one.live, "trouble": one.trouble, **summary})


def event_line(event: Event) -> str:
    """seq, time, kind and the start of what it says."""
    body = event.body
    when = datetime.fromtimestamp(event.ts_us / 1e6, UTC).strftime("%H:%M:%S.%f")[:-3]
    call = body.call_id if isinstance(body, EffectStarted | EffectFinished | CallRejected) else ""
    call = call if event.actor == MAIN else f"{safe_line(event.actor)}/{call}"
    inner = body.model_dump(mode="json", exclude={"kind", "call_id"})
    if isinstance(body, EffectStarted):
        inner = {body.effect.kind: body.effect.model_dump(mode="json", exclude={"kind"}), "attempt": body.attempt}
    elif isinstance(body, EffectFinished):
        inner = {body.outcome.kind: body.outcome.model_dump(mode="json", exclude={"kind"}), "attempt": body.attempt}
    text = shorten(safe_line(json.dumps(inner, ensure_ascii=False)), 140)
    return f"{event.seq:>6}  {when}  {body.kind:<16} {call:<8} {text}"


def play_lines(events: Iterable[Event]) -> list[str]:
    seen = Seen()
    return [line for event in events for line in lines_of(event, seen)]


def result_rows(columns: Sequence[str], rows: Sequence[Sequence[object]], output: str) -> list[str]:
    if output != "text":
        return [json.dumps(dict(zip(columns, row, strict=True)), default=str, ensure_ascii=False) for row in rows]
    table = [list(columns), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[index]) for row in table) for index in range(len(columns))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _cell(value: Any) -> str:
    return "" if value is None else shorten(safe_line(str(value)), 80)


def difference_lines(found: Difference) -> list[str]:
    """Where the rebuilt request leaves the logged one, as a small diff."""
    return [
        f"Replay differs at event {found.seq} ({found.call_id}): the request built from the log is not the one "
        "that was sent; something before it was altered.",
        f"- sent     sha256 {found.logged}, {found.logged_bytes} bytes",
        f"+ rebuilt  sha256 {found.rebuilt}, {found.rebuilt_bytes} bytes",
        "What entered the conversation since the last request that agreed:",
        *(f"+ {shorten(safe_line(message), 300)}" for message in found.suspects),
    ]


def merge_lines(done: Merged | Refused) -> list[str]:
    if isinstance(done, Refused):
        return [safe_line(done.text), *(f"  {safe_line(name)}" for name in done.files)]
    kept = [f"left out, because it is protected: {safe_line(name)}" for name in done.left_out]
    if not done.files:
        return ["Nothing to merge: your checkout has it all.", *kept]
    saved = [f"your files as they were are kept as commit {done.saved}"] if done.saved else []
    return ["merged into your checkout, uncommitted:", *(f"  {safe_line(name)}" for name in done.files), *kept, *saved]


def finding_rows(findings: Iterable[Finding], output: str) -> list[str]:
    if output != "text":
        return [json.dumps({"name": f.name, "ok": f.ok, "needed": f.needed, "text": f.text}) for f in findings]
    return [f"{'ok ' if f.ok else 'NO ' if f.needed else '-  '} {f.name}: {safe_line(f.text)}" for f in findings]
