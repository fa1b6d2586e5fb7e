"""What `doctor` finds and `gc` gives back; sessions found by name."""

from pathlib import Path

import pytest

from actors.health import examine, reclaim
from actors.local import read_session
from actors.sessions import resolve_session
from eventlog.errors import LogNotFound
from eventlog.ids import SessionId
from tests.actors.playing import DONE, Stage, call, tree, turn
from tests.worktrees.repositories import plain_git

EDIT = call("edit", path="a.txt", old_text="one", new_text="two")


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def found(stage: Stage) -> dict[str, bool]:
    return {finding.name: finding.ok for finding in examine(stage.environment)}


def test_a_machine_that_has_everything_is_found_well(stage: Stage) -> None:
    findings = found(stage)
    assert all(findings[name] for name in ("git", "sandbox", "state folder", "settings"))


def test_what_is_wrong_is_named_with_what_to_do(stage: Stage) -> None:
    stage.environment.state_folder.mkdir(mode=0o755)
    stage.environment.state_folder.chmod(0o755)
    stage.environment.config_file.parent.mkdir()
    stage.environment.config_file.write_text("model = 3\n")
    findings = {finding.name: finding for finding in examine(stage.environment)}
    assert not findings["state folder"].ok and "chmod 700" in findings["state folder"].text
    assert not findings["settings"].ok and "model" in findings["settings"].text


def test_worktrees_of_sessions_that_are_gone_are_given_back_and_their_work_is_kept(stage: Stage) -> None:
    import shutil

    played = stage.start(turn(EDIT), DONE)
    stage.start(turn(EDIT), DONE, session=SessionId("s2"))
    shutil.rmtree(stage.session_folder())
    assert reclaim(stage.parts, dry_run=True) == [f"would give back {played.worktree}"]
    lines = reclaim(stage.parts, dry_run=False)
    assert "gave back s1" in lines
    assert plain_git(stage.repository, "show", "refs/thalia/s1/main:a.txt") == "two"
    assert stage.resume(DONE, DONE, DONE, prompt="More.", session=SessionId("s2")).code == 0, "the living one stays"


def test_a_session_that_is_not_finished_keeps_its_worktree(stage: Stage) -> None:
    played = stage.start(turn(EDIT), turn(EDIT), DONE, max_turns=1)
    reclaim(stage.parts, dry_run=False)
    assert tree(played.worktree)["a.txt"] == "two\n"


def test_a_session_is_found_by_the_beginning_of_its_name_or_as_the_last_one(stage: Stage) -> None:
    for name in ("alpha", "beta"):
        stage.start(DONE, session=SessionId(name))
    assert resolve_session(stage.parts, "al", False) == "alpha"
    assert resolve_session(stage.parts, None, True) == "beta"
    assert read_session(stage.parts, "bet", False)[1] == stage.events(SessionId("beta"))
    with pytest.raises(LogNotFound):
        resolve_session(stage.parts, "gamma", False)


def test_without_any_session_there_is_a_sentence(stage: Stage) -> None:
    with pytest.raises(LogNotFound, match="no session yet"):
        resolve_session(stage.parts, None, True)
