"""What is looked at after each kill of a scene, and at its end."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from actors.files import AGENT_MARK
from eventlog.anchor import Head
from eventlog.effects import MergeWork
from eventlog.events import EffectStarted
from eventlog.opening import read_log
from tests.chaos.arena import SECRET, Arena
from tests.chaos.invariants import (
    acknowledged,
    announcers,
    check_acknowledged,
    check_announced,
    check_branches,
    check_ledger,
    check_no_agents_left,
    check_nothing_left,
    check_past,
    check_secrets,
    check_session,
    check_worktrees,
    owners,
    row_hashes,
    told,
)
from tests.chaos.scenes import Scene, ledger, posted


def look_after_kill(arena: Arena) -> Head | None:
    """What was acknowledged by now, for check_end; None where no session had begun. What is done by now was announced
    before, durably."""
    folder = arena.session_folder()
    if folder is None:
        return None
    events, owned = read_log(folder), owners(arena.home)
    check_past(folder, events)
    check_announced([f"ledger.py {number}" for number in ledger(arena)], events)
    check_announced([f'"n":{number}' for number in posted(arena)], events)
    for worktree in arena.home.glob("worktrees/*/*/"):
        # What was given up half-made waits there to be deleted.
        if worktree.name != "trash":
            check_announced(traces(worktree), announcers(events, owned[worktree]) if worktree in owned else events)
    check_worktrees([owner for owner in owned.values() if owner.partition(AGENT_MARK)[0] == folder.name], events)
    check_branches(branches(arena, folder.name), events)
    intents = [event.body.effect for event in events if isinstance(event.body, EffectStarted)]
    merging = any(isinstance(effect, MergeWork) for effect in intents)
    assert merging or contents(arena.repository) == {"a.py": "one\n"}
    return acknowledged(folder)


def check_end(scene: Scene, arena: Arena, heads: Sequence[Head]) -> None:
    folder, events = arena.session_folder(), arena.events()
    assert folder is not None
    check_session(events)
    check_acknowledged(heads, row_hashes(folder))
    scene.also(events)
    check_branches(branches(arena, folder.name), events)
    check_ledger(ledger(arena), scene.ledger, events)
    check_ledger([str(n) for n in posted(arena)], [str(n) for n in scene.posted], events)
    check_secrets([arena.home], [SECRET])
    assert SECRET not in arena.errors()
    check_nothing_left(arena.home, arena.repository, arena.survivors())
    check_no_agents_left(arena.home)
    assert contents(arena.repository) == scene.final or told(events)


def traces(worktree: Path) -> list[str]:
    """Words of the intents that must have been there for its files to be as they are."""
    files = contents(worktree)
    # What an edit had prepared bears a name of its own; in the end none may be left (check_nothing_left).
    found = [path for path in files if path != "a.py" and not Path(path).name.startswith(".thalia-")]
    return [*found, "old_text"] if files.get("a.py", "one\n") != "one\n" else found


def branches(arena: Arena, session: str) -> dict[str, str]:
    """What the branch of each fan-out of a session holds, by the id of the fan-out."""
    below = f"refs/thalia/{session}/fan/"
    args = ("git", "for-each-ref", "--format=%(refname) %(objectname)", below)
    lines = subprocess.run(args, cwd=arena.repository, capture_output=True, text=True, check=True).stdout.splitlines()
    return {name.removeprefix(below): commit for name, commit in (line.split(" ") for line in lines)}


def contents(root: Path) -> dict[str, str]:
    """Files by their path, git's own left out."""
    found = [path for path in root.rglob("*") if path.is_file() and ".git" not in path.relative_to(root).parts]
    return {str(path.relative_to(root)): path.read_text() for path in sorted(found)}
