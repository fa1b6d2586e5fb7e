"""The past of a session: replay, the tree at an event, fork, rewind; and what an attacker with the key to it can do."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from actors.branching import rewind
from actors.building import CannotStart
from actors.coordinator import Coordinator
from actors.history import Difference, ReplayError, Verified, checkout_at, verify
from agent.folding import fold_events
from eventlog.anchor import Anchor, Head
from eventlog.codec import GENESIS, chain
from eventlog.database import Database, Row
from eventlog.effects import RunTool
from eventlog.errors import LogDamaged
from eventlog.events import EffectFinished, EffectStarted, Event, Forked
from eventlog.ids import SessionId
from eventlog.outcomes import Merged, ModelReplied, ToolFailed
from tests.actors.playing import (
    DONE,
    SESSION,
    Played,
    Recorder,
    Stage,
    call,
    check_conversation,
    check_replay,
    ends,
    shell,
    starts,
    tree,
    turn,
)
from tests.worktrees.repositories import plain_git

EDIT = call("edit", path="a.txt", old_text="one", new_text="two")
AGAIN = call("edit", path="a.txt", old_text="two", new_text="three")
PATCH = call(
    "apply_patch", patch="*** Begin Patch\n*** Delete File: b.txt\n*** Add File: d/e.txt\n+new\n*** End Patch\n"
)
TURNS = (
    turn(EDIT, call("read", path="a.txt")),
    turn(shell("echo made > made.txt; rm -f b.txt; echo b2 > b.txt"), AGAIN),
    turn(PATCH, shell("mv made.txt moved.txt")),
    DONE,
)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def writes(event: Event) -> bool:
    """Whether the worktree may be changing right after this event."""
    return isinstance(event.body, EffectStarted) and isinstance(event.body.effect, RunTool) \
        and event.body.effect.effect_class != "read"  # fmt: skip


def play_and_watch(stage: Stage) -> tuple[Played, dict[int, dict[str, str]]]:
    """The session, and a copy of what stood in its worktree at each event at which nothing was being written."""
    stood: dict[int, dict[str, str]] = {}
    writing: set[str] = set()

    def watch(coordinator: Coordinator, event: Event) -> None:
        body = event.body
        if writes(event) and isinstance(body, EffectStarted):
            writing.add(body.call_id)
        if isinstance(body, EffectFinished):
            writing.discard(body.call_id)
        if coordinator.state.worktree is not None and not writing:
            stood[event.seq] = tree(Path(coordinator.state.worktree.path))

    played = stage.start(*TURNS, screen=Recorder(watch=watch))
    assert played.ending == "done" and len(stood) > 12
    return played, stood


def test_the_tree_at_each_event_is_what_stood_there(stage: Stage, tmp_path: Path) -> None:
    played, stood = play_and_watch(stage)
    files = stage.session_files()
    for seq, expected in stood.items():
        target = tmp_path / "trees" / str(seq)
        checkout_at(files, played.events, seq, target)
        assert tree(target) == expected, f"at event {seq}: {played.events[seq - 1].body}"
    assert len({tuple(sorted(files.items())) for files in stood.values()}) == 6


def test_there_is_no_tree_before_the_worktree_and_no_event_after_the_last(stage: Stage, tmp_path: Path) -> None:
    played = stage.start(DONE)
    with pytest.raises(ReplayError, match="no worktree yet"):
        checkout_at(stage.session_files(), played.events, 1, tmp_path / "t")
    with pytest.raises(ReplayError, match="There is no event 999"):
        checkout_at(stage.session_files(), played.events, 999, tmp_path / "t")


def test_every_request_is_rebuilt_from_the_log(stage: Stage) -> None:
    played, _ = play_and_watch(stage)
    assert verify(played.events) == Verified(len(played.events), 4)


def test_a_replay_needs_no_repository_no_model_and_no_worktree(stage: Stage) -> None:
    stage.start(*TURNS)
    for folder in (stage.repository, stage.environment.worktrees, stage.folder / "user"):
        shutil.rmtree(folder)
    for script in stage.folder.glob("script-*.json"):
        script.unlink()
    check_replay(stage.events())


def alter(folder: Path, old: str, new: str) -> int:
    """Change the first event that holds `old`, then make hash chain and anchor whole again; its seq."""
    database = Database(folder / "log.duckdb", read_only=True)
    rows = list(database.rows())
    database.close()
    changed = next(row.seq for row in rows if old in row.payload)
    head, forged = GENESIS, list[Row]()
    for row in rows:
        payload = row.payload.replace(old, new) if row.seq == changed else row.payload
        head = chain(head, row.seq, row.ts_us, payload.encode())
        forged.append(row._replace(payload=payload, hash=head))
    for name in ("log.duckdb", "log.duckdb.wal", "head"):
        (folder / name).unlink(missing_ok=True)
    database = Database(folder / "log.duckdb")
    database.append(forged)
    database.close()
    anchor = Anchor(folder / "head")
    anchor.write(Head(forged[-1].seq, forged[-1].hash))
    anchor.close()
    return changed


@pytest.mark.parametrize(
    ("old", "new", "suspect"),
    [("Do it.", "Do that.", "Do that."), ("one-more-word", "one-less-word", "one-less-word")],
    ids=["the user's", "the model's"],
)
def test_a_message_that_was_altered_with_its_hashes_is_found_and_named(
    old: str, new: str, suspect: str, stage: Stage
) -> None:
    stage.start(turn(call("read", path="a.txt"), text="one-more-word"), turn(EDIT), DONE)
    changed = alter(stage.session_folder(), old, new)
    found = verify(stage.events())
    assert isinstance(found, Difference)
    following = next(event for event in stage.events() if event.seq > changed and starts("model")(event.body))
    assert found.seq == following.seq, "the first request that the message was part of"
    assert any(suspect in text for text in found.suspects)
    assert found.logged != found.rebuilt


def test_an_altered_message_without_its_hashes_is_damage(stage: Stage) -> None:
    stage.start(turn(EDIT), DONE)
    folder = stage.session_folder()
    database = Database(folder / "log.duckdb")
    database.query("UPDATE events SET payload = replace(payload, 'Do it.', 'Do that.')")
    database.close()
    with pytest.raises(LogDamaged):
        stage.events()


def forks(played: Played) -> Iterator[int]:
    """The events after which a worktree was there: all places to fork at."""
    for event in played.events:
        if fold_events(played.events[: event.seq]).worktree is not None:
            yield event.seq


def test_a_fork_at_any_event_has_that_tree_and_a_conversation_that_a_provider_takes(stage: Stage) -> None:
    played, stood = play_and_watch(stage)
    places = list(forks(played))
    for seq in places[::3]:
        target = stage.fork(f"f{seq}", seq)
        state = fold_events(stage.events(target))
        check_conversation(state)
        assert not state.active and state.spent_usd == fold_events(played.events[:seq]).spent_usd
        forked = stage.resume(*([DONE] * 9), prompt="Say it.", session=target)
        assert forked.ending == "done"
        check_conversation(forked.state)
        check_replay(forked.events)
        worktree = forked.state.worktree
        assert worktree is not None and worktree.path != str(played.worktree)
        if seq in stood:
            assert tree(Path(worktree.path)) == stood[seq], seq


def test_a_fork_goes_its_own_way_and_merges_what_it_has(stage: Stage) -> None:
    played = stage.start(*TURNS)
    seq = next(event.seq for event in played.events if ends("c1_2")(event.body))
    other = turn(call("write", path="other.txt", content="way\n"), call("commit", message="Other way"))
    forked = stage.resume(DONE, other, DONE, prompt="Otherwise.", session=stage.fork("f1", seq), merge=True)
    assert forked.code == 0
    assert tree(stage.repository) == {"a.txt": "two\n", "b.txt": "b\n", "other.txt": "way\n"}
    assert plain_git(stage.repository, "log", "-1", "--format=%s", "refs/thalia/f1/work") == "Other way"
    assert tree(played.worktree)["a.txt"] == "three\n", "the source stays as it is"
    assert any(isinstance(e.body, Forked) and (e.body.session, e.body.seq) == (SESSION, seq) for e in forked.events)


def test_a_fork_of_a_fork_of_a_live_session(stage: Stage) -> None:
    stage.start(turn(EDIT), turn(shell("cat a.txt")), screen=Recorder(until=starts("shell")))
    first = stage.fork("f1")
    assert stage.resume(*([DONE] * 5), prompt="Go on.", session=first).ending == "done"
    again = stage.resume(*([DONE] * 5), prompt="And on.", session=stage.fork("f2", source=first))
    assert (
        again.ending == "done"
        and tree(Path(again.state.worktree.path if again.state.worktree else ""))["a.txt"] == "two\n"
    )


def test_a_fork_can_be_merged_without_being_resumed_and_asks_no_model(stage: Stage) -> None:
    played = stage.start(*TURNS)
    seq = next(event.seq for event in played.events if ends("c2_2")(event.body))
    assert isinstance(stage.merge(stage.fork("f1", seq)), Merged)
    assert tree(stage.repository) == {"a.txt": "three\n", "b.txt": "b2\n", "made.txt": "made\n"}
    assert not any(starts("model")(e.body) for e in stage.events(SessionId("f1")) if e.seq > seq)


def test_a_session_in_the_checkout_itself_is_neither_forked_nor_taken_back(stage: Stage) -> None:
    stage.start(turn(EDIT), DONE, in_place=True)
    with pytest.raises(CannotStart):
        stage.fork("f1")
    with pytest.raises(CannotStart):
        rewind(stage.parts, SESSION, 8)
    assert tree(stage.repository)["a.txt"] == "two\n"


def test_a_rewind_takes_tree_and_conversation_back_and_keeps_what_was(stage: Stage) -> None:
    played, stood = play_and_watch(stage)
    seq = next(event.seq for event in played.events if ends("c1_2")(event.body))
    (played.worktree / "stray.txt").write_text("by hand\n")
    saved = rewind(stage.parts, SESSION, seq)
    assert tree(played.worktree) == stood[seq]
    assert plain_git(stage.repository, "show", f"{saved}:a.txt") == "three"
    assert plain_git(stage.repository, "show", f"{saved}:stray.txt") == "by hand", "nothing that stood there is lost"
    kept = plain_git(stage.repository, "for-each-ref", "--format=%(objectname)", "refs/thalia/s1/before-rewind/")
    assert kept == saved
    state = fold_events(stage.events())
    assert state.model_calls == 4 and not state.active and len(state.messages) == 4
    check_conversation(state)
    more = turn(shell("cat a.txt; ls"), call("commit", message="After the rewind"))
    resumed = stage.resume(DONE, more, DONE, prompt="Otherwise.")
    assert resumed.results[-2].split() == ["two", "a.txt", "b.txt"]
    assert resumed.results[-1].startswith("Committed"), resumed.results
    check_replay(resumed.events)


def test_a_commit_after_a_rewind_behind_an_earlier_commit_is_made(stage: Stage) -> None:
    played = stage.start(turn(EDIT), turn(call("commit", message="First")), DONE)
    seq = next(event.seq for event in played.events if ends("c1_1")(event.body))
    rewind(stage.parts, SESSION, seq)
    resumed = stage.resume(DONE, turn(AGAIN, call("commit", message="Second")), DONE, prompt="Otherwise.")
    assert resumed.results[-1].startswith("Committed"), resumed.results
    subjects = plain_git(stage.repository, "log", "--format=%s", "refs/thalia/s1/work").split("\n")
    assert subjects == ["Second", "First version"]


def test_a_rewind_to_no_event_changes_nothing(stage: Stage) -> None:
    played = stage.start(turn(EDIT), DONE)
    with pytest.raises(ReplayError):
        rewind(stage.parts, SESSION, 999)
    assert stage.events() == played.events and tree(played.worktree)["a.txt"] == "two\n"


def test_a_result_that_came_from_a_reply_altered_on_disk_is_never_believed(stage: Stage) -> None:
    played = stage.start(turn(shell("exit 4")), DONE)
    reply = next(e.body.outcome for e in played.events if ends("c1")(e.body) and isinstance(e.body, EffectFinished))
    assert isinstance(reply, ModelReplied) and isinstance(played.outcome("c1_1"), ToolFailed)
    alter(stage.session_folder(), "exit code 4", "exit code 0")
    assert isinstance(verify(stage.events()), Difference)
