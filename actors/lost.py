"""After damage was accepted: what the lost events left in the world is put out of the way, and kept.

The log goes on without them and gives their names out again. A call's folder would answer for another command, with the
result of the first; and the snapshots' ref would hold a commit of which the log knows nothing, so none could follow."""

from collections.abc import Iterable
from pathlib import Path

from actors.files import SessionFiles
from eventlog.events import DamageAccepted, EffectStarted, Event
from eventlog.ids import MAIN, Commit
from eventlog.opening import Opened
from processes.calls import end_tree


def put_aside(opened: Opened, files: SessionFiles, snapshot: Commit | None, damage: DamageAccepted | None) -> None:
    """Nothing where no damage was ever accepted; else `damage` is the latest. Blocks; may be repeated, also after a
    kill. `snapshot` is the log's last. Raises GitError, OSError, LogError."""
    if damage is None:
        return
    folder = opened.log.folder
    _put_calls_aside(folder / "calls", folder / "damaged" / Path(damage.kept_at).name / "calls", opened.log.read())
    files.follow_log(snapshot, f"lost/{opened.log.epoch}")


def _put_calls_aside(calls: Path, aside: Path, events: Iterable[Event]) -> None:
    """Every call that this log never began: nothing is run without its intent, so its intent was lost."""
    own = [event.body for event in events if event.actor == MAIN]
    begun = {f"{body.call_id}.{body.attempt}" for body in own if isinstance(body, EffectStarted)}
    for call in sorted(calls.iterdir()):
        if call.name not in begun:
            end_tree(call)
            aside.mkdir(mode=0o700, parents=True, exist_ok=True)
            call.rename(aside / call.name)
