"""Secrets of the user and the model never reach a command, a file of the session or the next request; nor does a
command reach the network."""

import base64
import socket
import threading
from pathlib import Path
from urllib.parse import quote

import pytest

from actors.coordinator import Coordinator
from eventlog.events import EffectStarted, Event
from processes.calls import end_tree
from tests.actors.playing import (
    DONE,
    SESSION,
    Recorder,
    Stage,
    call,
    check_conversation,
    check_replay,
    shell,
    tree,
    turn,
    wait_until,
)

KEY = "cnry-0123456789/+abcdef"
GITHUB = "ghp_" + "a1B2c3D4e5F6" * 3
DATABASE = "postgres://ada:pass-word-77@db.example/x"
VARIABLES = {"FOO_API_KEY": KEY, "GITHUB_TOKEN": GITHUB, "DB": DATABASE, "SSH_AUTH_SOCK": "/run/agent.sock"}
FORMS = (KEY, GITHUB, "pass-word-77", base64.b64encode(KEY.encode()).decode(), quote(KEY, safe=""))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path, variables=VARIABLES)


def holding(folder: Path, value: str) -> list[Path]:
    """Files whose raw bytes hold the value."""
    return [path for path in folder.rglob("*") if path.is_file() and value.encode() in path.read_bytes()]


def check_no_secret(stage: Stage) -> None:
    for form in FORMS:
        assert holding(stage.session_folder(), form) == []


def test_no_secret_of_the_environment_reaches_a_command(stage: Stage) -> None:
    # Into files of the worktree, where nothing is redacted.
    look = "env > env.txt; for p in /proc/[0-9]*; do tr '\\0' '\\n' < $p/environ; done > all.txt 2> /dev/null; true"
    played = stage.start(turn(shell(look)), DONE)
    seen = tree(played.worktree)
    assert "PATH=" in seen["env.txt"]
    for text in (seen["env.txt"], seen["all.txt"]):
        assert not any(form in text for form in FORMS)
        assert "SSH_AUTH_SOCK" not in text


def test_not_even_outside_the_sandbox(stage: Stage) -> None:
    played = stage.start(turn(shell("env > env.txt")), DONE, mode="bypass", sandbox="off")
    assert not any(form in tree(played.worktree)["env.txt"] for form in FORMS)


def test_a_secret_in_output_is_in_no_file_of_the_session_in_any_form(stage: Stage) -> None:
    stage.files = {**stage.files}
    for at, form in enumerate(FORMS):
        (stage.repository / f"secret-{at}.txt").write_text(f"Authorization: Bearer {form}\n")
    played = stage.start(turn(shell("cat secret-*.txt"), call("read", path="secret-0.txt")), DONE)
    assert "[redacted:" in played.results[0] and "[redacted:" in played.results[1]
    check_no_secret(stage)
    assert check_replay(played.events).requests == 2


def test_the_spill_of_a_long_output_holds_no_secret(stage: Stage) -> None:
    (stage.repository / "secret.txt").write_text(f"{KEY}\n")
    played = stage.start(turn(shell("seq 1 20000; cat secret.txt; seq 1 20000; cat secret.txt")), DONE)
    outcome = played.outcome("c1_1")
    spill = getattr(outcome, "spill", None)
    assert spill is not None and "20000" in Path(spill).read_text()
    check_no_secret(stage)


def test_a_command_that_is_lost_leaves_no_secret_behind(stage: Stage) -> None:
    (stage.repository / "secret.txt").write_text(f"{KEY}\n")

    def lose(coordinator: Coordinator, event: Event) -> None:
        if isinstance(event.body, EffectStarted) and event.body.call_id == "c1_1" and event.body.attempt == 1:
            folder = coordinator.opened.log.folder / "calls" / "c1_1.1"

            def kill() -> None:
                wait_until(lambda: (folder / "output").exists() and KEY.encode() in (folder / "output").read_bytes())
                end_tree(folder)

            threading.Thread(target=kill).start()

    played = stage.start(turn(shell("cat secret.txt; echo x > x.txt; sleep 1")), DONE, screen=Recorder(watch=lose))
    assert played.kinds("c1_1")[0] == "attempt_lost"
    check_no_secret(stage)


def test_a_secret_that_the_model_writes_is_not_kept_not_run_and_replays(stage: Stage) -> None:
    played = stage.start(
        turn(
            shell(f"echo {KEY} > leak.txt"),
            call("write", path="leak.txt", content=GITHUB),
            call("read", path="a.txt"),
            text=f"I use {KEY}.",
            reasoning=f"The key {GITHUB} is good.",
        ),
        {"text": f"Done with {KEY}."},
    )
    assert "leak.txt" not in tree(played.worktree)
    assert all(text.startswith("The arguments held a secret") for text in played.results[:2])
    assert played.ending == "done" and KEY not in (played.state.ending.text if played.state.ending else "")
    check_no_secret(stage)
    check_conversation(played.state)
    assert check_replay(played.events).requests == 2


def test_a_secret_that_the_user_says_is_not_kept(stage: Stage) -> None:
    played = stage.start(DONE, prompt=f"Use {KEY}.")
    check_no_secret(stage)
    check_replay(played.events)


def test_every_file_of_a_session_is_the_owners_alone(stage: Stage) -> None:
    stage.start(turn(shell("seq 1 20000")), DONE)
    folder = stage.session_folder()
    # The copy of /etc that commands see holds nothing of the session.
    own = [path for path in folder.rglob("*") if not any(part.startswith(".etc-") for part in path.parts)]
    for path in [folder, *own]:
        assert path.stat().st_mode & 0o077 == 0, path


@pytest.mark.parametrize(
    "command",
    [
        "echo hello > /dev/tcp/127.0.0.1/{port}",
        "python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", {port}))'",
        "curl -s http://127.0.0.1:{port}/ -d @a.txt",
    ],
    ids=["bash", "python", "curl"],
)
def test_a_command_reaches_no_network(command: str, stage: Stage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        played = stage.start(turn(shell(command.format(port=server.getsockname()[1]))), DONE)
        with pytest.raises(TimeoutError):
            server.accept()
    assert played.state.withheld == 1 or played.kinds("c1_1") == ["tool_failed"]


@pytest.mark.parametrize("command", ["git push origin main", "sudo ls", "cat ../../../../../etc/shadow ~/x"])
def test_what_would_leave_the_sandbox_is_withheld_and_the_exit_code_says_so(command: str, stage: Stage) -> None:
    played = stage.start(turn(shell(command)), {"text": "I could not."})
    assert (played.code, played.ending) == (11, "withheld")
    assert "c1_1" not in [e.body.call_id for e in played.events if isinstance(e.body, EffectStarted)]
    assert played.results[0].startswith("Not permitted unattended")


def test_a_denied_rule_of_the_user_holds_in_every_mode(stage: Stage) -> None:
    denied = ("shell(touch *)",)
    played = stage.start(turn(shell("true; touch x.txt")), DONE, denied=denied, mode="bypass", sandbox="off")
    assert "x.txt" not in tree(played.worktree) and "denies" in played.results[0]


def test_a_folder_that_is_added_can_be_read_and_not_written(stage: Stage, tmp_path: Path) -> None:
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "note.txt").write_text("hello\n")
    commands = turn(shell(f"cat {extra}/note.txt"), shell(f'python3 -c \'open("{extra}/new", "w")\''))
    played = stage.start(commands, DONE, add_dirs=(extra,))
    assert played.results[0].startswith("hello"), played.results
    assert list(extra.iterdir()) == [extra / "note.txt"]
    assert played.state.context is not None and SESSION in str(stage.session_folder())
