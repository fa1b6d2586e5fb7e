"""What each agent of a session's fan-outs is, as its log tells it."""

import weakref
from collections.abc import Iterator

from agent.fanning import make_fan
from agent.roster import AgentLine, Roster, list_agents
from eventlog.effects import CallModel, RunTool
from eventlog.events import Event, Forked, Interrupted, LeaseGranted, Rewound
from eventlog.ids import AgentId, CallId, CommandId, SessionId
from eventlog.messages import Usage
from eventlog.outcomes import AgentsRetired, AttemptLost, BranchAdvanced, MergePrepared, Refused
from tests.agent.core_bodies import OPENING, done, finished, model_call, replied, started, tool
from tests.agent.core_book import SECOND, Book, begun
from tests.agent.core_fans import FanPlanner, Room, asked, by_model, by_person, commit, conflicted, red, worked


def test_a_session_without_a_fan_out_has_no_agents() -> None:
    assert list_agents([]) == ()
    room = Room(FanPlanner())
    room.put(*OPENING)
    assert Book(room).lines == ()


def test_who_waits_for_its_turn_has_nothing_yet() -> None:
    _, waits = Book(by_person(jobs=1)).lines
    assert waits == AgentLine(AgentId("f1-2"), "two", "waiting", 0, None, None, 0.0, None, None)


def test_an_agent_at_work_is_told_by_what_it_began_last() -> None:
    book = Book(by_person())
    assert [line.doing for line in book.lines] == [None, None]
    book.agent("f1-1", *begun("f1-1"))
    line, other = book.lines
    assert (line.stage, line.round, line.worktree, line.commit) == ("working", 1, "/w1", None)
    assert isinstance(line.doing, CallModel)
    assert line.since_us == len(book.events) * SECOND
    assert (other.doing, other.since_us, other.worktree) == (None, None, None)

    book.agent("f1-1", finished("c1", replied("read", "read", cost=0.5)))
    book.agent("f1-1", started("c1_1", tool("read", arguments='{"path":"a"}')))
    book.agent("f1-1", started("c1_2", tool("read", arguments='{"path":"b"}')))
    last = len(book.events)
    book.agent("f1-2", *begun("f1-2", "/w2"))
    line, other = book.lines
    assert isinstance(line.doing, RunTool) and line.doing.arguments == '{"path":"b"}'
    assert line.since_us == last * SECOND, "its own last event, not another's"
    assert other.worktree == "/w2"

    book.agent("f1-1", finished("c1_2", done()))
    assert isinstance(book.lines[0].doing, RunTool) and book.lines[0].doing.arguments == '{"path":"a"}'
    book.agent("f1-1", finished("c1_1", done()))
    assert book.lines[0].doing is None


def test_an_agent_is_where_its_latest_lease_says() -> None:
    book = Book(by_person())
    book.main(LeaseGranted(agent=AgentId("f1-1"), lease=1, node="n1", host="gpu1"))
    assert [line.host for line in book.lines] == ["gpu1", ""]
    book.main(LeaseGranted(agent=AgentId("f1-1"), lease=2))
    assert [line.host for line in book.lines] == ["", ""]


def test_what_it_costs_is_known_before_its_round_is_over() -> None:
    book = Book(by_person())
    book.agent("f1-1", *begun("f1-1"), finished("c1", replied(cost=0.25)))
    book.agent("f1-2", *begun("f1-2"), finished("c1", replied()))
    assert [line.cost_usd for line in book.lines] == [0.25, None], "a missing price is never called free"
    book.room.end("f1-1_r1", worked("1", spent_usd=0.25, usage=Usage(input=1)))
    assert book.lines[0].cost_usd == 0.25


def test_what_an_attempt_may_have_cost_whose_process_died_counts() -> None:
    book = Book(by_person("one"))
    book.agent("f1-1", *begun("f1-1"), finished("c1", replied(cost=0.25)), started("c2", model_call()))
    book.room.end("f1-1_r1", AttemptLost(evidence="It died.", charged_usd=0.75))
    (line,) = book.lines
    assert (line.stage, line.round, line.cost_usd) == ("working", 1, 0.75), "the same round again"


def test_each_stage_is_told_until_the_work_is_merged() -> None:
    book = Book(by_person("one", check="make test"))
    told = [stage_and_commit(book)]
    for call, outcome in (
        ("r1", worked("1")),
        ("m1", MergePrepared(commit=commit("5"))),
        ("k1", done()),
        ("a1", BranchAdvanced(commit=commit("5"))),
    ):
        book.room.end(f"f1-1_{call}", outcome)
        told.append(stage_and_commit(book))
    stages = ("merging", "checking", "advancing", "merged")
    assert told == [("working", None), *((stage, commit("1")) for stage in stages)]


def stage_and_commit(book: Book) -> tuple[str, str | None]:
    (line,) = book.lines
    return line.stage, line.commit


def test_what_goes_back_is_at_work_again_in_the_next_round_with_the_commit_it_has() -> None:
    book = Book(by_person("one", check="make test"))
    book.agent("f1-1", *begun("f1-1"))
    book.room.end("f1-1_r1", worked("1"))
    book.room.end("f1-1_m1", conflicted("4"))
    (line,) = book.lines
    assert (line.stage, line.round, line.commit) == ("working", 2, commit("1"))
    book.room.prepare("f1-1", "5", round=2)
    book.room.end("f1-1_k2", red())
    (line,) = book.lines
    assert (line.stage, line.round, line.commit) == ("working", 3, commit("2"))
    book.room.prepare("f1-1", "6", round=3)
    book.room.end("f1-1_k3", red())
    (line,) = book.lines
    assert (line.stage, line.round, line.commit) == ("red", 3, commit("3"))


def test_a_worktree_is_told_until_it_is_given_back() -> None:
    book = Book(by_person())
    book.agent("f1-1", *begun("f1-1", "/w1"))
    book.agent("f1-2", *begun("f1-2", "/w2"))
    book.room.merge("f1-1", "5")
    book.room.end("f1-2_r1", worked(None))
    assert [line.worktree for line in book.lines] == ["/w1", "/w2"]
    book.room.end("f1_end", AgentsRetired(kept=("refs/thalia/s+f1-1/saved", "/w2 (a process works in it)")))
    assert [line.worktree for line in book.lines] == [None, "/w2"], "one that could not be given back is there still"


def test_worktrees_that_nobody_could_look_at_are_there_still() -> None:
    book = Book(by_person("one"))
    book.agent("f1-1", *begun("f1-1"))
    book.room.end("f1-1_r1", worked(None))
    book.room.end("f1_end", Refused(text="No git."))
    assert book.lines[0].worktree == "/w1"


def test_whoever_was_under_way_when_its_fan_out_ended_is_stopped() -> None:
    book = Book(by_person("one", "two", "three", jobs=2))
    book.agent("f1-1", *begun("f1-1"))
    book.room.put(Interrupted(id=CommandId("stop")))
    book.room.end("f1-1_r1", worked("1", "interrupted", "Interrupted."))
    book.room.end("f1-2_r1", worked("2"))
    assert [line.stage for line in book.lines] == ["stopped", "ready", "waiting"]
    book.room.end("f1_end", AgentsRetired())
    assert book.room.state.fan is None
    assert [line.stage for line in book.lines] == ["stopped"] * 3
    assert [line.commit for line in book.lines] == [commit("1"), commit("2"), None]
    assert [line.doing for line in book.lines] == [None] * 3, "its model call has no outcome, and nobody waits for it"


def test_fan_outs_stand_in_their_order_whoever_asked_for_them() -> None:
    book = Book(by_person("one"))
    book.room.merge("f1-1", "1")
    book.room.close("1")
    book.room.put(asked("two", "three", id="g"))
    assert [(line.agent, line.stage) for line in book.lines] == [
        ("f1-1", "merged"), ("f2-1", "working"), ("f2-2", "working"),
    ]  # fmt: skip
    assert [line.agent for line in Book(by_model()).lines] == ["c1_1-1", "c1_1-2"]


def test_a_rewind_ends_the_fan_out_that_was_under_way_and_the_next_one_is_told() -> None:
    book = Book(by_person("one"))
    book.agent("f1-1", *begun("f1-1"))
    book.main(Rewound(to_seq=2, saved=None, restored=None))
    (line,) = book.lines
    assert (line.stage, line.doing, line.worktree) == ("stopped", None, "/w1"), "nobody has given it back"
    again = make_fan(book.room.state, CallId("f2"), ("two",), None, "", "the user")
    book.main(asked("two", id="g"), started("f2", again))
    assert [(line.agent, line.stage) for line in book.lines] == [("f1-1", "stopped"), ("f2-1", "waiting")]


def test_the_worktrees_of_a_forks_past_are_another_sessions() -> None:
    book = Book(by_person("one"))
    book.agent("f1-1", *begun("f1-1"))
    book.main(Forked(session=SessionId("other"), seq=len(book.events)))
    (line,) = book.lines
    assert (line.stage, line.worktree, line.doing) == ("stopped", None, None)


def test_no_event_is_kept() -> None:
    book = Book(by_person())
    book.agent("f1-1", *begun("f1-1"))
    alive = weakref.WeakSet[Event]()
    most = 0

    def fresh() -> Iterator[Event]:
        nonlocal most
        for event in book.events:
            copy = event.model_copy()
            alive.add(copy)
            yield copy
            del copy
            most = max(most, len(alive))

    assert len(list_agents(fresh())) == 2
    assert most <= 1


def test_when_an_agent_began_and_when_it_was_at_its_end_is_known() -> None:
    book = Book(by_person(jobs=1))
    first = len(book.room.story)
    assert [(line.began_us, line.ended_us) for line in book.lines] == [(first * SECOND, None), (None, None)]
    book.agent("f1-1", *begun("f1-1"))
    book.room.merge("f1-1", "5")
    one, two = book.lines
    merged = one.ended_us
    assert one.began_us == first * SECOND and merged is not None and merged > first * SECOND
    assert two.began_us is not None and two.began_us > first * SECOND and two.ended_us is None
    book.room.put(Interrupted(id=CommandId("stop")))
    book.room.end("f1-2_r1", worked("2", "interrupted", "Interrupted."))
    book.room.end("f1_end", AgentsRetired())
    one, two = book.lines
    ended = [event.ts_us for event in book.events if getattr(event.body, "call_id", "") == "f1"][-1]
    assert one.ended_us == merged, "not when the others were"
    assert two.stage == "stopped" and two.ended_us is not None and merged < two.ended_us <= ended


def test_whoever_never_began_is_at_its_end_with_the_fan_out() -> None:
    book = Book(by_person(jobs=1))
    book.room.put(Interrupted(id=CommandId("stop")))
    book.room.end("f1-1_r1", worked(None, "interrupted", "Interrupted."))
    book.room.end("f1_end", AgentsRetired())
    _, two = book.lines
    assert (two.stage, two.began_us) == ("stopped", None) and two.ended_us is not None


def test_events_can_be_taken_one_after_the_other_from_where_no_fan_out_was_under_way() -> None:
    book = Book(by_person("one"))
    book.room.merge("f1-1", "1")
    book.room.close("1")
    past = len(book.log)
    book.room.put(asked("two", "three", id="g"))
    roster, under_way = Roster(), []
    for event in book.log[past:]:
        roster.take(event)
        under_way.append(roster.under_way)
    assert under_way[0] is None and roster.under_way is not None
    assert (
        [line.task for line in roster.lines(roster.under_way)]
        == ["two", "three"]
        == [line.task for line in roster.lines()]
    )


def test_the_agents_of_one_fan_out_can_be_asked_for() -> None:
    book = Book(by_person("one"))
    book.room.merge("f1-1", "1")
    book.room.close("1")
    book.room.put(asked("two", "three", id="g"))
    roster = Roster()
    for event in book.log:
        roster.take(event)
    assert roster.under_way == "f2"
    assert [line.agent for line in roster.lines(CallId("f1"))] == ["f1-1"]
    assert [line.agent for line in roster.lines(CallId("f2"))] == ["f2-1", "f2-2"]
