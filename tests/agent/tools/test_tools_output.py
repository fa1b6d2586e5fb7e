"""Output of commands as text: bounded, readable, honest about what is left out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.tools.output import MAX_CHARACTERS, command_text


def text(output: bytes, exit_code: int | None = 0) -> str:
    return command_text(output, b"", 0, exit_code, None)


def test_short_output_is_shown_whole_with_the_exit_code_when_it_is_not_zero():
    assert text(b"hello\n") == "hello"
    assert text(b"hello\n", 2) == "hello\n[exit code 2]"
    assert text(b"", None) == "[no output]\n[no exit code]"


def test_head_and_tail_are_joined_when_nothing_lies_between():
    smile = "😀".encode()
    assert command_text(b"a" + smile[:2], smile[2:] + b"b", 0, 0, "/spill") == "a😀b"


def test_a_character_cut_at_the_gap_counts_as_left_out():
    smile = "😀".encode()
    shown = command_text(b"a" + smile[:3], smile[1:] + b"b", 1000, 0, "/calls/c1/output")
    assert shown == "a\n[… 1,006 bytes omitted; whole output in /calls/c1/output]\nb"


def test_long_output_is_head_and_tail_within_the_limit():
    shown = text(b"start" + b"x" * 100_000 + b"end")
    assert shown.startswith("startx")
    assert shown.endswith("xend")
    assert "[… 84,008 bytes omitted]" in shown
    assert len(shown) <= MAX_CHARACTERS + 100


def test_a_gigabyte_of_output_is_counted():
    shown = command_text(b"y\n" * 32_768, b"y\n" * 32_768, 10**9 - 131_072, 137, "/spill")
    assert f"[… {10**9 - MAX_CHARACTERS:,} bytes omitted; whole output in /spill]" in shown
    assert len(shown) <= MAX_CHARACTERS + 100


def test_a_short_head_leaves_its_room_to_the_tail():
    shown = command_text(b"head", b"t" * 50_000, 10, 0, None)
    assert shown.count("t") > MAX_CHARACTERS - 100


def test_progress_bars_show_their_last_state():
    assert text(b"get  1%\rget 50%\rget 100%\ndone\r\n") == "get 100%\ndone"
    assert text(b"10%\r20%\r") == "20%"


def test_terminal_control_is_removed():
    assert (
        text(b"\x1b[1;31mred\x1b[0m \x1b]0;title\x07x\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\ \x1b(Bok\x07")
        == "red xlink ok"
    )
    assert text(b"N\x08NA\x08A") == "NA"
    assert command_text(b"a\x1b[3", b"b", 5, 0, None).startswith("a\n[…")


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (b"caf\xe9", "caf\ufffd"),
        (
            b"a\0b",
            "a<U+0000>b\n[invisible or control characters are shown as <U+…>: U+0000 (1);",
        ),
        ("x\u202ey".encode(), "x<U+202E>y"),
    ],
)
def test_odd_bytes_are_visible(output: bytes, shown: str):
    assert text(output).startswith(shown)


@given(st.binary(max_size=300), st.binary(max_size=300), st.integers(0, 10), st.integers(200, 400))
def test_any_bytes_make_a_storable_text_within_the_limit(head: bytes, tail: bytes, omitted: int, limit: int):
    shown = command_text(head, tail, omitted, 0, None, limit=limit)
    shown.encode()
    body = shown.split("\n[invisible")[0]
    assert len(body) <= limit + 60
