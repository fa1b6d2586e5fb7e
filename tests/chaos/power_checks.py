"""Open what a loss of power left: is all there that had been told, and can each commit that the log names be read?"""

import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eventlog.errors import LogError
from eventlog.events import Event
from eventlog.opening import read_log
from tests.chaos.power_disk import Disk, Loss, Rule

Shown = dict[int, dict[str, object]]


@dataclass(frozen=True, slots=True)
class Found:
    """`wrong`: one sentence for each promise that was broken."""

    events: tuple[Event, ...]
    told: int
    wrong: tuple[str, ...]


def shown_events(told: bytes) -> Shown:
    """Whole lines of `--output-format stream-json`, by seq."""
    lines = [json.loads(line) for line in told.split(b"\n")[:-1]]
    return {int(line["seq"]): line for line in lines if "seq" in line}


def put_back(disk: Disk, loss: Loss, rule: Rule) -> None:
    """On the recorded paths, as the session's own log names them."""
    for root in disk.recording.roots:
        shutil.rmtree(root, ignore_errors=True)
    disk.build(loss, rule, {root: Path(root) for root in disk.recording.roots})


def look(disk: Disk, loss: Loss, home: Path, repository: Path) -> Found:
    shown = shown_events(disk.told(loss.at, "shown"))
    try:
        events = _events(home)
    except LogError as error:
        # Nothing was told yet: there is no session for anybody.
        return Found((), len(shown), (f"the log: {error}",) if shown else ())
    stored = {event.seq: event.model_dump(mode="json") for event in events}
    wrong = [f"event {seq} was told and is not there" for seq, one in shown.items() if stored.get(seq) != one]
    return Found(events, len(shown), (*wrong, *_check_git(repository, named_commits(events))))


def _events(home: Path) -> tuple[Event, ...]:
    logs = list(home.glob("sessions/*/log.duckdb"))
    assert len(logs) <= 1
    return read_log(logs[0].parent) if logs else ()


def named_commits(events: Sequence[Event]) -> list[str]:
    text = "\n".join(event.model_dump_json() for event in events)
    return sorted(set(re.findall(r'"([0-9a-f]{40})"', text)))


def _check_git(repository: Path, commits: Sequence[str]) -> list[str]:
    """The repository is sound for its owner, and holds every named commit with all that belongs to it."""
    refs = [path for path in (repository / ".git" / "refs").rglob("*") if path.is_file()]
    held = [path.read_text().strip() for path in refs if not path.name.endswith(".lock")]
    wrong = [f"a reference holds {text!r}" for text in held if not re.fullmatch("[0-9a-f]{40}", text)]
    names = sorted({*commits, *(text for text in held if text)})
    command = ("git", "-C", str(repository), "fsck", "--no-dangling", "--no-progress", *names)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 or "error" in done.stderr or "missing" in done.stdout:
        wrong.append(f"git fsck: {'; '.join((done.stderr + done.stdout).strip().splitlines()[:2])}")
    return wrong
