"""One session on a terminal, in a pipe, or as JSON lines."""

import json
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Literal, TextIO, assert_never

from agent.models.client import Delta, TextDelta
from agent.standing import Standing
from configs.places import read_variables
from eventlog.effects import AskUser
from eventlog.events import EffectFinished, Event
from eventlog.ids import MAIN, AgentId, CallId
from eventlog.outcomes import Cancelled, ModelFailed, ModelReplied
from eventlog.seams import SystemClock
from frontends.terminal.bottom import Bottom, can_redraw, size_of
from frontends.terminal.escape import safe, safe_line
from frontends.terminal.lines import Seen, lines_of, question_lines, warning_lines
from frontends.terminal.live import LiveTable

Format = Literal["text", "json", "stream-json"]


@dataclass(slots=True)
class Screen:
    """Prints events as they come. Text goes on as the model writes it only where a person watches."""

    session: str
    format: Format
    out: TextIO = field(default_factory=lambda: sys.stdout)
    actor: AgentId = MAIN
    """Whose doings are shown in full."""
    seen: Seen = field(default_factory=Seen)
    streamed: bool = False
    held: list[str] = field(default_factory=list)
    """Lines of what happened while a reply was being written: they stand behind it, not in it."""
    table: LiveTable | None = None
    """In text, where a person watches: the agents of a fan-out, below all that is printed."""

    def on_event(self, event: Event) -> None:
        match self.format:
            case "text":
                self._print_lines(event, self.table.take(event) if self.table is not None else [])
                if self.table is not None:
                    self.table.draw()
            case "stream-json":
                self._write(event.model_dump_json() + "\n")
            case "json":
                # Before the model is used; the one object that a program waits for comes after.
                for line in warning_lines(event.body):
                    print(line, file=sys.stderr, flush=True)
            case _:
                assert_never(self.format)

    def take_past(self, events: Iterable[Event]) -> None:
        """From before what is to be shown, where a fan-out is under way since."""
        if self.table is not None:
            for event in events:
                self.table.take_past(event)

    def watching(self) -> AbstractAsyncContextManager[None]:
        """Around a session that goes on: what is shown of it keeps up with the time and the terminal."""
        return self.table.ticking() if self.table is not None else nullcontext()

    def on_delta(self, delta: Delta) -> None:
        if self.format == "text" and self.out.isatty() and isinstance(delta, TextDelta) and delta.text:
            self.streamed = True
            self._write(safe(delta.text))

    def take_up(self, standing: Standing) -> None:
        """Where a resumed session stands: its lines go on from there."""
        self.seen.window = standing.window
        self.seen.spent = standing.spent_usd

    def say(self, line: str) -> None:
        """A line of our own; not in JSON."""
        if self.format == "text":
            self._write(line + "\n")

    def show_question(self, call: CallId, question: AskUser) -> None:
        """Where it does not stand there yet: it was asked in an earlier run."""
        if call not in self.seen.started:
            for line in question_lines(question):
                self.say(line)

    def finish(self, standing: Standing, exit_code: int, files: tuple[str, ...]) -> None:
        result = summarize(self.session, standing, exit_code)
        if self.format != "text":
            self._write(json.dumps(result, ensure_ascii=False) + "\n")
            return
        usage = standing.usage
        share = f" · context {100 * standing.context_tokens / self.seen.window:.0f} %" if self.seen.window else ""
        cost = " · cost unknown" if standing.unpriced else f" · ${standing.spent_usd:.4f}"
        tokens = usage.input + usage.output
        named = str(result["state"]).replace("_", " ")
        self.say(f"── {named} · {standing.model_calls} model calls · {tokens:,} tokens{share}{cost}")
        if standing.asks:
            self.say(f"a question waits for you: thalia resume {self.session} on a terminal asks it")
        for name in files:
            self.say(f"   {safe_line(name)}")
        if files and not standing.merged and standing.worktree is not None:
            self.say(f"see it: thalia diff {self.session}    take it: thalia merge {self.session}")

    def _print_lines(self, event: Event, before: Sequence[str]) -> None:
        lines = [*before, *lines_of(event, self.seen, self.actor)]
        if self.streamed:
            body = event.body
            own = event.actor == self.actor
            outcome = body.outcome if own and isinstance(body, EffectFinished) else None
            if not isinstance(outcome, ModelReplied | ModelFailed | Cancelled):
                self.held += lines
                return
            self._write("\n")
            # Of a whole reply the text stands there already.
            lines = [*(lines[-1:] if isinstance(outcome, ModelReplied) else lines), *self.held]
            self.streamed, self.held = False, []
        self._write("".join(f"{line}\n" for line in lines))

    def _write(self, text: str) -> None:
        if self.table is not None:
            self.table.write(text)
        else:
            self.out.write(text)
            self.out.flush()


def make_screen(session: str, format: Format, actor: AgentId = MAIN) -> Screen:
    """On the standard output, with a table of agents where that shows all of a session and can be redrawn."""
    out, screen = sys.stdout, Screen(session, format, actor=actor)
    if format == "text" and actor == MAIN and can_redraw(out, read_variables()):
        screen.table = LiveTable(Bottom(out, lambda: size_of(out)), SystemClock())
    return screen


def summarize(session: str, standing: Standing, exit_code: int) -> dict[str, object]:
    """What `--output-format json` ends with."""
    return {
        "session": session,
        "state": standing.ending or ("waiting" if standing.asks else "running"),
        "result": standing.result,
        "exit_code": exit_code,
        "turns": standing.turn_calls,
        "usage": standing.usage.model_dump(),
        "cost_usd": None if standing.unpriced else round(standing.spent_usd, 6),
        "worktree": standing.worktree,
        "commit": standing.commit,
    }
