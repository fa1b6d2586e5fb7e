"""Reading shows numbered lines whatever the bytes are, and reports the hash of what was read."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from agent.tools.edits import EditRefused, digest
from agent.tools.files import plan_edit
from agent.tools.reading import MAX_TEXT_BYTES, ReadResult, run_reading
from agent.tools.schemas import ReadArguments, TodoArguments, TodoItem
from eventlog.outcomes import ToolFailed, ToolSucceeded


def read(worktree: Path, path: str, **more: Any) -> ReadResult:
    return run_reading(worktree, ReadArguments(path=path, **more))


def shown(worktree: Path, path: str, **more: Any) -> str:
    result = read(worktree, path, **more)
    assert isinstance(result.outcome, ToolSucceeded), result
    return result.outcome.text


def failure(worktree: Path, path: str, **more: Any) -> str:
    result = read(worktree, path, **more)
    assert isinstance(result.outcome, ToolFailed), result
    return result.outcome.text


def test_a_file_is_shown_with_line_numbers_and_its_hash_reported(tmp_path: Path):
    (tmp_path / "a.py").write_bytes(b"one\n\ttwo\n")
    result = read(tmp_path, "a.py")
    assert result.outcome.text == "     1\tone\n     2\t\ttwo"
    assert result.seen == (("a.py", digest(b"one\n\ttwo\n")),)


def test_a_read_file_may_be_overwritten(tmp_path: Path):
    (tmp_path / "a.py").write_bytes(b"one\n")
    seen = dict(read(tmp_path, "a.py").seen)
    assert not isinstance(plan_edit(tmp_path, "write", json.dumps({"path": "a.py", "content": "x"}), seen), EditRefused)


def test_offset_and_limit_choose_lines_and_the_hash_is_of_the_whole(tmp_path: Path):
    content = b"".join(b"line %d\n" % i for i in range(1, 5001))
    (tmp_path / "a").write_bytes(content)
    result = read(tmp_path, "a", offset=10, limit=2)
    assert result.outcome.text == ("    10\tline 10\n    11\tline 11\n[lines 10 to 11 of 5,000; go on with offset=12]")
    assert result.seen == (("a", digest(content)),)
    assert shown(tmp_path, "a").endswith("  2000\tline 2000\n[lines 1 to 2,000 of 5,000; go on with offset=2001]")
    assert "has only 5,000 lines" in failure(tmp_path, "a", offset=6000)


def test_long_lines_and_long_files_are_cut(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"x" * 5000 + b"\nnext\n")
    assert shown(tmp_path, "a") == f"     1\t{'x' * 2000} [… 3,000 bytes of this line are not shown]\n     2\tnext"
    (tmp_path / "b").write_bytes((b"y" * 999 + b"\n") * 1000)
    text = shown(tmp_path, "b")
    assert len(text) < MAX_TEXT_BYTES + 200
    assert text.endswith("[lines 1 to 65 of 1,000; go on with offset=66]")


def test_one_line_of_50_megabytes_is_cut(tmp_path: Path):
    with (tmp_path / "a").open("wb") as file:
        for _ in range(50):
            file.write(b"z" * 1_000_000)
    assert shown(tmp_path, "a").endswith(" [… 49,998,000 bytes of this line are not shown]")


def test_a_character_cut_in_two_is_no_fault(tmp_path: Path):
    (tmp_path / "a").write_bytes(b"x" + "😀".encode() * 30_000)
    assert "\ufffd" not in shown(tmp_path, "a")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "a is empty."),
        (b"caf\xe9\n", "     1\tcaf\ufffd\n[not UTF-8: in 1 of these lines \ufffd stands for other bytes]"),
        (
            "two\nlines\n".encode("utf-16"),
            "     1\ttwo\n     2\tlines\n[UTF-16, shown as text; edit does not change it]",
        ),
        (b"\x7fELF\0\0", "a is binary (6 bytes). It begins:\n00000000  7f 45 4c 46 00 00"),
        (b"a\r\nb\r\n", "     1\ta\n     2\tb\n[CRLF line ends]"),
        (b"a\r\nb\nc\nd\n", "     1\ta\n     2\tb\n     3\tc\n     4\td\n[some lines end with CRLF, some with LF]"),
        (b"\xef\xbb\xbfbom\n", "     1\tbom"),
    ],
)
def test_any_encoding_is_shown(tmp_path: Path, content: bytes, expected: str):
    (tmp_path / "a").write_bytes(content)
    result = read(tmp_path, "a")
    assert result.outcome.text.startswith(expected)
    assert result.seen == (("a", digest(content)),)


def test_random_bytes_are_shown_without_an_exception_and_can_be_stored(tmp_path: Path):
    for seed in range(50):
        content = random.Random(seed).randbytes(4096)
        (tmp_path / "a").write_bytes(content.replace(b"\0", b"") if seed % 2 else content)
        shown(tmp_path, "a").encode()


def test_invisible_text_is_shown_and_said_and_the_file_untouched(tmp_path: Path):
    content = "ok \U000e0041\u202e\u200b 👨\u200d👩\u200d👧 سلام می\u200cخواهم\n".encode()
    (tmp_path / "README").write_bytes(content)
    text = shown(tmp_path, "README")
    assert "ok <U+E0041><U+202E><U+200B> 👨\u200d👩\u200d👧 سلام می\u200cخواهم" in text
    assert text.endswith("U+200B (1), U+202E (1), U+E0041 (1); the source holds the real ones]")
    assert (tmp_path / "README").read_bytes() == content


def test_a_folder_is_listed(tmp_path: Path):
    (tmp_path / "d/sub").mkdir(parents=True)
    (tmp_path / "d/b").touch()
    (tmp_path / "d/l").symlink_to("/etc")
    (tmp_path / b"d/bad\xff".decode("utf-8", "surrogateescape")).touch()
    assert shown(tmp_path, "d") == "d/\n  b\n  bad\ufffd\n  l@\n  sub/"
    assert "d/" in shown(tmp_path, ".")
    assert shown(tmp_path, "d/sub") == "d/sub/ is empty."


def test_a_long_folder_comes_in_parts(tmp_path: Path):
    for i in range(600):
        (tmp_path / f"f{i:03}").touch()
    assert shown(tmp_path, ".").endswith("  f499\n[100 more; go on with offset=501]")
    assert shown(tmp_path, ".", offset=501, limit=1) == "./\n  f500\n[99 more; go on with offset=502]"


def test_a_missing_file_names_similar_ones(tmp_path: Path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/Main.py").touch()
    assert failure(tmp_path, "src/mian.py") == "src/mian.py does not exist; there is src/Main.py."
    assert failure(tmp_path, "srk/main.py") == "srk/main.py does not exist; there is src."
    assert failure(tmp_path, "zzz") == "zzz does not exist; look with glob."


@pytest.mark.parametrize("path", ["../out/secret", "l/secret", "s", "/etc/passwd", "~root/x", "a\0b"])
def test_nothing_outside_the_worktree_is_read(tmp_path: Path, path: str):
    worktree, out = tmp_path / "ws", tmp_path / "out"
    worktree.mkdir()
    out.mkdir()
    (out / "secret").write_text("hidden")
    (worktree / "l").symlink_to(out)
    (worktree / "s").symlink_to(out / "secret")
    assert "outside the worktree" in failure(worktree, path)


def test_a_path_in_the_main_checkout_names_the_one_to_use(tmp_path: Path):
    worktree, main = tmp_path / "ws", tmp_path / "main"
    worktree.mkdir()
    main.mkdir()
    (main / "a").write_text("x")
    outcome = run_reading(worktree, ReadArguments(path=str(main / "a")), main).outcome
    assert str(worktree / "a") in outcome.text
    assert isinstance(outcome, ToolFailed)


def test_a_todo_list_is_echoed():
    items = (TodoItem(text="look\naround", status="done"), TodoItem(text="act", status="in_progress"))
    assert run_reading(Path("/"), TodoArguments(items=items)).outcome.text == "[x] look around\n[~] act"
