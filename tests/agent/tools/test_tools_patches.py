"""Patches in both forms: context is matched, all files change or none."""

import difflib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.tools.edits import CurrentFile, EditRefused, FileBytes, PlannedEdit, digest, named_paths, plan
from agent.tools.schemas import PatchArguments

Tree = dict[str, bytes]


def apply(tree: Tree, patch: str, seen: Tree | None = None) -> Tree | str:
    """The tree after the patch, or why not."""
    arguments = PatchArguments(patch=patch)
    names = named_paths(arguments)
    if isinstance(names, EditRefused):
        return names.text
    files = {name: CurrentFile(name, tree.get(name), 0o644 if name in tree else None) for name in names}
    result = plan(arguments, files, {path: digest(content) for path, content in (seen or {}).items()})
    if isinstance(result, EditRefused):
        return result.text
    after = dict(tree)
    for change in result.changes:
        assert change.before == after.get(change.path)
        after.pop(change.path, None)
        if change.after is not None:
            after[change.path] = change.after
    return after


def begin(*lines: str) -> str:
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch", ""])


def test_files_are_updated_added_deleted_and_moved_at_once():
    tree = {"a.py": b"one\ntwo\n", "old.py": b"x = 1\ny = 2\n", "gone.py": b"bye\n"}
    patch = begin(
        "*** Update File: a.py",
        "@@",
        " one",
        "-two",
        "+2",
        "*** Add File: new/b.py",
        "+hello",
        "+",
        "+there",
        "*** Delete File: gone.py",
        "*** Update File: old.py",
        "*** Move to: moved.py",
        "@@",
        "-x = 1",
        "+x = 10",
        " y = 2",
    )
    assert apply(tree, patch) == {"a.py": b"one\n2\n", "new/b.py": b"hello\n\nthere\n", "moved.py": b"x = 10\ny = 2\n"}


def test_one_hunk_that_does_not_match_leaves_every_file():
    tree = {"a.py": b"one\n", "b.py": b"two\n"}
    told = apply(tree, begin("*** Update File: a.py", "-one", "+1", "*** Update File: b.py", "-three", "+3"))
    assert told == (
        "b.py does not take hunk 1: its context and removed lines are not in the file in this order. "
        "No file was changed."
    )


def test_a_git_diff_is_applied():
    tree = {"a.py": b"one\ntwo\nthree\n", "gone.py": b"bye\n", "old.py": b"same\n"}
    patch = """Some words before.
diff --git a/a.py b/a.py
index 111..222 100644
--- a/a.py
+++ b/a.py
@@ -1,3 +1,3 @@ def f():
 one
-two
+2
 three
diff --git a/new.sh b/new.sh
new file mode 100755
--- /dev/null
+++ b/new.sh
@@ -0,0 +1 @@
+echo
\\ No newline at end of file
diff --git a/gone.py b/gone.py
deleted file mode 100644
--- a/gone.py
+++ /dev/null
@@ -1 +0,0 @@
-bye
diff --git a/old.py b/moved.py
similarity index 100%
rename from old.py
rename to moved.py
"""
    assert apply(tree, patch) == {"a.py": b"one\n2\nthree\n", "new.sh": b"echo", "moved.py": b"same\n"}


def test_a_plain_diff_without_prefixes_is_applied():
    assert apply({"a": b"1\n"}, "--- a\t2024-01-01\n+++ a\t2024-01-02\n@@ -1 +1 @@\n-1\n+2\n") == {"a": b"2\n"}


def test_removed_lines_that_look_like_headers_are_lines():
    patch = "--- a/q.sql\n+++ b/q.sql\n@@ -1,2 +1,2 @@\n--- old\n+++ new\n x\n"
    assert apply({"q.sql": b"-- old\nx\n"}, patch) == {"q.sql": b"++ new\nx\n"}


def test_wrong_counts_and_line_numbers_do_not_matter_where_the_context_is_unique():
    patch = "--- a/f\n+++ b/f\n@@ -90,1 +90,9 @@\n b\n-c\n+C\n d\n"
    assert apply({"f": b"a\nb\nc\nd\n"}, patch) == {"f": b"a\nb\nC\nd\n"}


def test_line_numbers_choose_between_equal_places():
    tree = {"f": b"x\ny\nx\ny\n"}
    assert apply(tree, "--- a/f\n+++ b/f\n@@ -3,2 +3,2 @@\n-x\n+X\n y\n") == {"f": b"x\ny\nX\ny\n"}
    told = apply(tree, "--- a/f\n+++ b/f\n@@ -2,2 +2,2 @@\n-x\n+X\n y\n")
    assert "there 2 times (lines 1, 3)" in str(told)


def test_an_anchor_line_chooses_between_equal_places():
    tree = {"f": b"class A:\n  x\nclass B:\n  x\n"}
    assert apply(tree, begin("*** Update File: f", "@@ class B:", "-  x", "+  y")) == {
        "f": b"class A:\n  x\nclass B:\n  y\n"
    }
    assert "there 2 times" in str(apply(tree, begin("*** Update File: f", "@@", "-  x", "+  y")))
    assert 'no line reads "class C:"' in str(apply(tree, begin("*** Update File: f", "@@ class C:", "-  x", "+  y")))


def test_context_may_differ_in_spaces_at_line_ends_and_is_kept_as_it_is():
    assert apply({"f": b"a  \nb\t\nc\n"}, begin("*** Update File: f", " a", "-b", "+B", " c")) == {"f": b"a  \nB\nc\n"}


def test_line_ends_are_kept_and_added_lines_end_alike():
    tree = {"f": b"a\r\nb\r\nc\n"}
    assert apply(tree, begin("*** Update File: f", " a", "-b", "+B", "+new", " c")) == {"f": b"a\r\nB\r\nnew\r\nc\n"}


def test_a_missing_final_newline_stays_missing_unless_the_diff_says_otherwise():
    assert apply({"f": b"a\nb"}, begin("*** Update File: f", " a", "-b", "+c")) == {"f": b"a\nc"}
    assert apply({"f": b"a\nb"}, begin("*** Update File: f", " b", "+c")) == {"f": b"a\nb\nc"}
    gains = "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n"
    assert apply({"f": b"a\nb"}, gains) == {"f": b"a\nb\n"}
    loses = "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n-b\n+b\n\\ No newline at end of file\n"
    assert apply({"f": b"a\nb\n"}, loses) == {"f": b"a\nb"}


def test_lines_are_appended_at_the_end_of_a_file():
    assert apply({"f": b"x\nx\n"}, begin("*** Update File: f", "@@", " x", "+y", "*** End of File")) == {
        "f": b"x\nx\ny\n"
    }
    assert apply({"f": b""}, "--- a/f\n+++ b/f\n@@ -0,0 +1,2 @@\n+a\n+b\n") == {"f": b"a\nb\n"}


def test_two_updates_of_one_file_follow_each_other():
    patch = begin("*** Update File: f", "-a", "+b", "*** Update File: f", "-b", "+c")
    assert apply({"f": b"a\n"}, patch) == {"f": b"c\n"}


@pytest.mark.parametrize(
    ("patch", "said"),
    [
        ("hello", "changes no file"),
        (begin("*** Update File: f"), "no changed lines"),
        (begin("*** Update File: f", "*oops"), "neither ' ', '-' nor '+'"),
        (begin("*** Add File: f", "+x"), "f exists already"),
        (begin("*** Add File: n", "x"), "does not begin with '+'"),
        (begin("*** Delete File: n"), "does not exist"),
        (begin("*** Update File: n", "-a", "+b"), "does not exist"),
        (begin("*** Update File: f", "*** Move to: g"), "g exists already"),
        (begin("*** Add File: n", "+x", "*** Update File: n", "-x", "+y"), "again after adding"),
        (begin("*** Update File: f", " a"), "changes nothing"),
        (begin("*** Delete File: f", "*** Add File: f/x", "+x"), "both as a file and as a folder"),
        ("diff --git a/f b/f\nGIT binary patch\nliteral 3\n", "binary"),
        ("diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc\n", "symbolic link"),
        ("@@ -1 +1 @@\n-a\n+b\n", "before any file name"),
        ("--- a/f\n+++ b/f\n@@ nonsense\n-a\n+b\n", "no line numbers"),
    ],
)
def test_a_patch_that_cannot_be_applied_says_why(patch: str, said: str):
    assert said in str(apply({"f": b"a\n", "g": b"g\n"}, patch))


def test_a_deletion_of_a_file_that_changed_since_it_was_read_is_refused():
    patch = begin("*** Delete File: f")
    assert "has changed since" in str(apply({"f": b"new\n"}, patch, seen={"f": b"old\n"}))
    assert apply({"f": b"new\n"}, patch, seen={"f": b"new\n"}) == {}


def test_a_diff_can_make_a_file_executable():
    arguments = PatchArguments(patch="diff --git a/f b/f\nold mode 100644\nnew mode 100755\n")
    result = plan(arguments, {"f": CurrentFile("f", b"x", 0o640)}, {})
    assert isinstance(result, PlannedEdit)
    assert result.changes == (FileBytes("f", b"x", b"x", 0o750),)


def test_a_moved_file_keeps_its_redaction_markers_and_gets_no_new_ones():
    tree = {"f": b"k=[redacted:0123abcd]\nx\n"}
    move = ("*** Update File: f", "*** Move to: g", "-x")
    assert apply(tree, begin(*move, "+y")) == {"g": b"k=[redacted:0123abcd]\ny\n"}
    assert "stands for a secret" in str(apply(tree, begin(*move, "+[redacted:99999999]")))


def test_a_quoted_name_is_read_as_git_writes_it():
    patch = '--- "a/caf\\303\\251 \\"x\\""\n+++ "b/caf\\303\\251 \\"x\\""\n@@ -1 +1 @@\n-a\n+b\n'
    assert apply({'café "x"': b"a\n"}, patch) == {'café "x"': b"b\n"}


lines = st.lists(st.sampled_from(["a", "b", "", " c", "-d", "+e", "-- f", "@@ g", "--- h", "+++ i"]), max_size=12)


@given(old=lines, new=lines, context=st.integers(0, 3))
def test_what_difflib_writes_is_applied(old: list[str], new: list[str], context: int):
    if old == new or not old:
        return
    diff = list(difflib.unified_diff(old, new, "a/f", "b/f", n=context, lineterm=""))
    before, after = ("".join(f"{line}\n" for line in text).encode() for text in (old, new))
    assert apply({"f": before}, "\n".join(diff) + "\n") == {"f": after}


@given(
    st.text(alphabet="*@+- \n\\ab/\r", max_size=80), st.sampled_from(["", "*** Begin Patch\n", "--- a/f\n+++ b/f\n"])
)
def test_no_text_makes_an_exception(text: str, head: str):
    if head + text:
        apply({"f": b"a\nb\n"}, head + text)
