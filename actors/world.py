"""Where a session's effects happen in this process. Each started effect puts exactly one outcome into the inbox."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar, assert_never

from actors.agent_lease import fenced
from actors.agents import Agents
from actors.carrier import Carrier, carry_nothing
from actors.commands import CommandOutcome, Commands
from actors.fan_parts import FanParts
from actors.files import Place, SessionFiles
from actors.models import Models
from actors.programs import Programs
from agent.models.client import ModelRequest, OnDelta, prices_of
from agent.models.requests import RequestCache
from agent.recovery import (
    Ended,
    Evidence,
    FilesAfter,
    FilesBefore,
    FilesOther,
    NeverBegan,
    StillRuns,
    Vanished,
    settle_all,
    vanish,
)
from agent.state import OpenEffect, State, replace
from agent.tools.edits import PlannedEdit
from agent.tools.files import apply_edit, check_edit, discard_temps, plan_edit, redo
from agent.tools.reading import run_reading
from agent.tools.schemas import (
    AskAgentArguments,
    CommitArguments,
    EditArguments,
    FanOutArguments,
    Invalid,
    PatchArguments,
    ReportArguments,
    ShellArguments,
    SilenceArguments,
    WriteArguments,
    parse_arguments,
)
from agent.waking import is_ended
from configs.crash import reached
from configs.tools import OwnTool
from eventlog.effects import (
    AskAgent,
    AskUser,
    CallModel,
    CheckMerge,
    FanOut,
    MakeWorktree,
    MergeWork,
    PartOfFan,
    RestoreTree,
    RunTool,
    TakeSnapshot,
    WakeAgent,
)
from eventlog.events import Body, EffectFinished, EffectStarted
from eventlog.ids import CallId, Digest
from eventlog.outcomes import Cancelled, Outcome, OutcomeUnknown, Refused, SnapshotTaken, ToolFailed, ToolSucceeded
from processes.commands import Confinement, Done, NotStarted, Running
from processes.folder import holding
from worktrees.git import GitError

P = ParamSpec("P")
R = TypeVar("R")


class LocalWorld:
    def __init__(
        self,
        files: SessionFiles,
        commands: Commands,
        models: Models,
        requests: RequestCache,
        may_read: Callable[[State, Path, str], bool],
        on_delta: OnDelta,
        readable: tuple[Path, ...] = (),
        performing: Callable[[], AbstractContextManager[object]] = nullcontext,
        tools: Mapping[str, OwnTool] | None = None,
        agents: Agents | None = None,
        carrier: Carrier = carry_nothing,
    ) -> None:
        """`agents` are the others of its session, for the main agent. `performing` stands around all that changes files
        or refs, and refuses an agent that was replaced; its commands have the same fence in the process around each
        (commands.py). `carrier` sees to it that what an effect made is not lost with this machine."""
        self._performing, self._carrier = performing, carrier
        self._programs = Programs(commands, tools or {})
        self._files, self._commands, self._models, self._may_read = files, commands, models, may_read
        self._requests, self._on_delta, self._readable = requests, on_delta, readable
        self._tasks: dict[CallId, asyncio.Task[None]] = {}
        self._late: set[asyncio.Task[None]] = set()
        self._intents: dict[CallId, EffectStarted] = {}
        self._threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="effect")
        self._agents = agents
        self._parts = FanParts(files, commands, agents, self._confine, self._change) if agents is not None else None

    @property
    def _carries(self) -> bool:
        return self._carrier is not carry_nothing

    @property
    def _crew(self) -> Agents:
        assert self._agents is not None, "only the main agent has others"
        return self._agents

    @property
    def _fan_parts(self) -> FanParts:
        assert self._parts is not None, "an agent of a fan-out begins none"
        return self._parts

    def start(self, intent: EffectStarted, state: State, put: Callable[[Body | Exception], None]) -> None:
        if isinstance(intent.effect, AskUser | FanOut | AskAgent):
            return
        self._intents[intent.call_id] = intent
        # The body is taken now: the cache moves on with the conversation.
        effect = intent.effect
        body = self._requests.body(effect.max_output_tokens) if isinstance(effect, CallModel) else b""
        task = asyncio.create_task(self._carry_out(intent, state, body, put))
        task.add_done_callback(lambda ended: _tell_defect(ended, put))
        self._tasks[intent.call_id] = task

    def interrupt(self, call_id: CallId) -> None:
        intent = self._intents.get(call_id)
        if intent is None:
            return
        if isinstance(intent.effect, PartOfFan):
            self._fan_parts.interrupt(call_id, intent.attempt, intent.effect)
            return
        match intent.effect:
            case WakeAgent(agent=agent):
                self._crew.interrupt(agent)
            case CallModel():
                self._tasks[call_id].cancel()
            case RunTool(effect_class="command" | "external"):
                if not self._commands.cancel(call_id, intent.attempt):
                    late = asyncio.create_task(self._cancel_later(call_id, intent.attempt))
                    self._late.add(late)
                    late.add_done_callback(self._late.discard)
            case _:
                # Short, and better whole than half.
                pass

    async def _cancel_later(self, call_id: CallId, attempt: int) -> None:
        """For a command that is just about to begin: it can be told once it has."""
        while call_id in self._tasks:
            if self._commands.cancel(call_id, attempt):
                return
            await asyncio.sleep(0.01)

    async def close(self) -> None:
        """Ends our own tasks; commands that still run outlive this process and are found again."""
        tasks = [*self._tasks.values(), *self._late]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._models.close()
        self._threads.shutdown(wait=True)

    def settle(self, state: State) -> tuple[Sequence[Body], Sequence[EffectStarted]]:
        self._commands.discard_inputs()
        # What this process began itself, nobody has left.
        left = {call_id: item for call_id, item in state.open.items() if call_id not in self._intents}
        return settle_all(replace(state, open=left), lambda call_id, item: self._evidence(call_id, item, state))

    def _evidence(self, call_id: CallId, item: OpenEffect, state: State) -> Evidence:
        effect = item.effect
        if isinstance(effect, TakeSnapshot) and state.snapshot is not None and state.snapshot != effect.parent:
            # The tree was set back to what this one would have held.
            return Ended(SnapshotTaken(commit=state.snapshot, changed=True))
        if isinstance(effect, CheckMerge):
            return self._fan_parts.look(call_id, item.attempt)
        if not isinstance(effect, RunTool):
            return NeverBegan()
        if effect.effect_class == "edit" and state.worktree is not None:
            return _look_at_files(Path(state.worktree.path), effect)
        if effect.effect_class == "external":
            seen = self._programs.look(call_id, item.attempt, effect, stopped=state.interrupting)
            return StillRuns() if isinstance(seen, Ended) and self._carries else seen
        if effect.effect_class != "command":
            return NeverBegan()
        found = self._commands.inspect(call_id, item.attempt)
        match found:
            case Done() if item.shaken and not (effect.confined and effect.read_only):
                return Vanished("it ended right before the machine was started anew; what it wrote may be gone")
            case Done(result) if result.cancelled and not state.interrupting:
                # Nobody renewed the lease of its agent: not a person's wish.
                return Vanished("it was ended because nobody looked after it")
            case Done() if self._carries:
                # Its result is at hand, and what it wrote has to go to the session before that is recorded.
                return StillRuns()
            case _:
                return self._commands.evidence(call_id, item.attempt, found)

    async def _carry_out(
        self, intent: EffectStarted, state: State, body: bytes, put: Callable[[Body | Exception], None]
    ) -> None:
        reached(f"before_{intent.effect.kind}")
        try:
            outcome = await self._perform(intent, state, body)
        except asyncio.CancelledError:
            if not isinstance(intent.effect, CallModel) or intent.call_id not in self._intents:
                raise
            outcome = Cancelled(text="The reply was not waited for.", started=True)
        except GitError as error:
            text = str(error)
            outcome = ToolFailed(text=text) if isinstance(intent.effect, RunTool) else Refused(text=text)
        finally:
            self._tasks.pop(intent.call_id, None)
            self._intents.pop(intent.call_id, None)
        await self._carrier(intent, state, outcome)
        reached(f"after_{intent.effect.kind}")
        put(EffectFinished(call_id=intent.call_id, attempt=intent.attempt, outcome=outcome))

    async def _perform(self, intent: EffectStarted, state: State, body: bytes) -> Outcome:
        effect = intent.effect
        if isinstance(effect, PartOfFan):
            return await self._fan_parts.perform(intent.call_id, intent.attempt, effect, state)
        match effect:
            case CallModel():
                return await self._call_model(intent.call_id, intent.attempt, effect, state, body)
            case RunTool():
                return await self._run_tool(intent.call_id, intent.attempt, effect, state)
            case MakeWorktree():
                torn = state.open[intent.call_id].shaken
                return await self._change(self._files.make_worktree, effect, torn)
            case TakeSnapshot():
                return await self._change(self._files.take_snapshot, self._place(state), effect, state.torn)
            case RestoreTree():
                return await self._change(self._files.restore_tree, self._place(state), effect, state.torn)
            case MergeWork():
                return await self._change(self._files.merge, intent.call_id, effect)
            case WakeAgent():
                return await self._wake(intent.attempt, effect, state)
            case AskUser() | FanOut() | AskAgent():
                raise AssertionError("a question and a fan-out are not carried out")
            case _:
                assert_never(effect)

    async def _call_model(self, call_id: CallId, attempt: int, effect: CallModel, state: State, body: bytes) -> Outcome:
        if effect.delay_ms:
            await asyncio.sleep(effect.delay_ms / 1000)
        context = state.context
        assert context is not None
        request = ModelRequest(call_id, body, prices_of(context), sent_before=attempt - 1)
        return await self._models.client(context).complete(request, self._on_delta)

    async def _wake(self, attempt: int, effect: WakeAgent, state: State) -> Outcome:
        if state.interrupting or is_ended(state, effect):
            # An earlier process may have died before the agent heard of it.
            self._crew.interrupt(effect.agent)
        return await self._crew.run(effect, attempt, state)

    async def _run_tool(self, call_id: CallId, attempt: int, effect: RunTool, state: State) -> Outcome:
        place = self._place(state)
        if effect.effect_class == "external":
            return await self._programs.run(call_id, attempt, effect, place.path)
        arguments = parse_arguments(effect.tool, effect.arguments)
        if isinstance(arguments, Invalid):
            return ToolFailed(text=arguments.text)
        match arguments:
            case ShellArguments():
                return await self._run_command(call_id, attempt, effect, arguments, place)
            case CommitArguments():
                parent = state.work or (state.worktree.base if state.worktree else None)
                assert parent is not None
                return await self._change(self._files.commit, call_id, effect, arguments.message, parent)
            case WriteArguments() | EditArguments() | PatchArguments():
                return await self._change(_edit, place.path, effect, state.seen)
            case ReportArguments() | SilenceArguments():
                return ToolSucceeded(text="Noted.")
            case FanOutArguments() | AskAgentArguments():
                raise AssertionError("each of these is an effect of its own")
            case _:
                main = self._files.repository.root if place.worktree is not None else None
                readable = partial(self._may_read, state, place.path)
                return (await self._in_thread(run_reading, place.path, arguments, main, readable)).outcome

    async def _run_command(
        self, call_id: CallId, attempt: int, effect: RunTool, arguments: ShellArguments, place: Place
    ) -> Outcome:
        found = self._commands.inspect(call_id, attempt)
        if isinstance(found, Running):
            return _lost(effect, attempt, await self._commands.attach(call_id, attempt))
        lost: tuple[str, ...] = ()
        if effect.restore_first and effect.snapshot is not None and isinstance(found, NotStarted):
            # Held, so that no wrapper of the lost attempt can begin or write while its traces are removed.
            with holding(str(self._commands.folder(call_id, attempt - 1))) as free:
                if not free:
                    return OutcomeUnknown(evidence="processes of the lost run still live; nothing was set back")
                try:
                    await self._change(self._files.restore, place, effect.snapshot)
                except GitError as error:
                    return OutcomeUnknown(evidence=f"the worktree could not be set back: {error}")
            lost = self._files.ignored_since(place, self._commands.began_us(call_id, attempt - 1))
        confinement = self._confine(effect.read_only, place) if effect.confined else None
        project = self._files.project(place)
        outcome = await self._commands.run(call_id, attempt, effect, arguments, confinement, place.path, project)
        if isinstance(outcome, OutcomeUnknown):
            return _lost(effect, attempt, outcome)
        if lost:
            note = f"{outcome.text}\n(Ignored files that the lost run had changed were kept: {', '.join(lost)})"
            return outcome.model_copy(update={"text": note})
        return outcome

    def _confine(self, read_only: bool, place: Place) -> Confinement:
        repository, project = self._files.repository, self._files.project(place)
        git_file = place.path / ".git" if place.worktree is not None else None
        return Confinement(
            writable=() if read_only else (place.path,),
            readable=(*project.readable, *self._readable, *((place.path,) if read_only else ())),
            git_dir=repository.common_dir,
            git_file=git_file,
            binds=tuple((bind.source, bind.target) for bind in project.binds if place.worktree is not None),
        )

    def _place(self, state: State) -> Place:
        assert state.worktree is not None
        return self._files.place(state.worktree)

    async def _change(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Raises what `performing` raises; then nothing was changed."""
        return await self._in_thread(fenced(self._performing, call), *args, **kwargs)

    async def _in_thread(self, call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: call(*args, **kwargs))


def _tell_defect(task: asyncio.Task[None], put: Callable[[Body | Exception], None]) -> None:
    """Without an outcome the session would wait for ever."""
    if not task.cancelled() and isinstance(defect := task.exception(), Exception):
        put(defect)


def _lost(effect: RunTool, attempt: int, outcome: CommandOutcome) -> Outcome:
    """What is unknown of a confined command is no loss: it can be undone."""
    return vanish(effect, attempt, outcome.evidence) if isinstance(outcome, OutcomeUnknown) else outcome


def _edit(worktree: Path, effect: RunTool, seen: Mapping[str, Digest]) -> Outcome:
    planned = plan_edit(worktree, effect.tool, effect.arguments, seen)
    if isinstance(planned, PlannedEdit) and planned.intent == effect.changes:
        return apply_edit(worktree, planned, reached)
    # Half done before a crash, or changed since it was announced.
    return redo(worktree, effect.tool, effect.arguments, effect.changes, reached)


def _look_at_files(worktree: Path, effect: RunTool) -> Evidence:
    files = check_edit(worktree, effect.changes)
    others = [file for file in files if file.at == "other"]
    if not others and any(file.at == "before" for file in files):
        return FilesBefore()
    # It is not taken up again, so nobody else removes what its attempt had prepared.
    discard_temps(worktree, effect.changes)
    return FilesOther(others[0].path, others[0].found) if others else FilesAfter()
