"""The words and parts of a parsed shell command: values only, nothing of the grammar."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

Place = Literal["pipeline", "substitution", "subshell", "function", "control", "heredoc", "script"]


@dataclass(frozen=True, slots=True)
class Dynamic:
    """A word whose value only the running shell knows."""

    text: str
    """The word as it was written."""
    one_word: bool = True
    """False where splitting or expansion can make several words, or none, of it."""
    glob: str | None = None
    """The pattern, where nothing but file name expansion makes the word dynamic."""


Word = str | Dynamic


@dataclass(frozen=True, slots=True)
class Redirect:
    operator: str
    target: Word | None
    """None for a duplicated or closed descriptor, a heredoc and a here-string."""

    @property
    def writes(self) -> bool:
        return ">" in self.operator


@dataclass(frozen=True, slots=True)
class Part:
    """One simple command, wrappers such as `env` or `timeout` already taken off."""

    program: str | None
    """As written, with quotes removed; empty for assignments or redirects alone; None where it is dynamic."""
    args: tuple[Word, ...] = ()
    assignments: tuple[tuple[str, Word], ...] = ()
    """Variables set for this command or, without a program, in the shell; in the order written."""
    redirects: tuple[Redirect, ...] = ()
    places: tuple[Place, ...] = ()
    """What the command stands in, outermost first; empty at the top level."""
    background: bool = False
    wrappers: tuple[str, ...] = ()
    """The programs that start this one, outermost first: ("sudo", "timeout")."""

    @property
    def text(self) -> str:
        """The command in one line, for a sentence to a person; not meant to be run."""
        words = (self.program if self.program is not None else "", *self.args)
        return " ".join(word if isinstance(word, str) else word.text for word in words).strip()


@dataclass(frozen=True, slots=True)
class Parsed:
    parts: tuple[Part, ...]
    """Every simple command at any depth, in the order of the text, the inner of two before the outer."""


@dataclass(frozen=True, slots=True)
class NotUnderstood:
    reason: str


def path_candidates(word: str) -> Iterator[str]:
    """The pieces of a literal word that a program could take for a path: the word, a value after `=` or `-X`."""
    if "://" in word:
        return
    if not word.startswith("-") and word:
        yield word
    if "=" in word:
        value = word.partition("=")[2]
        if value:
            yield value
    elif word.startswith("-") and not word.startswith("--") and len(word) > 2:
        yield word[2:]
