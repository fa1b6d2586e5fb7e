"""Verdicts on a tool call, the permission modes and the sandbox settings."""

from dataclasses import dataclass
from typing import Literal, assert_never

Mode = Literal["plan", "ask", "auto", "bypass"]
Sandbox = Literal["read-only", "workspace-write", "off"]


@dataclass(frozen=True, slots=True)
class Allow:
    """The call runs without a question."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A person must say yes; with nobody there the call is withheld, recorded and told to the model."""

    reason: str
    why_sandbox_is_not_enough: str = ""
    """Why the call must leave the sandbox; empty where the question comes from the mode or a rule alone."""


@dataclass(frozen=True, slots=True)
class Deny:
    """The call does not run; the reason is a sentence for the model that says what to do instead."""

    reason: str


Verdict = Allow | Ask | Deny


def severity(verdict: Verdict) -> int:
    match verdict:
        case Allow():
            return 0
        case Ask(why_sandbox_is_not_enough=why):
            return 2 if why else 1
        case Deny():
            return 3
        case _:
            assert_never(verdict)


def strictest(*verdicts: Verdict) -> Verdict:
    """The strictest of the verdicts, the first of equals; Deny > Ask (leaving the sandbox first) > Allow.

    With no verdict at all there is nothing to run, which is allowed.
    """
    return max(verdicts, key=severity, default=Allow("there is nothing to run"))
