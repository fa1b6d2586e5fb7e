"""The agents of a fan-out as lines of a table. Pure: what they are, the time and the size of the terminal in, lines
out."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from agent.fans import SETTLED, Stage
from agent.roster import AgentLine, BackgroundLine
from eventlog.effects import RunTool
from frontends.terminal.escape import columns, safe_line, shorten
from frontends.terminal.lines import call_line

_WIDE = 60
"""From here on there is room between the columns, and an agent has its whole name."""
_STAGE, _TIME, _COST = 10, 7, 8
_TASK = 12
"""What is left of a task before other columns get room."""
_COUNTED: tuple[Stage, ...] = (*SETTLED, *(stage for stage in get_args(Stage) if stage not in SETTLED))


@dataclass(frozen=True, slots=True)
class _Widths:
    """Of the columns; 0 where one is left out."""

    gap: int
    name: int
    task: int
    doing: int
    time: int
    cost: int


def table_lines(agents: Sequence[AgentLine], width: int, height: int | None, now_us: int) -> list[str]:
    """At most `height` lines of less than `width` columns, so that none wraps. Where there are more agents than lines
    the last one counts those that are settled, and whoever else has no line. No `height`: a line for each."""
    shown = list(agents) if height is None or len(agents) <= height else _choose(agents, height - 1)
    widths = _share(max(width - 1, 1), agents)
    lines = [shorten(_line(agent, widths, now_us), max(width - 1, 1)) for agent in shown]
    if len(shown) == len(agents) or (height is not None and height < 1):
        return lines
    hidden = Counter(agent.stage for agent in agents)
    hidden.subtract(agent.stage for agent in shown)
    counts = ", ".join(f"{hidden[stage]} {stage}" for stage in _COUNTED if hidden[stage])
    return [*lines, shorten(counts, max(width - 1, 1))]


def _choose(agents: Sequence[AgentLine], room: int) -> list[AgentLine]:
    """Those that something happens to before those that wait, in the order of their tasks; none that is settled."""
    rest = [agent for agent in agents if agent.stage not in SETTLED]
    first = sorted(rest, key=lambda agent: agent.stage == "waiting")[: max(room, 0)]
    names = {agent.agent for agent in first}
    return [agent for agent in rest if agent.agent in names]


def _share(room: int, agents: Sequence[AgentLine]) -> _Widths:
    """What is no task takes its room from the left-over of the task's: the time first, then the cost, then what an
    agent does."""
    gap = 2 if room >= _WIDE else 1
    name = max((columns(_name(agent, gap)) for agent in agents), default=0)
    task = room - name - _STAGE - 2 * gap
    time = _TIME if task - _TIME - gap >= _TASK else 0
    task -= time and time + gap
    cost = _COST if task - _COST - gap >= _TASK else 0
    task -= cost and cost + gap
    both = task - gap
    doing = both - max(2 * both // 5, _TASK) if both >= 3 * _TASK else 0
    return _Widths(gap, name, max(task - (doing and doing + gap), 0), doing, time, cost)


def _line(agent: AgentLine, widths: _Widths, now_us: int) -> str:
    again = f" {agent.round}" if agent.stage == "working" and agent.round > 1 else ""
    cost = "?" if agent.cost_usd is None else f"${agent.cost_usd:.4f}"
    cells = (
        _left(_name(agent, widths.gap), widths.name),
        _left(safe_line(first_line(agent.task)), widths.task),
        _left(f"{agent.stage}{again}", _STAGE),
        _left(doing(agent), widths.doing),
        _took(agent, now_us).rjust(widths.time) if widths.time else "",
        cost.rjust(widths.cost) if widths.cost else "",
    )
    return (" " * widths.gap).join(cell for cell in cells if cell).rstrip()


def _name(agent: AgentLine, gap: int) -> str:
    """In a narrow terminal its number alone."""
    return safe_line(agent.agent if gap > 1 else agent.agent.rpartition("-")[2])


def _left(text: str, width: int) -> str:
    if width < 1:
        return ""
    text = shorten(text, width)
    return text + " " * (width - columns(text))


def _took(agent: AgentLine, now_us: int) -> str:
    """Since it began, or until it was at its end: minutes and seconds, with hours where there are any."""
    if agent.began_us is None:
        return ""
    end_us = now_us if agent.ended_us is None else agent.ended_us
    # The clock may have been set back meanwhile.
    minutes, seconds = divmod(max(end_us - agent.began_us, 0) // 1_000_000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def doing(line: AgentLine | BackgroundLine) -> str:
    """What it does now, in one line; empty where nothing."""
    if line.doing is None:
        return ""
    return (
        call_line(line.doing.tool, line.doing.arguments) if isinstance(line.doing, RunTool) else "waits for the model"
    )


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
