"""The verdict on a tool call: a pure function of parsed text, facts, mode, sandbox and rules."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, assert_never

from agent.permissions.facts import CommandFacts, PartFacts
from agent.permissions.git import effect_of
from agent.permissions.paths import PathFacts
from agent.permissions.programs import Reading, read_only
from agent.permissions.rules import Action, Rules, command_matches, path_matches
from agent.permissions.verdicts import Allow, Ask, Deny, Mode, Sandbox, Verdict, strictest
from agent.permissions.words import Dynamic, NotUnderstood, Parsed, Part, Redirect, path_candidates
from agent.permissions.wrappers import base_name

Access = Literal["read", "write"]

_DEVICES = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/zero", "/dev/fd/1", "/dev/fd/2"})
_SYSTEM = ("/usr", "/bin", "/lib", "/lib64", "/proc", "/dev", "/tmp")
"""Folders that the sandbox shows read-only or keeps private, so that naming them is not leaving it."""
_ELEVATING = frozenset({"sudo", "doas", "su", "pkexec"})
_NETWORK_FILES = ("/dev/tcp/", "/dev/udp/")


@dataclass(frozen=True, slots=True)
class _Case:
    """One part with all that its verdict depends on."""

    part: Part
    where: PartFacts
    facts: CommandFacts
    mode: Mode
    sandbox: Sandbox
    rules: Rules

    def located(self, word: str) -> tuple[PathFacts, ...]:
        return self.where.paths.get(word, ())

    @property
    def named(self) -> Iterator[PathFacts]:
        """Every place that a word of the part may name; redirects apart."""
        words = [self.part.program or "", *self.part.args]
        for word in words:
            pieces = path_candidates(word) if isinstance(word, str) else [word.glob or ""]
            for piece in pieces:
                yield from self.located(piece)


def judge_command(
    parsed: Parsed | NotUnderstood, facts: CommandFacts, mode: Mode, sandbox: Sandbox, rules: Rules
) -> Verdict:
    """The strictest verdict of all parts of a shell command; `facts` come from `facts.gather` on the same `parsed`."""
    if isinstance(parsed, NotUnderstood):
        return _judge_unread(parsed, mode, rules)
    cases = [_Case(p, w, facts, mode, sandbox, rules) for p, w in zip(parsed.parts, facts.parts, strict=True)]
    if mode == "bypass":
        return strictest(*(_bypassed(case) for case in cases))
    network = [_network_verdict(mode)] if facts.network else []
    return strictest(*network, *(_judge_part(case) for case in cases))


def _judge_unread(unread: NotUnderstood, mode: Mode, rules: Rules) -> Verdict:
    match mode:
        case "ask":
            return Ask(f"The command was not understood: {unread.reason}.")
        case "auto" | "plan":
            return Deny(f"The command was not understood: {unread.reason}. Write it more plainly.")
        case "bypass":
            if rules.of("shell", "deny"):
                return Deny(f"The command was not understood ({unread.reason}), so the deny rules cannot be checked.")
            return Allow("all questions are bypassed")
        case _:
            assert_never(mode)


def _network_verdict(mode: Mode) -> Verdict:
    if mode == "plan":
        return Deny("Plan mode only reads; the network is not available.")
    return Ask("The command asks for the network.", "the sandbox has no network")


def _bypassed(case: _Case) -> Verdict:
    return _command_rule(case, "deny") or Allow("all questions are bypassed")


def _command_rule(case: _Case, action: Action) -> Verdict | None:
    """What the rules of one action say of a part, the strictest first; None where they say nothing."""
    found: list[Verdict] = []
    for rule in case.rules.of("shell", action):
        match command_matches(rule, case.part):
            case "no":
                continue
            case "perhaps":
                found.append(Ask(f"The command may be one that the rule {rule.text} speaks of."))
            case "yes":
                found.append(_ruled(action, rule.text, f"`{case.part.text}`"))
    return strictest(*found) if found else None


def _ruled(action: Action, rule: str, what: str) -> Verdict:
    match action:
        case "deny":
            return Deny(f"The rule {rule} denies {what}.")
        case "ask":
            return Ask(f"The rule {rule} asks before {what}.")
        case "allow":
            return Allow(f"the rule {rule} allows it")
        case _:
            assert_never(action)


def _judge_part(case: _Case) -> Verdict:
    denied = _command_rule(case, "deny")
    if isinstance(denied, Deny):
        return denied
    reading = _reading(case)
    held = [verdict for verdict in (denied, _command_rule(case, "ask")) if verdict is not None]
    redirects = [_judge_redirect(redirect, case) for redirect in case.part.redirects]
    return strictest(*redirects, *held, *_walls(case, reading), _judge_alone(case, reading))


def _reading(case: _Case) -> Reading | None:
    """What the table says of a part in the place where it runs."""
    reading = read_only(case.part)
    if reading is None or (reading.needs_root and (not case.where.at_root or case.facts.git_runs_programs)):
        return None
    if reading.paths and not case.where.cwd_known:
        return None
    if any(isinstance(word, Dynamic) and word.glob is None for word in reading.paths):
        return None
    return reading


def _walls(case: _Case, reading: Reading | None) -> Iterator[Verdict]:
    """What no mode but bypass and no allow rule opens."""
    named = _read_paths(case, reading) if reading is not None else case.named
    for path in named:
        if path.in_main_checkout:
            yield _in_main(path)
        elif path.escapes:
            yield _escaping(path)
        elif path.protected and path.inside and reading is None and case.part.program != "cd":
            yield _protected(path)
        for access in ("read",) if reading is not None else ("read", "write"):
            yield from _file_rules(path, access, case.rules, ("deny", "ask"))
    is_git = base_name(case.part.program) == "git" and reading is None
    if is_git and case.facts.own_worktree and effect_of(case.part.args) == "worktree":
        yield Deny(
            f"`{case.part.text}` would change the index or HEAD, which the shell cannot; "
            "use the tool `commit` to record work, and `edit`, `write` or a rewind to change files back."
        )


def _read_paths(case: _Case, reading: Reading) -> Iterator[PathFacts]:
    for word in reading.paths:
        yield from case.located(word if isinstance(word, str) else word.glob or "")


def _judge_alone(case: _Case, reading: Reading | None) -> Verdict:
    """The verdict on a part without its redirects, where no deny rule met it."""
    allowed = _command_rule(case, "allow")
    if case.mode == "plan":
        if reading is None:
            return Deny(f"Plan mode only reads; `{_shown(case.part)}` may change something.")
        return _judge_reading(case, reading)
    if allowed is not None and not (case.mode == "auto" and not _is_confined(case) and reading is None):
        return allowed
    if reading is not None:
        return _judge_reading(case, reading)
    if why := _must_leave(case):
        return Ask(f"`{_shown(case.part)}` {why}.", why)
    if case.mode == "ask":
        return Ask(f"`{_shown(case.part)}` is not known to only read.")
    if not _is_confined(case):
        return Ask(f"`{_shown(case.part)}` would run without a sandbox.", "there is no sandbox")
    return Allow("it runs confined to the worktree")


def _shown(part: Part) -> str:
    return part.text or " ".join(f"{name}=…" for name, _ in part.assignments) or " ".join(part.wrappers)


def _is_confined(case: _Case) -> bool:
    return case.facts.confined and case.sandbox != "off"


def _judge_reading(case: _Case, reading: Reading) -> Verdict:
    """A part of the table: each file it names is a read; a search through everything meets the read rules too."""
    shown = case.mode == "auto" and _is_confined(case)
    paths = [path for path in _read_paths(case, reading) if path.inside or not shown or _is_really_outside(path)]
    verdicts = [judge_file(path, "read", case.mode, case.rules) for path in paths]
    if reading.contents and case.rules.guards_reads:
        verdicts.append(Ask(f"`{case.part.text}` may show files that a rule keeps from being read."))
    return strictest(*verdicts, Allow("it only reads"))


def _must_leave(case: _Case) -> str:
    """Why a part cannot do its work inside the sandbox; empty where it can."""
    part = case.part
    if elevated := _ELEVATING & {*part.wrappers, base_name(part.program)}:
        return f"needs the rights of another user ({', '.join(sorted(elevated))})"
    if base_name(part.program) == "git":
        effect = effect_of(part.args)
        if effect in ("shared", "network"):
            return "changes or reads what is shared beyond this worktree"
        if not case.facts.own_worktree and effect == "worktree":
            return "may destroy work in your checkout"
    for path in case.named:
        if path.sensitive:
            return f"names {path.given}, which may hold secrets"
        if not path.inside and not path.in_main_checkout and _is_really_outside(path):
            return f"names {path.given}, which is outside the worktree"
    return ""


def _is_really_outside(path: PathFacts) -> bool:
    """Whether a word is a place that the sandbox does not show; `/api/v1` as an argument is no path."""
    if path.given.startswith(("~", "..")):
        return True
    text = path.real.as_posix()
    if any(text == folder or text.startswith(folder + "/") for folder in _SYSTEM):
        return False
    return path.exists or path.parent_exists


def _judge_redirect(redirect: Redirect, case: _Case) -> Verdict:
    target = redirect.target
    if target is None:
        return Allow("it names no file")
    if isinstance(target, str) and target in _DEVICES:
        return Allow("it is a device that keeps nothing")
    if isinstance(target, str) and target.startswith(_NETWORK_FILES):
        return _network_verdict(case.mode)
    access: Access = "write" if redirect.writes else "read"
    paths = case.located(target if isinstance(target, str) else target.glob or "")
    unknown = isinstance(target, Dynamic) or not case.where.cwd_known or not paths
    verdicts = [judge_file(path, access, case.mode, case.rules) for path in paths]
    if unknown:
        verdicts.append(_unknown_target(redirect, case))
    elif access == "write" and case.mode == "auto" and not (_is_confined(case) and case.sandbox == "workspace-write"):
        verdicts.append(Ask("The command writes a file, and the sandbox does not let it.", "it is off or read-only"))
    return strictest(*verdicts)


def _unknown_target(redirect: Redirect, case: _Case) -> Verdict:
    text = redirect.target.text if isinstance(redirect.target, Dynamic) else redirect.target
    if case.mode == "auto" and _is_confined(case):
        return Allow("it runs confined to the worktree")
    if case.mode == "plan":
        return Deny(f"Plan mode only reads; where {redirect.operator} {text} leads is not known.")
    return Ask(f"Where {redirect.operator} {text} leads is not known.")


def _in_main(path: PathFacts) -> Deny:
    return Deny(f"{path.given} is in the user's checkout; use {path.in_main_checkout}, the same file in your worktree.")


def _escaping(path: PathFacts) -> Deny:
    return Deny(f"{path.given} is a symbolic link that leads out of the worktree to {path.real}.")


def _protected(path: PathFacts) -> Deny:
    return Deny(f"{path.given} is protected ({path.protected}): tools and commands do not write it.")


def _file_rules(
    path: PathFacts, access: Access, rules: Rules, actions: tuple[Action, ...] = ("deny", "ask", "allow")
) -> Iterator[Verdict]:
    """What the file rules say of a path, the strictest action first; at most one verdict."""
    for action in actions:
        for rule in rules.of("read" if access == "read" else "edit", action):
            if path_matches(rule, path):
                yield _ruled(action, rule.text, path.given)
                return


def judge_file(facts: PathFacts, access: Access, mode: Mode, rules: Rules) -> Verdict:
    """The verdict on reading or writing one path with a file tool."""
    ruled = next(_file_rules(facts, access, rules), None)
    if isinstance(ruled, Deny):
        return ruled
    if mode == "bypass":
        return Allow("all questions are bypassed")
    if facts.in_main_checkout:
        return _in_main(facts)
    if facts.escapes:
        return _escaping(facts)
    return _judge_write(facts, mode, ruled) if access == "write" else _judge_read(facts, ruled)


def _judge_write(facts: PathFacts, mode: Mode, ruled: Verdict | None) -> Verdict:
    if not facts.inside:
        return Deny(f"{facts.given} is outside the worktree; write inside it.")
    if facts.protected:
        return _protected(facts)
    if mode == "plan":
        return Deny(f"Plan mode only reads; {facts.given} is not written.")
    if ruled is not None:
        return ruled
    if mode == "ask":
        return Ask(f"{facts.given} would be written.")
    return Allow("it is inside the worktree")


def _judge_read(facts: PathFacts, ruled: Verdict | None) -> Verdict:
    if ruled is not None:
        return ruled
    if not facts.inside:
        return Ask(f"{facts.given} is outside the worktree.", "the sandbox shows only the worktree")
    if facts.sensitive:
        return Ask(f"{facts.given} may hold secrets.")
    return Allow("it is inside the worktree")


def judge_tool(name: str, mode: Mode, rules: Rules, *, external: bool) -> Verdict:
    """The verdict on any other tool, by its name; `external` = it reaches beyond this machine or cannot be repeated."""
    for action in ("deny", "ask", "allow"):
        # Nothing is known of what a pattern would mean here: it tightens every call, and loosens none.
        usable = [rule for rule in rules.of(name, action) if action != "allow" or rule.pattern is None]
        rule = next(iter(usable), None)
        if rule is None or (mode == "bypass" and action != "deny"):
            continue
        if action == "deny":
            return Deny(f"The rule {rule.text} denies {name}.")
        if mode == "plan" and external:
            break
        return Ask(f"The rule {rule.text} asks before {name}.") if action == "ask" else Allow(f"the rule {rule.text}")
    if mode == "bypass" or not external:
        return Allow("it stays inside the session")
    if mode == "plan":
        return Deny(f"Plan mode only reads; {name} reaches outside.")
    return Ask(f"{name} reaches outside.", "an external tool does not run in the sandbox")
