"""Characters that hide: shown. Characters that scripts and emoji need: left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.tools.invisible import reveal


@pytest.mark.parametrize(
    "text",
    [
        "plain text\twith tabs\n",
        "👨‍👩‍👧‍👦 ❤️ 👍🏽 🏳️‍🌈 🧑🏽‍🚀 1️⃣ 🇩🇪",
        "🏴󠁧󠁢󠁥󠁮󠁧󠁿 🏴󠁧󠁢󠁳󠁣󠁴󠁿",
        "مرحبا بالعالم، می‌خواهم",
        "क्‍ष श्रीमान् நன்றி ස්‍රී",
        "naïve café cafe\u0301 漢字 한국어 Ελληνικά",
    ],
)
def test_real_text_stays(text: str):
    assert reveal(text).text == text
    assert reveal(text).note == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\u202eb\u2066c", "a<U+202E>b<U+2066>c"),
        ("\U000e0001\U000e0061", "<U+E0001><U+E0061>"),
        ("🏴\U000e0061\U000e0062\U000e007f", "🏴<U+E0061><U+E0062><U+E007F>"),
        ("in\u200bvis\u2060ible\ufeff", "in<U+200B>vis<U+2060>ible<U+FEFF>"),
        ("pass\u200dword\u200c", "pass<U+200D>word<U+200C>"),
        ("x\ufe01\ufe02", "x\ufe01<U+FE02>"),
        ("a\U000e0100", "a<U+E0100>"),
        ("\x1b[31m\x00\r", "<U+001B>[31m<U+0000><U+000D>"),
        ("\u3164\xad", "<U+3164><U+00AD>"),
    ],
)
def test_hidden_text_is_shown(text: str, shown: str):
    assert reveal(text).text == shown
    assert sum(reveal(text).found.values()) == shown.count("<U+")


@given(st.text())
def test_revealing_twice_is_revealing_once(text: str):
    once = reveal(text).text
    assert reveal(once).text == once
