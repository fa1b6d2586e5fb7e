"""Edits as values: exactly the asked bytes change, and what is not certain is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.tools.diffs import describe, unified
from agent.tools.edits import CurrentFile, EditRefused, FileBytes, PlannedEdit, digest, plan
from agent.tools.schemas import EditArguments, EditingArguments, PatchArguments, WriteArguments
from eventlog.effects import FileChange
from eventlog.ids import Digest
from eventlog.outcomes import FileSeen

PATH = "a.txt"


def planned(arguments: EditingArguments, content: bytes | None, seen: bytes | None = None, mode: int = 0o644):
    files = {PATH: CurrentFile(PATH, content, mode if content is not None else None)}
    return plan(arguments, files, {PATH: digest(seen)} if seen is not None else {})


def edited(content: bytes, old: str, new: str, replace_all: bool = False) -> bytes:
    result = planned(EditArguments(path=PATH, old_text=old, new_text=new, replace_all=replace_all), content)
    assert isinstance(result, PlannedEdit), result
    (change,) = result.changes
    assert change.before == content
    assert change.after is not None
    return change.after


def refused(arguments: EditingArguments, content: bytes | None, seen: bytes | None = None) -> str:
    result = planned(arguments, content, seen)
    assert isinstance(result, EditRefused), result
    return result.text


def edit(old: str, new: str) -> EditArguments:
    return EditArguments(path=PATH, old_text=old, new_text=new)


@pytest.mark.parametrize(
    "content",
    [
        b"one\r\nword\r\nthree\r\n",
        b"one\r\nword\nthree\r\n",
        b"\xef\xbb\xbfword\nthree\n",
        b"one\nword",
        b"\tone\n\t\tword\t\n",
        b"one   \nword  \n\n\n",
        "caf\u00e9 word \u00e9\n".encode(),
        "cafe\u0301 word e\u0301\n".encode(),
        b"latin \xe9 word \xff\n",
        b"word\r\rx\r\n",
    ],
)
def test_a_one_word_edit_changes_exactly_the_word(content: bytes):
    assert edited(content, "word", "WORDS") == content.replace(b"word", b"WORDS")


def test_an_empty_file_takes_its_first_text_and_has_no_word():
    assert edited(b"", "", "hello\n") == b"hello\n"
    assert "does not hold old_text" in refused(edit("word", "x"), b"")
    assert "is not empty" in refused(edit("", "x"), b"y")


def test_line_feeds_match_crlf_lines_and_new_lines_end_alike():
    assert edited(b"a\r\nb\r\nc\r\n", "a\nb\n", "a\nnew\nb\n") == b"a\r\nnew\r\nb\r\nc\r\n"
    assert edited(b"a\r\nb\r\n", "a", "a\nnew") == b"a\r\nnew\r\nb\r\n"
    assert edited(b"a\r\nb\r\nc", "\nb\n", "\n") == b"a\r\nc"


def test_unchanged_lines_of_a_mixed_file_keep_their_own_ends():
    assert edited(b"a\r\nfoo\nb\r\n", "a\nfoo\nb", "a\nbar\nb") == b"a\r\nbar\nb\r\n"
    assert edited(b"a\nfoo\r\nb\r\nc\n", "a\nfoo\nb\nc", "a\nx\ny\nb\nc") == b"a\nx\r\ny\r\nb\r\nc\n"


def test_carriage_returns_that_the_model_wrote_are_taken_at_their_word():
    assert edited(b"a\r\nb\r\n", "a\r\nb", "a\nb") == b"a\nb\r\n"
    assert edited(b"a\nb\n", "a\n", "a\r\n") == b"a\r\nb\n"


def test_text_that_occurs_with_both_line_ends_is_ambiguous():
    assert "2 times (lines 1, 3)" in refused(edit("a\nb", "x"), b"a\nb\na\r\nb\n")


def test_two_matches_are_refused_with_their_lines_and_replaced_on_request():
    assert "holds old_text 2 times (lines 1, 3)" in refused(edit("x", "y"), b"x\n-\nx\n")
    assert edited(b"x\n-\nx\n", "x", "y", replace_all=True) == b"y\n-\ny\n"


def test_overlapping_matches_are_two():
    assert "2 times" in refused(edit("aa", "b"), b"aaa")
    assert edited(b"\r\nx", "\nx", "\ny") == b"\r\ny"


def test_no_match_names_the_nearest_lines():
    told = refused(edit("def total(values):\n    pass", "x"), b"import os\ndef total(values, start):\n    return 1\n")
    assert 'line 2: "def total(values, start):"' in told
    assert "differs in white space only" in refused(edit("if  x:\n\treturn", "x"), b"a\nif x:\n    return\n")


def test_binary_and_utf16_are_refused():
    assert "is binary" in refused(edit("a", "b"), b"a\0b")
    assert "UTF-16" in refused(edit("a", "b"), "a".encode("utf-16"))


def test_other_encodings_take_ascii_only():
    assert "not UTF-8" in refused(edit("word", "wörd"), b"\xe9 word")


def test_a_missing_file_and_an_edit_that_changes_nothing_are_refused():
    assert "does not exist" in refused(edit("a", "b"), None)
    assert "the same" in refused(edit("a", "a"), b"a")


def test_twenty_megabytes_are_edited():
    content = b"0123456789abcde\n" * (20 * 65536)
    content = content[:-16] + b"the only word..\n"
    assert edited(content, "only", "ONLY") == content[:-16] + b"the ONLY word..\n"


@given(before=st.binary(max_size=200), after=st.binary(max_size=200), new=st.text("xyz\u00e9", min_size=1, max_size=20))
def test_an_edit_of_a_unique_word_leaves_every_other_byte(before: bytes, after: bytes, new: str):
    word = b"<<word>>"
    content = before.replace(b"\0", b"") + word + after.replace(b"\0", b"")
    if content.count(word) != 1 or content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return
    result = planned(edit(word.decode(), new), content)
    if isinstance(result, EditRefused):
        assert "not UTF-8" in result.text
        assert not new.isascii()
    else:
        assert result.changes[0].after == content.replace(word, new.encode())


def test_the_announced_hashes_are_those_of_the_bytes():
    result = planned(WriteArguments(path=PATH, content="new\n"), b"old\n", seen=b"old\n", mode=0o755)
    assert result == PlannedEdit(
        (FileBytes(PATH, b"old\n", b"new\n", 0o755),),
        (FileChange(path=PATH, before=digest(b"old\n"), after=digest(b"new\n"), mode=0o755),),
        (FileSeen(path=PATH, digest=digest(b"new\n")),),
    )


def test_a_new_file_is_written_and_known_afterwards():
    result = planned(WriteArguments(path=PATH, content="x"), None)
    assert isinstance(result, PlannedEdit)
    assert result.changes == (FileBytes(PATH, None, b"x", 0o644),)
    assert result.seen == (FileSeen(path=PATH, digest=digest(b"x")),)


def test_writing_over_a_file_that_was_never_read_is_refused_without_showing_it():
    told = refused(WriteArguments(path=PATH, content="x"), b"secret of somebody")
    assert "was not read yet" in told
    assert "secret" not in told


def test_writing_over_a_file_that_changed_since_is_refused_with_its_head():
    told = refused(WriteArguments(path=PATH, content="x"), b"fresh\nlines\n", seen=b"stale\nlines\n")
    assert "has changed since it was read" in told
    assert "     1\tfresh" in told


def test_writing_what_is_there_is_refused():
    assert "already has exactly" in refused(WriteArguments(path=PATH, content="x"), b"x")


def test_an_edit_of_an_unread_file_does_not_count_as_having_read_it():
    arguments = edit("a", "b")
    unread, read = planned(arguments, b"a"), planned(arguments, b"a", seen=b"a")
    assert isinstance(unread, PlannedEdit)
    assert isinstance(read, PlannedEdit)
    assert unread.seen == ()
    assert read.seen == (FileSeen(path=PATH, digest=digest(b"b")),)


def test_a_redaction_marker_that_the_file_did_not_have_is_refused():
    marker = "[redacted:0123abcd]"
    assert "stands for a secret" in refused(WriteArguments(path=PATH, content=f"k={marker}"), None)
    assert "stands for a secret" in refused(edit("k=1", f"k={marker}"), b"k=1")
    assert edited(f"{marker} old".encode(), "old", "new") == f"{marker} new".encode()
    assert "not shown" in refused(edit(marker, "x"), b"k=1")


def test_people_see_a_diff_and_the_model_a_line():
    result = planned(edit("two", "2\n2b"), b"one\ntwo\nthree\n")
    assert isinstance(result, PlannedEdit)
    assert describe(result) == "Edited a.txt. (+2 -1 lines)"
    assert unified(result) == "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,4 @@\n one\n-two\n+2\n+2b\n three\n"


def test_a_diff_counts_lines_from_the_start_of_the_file():
    content = b"".join(b"%d\n" % i for i in range(1, 101))
    result = planned(edit("\n50\n", "\nfifty\n"), content)
    assert isinstance(result, PlannedEdit)
    assert "@@ -47,7 +47,7 @@\n 47\n 48\n 49\n-50\n+fifty\n 51" in unified(result)


def test_a_seen_digest_of_another_content_is_not_enough():
    files = {PATH: CurrentFile(PATH, b"b", 0o644)}
    result = plan(WriteArguments(path=PATH, content="x"), files, {PATH: Digest("0" * 64)})
    assert isinstance(result, EditRefused)


line_lists = st.lists(st.sampled_from(["a", "b", "", "ab", "c"]), max_size=8)


@given(old=line_lists, new=line_lists, ended=st.tuples(st.booleans(), st.booleans()))
def test_the_diff_for_people_is_a_patch(old: list[str], new: list[str], ended: tuple[bool, bool]):
    before, after = (
        ("\n".join(lines) + ("\n" if end and lines else "")).encode()
        for lines, end in zip((old, new), ended, strict=True)
    )
    if before == after or not before:
        return
    written = planned(WriteArguments(path=PATH, content=after.decode()), before, seen=before)
    assert isinstance(written, PlannedEdit)
    files = {PATH: CurrentFile(PATH, before, 0o644)}
    again = plan(PatchArguments(patch=unified(written)), files, {})
    assert isinstance(again, PlannedEdit), (unified(written), again)
    assert again.changes[0].after == after


def test_a_line_put_first_counts_as_one_line():
    result = planned(edit("b", "a\nb"), b"b\n")
    assert isinstance(result, PlannedEdit)
    assert describe(result) == "Edited a.txt. (+1 -0 lines)"
