"""Decoding the leaves of the bash grammar: quotes, escapes, and the places where grammar and bash disagree.

The grammar is a guess at what bash does. What it guesses wrong (a heredoc body left unread, a quote that is
no quote inside `"${x:-'…'}"`, a joined line) is recognised here, so that the caller can refuse the text.
"""

import glob
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from agent.permissions.words import Dynamic, Word

if TYPE_CHECKING:
    from tree_sitter import Node

_PLAIN_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_STRING_ESCAPE = re.compile(r"\\([$`\"\\])")
_META = re.compile(r"[;&|<>()\n\t `$\"']")
_LIVE = re.compile(r"`|\$[\w({\[!@*#?$'\"-]|[<>]\(")
_LIVE_HEREDOC = re.compile(r"`|\$[({\[]")
_MAY_HOLD_LINES = {"raw_string", "ansi_c_string", "string_content", "heredoc_body"}
_BLANK = re.compile(r"(?:[ \t\n]|\\\n)*")
_DELIMITER = re.compile(r"'([\w.-]+)'|\"([\w.-]+)\"|\\([\w.-]+)|([\w.-]+)")
_QUIET_EXPANSION = re.compile(r"\$\{#?[A-Za-z_]\w*(?:\}|:?[-+?]|##?|%%?|\^\^?|,,?|//?[^/])")
_NUMBERS_ONLY = re.compile(r"[\d\s+\-*/%<>=!&|^~?:(),$\[\]]*")


def text_of(node: "Node") -> str:
    return (node.text or b"").decode()


def without_escapes(text: str) -> str:
    return _PLAIN_ESCAPE.sub("", text)


def unquoted(text: str) -> Word | None:
    """The value of an unquoted word; None where the shell would have cut it into more than one token."""
    bare = without_escapes(text)
    if _META.search(bare.rstrip("$")) or text.endswith("\\") or "\\\n" in text:
        return None
    value = _PLAIN_ESCAPE.sub(r"\1", text)
    if re.search(r"[{}]", bare.replace("{}", "")):
        return Dynamic(text, one_word=False)
    if re.search(r"[*?\[]", bare):
        return Dynamic(text, one_word=False, glob=value if "\\" not in text else None)
    return value


def double_quoted(node: "Node") -> Word | None:
    """The value of a "…" string; None where it holds a live expansion that the grammar did not see."""
    text = text_of(node)
    gaps = _outside(node, "string_content", node.text or b"", node.start_byte)
    if len(text) < 2 or text[-1] != '"' or _LIVE.search(without_escapes(gaps[1:-1])):
        return None
    if any(child.is_named and child.type != "string_content" for child in node.children):
        return Dynamic(text)
    if '"' in without_escapes(text[1:-1]):
        return None
    return _STRING_ESCAPE.sub(r"\1", text[1:-1].replace("\\\n", ""))


def _outside(node: "Node", inert: str, text: bytes, start: int) -> str:
    """What of a text that begins at byte `start` stands outside the node's children; a blank for each child."""
    gaps, position = b"", 0
    for child in node.children:
        if child.is_named and child.type != inert:
            gaps += text[position : child.start_byte - start] + b" "
            position = child.end_byte - start
    return (gaps + text[position:]).decode(errors="replace")


def single_quoted(text: str) -> Word | None:
    if len(text) < 2 or not (text[0] == text[-1] == "'") or "'" in text[1:-1]:
        return None
    return text[1:-1]


def ansi_quoted(text: str) -> Word | None:
    """`$'…'`: literal without escapes, else dynamic: nothing that is allowed needs them."""
    if not (text.startswith("$'") and text.endswith("'") and len(text) > 2):
        return None
    if "'" in without_escapes(text[2:-1]):
        return None
    return Dynamic(text) if "\\" in text else text[2:-1]


def join(pieces: list[Word], text: str) -> Word:
    """One word of its adjacent pieces."""
    if all(isinstance(piece, str) for piece in pieces):
        return "".join(piece for piece in pieces if isinstance(piece, str))
    one_word = all(piece.one_word for piece in pieces if isinstance(piece, Dynamic))
    globs = [glob.escape(piece) if isinstance(piece, str) else piece.glob for piece in pieces]
    known = [piece for piece in globs if piece is not None]
    return Dynamic(text, one_word, "".join(known) if len(known) == len(globs) else None)


def is_quiet_expansion(text: str) -> bool:
    """Whether `${…}` only reads a variable; `${!x}`, `${x@P}`, `${x[i]}` and `${x:i}` may evaluate its value."""
    return _QUIET_EXPANSION.match(text) is not None


def is_constant_arithmetic(text: str) -> bool:
    """Whether an arithmetic text names no variable: bash evaluates a variable's value, with substitutions."""
    return _NUMBERS_ONLY.fullmatch(text) is not None


def ends_command(word: Word) -> bool:
    """Whether a token of a `[` test would end the command, redirect it or group it in the shell."""
    return isinstance(word, str) and re.fullmatch(r"[&|;<>()]+", word) is not None


def has_live_text(text: str) -> bool:
    """Whether a piece that the grammar calls inert holds the start of an expansion that bash would run."""
    return _LIVE.search(without_escapes(text)) is not None


def heredoc_delimiter(text: str) -> tuple[str, bool] | None:
    """(delimiter, whether the body is expanded) of the word after `<<`; None for a spelling out of the ordinary."""
    match = _DELIMITER.fullmatch(text)
    if match is None:
        return None
    return next(group for group in match.groups() if group is not None), match.group(4) is not None


def heredoc_text(body: "Node", end: "Node", source: bytes) -> tuple[int, bytes]:
    """(where it begins, the lines) of a body; the grammar's own node leaves out what it did not see."""
    before = body.prev_sibling
    start = source.find(b"\n", before.end_byte if before is not None else body.start_byte) + 1
    return start, source[start : end.start_byte]


def heredoc_ends(text: bytes, end: "Node", delimiter: str, source: bytes) -> bool:
    """Whether the shell, too, would end the body at `end` and not before."""
    after = source[end.end_byte : end.end_byte + 1]
    earlier = any(line.lstrip(b"\t") == delimiter.encode() for line in text.split(b"\n"))
    return text_of(end).strip("\t") == delimiter and after in (b"", b"\n") and not earlier


def has_live_heredoc(body: "Node", start: int, text: bytes) -> bool:
    """Whether an expanded body holds more that could run than the nodes under `body`."""
    whole = _outside(body, "heredoc_content", text, start)
    return _LIVE_HEREDOC.search(without_escapes(whole)) is not None or "\\\n" in whole


def leaves(root: "Node") -> Iterator["Node"]:
    """All nodes without children, in the order of the text; a heredoc's body counts as one."""
    cursor = root.walk()
    while True:
        if (cursor.node is None or cursor.node.type != "heredoc_body") and cursor.goto_first_child():
            continue
        if cursor.node is not None:
            yield cursor.node
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return


def dash_before(redirect: "Node", source: bytes) -> bool:
    """Whether a lone `-` stands before a heredoc; the grammar drops that word of the command."""
    before = redirect.prev_sibling
    return before is not None and source[before.end_byte : redirect.start_byte].strip() == b"-"


def unread_text(root: "Node", source: bytes) -> str | None:
    """The first stretch of a node that no leaf covers and that bash would not skip as blank; None without one."""
    end, stop = (0, len(source)) if root.parent is None else (root.start_byte, root.end_byte)
    for leaf in leaves(root):
        gap = source[end : leaf.start_byte].decode()
        if not _is_skipped(gap, leaf, source):
            return gap
        if leaf.type not in _MAY_HOLD_LINES and "\\\n" in text_of(leaf):
            return text_of(leaf)
        end = max(end, leaf.end_byte)
    rest = source[end:stop].decode()
    return None if _BLANK.fullmatch(rest) else rest


def _is_skipped(gap: str, leaf: "Node", source: bytes) -> bool:
    if leaf.type == "heredoc_body" and gap.lstrip(" \t").startswith("\n"):
        return True
    if leaf.type == "<<" and leaf.parent is not None and dash_before(leaf.parent, source):
        return True
    joined = gap.replace("\\\n", "")
    return _BLANK.fullmatch(gap) is not None and (joined == gap or (joined != "" and "\n" not in joined))
