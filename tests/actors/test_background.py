"""Agents in the background: they look when something has happened, and speak when it matters."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import pytest

from actors.building import CannotStart
from actors.history import Verified, verify
from actors.sessions import FanRequest
from eventlog.effects import RunTool
from eventlog.events import AgentsChosen, CallRejected, ConversationCut, EffectStarted, Event, Interrupted
from eventlog.ids import MAIN, CommandId
from eventlog.outcomes import Report, Silence, ToolSucceeded, WorktreeReady
from tests.actors.background_stage import (
    Decision,
    Message,
    Minds,
    calls_of,
    define,
    delivered,
    in_order,
    play_minds,
    reasons,
    wakes,
    words,
)
from tests.actors.fan_stage import begin, go_on, leave_after, owners, script
from tests.actors.playing import DONE, Played, Recorder, Stage, call, shell, tree, turn
from tests.chaos.invariants import check_session
from tests.worktrees.repositories import plain_git

FILES = {"README.md": "It starts in main.py.\n", "main.py": "print('one')\n"}
Turn = Mapping[str, object]
QUIET = turn(call("stay_silent", reason="Nothing."))
REPORT = turn(call("report", text="Look out.", priority="normal", evidence=["a.txt:1"]))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def watch_entry(messages: Sequence[Message], *, chooses: bool = True) -> Decision:
    """A scout that knows where the program begins, and speaks only when that is no longer so."""
    last = messages[-1]
    if last["role"] == "user":
        return call("glob", pattern="*.py")
    found = last["content"].split()
    noted = [
        json.loads(called["function"]["arguments"]).get("notes")
        for message in messages
        for called in message.get("tool_calls", ())
        if called["function"]["name"] in ("report", "stay_silent")
    ]
    entry = next(name for name in ("app.py", "main.py") if name in found)
    if chooses and (not noted or noted[-1] == entry):
        return call("stay_silent", reason=f"It begins in {entry}, as far as I know.", notes=entry)
    return call("report", text=f"It begins in {entry} now.", priority="high", evidence=[f"{entry}:1"], notes=entry)


MAIN_WORK = in_order(
    call("edit", path="README.md", old_text="It", new_text="The program"),
    call("commit", message="Words"),
    shell("mv main.py app.py"),
    call("commit", message="Move"),
    shell("true"),
    "All of it is done.",
)


def check_one_report(played: Played, minds: Minds) -> None:
    assert reasons(played.events, "scout") == [("start",), ("commit",), ("commit",)]
    first, second, third = words(played.events, "scout")
    assert isinstance(first, Silence) and isinstance(second, Silence) and isinstance(third, Report)
    assert first.reason and second.reason, "each silence has a reason"
    [told] = delivered(played.events)
    assert "priority high" in told and "It begins in app.py now." in told and "- app.py:1" in told
    assert str(wakes(played.events, "scout")[2].base) in told, "it names the files that it was made on"


@pytest.mark.parametrize("chooses", [True, False])
def test_a_scout_that_is_woken_three_times_speaks_the_once_that_matters(tmp_path: Path, chooses: bool) -> None:
    """Without its choice the same checks fail."""
    stage = Stage(tmp_path, files=FILES)
    minds = Minds(
        {"scout": lambda messages: watch_entry(messages, chooses=chooses), MAIN: MAIN_WORK}, after={1: 1, 3: 2, 5: 3}
    )
    played = play_minds(stage, minds, agents=("scout",))
    assert played.ending == "done"
    check_session(played.events)
    if not chooses:
        with pytest.raises(AssertionError):
            check_one_report(played, minds)
        return
    check_one_report(played, minds)
    assert calls_of(played.events, "scout") == minds.asked["scout"] == 6, "two a wake-up, none in between"
    assert isinstance(verify(played.events), Verified)


def scripted(stage: Stage, main: Sequence[Turn], agents: Mapping[str, Sequence[Turn]]) -> str:
    return script(stage, main, {f"You are woken. {when}": turns for when, turns in agents.items()})


def test_a_report_is_delivered_with_what_has_changed_since_it_was_made(stage: Stage) -> None:
    main = in_order(
        call("write", path="first.txt", content="1\n"),
        "Done.",
    )
    late = in_order(call("report", text="Look out.", priority="normal", evidence=["a.txt:1"]))
    # It looked at the files of the start, and is heard when the first is written.
    minds = Minds({"scout": late, MAIN: main}, after={1: 1})
    played = play_minds(stage, minds, agents=("scout",))
    [told] = delivered(played.events)
    assert "you changed first.txt" in told and "Look out." in told, told
    assert str(wakes(played.events, "scout")[0].base) in told


def test_what_it_says_last_keeps_the_turn_going_and_it_looks_again_only_at_what_is_new(stage: Stage) -> None:
    main = [
        turn(call("write", path="new.py", content="1\n")),
        DONE,
        turn(call("write", path="new.py", content="2\n")),
        DONE,
    ]
    agents = {
        "The main agent says": [turn(call("report", text="It says 1.", priority="high", evidence=["new.py:1"])), QUIET]
    }
    played = begin(stage, scripted(stage, main, agents), agents=("reviewer",))
    assert played.ending == "done" and tree(played.worktree)["new.py"] == "2\n"
    assert reasons(played.events, "reviewer") == [("turn_end",), ("turn_end",)]
    assert len(delivered(played.events)) == 1
    check_session(played.events)


def test_a_question_is_answered_from_what_it_knows(stage: Stage) -> None:
    answer = turn(call("report", text="In a.txt.", priority="low", evidence=["a.txt:1"]))
    main = [turn(shell("true")), turn(call("ask_agent", agent="scout", question="Where?")), DONE]
    agents = {"The session begins.": [turn(call("read", path="a.txt")), QUIET, answer]}
    played = begin(stage, scripted(stage, main, agents), agents=("scout",))
    assert played.results[-1] == "In a.txt.\nEvidence:\n- a.txt:1"
    assert delivered(played.events) == [], "an answer is no report"
    assert "Where?" in wakes(played.events, "scout")[-1].text


def test_nobody_is_asked_who_is_not_there(stage: Stage) -> None:
    main = [
        turn(call("ask_agent", agent="scout", question="Where?"), call("ask_agent", agent="nobody", question="?")),
        DONE,
    ]
    agents = {"The session begins.": [QUIET, turn(call("report", text="There.", priority="low", evidence=["a"]))]}
    played = begin(stage, scripted(stage, main, agents), agents=("scout",))
    assert played.results[1] == "There is no background agent 'nobody'; there are scout."
    alone = Stage(stage.folder / "alone") if (stage.folder / "alone").mkdir() is None else stage
    played = begin(alone, script(alone, main, {}))
    assert all("There is no tool named 'ask_agent'" in result for result in played.results)


def test_it_has_the_tools_of_its_definition_and_no_others(stage: Stage) -> None:
    define(stage, "looker", wakes_on="[start]", tools="[read]")
    tries = [
        turn(shell("touch x")),
        turn(call("write", path="x", content="x")),
        turn(call("fan_out", tasks=["x"])),
        QUIET,
    ]
    main = [turn(shell("true")), DONE]
    played = begin(stage, scripted(stage, main, {"The session begins.": tries}), agents=("looker",))
    own = [event.body for event in played.events if event.actor == "looker"]
    refused = [body for body in own if isinstance(body, CallRejected)]
    assert len(refused) == 3 and all("the tools are read, report, stay_silent" in body.text for body in refused)
    ran = [body.effect.tool for body in own if isinstance(body, EffectStarted) and isinstance(body.effect, RunTool)]
    assert ran == ["stay_silent"]


def test_the_main_agent_cannot_speak_as_one(stage: Stage) -> None:
    played = stage.start(REPORT, QUIET, DONE)
    assert played.ending == "done" and played.state.said is None
    assert all("There is no tool named" in result for result in played.results)


def test_what_one_changes_is_kept_and_named_and_its_worktree_follows_the_session(stage: Stage) -> None:
    define(stage, "helper", wakes_on="[start, commit]", tools="[write, shell, read]")
    tell = call("report", text="I wrote a note.", priority="normal", evidence=["note.txt"])
    quiet = call("stay_silent", reason="Nothing.")
    turns = iter([call("write", path="note.txt", content="n\n"), tell, shell("cat b.txt; test ! -e note.txt"), quiet])
    main = in_order(call("write", path="b.txt", content="mine\n"), call("commit", message="b"), shell("true"), "Done.")
    minds = Minds({"helper": lambda messages: next(turns), MAIN: main}, after={1: 1, 3: 2})
    (stage.repository / "b.txt").unlink()
    played = play_minds(stage, minds, agents=("helper",))
    [told] = delivered(played.events)
    commit = told.partition("git diff ")[2].split()[1].rstrip("`")
    assert plain_git(stage.repository, "show", f"{commit}:note.txt") == "n"
    assert plain_git(stage.repository, "rev-parse", "refs/thalia/s1+helper/changes/1") == commit
    assert "note.txt" not in tree(played.worktree)
    own = [e.body.outcome for e in played.events if e.actor == "helper" and e.body.kind == "effect_finished"]
    looked = [one for one in own if isinstance(one, ToolSucceeded) and "mine" in one.text]
    assert len(looked) == 1, "at the second wake-up it sees the session's files and not its own"
    assert reasons(played.events, "helper") == [("start",), ("commit",)]
    check_session(played.events)


def test_one_that_ends_without_a_word_is_asked_for_one_once_and_its_silence_has_a_reason(stage: Stage) -> None:
    main = in_order(shell("true"), "Done.")
    minds = Minds({"scout": in_order("Hm.", "Well."), MAIN: main}, after={2: 1})
    played = play_minds(stage, minds, agents=("scout",))
    assert words(played.events, "scout") == [None]
    [one] = played.state.crew
    assert isinstance(one.said, Silence) and "Its last words: Well." in one.said.reason
    assert calls_of(played.events, "scout") == 2


def test_a_conversation_that_fills_its_window_begins_anew_with_its_notes(stage: Stage) -> None:
    priced = {"scripted": {"input": 0.0, "output": 0.0, "window": 3000}}
    main = in_order(call("write", path="c.txt", content="c\n"), call("commit", message="c"), shell("true"), "Done.")
    note = call("stay_silent", reason="Mapped.", notes="a.txt holds one")
    minds = Minds({"scout": in_order(note), MAIN: main}, after={1: 1, 3: 2})
    model = stage.script()
    stage.settings = {"prices": {model: priced["scripted"]}}

    def long_talk(messages: Sequence[Message]) -> Decision:
        first = not any("a.txt holds one" in str(message["content"]) for message in messages)
        return note if first else call("stay_silent", reason="I know.", notes="")

    minds.by_name = {"scout": long_talk, MAIN: main}
    minds.tokens = 2000
    played = play_minds(stage, minds, agents=("scout",), model=model)
    own = [event.body for event in played.events if event.actor == "scout"]
    [cut] = [body for body in own if isinstance(body, ConversationCut)]
    assert "a.txt holds one" in cut.text
    assert isinstance(words(played.events, "scout")[1], Silence)
    check_session(played.events)


@pytest.mark.parametrize("seed", range(4))
def test_a_session_left_at_any_event_goes_on_with_the_agents_it_has(stage: Stage, seed: int) -> None:
    random = Random(seed)
    define(stage, "judge", wakes_on="[turn_end]")
    main = [
        turn(call("write", path="new.py", content="1\n")),
        turn(call("ask_agent", agent="scout", question="Where?"), shell("echo a >> new.py")),
        turn(call("commit", message="New")),
        DONE,
        turn(shell("echo b >> new.py")),
        DONE,
    ]
    answer = turn(call("report", text="Here.", priority="normal", evidence=["a.txt:1"]))
    agents = {
        "The session begins.": [turn(call("read", path="a.txt")), *[answer] * 5],
        "The main agent says": [turn(shell("cat new.py")), answer, *[QUIET] * 5],
    }
    model = scripted(stage, main, agents)
    begin(stage, model, leave_after(random.randint(8, 30)), agents=("scout", "judge"))
    for _ in range(2):
        go_on(stage, model, leave_after(random.randint(5, 25)))
    played = go_on(stage, model)
    assert played.code == 0, played.screen.said
    assert tree(played.worktree)["new.py"] == "1\na\nb\n"
    check_session(played.events)
    assert isinstance(verify(played.events), Verified)
    assert len([text for text in delivered(played.events) if "judge" in text]) == 1
    assert owners(stage) == ["s1", "s1+judge", "s1+scout"]


def test_an_interrupt_ends_them_too_and_the_next_turn_wakes_them_again(stage: Stage) -> None:
    def watch(coordinator, event: Event) -> None:
        if event.actor == "checker" and event.body.kind == "effect_started" and "sleep" in str(event.body):
            coordinator.send(Interrupted(id=CommandId("stop")))

    main = [turn(call("write", path="n.txt", content="1\n")), turn(shell("sleep 60")), DONE]
    model = scripted(stage, main, {"The session begins.": [turn(shell("sleep 60")), *[QUIET] * 9]})
    played = begin(stage, model, Recorder(watch), agents=("checker",))
    assert played.ending == "interrupted" and played.state.open == {}
    [one] = played.state.crew
    assert isinstance(one.said, Silence) and "interrupted" in one.said.reason
    played = go_on(stage, model, prompt="Go on.")
    assert played.ending == "done"
    check_session(played.events)


def test_a_fork_has_agents_that_remember_in_worktrees_of_their_own(stage: Stage) -> None:
    define(stage, "looker", wakes_on="[start, commit]", tools="[read, shell]")
    main = in_order(shell("true"), "Done.")
    minds = Minds(
        {"looker": in_order(shell("pwd"), call("stay_silent", reason="Seen.", notes="all")), MAIN: main}, after={2: 1}
    )
    played = play_minds(stage, minds, agents=("looker",))
    assert reasons(played.events, "looker") == [("start",)]
    target = stage.fork("s2")
    # Its script goes on where the source's conversation ended.
    more = [
        DONE,
        DONE,
        turn(call("write", path="f.txt", content="f\n")),
        turn(call("commit", message="f")),
        turn(shell("true")),
        DONE,
    ]
    model = scripted(stage, more, {"The session begins.": [DONE, DONE, turn(shell("cat f.txt; pwd")), *[QUIET] * 3]})
    again = stage.resume(session=target, prompt="Go on.", model=model)
    assert again.ending == "done", again.state.ending
    places = {
        body.outcome.path
        for event in again.events
        if event.actor == "looker" and (body := event.body).kind == "effect_finished"
        and isinstance(body.outcome, WorktreeReady)
    }  # fmt: skip
    assert len(places) == len(wakes(again.events, "looker")) == 2
    assert owners(stage) == ["s1", "s1+looker", "s2", "s2+looker"]
    assert isinstance(verify(again.events), Verified)
    assert stage.events() == played.events


def test_a_repository_s_definition_counts_only_where_it_is_named(stage: Stage) -> None:
    define(stage, "scout", "Obey nobody.", home=False, wakes_on="[start]")
    stage.settings = {"agents": ["scout"]}
    quiet = {"The session begins.": [QUIET]}
    played = begin(stage, scripted(stage, [turn(shell("true")), DONE], quiet))
    [chosen] = [event.body for event in played.events if isinstance(event.body, AgentsChosen)]
    assert chosen.agents[0].defined_in == "configs/agents/scout.md"
    stage.settings = {}
    named = Stage(stage.folder / "named") if (stage.folder / "named").mkdir() is None else stage
    define(named, "scout", "Obey nobody.", home=False, wakes_on="[start]")
    played = begin(named, scripted(named, [DONE], quiet), agents=("scout",))
    [chosen] = [event.body for event in played.events if isinstance(event.body, AgentsChosen)]
    assert chosen.agents[0].defined_in == ".agents/agents/scout.md"
    assert "Obey nobody." in chosen.agents[0].context.system


def test_one_that_is_not_there_begins_no_session(stage: Stage) -> None:
    with pytest.raises(CannotStart, match="There is no background agent 'nobody'; there are checker, reviewer, scout"):
        begin(stage, stage.script(DONE), agents=("nobody",))
    assert not stage.session_folder().exists()


def test_a_resumed_session_keeps_them_gets_others_or_none_as_it_is_told(stage: Stage) -> None:
    again = {"The session begins.": [QUIET] * 9, "The main agent edited": [QUIET] * 9}
    write = [turn(call("write", path=f"{n}.txt", content="1\n")) for n in range(4)]
    model = scripted(stage, [write[0], DONE, write[1], DONE, write[2], DONE], again)
    first = begin(stage, model, agents=("scout",))
    assert len(wakes(first.events, "scout")) == 1
    kept = stage.resume(prompt="More.", model=model)
    assert [one.agent for one in kept.state.crew] == ["scout"]
    none = stage.resume(prompt="More.", model=model, agents=("none",))
    assert none.state.crew == () and none.state.context is not None
    assert "ask_agent" not in none.state.context.tools
    check_session(none.events)


def test_a_budget_of_the_hour_that_is_spent_wakes_nobody_and_says_so_to_who_asks(stage: Stage) -> None:
    define(stage, "scout", wakes_on="[start]", budget="0.0001")
    main = [turn(shell("true")), turn(call("ask_agent", agent="scout", question="Where?")), DONE]
    model = scripted(stage, main, {"The session begins.": [QUIET] * 9})
    stage.settings = {"prices": {model: {"input": 1.0, "output": 1.0}}}
    played = begin(stage, model, agents=("scout",))
    assert calls_of(played.events, "scout") == 0
    [one] = played.state.crew
    assert isinstance(one.said, Silence) and "out_of_budget" in one.said.reason
    assert played.results[-1].startswith("scout gave no answer: Its turn ended early (out_of_budget)")


def test_none_looks_at_a_fan_out_that_a_person_asked_for(stage: Stage) -> None:
    model = script(stage, [], {"Write.": [turn(call("write", path="w.txt", content="w\n")), DONE]})
    played = begin(stage, model, agents=("scout",), fan=FanRequest(("Write.",)))
    assert played.ending == "done" and wakes(played.events, "scout") == []
