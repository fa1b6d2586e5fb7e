"""What an approval binds to: a digest of the exact call, and how long a person's yes lasts."""

import hashlib
import json
from collections.abc import Mapping
from typing import Literal

from agent.permissions.programs import words
from agent.permissions.words import NotUnderstood, Parsed
from agent.permissions.wrappers import SHELLS

ApprovalScope = Literal["once", "session", "always"]
"""once: this call and its recovery attempts; session: the same digest again; always: a rule for the user's own file."""

_NEVER_REMEMBERED = SHELLS | words(
    "python python3 node ruby perl php deno bun eval source . trap find awk git sudo ssh docker make npx uvx"
)


def digest_of(call: str, arguments: Mapping[str, object], cwd: str, agent: str, contents: Mapping[str, str]) -> str:
    """sha256 in hex of a call; equal exactly where the tool, every argument, the folder, the agent and the bytes are.

    `contents` maps each file to the hash of its pre-image (edits) or of the script (commands). Arguments are JSON
    values; anything else raises TypeError.
    """
    whole = [call, dict(arguments), cwd, agent, dict(contents)]
    text = json.dumps(whole, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def rule_to_remember(parsed: Parsed | NotUnderstood) -> str | None:
    """The exact rule that "always" would write; None for more than one command, interpreters, wrappers, redirects."""
    if isinstance(parsed, NotUnderstood) or len(parsed.parts) != 1:
        return None
    part = parsed.parts[0]
    whole = (part.program or "", *part.args)
    plain = not (part.wrappers or part.assignments or part.redirects or part.background)
    if not plain or not part.program or part.program.rpartition("/")[2] in _NEVER_REMEMBERED:
        return None
    literal = [word for word in whole if isinstance(word, str) and word and not any(c in word for c in " \t\n*()")]
    return f"shell({' '.join(literal)})" if len(literal) == len(whole) else None
