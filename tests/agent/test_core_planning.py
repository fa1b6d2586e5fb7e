"""From a call to an intent, a question or a refusal; nothing on the disk is changed by it."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from agent.decide import Ask, Plan, Reject, Start
from agent.models.requests import RequestCache, build_request
from agent.permissions.rules import parse_rules
from agent.planning import BUDGETED_OUTPUT_TOKENS, Surroundings, ToolPlanner, reserve
from agent.prompt import build_system
from agent.results import text_for_model
from agent.state import PendingCall, State
from eventlog.effects import CallModel, RunTool
from eventlog.ids import MAIN, CallId, Commit, Digest
from eventlog.messages import ToolCall
from eventlog.outcomes import Cancelled, Conflicted, OutcomeUnknown, ToolFailed, ToolSucceeded, WorktreeReady
from eventlog.seams import FixedClock
from tests.agent.core_bodies import (
    BASE,
    CONTEXT,
    FULL_CONTEXT,
    finished,
    fold_bodies,
    limits,
    mode,
    said,
    started,
    tool,
)
from tests.agent.core_bodies import MAKE as MAKE_WORKTREE


class Room:
    """A worktree with files beside the user's checkout, and a planner that looks at them."""

    def __init__(self, folder: Path, rules: Mapping[str, list[str]] | None = None, **around: bool) -> None:
        self.worktree, self.checkout = folder / "worktree", folder / "checkout"
        for place in (self.worktree, self.checkout):
            place.mkdir()
            (place / "a.txt").write_text("one\n")
        surroundings = Surroundings(
            checkout=self.checkout, home=folder / "home", agent=MAIN,
            sandbox_works=around.get("sandbox_works", True), own_worktree=around.get("own_worktree", True),
        )  # fmt: skip
        written = {"allow": [], "ask": [], "deny": [], **(rules or {})}
        self.planner = ToolPlanner(parse_rules(written), surroundings, RequestCache(), FixedClock())

    def state(self, name: str = "auto", attended: bool = False, sandbox: str = "workspace-write") -> State:
        ready = WorktreeReady(path=str(self.worktree), base=BASE)
        opening = (FULL_CONTEXT, mode(name, attended, sandbox), started("w1", MAKE_WORKTREE), finished("w1", ready))
        return fold_bodies([*opening, said("Do it.")])

    def plan(self, name: str, arguments: object, state: State | None = None, **call: object) -> Plan:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        asked = ToolCall(id=CallId("c1_1"), provider_id="p", name=name, arguments=text)
        return self.planner.plan_tool(state or self.state(), PendingCall(asked, **call))  # type: ignore[arg-type] # fields by name


def rejected(plan: Plan) -> str:
    assert isinstance(plan, Reject), plan
    return f"{plan.rejection.why}: {plan.rejection.text}"


def effect(plan: Plan) -> RunTool:
    assert isinstance(plan, Start) and isinstance(plan.effect, RunTool), plan
    return plan.effect


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_an_edit_carries_the_hashes_before_and_after(tmp_path: Path) -> None:
    room = Room(tmp_path)
    (change,) = effect(room.plan("edit", {"path": "a.txt", "old_text": "one", "new_text": "two"})).changes
    assert (change.path, change.before, change.after) == ("a.txt", sha("one\n"), sha("two\n"))
    assert (room.worktree / "a.txt").read_text() == "one\n", "planning changes nothing"


def test_a_new_file_was_nothing_before_and_a_deleted_one_is_nothing_after(tmp_path: Path) -> None:
    room = Room(tmp_path)
    (new,) = effect(room.plan("write", {"path": "n.txt", "content": "n"})).changes
    assert (new.before, new.after) == (None, sha("n"))
    patch = "*** Begin Patch\n*** Delete File: a.txt\n*** End Patch\n"
    (gone,) = effect(room.plan("apply_patch", {"patch": patch})).changes
    assert (gone.before, gone.after) == (sha("one\n"), None)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("shell", {"command": "curl -H [redacted:0123abcd]"}),
        ("write", {"path": "n.txt", "content": "[redacted:0123abcd]"}),
        ("read", {"path": "[redacted:0123abcd]"}),
    ],
)
def test_arguments_that_held_a_secret_are_refused(name: str, arguments: object, tmp_path: Path) -> None:
    assert rejected(Room(tmp_path).plan(name, arguments)).startswith("invalid: The arguments held a secret")


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("no_such_tool", {}, "There is no tool named 'no_such_tool'"),
        ("read", ["a.txt"], "are a JSON list"),
        ("read", '{"path": ' + "[" * 300 + "]" * 300 + "}", "not valid JSON"),
        ("read", '{"path": "a.txt"', "not valid JSON"),
        ("edit", {"path": "a.txt"}, "old_text is missing"),
        ("read", {"path": "a.txt", "wild": 1}, "wild is not known"),
    ],
    ids=["unknown tool", "list", "300 levels", "cut", "missing", "too much"],
)
def test_a_call_that_cannot_be_read_gets_one_sentence(name: str, arguments: object, told: str, tmp_path: Path) -> None:
    answer = rejected(Room(tmp_path).plan(name, arguments))
    assert answer.startswith("invalid: ") and told in answer


def test_a_deny_rule_denies_whatever_the_mode(tmp_path: Path) -> None:
    room = Room(tmp_path, {"deny": ["shell(rm *)", "read(secrets/**)", "edit(a.txt)"]})
    for name in ("auto", "ask", "bypass"):
        state = room.state(name)
        assert rejected(room.plan("shell", {"command": "true && rm -r x"}, state)).startswith("denied")
        assert rejected(room.plan("read", {"path": "secrets/key"}, state)).startswith("denied")
        edit = room.plan("edit", {"path": "a.txt", "old_text": "one", "new_text": "two"}, state)
        assert rejected(edit).startswith("denied")


@pytest.mark.parametrize("path", ["../outside.txt", "/etc/passwd", "~/x", "../worktree-evil/x", "a/../../o"])
def test_nothing_outside_the_worktree_is_written(path: str, tmp_path: Path) -> None:
    answer = rejected(Room(tmp_path).plan("write", {"path": path, "content": "x"}))
    assert answer.split(":")[0] in ("denied", "invalid")


def test_the_users_checkout_is_refused_and_the_right_place_named(tmp_path: Path) -> None:
    room = Room(tmp_path)
    path = str(room.checkout / "a.txt")
    assert "a.txt" in rejected(room.plan("edit", {"path": path, "old_text": "one", "new_text": "two"}))
    assert rejected(room.plan("read", {"path": path})).startswith("denied")


def test_a_command_in_auto_runs_confined_and_names_its_snapshot(tmp_path: Path) -> None:
    planned = effect(Room(tmp_path).plan("shell", {"command": "make all"}))
    assert (planned.effect_class, planned.confined, planned.read_only) == ("command", True, False)
    assert planned.snapshot == BASE and not planned.restore_first


def test_a_command_that_only_reads_gets_nothing_it_could_write(tmp_path: Path) -> None:
    assert effect(Room(tmp_path).plan("shell", {"command": "cat a.txt"})).read_only


def test_a_lost_command_is_restored_first_where_it_could_write(tmp_path: Path) -> None:
    room = Room(tmp_path)
    wrote = tool("shell", confined=True, snapshot=BASE)
    assert effect(room.plan("shell", {"command": "make all"}, lost=wrote)).restore_first
    read = tool("shell", confined=True, read_only=True)
    assert not effect(room.plan("shell", {"command": "cat a.txt"}, lost=read)).restore_first


def test_in_the_checkout_itself_nothing_is_ever_restored(tmp_path: Path) -> None:
    room = Room(tmp_path, own_worktree=False)
    planned = effect(room.plan("shell", {"command": "make all"}, lost=tool("shell", confined=True)))
    assert planned.snapshot is None and not planned.restore_first


@pytest.mark.parametrize("command", ["curl http://x.example", "git push origin main", "sudo ls"])
def test_what_must_leave_the_sandbox_is_withheld_where_nobody_is_there(command: str, tmp_path: Path) -> None:
    room = Room(tmp_path)
    planned = room.plan("shell", {"command": command})
    if command.startswith("curl"):
        assert effect(planned).confined, "no network is there to reach"
    else:
        assert rejected(planned).startswith("withheld: Not permitted unattended")


def test_a_question_binds_to_the_arguments_and_the_script_that_they_name(tmp_path: Path) -> None:
    room = Room(tmp_path)
    state = room.state("ask", attended=True)
    (room.worktree / "run.sh").write_text("echo 1\n")

    def binding(command: str) -> Digest:
        planned = room.plan("shell", {"command": command}, state)
        assert isinstance(planned, Ask)
        return planned.question.binding

    first = binding("bash run.sh")
    assert first == binding("bash run.sh") and first != binding("bash run.sh again")
    (room.worktree / "run.sh").write_text("echo 2\n")
    assert first != binding("bash run.sh")


def test_an_approved_call_starts_only_with_the_binding_that_was_approved(tmp_path: Path) -> None:
    room = Room(tmp_path)
    state = room.state("ask", attended=True)
    asked = room.plan("shell", {"command": "make all"}, state)
    assert isinstance(asked, Ask)
    good = room.plan("shell", {"command": "make all"}, state, status="approved", binding=asked.question.binding)
    assert effect(good).allowed_by.startswith("approved by the user")
    other = room.plan("shell", {"command": "make all"}, state, status="approved", binding=Digest("f" * 64))
    assert isinstance(other, Ask), "it is asked again"


def test_an_approval_of_an_edit_binds_to_what_the_file_was(tmp_path: Path) -> None:
    room = Room(tmp_path)
    state = room.state("ask", attended=True)
    arguments = {"path": "a.txt", "old_text": "one", "new_text": "two"}
    asked = room.plan("edit", arguments, state)
    assert isinstance(asked, Ask)
    (room.worktree / "a.txt").write_text("one and more\n")
    assert isinstance(room.plan("edit", arguments, state, status="approved", binding=asked.question.binding), Ask)


@pytest.mark.parametrize("name", ["plan", "auto"])
def test_a_session_that_only_reads_writes_nothing(name: str, tmp_path: Path) -> None:
    room = Room(tmp_path)
    state = room.state(name, sandbox="read-only")
    assert rejected(room.plan("write", {"path": "n", "content": "x"}, state)).startswith("denied")
    assert rejected(room.plan("commit", {"message": "x"}, state)).startswith("denied")


def test_a_request_is_announced_with_its_hash_and_what_it_may_cost(tmp_path: Path) -> None:
    room = Room(tmp_path)
    state = room.state()
    priced = CONTEXT.model_copy(update={"input_usd": 2.0, "cached_usd": 1.0, "output_usd": 10.0, "token_bound": 1000})
    call = room.planner.plan_model(fold_bodies([priced], state), CallId("c1"))
    body = build_request(priced, state.messages, 1000)
    assert (call.request_hash, call.request_bytes) == (hashlib.sha256(body).hexdigest(), len(body))
    assert call.reserved_usd == reserve(priced, len(body), 1000) == pytest.approx((len(body) / 4 * 2 + 10_000) / 1e6)
    assert reserve(CONTEXT, 10**6, 1000) == 0.0, "no price is known, so a budget is refused before"
    dearer = priced.model_copy(update={"cache_write_usd": 2.5})
    assert reserve(dearer, 4000, 1000) == pytest.approx((1000 * 2.5 + 10_000) / 1e6), "all may go into the cache"


BOUNDS = {"chat/1": "max_tokens", "responses/1": "max_output_tokens", "messages/1": "max_tokens"}
"""Where the body of a format says how long a reply may be."""
OWN = {"chat/1": '{"max_tokens":%d}', "responses/1": '{"max_output":%d}', "messages/1": '{"max_output":%d}'}
"""Parameters of a model that writes so much and no more."""


def planned_call(
    folder: Path, builder: str, own: int | None, token_bound: int | None, budget: float | None
) -> tuple[CallModel, int | None]:
    """The intent, and the bound that its body carries."""
    room = Room(folder)
    context = CONTEXT.model_copy(update={
        "builder": builder, "parameters": OWN[builder] % own if own else "{}", "token_bound": token_bound,
        "input_usd": 2.0, "cached_usd": 1.0, "output_usd": 10.0,
    })  # fmt: skip
    state = fold_bodies([context, *([limits(max_budget_usd=budget)] if budget else [])], room.state())
    call = room.planner.plan_model(state, CallId("c1"))
    body = build_request(context, state.messages, call.max_output_tokens)
    assert (call.request_hash, call.request_bytes) == (hashlib.sha256(body).hexdigest(), len(body))
    return call, json.loads(body).get(BOUNDS[builder])


@pytest.mark.parametrize("budget", [None, 9.0])
@pytest.mark.parametrize("token_bound", [None, 1000])
@pytest.mark.parametrize("own", [None, 500, 64_000])
@pytest.mark.parametrize("builder", BOUNDS)
def test_what_is_set_aside_is_what_the_body_lets_the_model_write(
    builder: str, own: int | None, token_bound: int | None, budget: float | None, tmp_path: Path
) -> None:
    call, asked = planned_call(tmp_path, builder, own, token_bound, budget)
    written = BUDGETED_OUTPUT_TOKENS if asked is None else asked
    assert call.reserved_usd == pytest.approx((call.request_bytes / 4 * 2 + written * 10) / 1e6)
    wanted = token_bound or (BUDGETED_OUTPUT_TOKENS if budget else None)
    without = 32_000 if builder == "messages/1" else None
    assert asked == min((bound for bound in (wanted, own) if bound), default=without)


@pytest.mark.parametrize("builder", BOUNDS)
def test_a_budget_that_is_set_later_bounds_each_reply_too(builder: str, tmp_path: Path) -> None:
    call, asked = planned_call(tmp_path, builder, own=None, token_bound=None, budget=9.0)
    assert call.max_output_tokens == asked == BUDGETED_OUTPUT_TOKENS


def test_the_system_prompt_is_the_same_for_the_same_inputs_and_holds_each() -> None:
    values = {"platform": "Linux", "date": "2026-01-02", "mode": "auto", "sandbox": "off"}
    prompt = build_system(**values, instructions="Use tabs.", extra="Be terse.")
    assert prompt == build_system(**values, instructions="Use tabs.", extra="Be terse.")
    for text in (*values.values(), "Use tabs.", "Be terse."):
        assert text in prompt
    assert "settings say" not in build_system(**values, instructions="", extra=" ")


def test_no_two_kinds_of_outcome_sound_alike_and_none_is_empty() -> None:
    told = [
        text_for_model(ToolSucceeded(text="")),
        text_for_model(ToolFailed(text="", exit_code=3)),
        text_for_model(Conflicted(text="a.txt changed", found=None)),
        text_for_model(Cancelled(text="", started=True)),
        text_for_model(Cancelled(text="", started=False)),
        text_for_model(OutcomeUnknown(evidence="it began")),
    ]
    assert len({text[:12] for text in told}) == 6 and all(told)
    assert "may have run" in told[5] and "fail" not in told[5].lower()


def test_a_commit_names_the_snapshot_and_the_time(tmp_path: Path) -> None:
    room = Room(tmp_path)
    planned = effect(room.plan("commit", {"message": "x"}))
    assert planned.snapshot == Commit(BASE) and planned.at_s == 1_700_000_000
