"""Shell text to its simple commands, by the bash grammar; knows nothing of what they may do.

The text is taken as bash; what the grammar cannot account for to the last byte is `NotUnderstood`.
"""

import re
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING

from agent.permissions import leaves
from agent.permissions.words import Dynamic, NotUnderstood, Parsed, Part, Place, Redirect, Word
from agent.permissions.wrappers import inside, unwrap

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

MAX_BYTES = 64 * 1024
MAX_PARTS = 200
MAX_DEPTH = 60
MAX_SCRIPTS = 6
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
_HEREDOC_PIECES = {"heredoc_start", "heredoc_body", "heredoc_end", "file_descriptor"}
_VALUES = {"simple_expansion", "expansion", "arithmetic_expansion", "brace_expression"}
_WORDS = {"word", "number", "string", "raw_string", "ansi_c_string", "concatenation"} | _VALUES
_WORDS |= {"command_substitution", "process_substitution"}
_CONTAINERS: dict[str, Place | None] = {
    "program": None,
    "list": None,
    "compound_statement": None,
    "negated_command": None,
    "do_group": None,
    "pipeline": "pipeline",
    "subshell": "subshell",
    "if_statement": "control",
    "elif_clause": "control",
    "else_clause": "control",
    "while_statement": "control",
}


def parse(text: str) -> Parsed | NotUnderstood:
    """All simple commands of a text for bash, at any depth; never raises."""
    return parse_script(text, depth=0)


def parse_script(text: str, depth: int) -> Parsed | NotUnderstood:
    """`parse` for a script that stands `depth` levels deep in others, as in `sh -c`."""
    if depth > MAX_SCRIPTS:
        return NotUnderstood("scripts are nested too deeply in each other")
    try:
        source = text.encode()
    except UnicodeEncodeError:
        return NotUnderstood("the command is not valid text")
    if len(source) > MAX_BYTES:
        return NotUnderstood(f"the command is longer than {MAX_BYTES // 1024} KiB")
    if found := _CONTROL.search(text):
        return NotUnderstood(f"the command holds the control character {found.group()!a}")
    root = _grammar().parse(source).root_node
    if root.has_error:
        return NotUnderstood("the command is not complete bash that can be read")
    if (unread := leaves.unread_text(root, source)) is not None:
        return NotUnderstood(f"a piece of the command could not be read: {unread!r}")
    walk = _Walk(source, depth)
    walk.statement(root, (), False, 0)
    if walk.failure:
        return NotUnderstood(walk.failure)
    return Parsed(tuple(walk.parts))


@cache
def _grammar() -> "Parser":
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


class _Walk:
    """Collects parts from the tree; the first thing it does not know ends in `failure`."""

    def __init__(self, source: bytes, depth: int) -> None:
        self.source = source
        self.script_depth = depth
        self.parts: list[Part] = []
        self.failure = ""

    def fail(self, reason: str) -> None:
        self.failure = self.failure or reason

    def emit(self, part: Part) -> None:
        if self.failure:
            return None
        match unwrap(part):
            case NotUnderstood(reason):
                return self.fail(reason)
            case inner, scripts:
                self.parts.extend(inner)
        for script, outer in scripts:
            parsed = parse_script(script, self.script_depth + 1)
            if isinstance(parsed, NotUnderstood):
                return self.fail(parsed.reason)
            self.parts.extend(inside(nested, outer) for nested in parsed.parts)
        if len(self.parts) > MAX_PARTS:
            self.fail(f"the command has more than {MAX_PARTS} parts")
        return None

    def statement(self, node: "Node", places: tuple[Place, ...], background: bool, depth: int) -> None:
        """Any node that stands where a command may stand."""
        if depth > MAX_DEPTH or self.failure:
            return self.fail("the command is nested too deeply")
        depth += 1
        match node.type:
            case "command" | "declaration_command" | "unset_command" | "test_command":
                self.command(node, (), places, background, depth)
            case "compound_statement" if node.children[0].type == "((":
                self.arithmetic(node, places, depth)
            case "redirected_statement" | "function_definition":
                self.redirected(node, places, background, depth)
            case "variable_assignment" | "variable_assignments":
                assigned = node.children if node.type.endswith("s") else [node]
                pairs = tuple(self.assignment(child, places, depth) for child in assigned)
                self.emit(Part("", assignments=pairs, places=places, background=background))
            case "for_statement" | "case_statement" | "case_item":
                self.control(node, (*places, "control"), depth)
            case "c_style_for_statement":
                self.arithmetic(node, (*places, "control"), depth)
            case "comment":
                if node.start_byte and self.source[node.start_byte - 1] not in b" \t\n;&|()":
                    self.fail("a comment begins in the middle of a word")
            case kind if kind in _CONTAINERS:
                place = _CONTAINERS[kind]
                self.children(node, (*places, place) if place else places, background, depth)
            case kind if node.is_named:
                self.fail(f"the command holds something that is not known here: {kind}")
        return None

    def children(self, node: "Node", places: tuple[Place, ...], background: bool, depth: int) -> None:
        for child in node.children:
            after = child.next_sibling
            ends = after is not None and after.type == "&"
            self.statement(child, places, background or ends, depth)

    def control(self, node: "Node", places: tuple[Place, ...], depth: int) -> None:
        """`for`, `select` and `case`: values are words, the rest are statements."""
        for index, child in enumerate(node.children):
            field = node.field_name_for_child(index)
            if field == "variable":
                pair = (leaves.text_of(child), Dynamic(leaves.text_of(child)))
                self.emit(Part("", assignments=(pair,), places=places))
            elif field == "value":
                self.word(child, places, depth)
            else:
                self.statement(child, places, False, depth)

    def arithmetic(self, node: "Node", places: tuple[Place, ...], depth: int) -> None:
        """`((…))` and `for ((…))`: what is substituted in them, and that a variable's value may be evaluated."""
        text = leaves.text_of(node)
        if not leaves.is_constant_arithmetic(text):
            self.emit(Part(None, (Dynamic(text),), places=places))
        self.substitutions(node, places, depth)

    def substitutions(self, node: "Node", places: tuple[Place, ...], depth: int) -> None:
        """Everything that runs inside an expression or an expansion."""
        if depth > MAX_DEPTH:
            return self.fail("the command is nested too deeply")
        for child in node.children:
            match child.type:
                case "do_group" | "compound_statement":
                    self.statement(child, places, False, depth + 1)
                case "raw_string" | "ansi_c_string" | "comment":
                    self.fail("quotes inside an expansion are read differently by different shells")
                case "variable_assignment":
                    self.assignment(child, places, depth + 1)
                case "heredoc_redirect" | "translated_string" | "subshell":
                    self.fail(f"the command holds something that is not known here: {child.type}")
                case kind if kind in _WORDS - {"word", "number"}:
                    self.word(child, places, depth + 1)
                case _ if child.child_count:
                    self.substitutions(child, places, depth + 1)
                case _ if child.is_named and leaves.has_live_text(leaves.text_of(child)):
                    self.fail("an expansion stands where it could not be read")
        return None

    def redirected(self, node: "Node", places: tuple[Place, ...], background: bool, depth: int) -> None:
        """A command, a compound or a function definition, and its redirects."""
        redirects = [child for child in node.children if child.type.endswith("_redirect")]
        body = [child for child in node.children if child not in redirects]
        simple = len(body) == 1 and body[0].type in ("command", "test_command", "declaration_command", "unset_command")
        if simple:
            return self.command(body[0], tuple(redirects), places, background, depth)
        inner: tuple[Place, ...] = (*places, "function") if node.type == "function_definition" else places
        for child in body:
            if child.type != "word":
                self.statement(child, inner, background, depth)
        found, extra = self.redirects(redirects, places, depth)
        if extra:
            self.fail("a word follows the redirect of a compound command")
        return self.emit(Part("", redirects=found, places=places, background=background))

    def command(
        self, node: "Node", outer: tuple["Node", ...], places: tuple[Place, ...], background: bool, depth: int
    ) -> None:
        """A simple command; `outer` are the redirects that the grammar hangs around it."""
        program: Word | None = None
        assignments: list[tuple[str, Word]] = []
        words: list[Word] = []
        redirects: list[Node] = []
        for child in self.apart(node.children):
            match child.type:
                case "variable_assignment":
                    assignments.append(self.assignment(child, places, depth))
                    if node.type == "declaration_command":
                        words.append(leaves.text_of(child))
                case "command_name":
                    program = self.word(child.children[0], places, depth)
                case kind if kind.endswith("_redirect"):
                    redirects.append(child)
                case _ if node.type == "test_command":
                    words.extend(self.test_words(child, places, depth))
                case _:
                    words.append(self.word(child, places, depth))
        if node.type != "command" and words:
            program, words = words[0], words[1:]
        if program == "[" and ("\n" in leaves.text_of(node) or any(map(leaves.ends_command, words))):
            self.fail("a `[` test holds an operator that the shell would read differently; use `[[`")
        found, extra = self.redirects([*redirects, *outer], places, depth)
        name = program if isinstance(program, str) else None
        if name is None and program is not None:
            words.insert(0, program)
        self.emit(Part(name, (*words, *extra), tuple(assignments), found, places, background))

    def apart(self, children: list["Node"]) -> list["Node"]:
        """The same nodes; words that touch would be one word to the shell."""
        for left, right in pairwise(children):
            if left.end_byte == right.start_byte and not right.type.endswith("_redirect"):
                self.fail("two words of the command touch each other")
        return children

    def test_words(self, node: "Node", places: tuple[Place, ...], depth: int) -> list[Word]:
        if depth > MAX_DEPTH:
            self.fail("the command is nested too deeply")
            return []
        if node.type in _WORDS:
            return [self.word(node, places, depth)]
        if node.child_count:
            return [word for child in node.children for word in self.test_words(child, places, depth + 1)]
        if node.type in ("regex", "extglob_pattern"):
            self.inert(leaves.text_of(node))
            return [Dynamic(leaves.text_of(node))]
        return [leaves.text_of(node)]

    def inert(self, text: str) -> None:
        if leaves.has_live_text(text) or re.search(r"[\s;&'\"]", text):
            self.fail("a pattern of the command could not be read")

    def assignment(self, node: "Node", places: tuple[Place, ...], depth: int) -> tuple[str, Word]:
        target, *rest = [child for child in node.children if child.is_named]
        name = leaves.text_of(target)
        if target.type == "subscript":
            self.arithmetic(target, places, depth)
            name = name.partition("[")[0]
        if not rest:
            return name, ""
        if rest[0].type == "array":
            for child in rest[0].children:
                if child.is_named:
                    self.word(child, places, depth)
            return name, Dynamic(leaves.text_of(rest[0]))
        return name, self.word(rest[0], places, depth)

    def redirects(
        self, nodes: list["Node"], places: tuple[Place, ...], depth: int
    ) -> tuple[tuple[Redirect, ...], list[Word]]:
        """The redirects in order, and the words of the command that the grammar took for more targets."""
        found: list[Redirect] = []
        extra: list[Word] = []
        for node in nodes:
            if node.type == "heredoc_redirect":
                more, words = self.heredoc(node, places, depth)
                found.extend(more)
                extra.extend(words)
                continue
            operator = "".join(leaves.text_of(child) for child in node.children if not child.is_named)
            named = [child for child in node.children if child.is_named and child.type != "file_descriptor"]
            words = [self.word(child, places, depth) for child in self.apart(named)]
            target = words[0] if words else None
            duplicates = operator.endswith("&") and isinstance(target, str) and re.fullmatch(r"\d+-?|-", target)
            here = node.type == "herestring_redirect"
            found.append(Redirect(operator, None if duplicates or here else target))
            extra.extend(words[1:])
        return tuple(found), extra

    def heredoc(self, node: "Node", places: tuple[Place, ...], depth: int) -> tuple[tuple[Redirect, ...], list[Word]]:
        """`<<`: what its body substitutes, and what stands behind it on its line."""
        found: list[Redirect] = []
        extra: list[Word] = []
        parts = {child.type: child for child in node.children}
        start, body, end = (parts.get(kind) for kind in ("heredoc_start", "heredoc_body", "heredoc_end"))
        delimiter = leaves.heredoc_delimiter(leaves.text_of(start)) if start else None
        if delimiter is None or body is None or end is None:
            self.fail("a heredoc of the command could not be read")
            return (), []
        begin, text = leaves.heredoc_text(body, end, self.source)
        if not leaves.heredoc_ends(text, end, delimiter[0], self.source):
            self.fail("a heredoc of the command ends in an unusual way")
        if delimiter[1]:
            self.heredoc_body(body, begin, text, (*places, "heredoc"), depth)
        if leaves.dash_before(node, self.source):
            extra.append("-")
        for child in node.children:
            if child.type.endswith("_redirect"):
                more, words = self.redirects([child], places, depth)
                found.extend(more)
                extra.extend(words)
            elif child.type in _WORDS:
                extra.append(self.word(child, places, depth))
            elif child.is_named and child.type not in _HEREDOC_PIECES:
                self.statement(child, places, False, depth)
        return (Redirect("<<", None), *found), extra

    def heredoc_body(self, body: "Node", begin: int, text: bytes, places: tuple[Place, ...], depth: int) -> None:
        """An expanded body; one that the grammar saw only in part is read once more behind a plain first line."""
        if not leaves.has_live_heredoc(body, begin, text):
            if any(leaves.unread_text(child, self.source) for child in body.children if child.child_count):
                self.fail("an expansion in a heredoc could not be read")
            return self.substitutions(body, places, depth)
        again = NotUnderstood("an expansion in a heredoc could not be read; quote its delimiter or leave it out")
        if not text.startswith(b".\n"):
            again = parse_script(f"cat <<END_OF_BODY\n.\n{text.decode()}END_OF_BODY\n", self.script_depth + 1)
        if isinstance(again, NotUnderstood):
            return self.fail(again.reason)
        self.parts.extend(replace(part, places=(*places, *part.places)) for part in again.parts[:-1])
        return None

    def word(self, node: "Node", places: tuple[Place, ...], depth: int) -> Word:
        """The value of a word; what runs inside it is collected on the way."""
        text = leaves.text_of(node)
        value: Word | None = None
        if depth > MAX_DEPTH:
            self.fail("the command is nested too deeply")
        elif node.type in ("command_substitution", "process_substitution"):
            if text.startswith("`") and "\\" in text:
                self.fail("a backslash inside backticks is not followed here; use $(…)")
            self.children(node, (*places, "substitution"), False, depth + 1)
            value = Dynamic(text, one_word=node.type == "process_substitution")
        elif node.type in _VALUES:
            value = self.expansion(node, text, places, depth + 1)
        elif node.type == "string":
            value = leaves.double_quoted(node)
            for child in node.children:
                if child.is_named and child.type != "string_content":
                    self.word(child, places, depth + 1)
        elif node.type == "concatenation":
            value = self.concatenation(node, text, places, depth + 1)
        else:
            value = self.plain(node, text)
        if value is not None:
            return value
        self.fail(f"a word of the command could not be read: {text[:80]!r}")
        return Dynamic(text, one_word=False)

    def plain(self, node: "Node", text: str) -> Word | None:
        match node.type:
            case "word" | "number" | "variable_name" if node.child_count == 0:
                return leaves.unquoted(text)
            case "raw_string":
                return leaves.single_quoted(text)
            case "ansi_c_string":
                return leaves.ansi_quoted(text)
            case "extglob_pattern" | "regex":
                self.inert(text)
                return Dynamic(text)
            case _:
                return None if node.is_named and node.type != "test_operator" else text

    def concatenation(self, node: "Node", text: str, places: tuple[Place, ...], depth: int) -> Word | None:
        kids = node.children
        if any(left.end_byte != right.start_byte for left, right in pairwise(kids)):
            return None
        if any(left.type == "$" and right.type != "word" for left, right in pairwise(kids)):
            return None
        if all(child.type == "word" for child in kids):
            return leaves.unquoted(text)
        return leaves.join([self.word(child, places, depth) for child in kids], text)

    def expansion(self, node: "Node", text: str, places: tuple[Place, ...], depth: int) -> Word:
        evaluates = (node.type == "expansion" and not leaves.is_quiet_expansion(text)) or (
            node.type == "arithmetic_expansion" and not leaves.is_constant_arithmetic(text)
        )
        if evaluates:
            self.emit(Part(None, (Dynamic(text),), places=places))
        self.substitutions(node, places, depth)
        return Dynamic(text, one_word=False)
