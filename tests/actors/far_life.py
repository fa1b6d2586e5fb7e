"""An agent that works on one machine after the other, with its session's repository at home: real repositories, and
events as the session's log would hold them."""

import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from door_visits import SCOUT as AGENT
from door_visits import House, open_house

from actors.courier import Recipient
from actors.distance import Distance
from actors.door_requests import Move as RefMove
from actors.elsewhere import Elsewhere
from actors.files import Place, SessionFiles, open_files
from actors.moving import capture_after
from actors.receiving import store_bundle, take_delivered
from agent.apply import apply
from agent.left_over import LeftOver, left_behind
from agent.state import State
from agent.tools.edits import PlannedEdit
from agent.tools.files import apply_edit, plan_edit
from configs.settings import Settings
from eventlog.effects import Effect, MakeWorktree, RestoreTree, RunTool, TakeSnapshot
from eventlog.events import Body, Draft, EffectFinished, EffectStarted, Event, LeaseGranted
from eventlog.ids import MAIN, AgentId, CallId, Commit, SessionId
from eventlog.outcomes import Outcome, SnapshotTaken, ToolSucceeded, WorktreeReady
from eventlog.seams import Prepared
from tests.worktrees.repositories import content, make_repository, plain_git
from worktrees.bundle import held_commits, make_bundle, refs_below
from worktrees.mirror import mirror_settings, open_mirror

SESSION = SessionId("s")
NOW = 1_800_000_000
FILES: Mapping[str, str | bytes] = {
    "a.txt": "one\ntwo\n",
    "gone.txt": "gone\n",
    "raw": bytes(range(256)),
    "unended": "no line end",
    "src/deep/b.py": "b = 1\n",
    ".gitignore": "*.log\n",
}


@dataclass(frozen=True, slots=True)
class Home:
    """The session's node."""

    folder: Path
    files: SessionFiles
    """The agent's."""
    head: Commit

    @property
    def variables(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": str(self.folder)}

    @property
    def refs(self) -> dict[str, str]:
        return refs_below(self.files.repository, self.files.refs)

    def give(self, node: str) -> Elsewhere:
        refs = {ref: Commit(commit) for ref, commit in self.refs.items()}
        settings = mirror_settings(self.files.repository, self.variables)
        return Elsewhere(node=node, mirror=settings, settings=Settings(), base=self.head, refs=refs)


def make_home(folder: Path, files: Mapping[str, str | bytes] = FILES) -> Home:
    root = make_repository(folder / "user", dict(files))
    (root / "link").symlink_to("a.txt")
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o755)
    plain_git(root, "add", "-A")
    plain_git(root, "commit", "-qm", "more")
    (folder / "session").mkdir()
    return open_home(folder)


def open_home(folder: Path) -> Home:
    """One that was made already."""
    variables = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    whole = open_files(SESSION, folder / "user", folder / "state", folder / "scratch", variables)
    return Home(folder, whole.of_agent(AGENT), Commit(whole.repository.head))


@dataclass(slots=True)
class Life:
    """Of one agent, over all its incarnations; also the log that holds it."""

    home: Home
    node: str = ""
    events: list[Event] = field(default_factory=list)
    state: State = field(default_factory=State)
    lease: int = 0
    calls: int = 0

    # Where it is

    @property
    def files(self) -> SessionFiles:
        """The agent's, on its node."""
        if not self.node:
            return self.home.files
        state = self.home.folder / f"node-{self.node}"
        settings = mirror_settings(self.home.files.repository, self.home.variables)
        mirror = open_mirror(state / "mirrors", "one", settings, self.home.variables)
        return SessionFiles(SessionId(self.home.files.key), mirror, state, state / "scratch", self.home.variables)

    @property
    def left(self) -> LeftOver | None:
        return left_behind(self.events, AGENT)

    @property
    def place(self) -> Place:
        assert self.state.worktree is not None
        return self.files.place(self.state.worktree)

    @property
    def found(self) -> dict[str, tuple[str, bytes]]:
        """Its files, but those that git ignores."""
        kept = content(self.place.path)
        return {name: kind for name, kind in kept.items() if not name.endswith(".log")}

    def come_to(self, node: str) -> None:
        """The next incarnation, with what it is given there."""
        self.node = node
        self.lease += 1
        self.put(LeaseGranted(agent=AGENT, lease=self.lease, node=node), actor=MAIN)
        if node:
            files, given = self.files, self.home.give(node)
            bundle = make_bundle(self.home.files.repository, given.wanted, held_commits(files.repository))
            Distance(SESSION, Path("none"), given, bundle).take_in(files)

    def recipient(self, door: Path) -> Recipient:
        given = self.home.give(self.node)
        return Recipient(door, SESSION, AGENT, self.lease, given.refs, (given.base,))

    def deliver(self) -> None:
        """As the courier does with the door's help."""
        files, held = self.files, self.home.refs
        moved = {ref: new for ref, new in refs_below(files.repository, files.refs).items() if held.get(ref) != new}
        if not self.node or not moved:
            return
        bundle = make_bundle(files.repository, moved, (self.home.head, *held.values()))
        name, below = hashlib.sha256(bundle).hexdigest(), len(files.refs) + 1
        moves = {ref[below:]: RefMove(old=_commit(held.get(ref)), new=Commit(new)) for ref, new in moved.items()}
        store_bundle(self.home.folder / "session", name, bundle)
        take_delivered(self.home.files, self.home.folder / "session", name, moves)

    # Its log

    def prepare(self, draft: Draft) -> Prepared:
        return Prepared(draft, b"")

    async def append(self, prepared: Sequence[Prepared]) -> tuple[Event, ...]:
        before = len(self.events)
        self.put(*(one.draft.body for one in prepared))
        return tuple(self.events[before:])

    def read(self, after_seq: int = 0) -> Iterator[Event]:
        return iter(self.events[after_seq:])

    def checkpoint_when_large(self) -> None:
        return

    # What it does

    def put(self, *bodies: Body, actor: AgentId = AGENT) -> None:
        for body in bodies:
            seq = len(self.events) + 1
            common = {"session": SESSION, "epoch": 1, "actor_seq": None, "causation": None, "version": 1}
            self.events.append(Event(seq=seq, ts_us=seq, actor=actor, lease=self.lease, body=body, **common))
            if actor == AGENT:
                self.state = apply(self.state, body)

    def do(self, effect: Effect, work: Callable[[CallId], Outcome], name: str = "") -> Outcome:
        """Intent, effect, outcome; `work` also delivers what has to be."""
        self.calls += 1
        call = CallId(name or f"c{self.calls}")
        self.put(EffectStarted(call_id=call, attempt=1, effect=effect))
        outcome = work(call)
        self.put(EffectFinished(call_id=call, attempt=1, outcome=outcome))
        return outcome

    def begin(self) -> None:
        effect = MakeWorktree(repository="", head=self.home.head, carry_dirty=False, at_s=NOW)
        ready = self.do(effect, lambda call: self.files.make_worktree(effect), "w1")
        assert isinstance(ready, WorktreeReady)

    def edit(self, tool: str, **arguments: str) -> RunTool:
        given, place = json.dumps(arguments), self.place
        planned = plan_edit(place.path, tool, given, self.state.seen)
        assert isinstance(planned, PlannedEdit), planned
        effect = RunTool(tool=tool, arguments=given, effect_class="edit", allowed_by="a test", changes=planned.intent)
        outcome = self.do(effect, lambda call: apply_edit(place.path, planned))
        assert isinstance(outcome, ToolSucceeded)
        return effect

    def patch(self, *lines: str) -> RunTool:
        return self.edit("apply_patch", patch="\n".join(("*** Begin Patch", *lines, "*** End Patch")))

    def command(self, work: Callable[[Path], object], *, arrives: bool = True) -> None:
        """A command that does this to the worktree. `arrives`: whether the session gets what it left."""

        def run(call: CallId) -> Outcome:
            work(self.place.path)
            if self.node and arrives:
                capture_after(self.files, self.state, (call, 1))
                self.deliver()
            return ToolSucceeded(text="", wrote=True)

        self.do(shell(), run)

    def snapshot(self) -> Commit:
        assert self.state.snapshot is not None
        effect = TakeSnapshot(parent=self.state.snapshot, at_s=NOW + self.calls, reason="test")

        def take(call: CallId) -> Outcome:
            taken = self.files.take_snapshot(self.place, effect)
            self.deliver()
            return taken

        taken = self.do(effect, take)
        assert isinstance(taken, SnapshotTaken)
        return taken.commit

    def restore(self, commit: Commit) -> None:
        effect = RestoreTree(commit=commit, at_s=NOW)

        def go_back(call: CallId) -> Outcome:
            outcome = self.files.restore_tree(self.place, effect)
            self.deliver()
            return outcome

        assert isinstance(self.do(effect, go_back), SnapshotTaken)


def shell(**more: object) -> RunTool:
    values = {"tool": "shell", "arguments": "{}", "effect_class": "command", "allowed_by": "a test", **more}
    return RunTool.model_validate(values)


def work_on(life: Life) -> None:
    """All that a log knows of, in this order: a snapshot, edits, a command, edits after it; and files of all kinds."""
    life.edit("write", path="first.txt", content="1\n")
    life.snapshot()
    life.edit("edit", path="a.txt", old_text="two\n", new_text="two and more")
    life.command(_change)
    life.patch("*** Update File: src/deep/b.py", "@@", "-b = 1", "+b = 2")
    life.patch("*** Delete File: second.txt", "*** Add File: third/new.txt", "+3")


def _change(root: Path) -> None:
    (root / "gone.txt").unlink()
    (root / "second.txt").write_text("2\n")
    (root / "link").unlink()
    (root / "link").symlink_to("nowhere/at/all")
    (root / "raw").write_bytes(b"\r\n\0\xff")
    (root / "run").chmod(0o644)
    (root / "tool").write_text("#!/bin/sh")
    (root / "tool").chmod(0o755)
    (root / "out.log").write_text("ignored\n")


def _commit(name: str | None) -> Commit | None:
    return None if name is None else Commit(name)


@asynccontextmanager
async def living(folder: Path) -> AsyncIterator[tuple[House, Life]]:
    """A session, and an agent of it that has its worktree on a first machine."""
    async with open_house(folder) as house:
        await house.grant()
        files = house.coordinator.files.of_agent(AGENT)
        life = Life(Home(folder, files, Commit(files.repository.head)))
        life.come_to("A")
        life.begin()
        yield house, life
