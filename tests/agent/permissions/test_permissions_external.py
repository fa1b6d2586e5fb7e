"""When a tool of the user's own may run: what acts outside is asked for, whatever the mode, unless a rule allows it."""

import json
from pathlib import Path

import pytest

from agent.decide import Ask, Plan, Reject, Start
from agent.models.requests import RequestCache
from agent.permissions.judge import judge_tool
from agent.permissions.rules import parse_rules
from agent.permissions.verdicts import Allow, Deny
from agent.permissions.verdicts import Ask as AskVerdict
from agent.planning import Surroundings, ToolPlanner
from agent.state import PendingCall, State
from agent.tools.schemas import tools_json
from configs.tools import OwnTool
from eventlog.effects import RunTool
from eventlog.ids import MAIN, CallId
from eventlog.messages import ToolCall
from eventlog.outcomes import WorktreeReady
from eventlog.seams import FixedClock
from tests.agent.core_bodies import BASE, CONTEXT, MAKE, finished, fold_bodies, mode, said, started


def own(program: Path, *words: str) -> OwnTool:
    return OwnTool(description="Deploys.", command=(str(program), *words))


def planner(folder: Path, tool: OwnTool, **rules: list[str]) -> ToolPlanner:
    around = Surroundings(
        checkout=folder, home=folder, agent=MAIN, sandbox_works=True, own_worktree=True, session="s1",
        tools={"deploy": tool},
    )  # fmt: skip
    return ToolPlanner(parse_rules(rules), around, RequestCache(), FixedClock())


def state(folder: Path, name: str, attended: bool = True, sandbox: str = "workspace-write") -> State:
    ready = WorktreeReady(path=str(folder), base=BASE)
    context = CONTEXT.model_copy(update={"tools": tools_json((), {"deploy": own(Path("/deploy"))})})
    opening = (context, mode(name, attended, sandbox), started("w1", MAKE), finished("w1", ready), said("Do it."))
    return fold_bodies(opening)


def call(to: str = "live", **values: object) -> PendingCall:
    asked = ToolCall(id=CallId("c1_1"), provider_id="p", name="deploy", arguments=json.dumps({"to": to}))
    return PendingCall(asked, **values)  # type: ignore[arg-type] # fields by name


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "deploy"
    path.write_text("one")
    return path


def verdict_of(plan: Plan) -> str:
    match plan:
        case Start():
            return "runs"
        case Ask():
            return "asked"
        case Reject(rejection):
            return rejection.why


@pytest.mark.parametrize(
    ("name", "attended", "rules", "expected"),
    [
        ("ask", True, {}, "asked"),
        ("auto", True, {}, "asked"),
        ("ask", False, {}, "withheld"),
        ("auto", False, {}, "withheld"),
        ("plan", True, {}, "denied"),
        ("bypass", True, {}, "runs"),
        ("auto", False, {"allow": ["deploy"]}, "runs"),
        ("ask", True, {"allow": ["deploy"]}, "runs"),
        ("plan", True, {"allow": ["deploy"]}, "denied"),
        ("auto", True, {"allow": ["deploy"], "ask": ["deploy"]}, "asked"),
        ("auto", False, {"allow": ["deploy"], "deny": ["deploy"]}, "denied"),
        ("bypass", True, {"deny": ["deploy"]}, "denied"),
        ("auto", False, {"allow": ["shell", "read", "edit"]}, "withheld"),
        ("auto", False, {"allow": ["deploy(test)"]}, "withheld"),
        ("auto", True, {"allow": ["deploy"], "deny": ["deploy(live)"]}, "denied"),
    ],
)
def test_the_mode_and_the_rules_decide(
    name: str, attended: bool, rules: dict[str, list[str]], expected: str, tmp_path: Path, program: Path
) -> None:
    plan = planner(tmp_path, own(program), **rules).plan_tool(state(tmp_path, name, attended), call())
    assert verdict_of(plan) == expected


def test_a_rule_whose_pattern_nobody_understands_tightens_and_never_loosens() -> None:
    rules = parse_rules({"allow": ["a(x)"], "deny": ["b(x)"], "ask": ["c(x)"]})
    verdicts = [judge_tool(name, "auto", rules, external=name != "c") for name in "abc"]
    assert [type(verdict) for verdict in verdicts] == [AskVerdict, Deny, AskVerdict]
    assert isinstance(judge_tool("a", "auto", parse_rules({"allow": ["a(*)"]}), external=True), Allow)


def asked(plan: Plan) -> Ask:
    assert isinstance(plan, Ask), plan
    return plan


def test_a_yes_is_for_these_arguments_this_program_and_no_others(tmp_path: Path, program: Path) -> None:
    one, now = planner(tmp_path, own(program)), state(tmp_path, "ask")
    binding = asked(one.plan_tool(now, call())).question.binding
    assert verdict_of(one.plan_tool(now, call(status="approved", binding=binding))) == "runs"
    assert verdict_of(one.plan_tool(now, call("test", status="approved", binding=binding))) == "asked"
    other = planner(tmp_path, own(program, "--force"))
    assert verdict_of(other.plan_tool(now, call(status="approved", binding=binding))) == "asked"
    program.write_text("two")
    assert verdict_of(one.plan_tool(now, call(status="approved", binding=binding))) == "asked"


def test_it_holds_for_another_attempt_of_the_same_call_with_the_same_program(tmp_path: Path, program: Path) -> None:
    plan = planner(tmp_path, own(program)).plan_tool(state(tmp_path, "bypass"), call())
    assert isinstance(plan, Start)
    now = state(tmp_path, "ask", attended=False)
    assert verdict_of(planner(tmp_path, own(program)).plan_tool(now, call(lost=plan.effect))) == "runs"
    assert verdict_of(planner(tmp_path, own(program, "-f")).plan_tool(now, call(lost=plan.effect))) == "withheld"


def test_the_intent_says_what_will_run_and_by_which_key(tmp_path: Path, program: Path) -> None:
    plan = planner(tmp_path, own(program, "post"), allow=["deploy"]).plan_tool(state(tmp_path, "auto"), call())
    assert isinstance(plan, Start)
    assert plan.effect == RunTool(
        tool="deploy",
        arguments='{"to":"live"}',
        effect_class="external",
        allowed_by="the rule deploy",
        program=(str(program), "post"),
        key="s1-c1_1-2c9e8e2f",
    )


def test_another_call_has_another_key_even_where_its_id_was_given_before(tmp_path: Path, program: Path) -> None:
    one, now = planner(tmp_path, own(program)), state(tmp_path, "bypass")
    plans = [one.plan_tool(now, call(to)) for to in ("live", "test", "live")]
    keys = [plan.effect.key for plan in plans if isinstance(plan, Start) and isinstance(plan.effect, RunTool)]
    assert keys[0] == keys[2] != keys[1]


def test_it_is_one_of_those_that_run_alone(tmp_path: Path, program: Path) -> None:
    assert planner(tmp_path, own(program)).writes("deploy")


def test_arguments_that_do_not_fit_or_held_a_secret_are_never_asked_about(tmp_path: Path, program: Path) -> None:
    tool = own(program).model_copy(update={"parameters": {"type": "object", "required": ["from"]}})
    now = state(tmp_path, "bypass")
    assert verdict_of(planner(tmp_path, tool).plan_tool(now, call())) == "invalid"
    assert verdict_of(planner(tmp_path, own(program)).plan_tool(now, call("[redacted:0123abcd]"))) == "invalid"
