"""From a call that the model asked for to an intent, a question or a refusal. Looks at files, changes none."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from agent.decide import Ask, Plan, Reject, Start
from agent.fanning import make_fan
from agent.models.client import most_usd, prices_of
from agent.models.requests import RequestCache, format_named
from agent.permissions import shell
from agent.permissions.approvals import digest_of
from agent.permissions.facts import CommandFacts, Folders, gather, script_files
from agent.permissions.judge import judge_command, judge_file, judge_tool
from agent.permissions.paths import PathFacts, locate
from agent.permissions.rules import Rules
from agent.permissions.verdicts import Allow, Deny, Verdict, strictest
from agent.permissions.verdicts import Ask as AskVerdict
from agent.state import PendingCall, State
from agent.tools.edits import EditRefused
from agent.tools.files import plan_edit
from agent.tools.own import read_arguments
from agent.tools.schemas import (
    AskAgentArguments,
    CommitArguments,
    EditArguments,
    FanOutArguments,
    GlobArguments,
    GrepArguments,
    Invalid,
    PatchArguments,
    ReadArguments,
    ReadingArguments,
    ReportArguments,
    ShellArguments,
    SilenceArguments,
    TodoArguments,
    WriteArguments,
    offered_tools,
    parse_arguments,
    tool_named,
)
from configs.tools import OwnTool
from eventlog.effects import AskAgent, AskUser, CallModel, FanOut, FileChange, RunTool
from eventlog.events import CallRejected, ContextSet
from eventlog.ids import MAIN, AgentId, CallId, Commit, Digest
from eventlog.redact import has_marker
from eventlog.seams import Clock

BUDGETED_OUTPUT_TOKENS = 8192
"""What a reply is bounded to where a budget must hold and nothing else bounds it; and what a lost reply is assumed to
have come to where nothing did."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a verdict depends on besides the call."""

    checkout: Path
    """The user's own; an agent's paths never lead there."""
    home: Path
    agent: str
    sandbox_works: bool
    own_worktree: bool
    """False with --in-place."""
    git_runs_programs: bool = False
    session: str = ""
    """Its id, which no other session has: a part of the keys that other sides know calls by."""
    tools: Mapping[str, OwnTool] = field(default_factory=dict)
    """The user's own, by name."""
    changed_between: Callable[[Commit, Commit], Sequence[str]] = lambda before, after: ()
    """Paths that differ between two commits; empty also where that cannot be found out."""


_NO_MORE_RIGHTS: Verdict = Allow("its agents may what this session may")


class ToolPlanner:
    """The shipped Planner."""

    def __init__(self, rules: Rules, around: Surroundings, requests: RequestCache, clock: Clock) -> None:
        self._rules, self._around, self._requests, self._clock = rules, around, requests, clock

    def now_s(self) -> int:
        return self._clock.now_us() // 1_000_000

    def confines(self, state: State) -> bool:
        return self._around.sandbox_works and state.mode.sandbox != "off"

    def changed_between(self, before: Commit, after: Commit) -> Sequence[str]:
        return self._around.changed_between(before, after)

    def writes(self, tool: str) -> bool:
        known = tool_named(tool)
        return tool in self._around.tools or (known is not None and known.effect_class != "read")

    def may_read(self, state: State, worktree: Path, path: str) -> bool:
        """Whether a search may show a file. A question nobody asked counts as no."""
        return isinstance(judge_file(self._locate(worktree, path), "read", state.mode.mode, self._rules), Allow)

    def plan_model(self, state: State, call_id: CallId) -> CallModel:
        context = state.context
        assert context is not None
        self._requests.update(context, state.messages)
        bound = output_bound(context, budgeted=state.limits.max_budget_usd is not None)
        size = self._requests.size(bound)
        return CallModel(
            model=context.model,
            builder=context.builder,
            request_hash=self._requests.digest(bound),
            request_bytes=size,
            messages=len(state.messages),
            max_output_tokens=bound,
            reserved_usd=reserve(context, size, bound),
        )

    def plan_setup(self, state: State) -> RunTool:
        assert state.context is not None
        return RunTool(
            tool="shell",
            arguments=json.dumps({"command": state.context.setup}),
            effect_class="command",
            allowed_by="the user's settings",
            snapshot=state.snapshot if _restorable(state, self._around) else None,
            confined=self.confines(state),
            restore_first=state.setups > 0 and _restorable(state, self._around),
        )

    def plan_tool(self, state: State, call: PendingCall) -> Plan:
        asked = call.call
        if has_marker(asked.arguments):
            return _reject(
                call, "invalid", "The arguments held a secret, which is never kept or run; refer to it by name."
            )
        if state.context is not None and asked.name not in (offered := offered_tools(state.context.tools)):
            return _reject(
                call, "invalid", f"There is no tool named {asked.name[:80]!r}; the tools are {', '.join(offered)}."
            )
        if (own := self._around.tools.get(asked.name)) is not None:
            return self._plan_own(state, call, own)
        arguments = parse_arguments(asked.name, asked.arguments)
        if isinstance(arguments, Invalid):
            return _reject(call, "invalid", arguments.text)
        worktree = Path(state.worktree.path) if state.worktree else self._around.checkout
        match arguments:
            case ReadArguments() | GlobArguments() | GrepArguments() | TodoArguments():
                return self._plan_read(state, call, arguments, worktree)
            case WriteArguments() | EditArguments() | PatchArguments():
                return self._plan_edit(state, call, worktree)
            case ShellArguments():
                return self._plan_shell(state, call, arguments, worktree)
            case CommitArguments():
                return self._plan_commit(state, call)
            case FanOutArguments():
                return self._plan_fan_out(state, call, arguments, worktree)
            case AskAgentArguments():
                return _plan_question(state, call, arguments)
            case ReportArguments() | SilenceArguments():
                effect = RunTool(
                    tool=call.call.name, arguments=call.call.arguments, effect_class="read", allowed_by="it is told"
                )
                return Start(effect)
            case _:
                assert_never(arguments)

    def _plan_read(self, state: State, call: PendingCall, arguments: ReadingArguments, worktree: Path) -> Plan:
        path = getattr(arguments, "path", None)
        verdict: Verdict = Allow("it reads nothing")
        if path is not None:
            verdict = judge_file(self._locate(worktree, path), "read", state.mode.mode, self._rules)
        effect = RunTool(
            tool=call.call.name, arguments=call.call.arguments or "{}", effect_class="read", allowed_by=_words(verdict)
        )
        return self._rule(state, call, effect, verdict, {})

    def _plan_edit(self, state: State, call: PendingCall, worktree: Path) -> Plan:
        if state.mode.sandbox == "read-only":
            return _reject(call, "denied", "The sandbox is read-only: nothing is written in this session.")
        name, main = call.call.name, self._around.checkout if self._around.own_worktree else None
        planned = plan_edit(worktree, name, call.call.arguments, state.seen, main)
        if isinstance(planned, EditRefused):
            return _reject(call, "invalid", planned.text)
        changes = planned.intent
        facts = [self._locate(worktree, change.path) for change in changes]
        verdict = strictest(*(judge_file(fact, "write", state.mode.mode, self._rules) for fact in facts))
        effect = RunTool(
            tool=call.call.name,
            arguments=call.call.arguments,
            effect_class="edit",
            allowed_by=_words(verdict),
            changes=changes,
        )
        return self._rule(state, call, effect, verdict, _images(changes))

    def _plan_shell(self, state: State, call: PendingCall, arguments: ShellArguments, worktree: Path) -> Plan:
        around, mode, confined = self._around, state.mode, self.confines(state)
        parsed = shell.parse(arguments.command)
        facts = self._gather(state, parsed, worktree)
        verdict = judge_command(parsed, facts, mode.mode, mode.sandbox, self._rules)
        scripts = {str(path): _digest(path) for path in script_files(parsed, worktree)}
        only_reads = confined and isinstance(judge_command(parsed, facts, "plan", mode.sandbox, self._rules), Allow)
        # What a person let out of the sandbox runs outside it; all else stays in.
        leaves = isinstance(verdict, AskVerdict) and bool(verdict.why_sandbox_is_not_enough)
        effect = RunTool(
            tool="shell",
            arguments=call.call.arguments,
            effect_class="command",
            allowed_by=_words(verdict),
            snapshot=state.snapshot if _restorable(state, around) else None,
            confined=confined and not leaves,
            # What is known to read only cannot write either, and so needs no snapshot before or after it.
            read_only=only_reads or mode.mode == "plan" or mode.sandbox == "read-only",
            restore_first=_needs_restore(call) and _restorable(state, around),
        )
        return self._rule(state, call, effect, verdict, scripts)

    def _gather(self, state: State, parsed: shell.Parsed | shell.NotUnderstood, worktree: Path) -> CommandFacts:
        around = self._around
        return gather(
            parsed,
            Folders(worktree, worktree, around.checkout if around.own_worktree else None, around.home),
            confined=self.confines(state),
            own_worktree=around.own_worktree,
            git_runs_programs=around.git_runs_programs,
        )

    def _plan_fan_out(self, state: State, call: PendingCall, arguments: FanOutArguments, worktree: Path) -> Plan:
        """Its agents have no right that this session has not; its check is judged as a command of this session is."""
        if self._around.agent != MAIN:
            return _reject(call, "invalid", "You are one of several agents yourself; do all of your task.")
        if not _restorable(state, self._around) or state.snapshot is None:
            return _reject(call, "invalid", "Agents need snapshots and a worktree, which this session does without.")
        check, verdict = arguments.check or "", _NO_MORE_RIGHTS
        if check:
            parsed = shell.parse(check)
            facts = self._gather(state, parsed, worktree)
            verdict = judge_command(parsed, facts, state.mode.mode, state.mode.sandbox, self._rules)
            if isinstance(verdict, AskVerdict) and verdict.why_sandbox_is_not_enough and self.confines(state):
                return _reject(call, "denied", f"The check runs inside the sandbox alone: {verdict.reason}")
        effect = make_fan(state, call.call.id, arguments.tasks, arguments.jobs, check, _words(verdict))
        return self._rule(state, call, effect, verdict, {})

    def _plan_commit(self, state: State, call: PendingCall) -> Plan:
        if state.mode.mode == "plan" or state.mode.sandbox == "read-only":
            return _reject(call, "denied", "This session only reads; nothing is committed.")
        if state.context is None or not state.context.snapshots:
            return _reject(call, "invalid", "Commits need snapshots, which are off in this session.")
        verdict = Allow("it commits under the session's own ref")
        effect = RunTool(
            tool="commit",
            arguments=call.call.arguments,
            effect_class="commit",
            allowed_by=_words(verdict),
            snapshot=state.snapshot,
            at_s=self.now_s(),
        )
        return self._rule(state, call, effect, verdict, {})

    def _plan_own(self, state: State, call: PendingCall, own: OwnTool) -> Plan:
        name = call.call.name
        arguments = read_arguments(name, own, call.call.arguments)
        if isinstance(arguments, Invalid):
            return _reject(call, "invalid", arguments.text)
        verdict = judge_tool(name, state.mode.mode, self._rules, external=True)
        effect = RunTool(
            tool=name,
            arguments=arguments,
            effect_class="external",
            allowed_by=_words(verdict),
            program=own.command,
            key=_key(self._around.session, call.call.id, name, arguments),
        )
        return self._rule(state, call, effect, verdict, _program(own.command))

    def _rule(
        self, state: State, call: PendingCall, effect: RunTool | FanOut, verdict: Verdict, contents: Mapping[str, str]
    ) -> Plan:
        """From a verdict to a plan. An approval counts for exactly what it was given for."""
        tool, given = call.call.name, effect.arguments if isinstance(effect, RunTool) else call.call.arguments
        match verdict:
            case Allow():
                return Start(effect)
            case Deny(reason):
                return _reject(call, "denied", reason)
            case AskVerdict(reason):
                folder = state.worktree.path if state.worktree else ""
                arguments = json.loads(given or "{}")
                binding = Digest(digest_of(tool, arguments, folder, self._around.agent, contents))
                carried = call.lost is not None and isinstance(effect, RunTool) and call.lost.program == effect.program
                if carried or (call.status == "approved" and call.binding == binding):
                    return Start(effect.model_copy(update={"allowed_by": f"approved by the user: {reason}"}))
                if not state.mode.attended:
                    text = (
                        f"Not permitted unattended, so it did not run: {reason} Find another way, or say what you need."
                    )
                    return _reject(call, "withheld", text)
                return Ask(AskUser(about=call.call.id, tool=tool, arguments=given, reason=reason, binding=binding))

    def _locate(self, worktree: Path, path: str) -> PathFacts:
        main = self._around.checkout if self._around.own_worktree else None
        return locate(worktree, path, main_checkout=main, home=self._around.home)


def output_bound(context: ContextSet, *, budgeted: bool) -> int | None:
    """Output tokens that a request is to ask for; None leaves it to its format. Never more than the model gives, and
    some number where a budget is kept, be it one that was set after the session began."""
    wanted = context.token_bound or (BUDGETED_OUTPUT_TOKENS if budgeted else None)
    own = format_named(context.builder).bound(context, None)
    return wanted if wanted is None or own is None else min(wanted, own)


def reserve(context: ContextSet, request_bytes: int, max_output_tokens: int | None) -> float:
    """USD that a call may cost at most: no input from a cache, all used of the output that its body asks for; an
    estimate where it sets no bound. 0 where no price is known."""
    asked = format_named(context.builder).bound(context, max_output_tokens)
    return most_usd(request_bytes, asked or BUDGETED_OUTPUT_TOKENS, prices_of(context))


def _plan_question(state: State, call: PendingCall, arguments: AskAgentArguments) -> Plan:
    names = [one.agent for one in state.crew]
    if arguments.agent not in names:
        there = f"there are {', '.join(names)}" if names else "this session has none"
        return _reject(call, "invalid", f"There is no background agent {arguments.agent[:80]!r}; {there}.")
    effect = AskAgent(agent=AgentId(arguments.agent), question=arguments.question, allowed_by="it only asks")
    return Start(effect)


def _needs_restore(call: PendingCall) -> bool:
    """Whether a lost attempt may have left traces that can be removed."""
    return call.lost is not None and call.lost.confined and not call.lost.read_only


def _restorable(state: State, around: Surroundings) -> bool:
    return around.own_worktree and state.context is not None and state.context.snapshots


def _reject(call: PendingCall, why: str, text: str) -> Reject:
    return Reject(CallRejected.model_validate({"call_id": call.call.id, "why": why, "text": text}))


def _words(verdict: Verdict) -> str:
    return verdict.reason


def _images(changes: tuple[FileChange, ...]) -> dict[str, str]:
    return {change.path: f"{change.before}>{change.after}" for change in changes}


def _key(session: str, call_id: CallId, tool: str, arguments: str) -> str:
    """The same for each attempt at a call. A log that lost its end to damage gives call ids again, so what is called
    counts too: another call never has the key of one that was done."""
    return f"{session}-{call_id}-{hashlib.sha256(f'{tool} {arguments}'.encode()).hexdigest()[:8]}"


def _program(words: tuple[str, ...]) -> dict[str, str]:
    """What a yes to a program of the user's is also bound to: its words, and the files that they name."""
    files = {word: _digest(Path(word)) for word in words if word.startswith("/") and Path(word).is_file()}
    return {"program": json.dumps(words), **files}


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return "unreadable"
